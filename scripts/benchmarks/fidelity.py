"""Benchmark of the timing harness: twelve compiled functions timed by the harness and by a handwritten loop.

For each function, the median ratio (harness over handwritten) of many short blocks is printed with its rank
interval. A block is a turn of the harness and the same number of handwritten samples, in random order. The
twelve intervals hold simultaneously with 95 % confidence. Exit status: 0 if every interval contains 1 and
extends at most 5 % to either side, 1 if an interval excludes 1, 3 (inconclusive) if an interval is wider.
"""

import os
import sys

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # before JAX starts its threads

import functools
import gc
import random
import statistics
import time

import jax
import jax.numpy as jnp

from scaling.core import run_case, timing
from scaling.core.timing import Sampling, median_interval

BLOCKS, WIDTH = 200, 0.05
WRONG, INCONCLUSIVE = 1, 3
SAMPLING = Sampling(width=0.0, least=1, most=10**6, seconds=0.05, turns=1)


def f(x):
    return jnp.sin(x) * jnp.exp(-x * x)


def g(x):
    return jnp.sum(jnp.tanh(x @ x.T)) / x.size


SQUARE, LINE = jax.ShapeDtypeStruct((128, 128), jnp.float32), jax.ShapeDtypeStruct((200_000,), jnp.float32)
FUNCTIONS = {
    "negative of 8 numbers": (lambda x: -x, jax.ShapeDtypeStruct((8,), jnp.float32)),
    "sum of 200,000": (jnp.sum, LINE),
    "sin exp of 200,000": (f, LINE),
    "its derivative": (jax.vmap(jax.grad(f)), LINE),
    "its second derivative": (jax.vmap(jax.grad(jax.grad(f))), LINE),
    "running sum of 200,000": (jnp.cumsum, LINE),
    "product of 128 x 128": (lambda x: x @ x, SQUARE),
    "gradient through a product": (jax.grad(g), SQUARE),
    "jvp through a product": (lambda x: jax.jvp(g, (x,), (x,))[1], SQUARE),
    "jacobian of 64 by 64": (jax.jacfwd(lambda x: jnp.tanh(jnp.outer(x, x) @ x)), jax.ShapeDtypeStruct((64,), jnp.float32)),
    "jacobian of 64 by 64, reverse": (
        jax.jacrev(lambda x: jnp.tanh(jnp.outer(x, x) @ x)), jax.ShapeDtypeStruct((64,), jnp.float32),
    ),
    "scan of 100 steps": (lambda x: jax.lax.scan(lambda y, _: (jnp.cos(y), None), x, length=100)[0], SQUARE),
}  # fmt: skip


def time_by_hand(compiled, x, calls: int, samples: int) -> list[float]:
    """Return samples of the seconds per call, each the mean of `calls` blocking calls, after a warm-up."""
    compiled(x).block_until_ready()
    seconds = []
    gc.disable()
    for _ in range(samples):
        began = time.perf_counter()
        for _ in range(calls):
            compiled(x).block_until_ready()
        seconds.append((time.perf_counter() - began) / calls)
    gc.enable()
    return seconds


def ratio(function, struct) -> tuple[float, float, float]:
    """Return (ratio, low, high): the median ratio of the harness's times to handwritten times of a function.

    `struct` is the shape and dtype of the argument of the function.
    """
    x = jax.random.normal(jax.random.key(0), struct.shape, struct.dtype)
    compiled = jax.jit(function).lower(x).compile()
    steps = timing.sample_turns(functools.partial(compiled, x), SAMPLING, run_case.make_waiter(compiled(x)))
    samples, ratios, shuffled = next(steps), [], random.Random(0)
    for _ in range(BLOCKS):
        count, first = samples.turns[-1], shuffled.random() < 0.5
        hand = time_by_hand(compiled, x, samples.calls_per_sample, count) if first else []
        samples = next(steps)
        hand = hand or time_by_hand(compiled, x, samples.calls_per_sample, count)
        ratios.append(statistics.median(samples.seconds[-samples.turns[-1] :]) / statistics.median(hand))
    low, high = median_interval(ratios, 1 - 0.05 / len(FUNCTIONS)) or (0.0, float("inf"))
    return statistics.median(ratios), low, high


def main() -> int:
    """Print the ratio of harness to handwritten time of each function, and return the exit status."""
    status = 0
    for name, (function, struct) in FUNCTIONS.items():
        middle, low, high = ratio(function, struct)
        is_wide = max(high / middle, middle / low) > 1 + WIDTH
        is_wrong = not low <= 1 <= high
        verdict = "inconclusive: too wide" if is_wide else "wrong: 1 is outside" if is_wrong else "true"
        print(f"{name:32} harness / by hand {middle:.3f} ({low:.3f} to {high:.3f})  {verdict}", flush=True)
        status = max(status, INCONCLUSIVE if is_wide else WRONG if is_wrong else 0)
    return status


if __name__ == "__main__":
    sys.exit(main())
