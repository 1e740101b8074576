"""Benchmark of `scaling advise`: the regret of its advice on twelve families of functions, on one core.

    scripts/bench advise [FAMILY...] [shapes=8] [budget=20] [truth=60]
    scripts/bench advise more                  twelve other families, half of them with sparse Jacobians

For each function, all candidates that fit are measured for `truth` seconds. The regret of a choice is its time
over that of the fastest, minus one. The choices are those of the advice by compiling alone, of the advice with
a budget of seconds, and of rules that people use. A choice that was not compiled or measured is a lost case.
Prints a Markdown table, and the cases where the advice loses more than 10 %.
"""

import contextlib
import os
import statistics
import sys

from scaling.launcher import cores

os.sched_setaffinity(0, cores.usable_cores()[:1])  # before NumPy and JAX start their threads

import jax
import jax.numpy as jnp
import numpy as np

from scaling.advice import advisor, measurement
from scaling.core.case import Refusal
from scaling.core.formatting import format_duration
from scaling.core.record import Record

RNG = np.random.default_rng(0)
ADVICE, MEASURED = "advice by compiling alone", "advice with a budget"


def array(*shape: int) -> np.ndarray:
    """Return a float32 array of random numbers in [0.1, 1.1)."""
    return (RNG.random(shape) + 0.1).astype(np.float32)


def mlp(n, inputs, hidden, outputs):
    """Return a two-layer network with its points and shared inputs, to differentiate with respect to its input."""
    f = lambda x, a, b: b @ jnp.tanh(a @ x)  # noqa: E731
    return (
        f,
        {"x": array(n, inputs)},
        {"a": array(hidden, inputs) / inputs, "b": array(outputs, hidden) / hidden},
    )


def product(n, inputs, outputs):
    """Return sums of products of neighboring inputs, with points and shared inputs."""
    f = lambda x, w: w @ (x * jnp.roll(x, 1))  # noqa: E731
    return f, {"x": array(n, inputs)}, {"w": array(outputs, inputs)}


def runge_kutta(n, state, steps):
    """Return the RK4 solution of a nonlinear ODE, to differentiate with respect to the initial state."""
    rhs = lambda y: jnp.sin(jnp.roll(y, 1)) - 0.5 * y  # noqa: E731

    def step(y, _):
        a = rhs(y)
        b = rhs(y + 0.05 * a)
        c = rhs(y + 0.05 * b)
        d = rhs(y + 0.1 * c)
        return y + 0.1 / 6 * (a + 2 * b + 2 * c + d), None

    return (lambda y: jax.lax.scan(step, y, length=steps)[0]), {"y": array(n, state)}, {}


def kinematics(n, joints):
    """Return the positions of all joints of a planar arm, to differentiate with respect to the angles."""
    f = lambda q: jnp.stack([jnp.cumsum(jnp.cos(jnp.cumsum(q))), jnp.cumsum(jnp.sin(jnp.cumsum(q)))])  # noqa: E731
    return f, {"q": array(n, joints)}, {}


def particles(n, count):
    """Return the energy of mutually repelling particles, to differentiate with respect to their positions."""

    def energy(r):
        d = jnp.sum((r[:, None] - r[None]) ** 2, -1) + jnp.eye(count)
        return jnp.sum(1 / d)

    return energy, {"r": array(n, count, 3)}, {}


def kernel_matrix(n, rows, dimensions):
    """Return an RBF kernel of a point and support vectors, to differentiate with respect to the point."""
    f = lambda x, s: jnp.exp(-jnp.sum((x - s) ** 2, -1))  # noqa: E731
    return f, {"x": array(n, dimensions)}, {"s": array(rows, dimensions)}


def softmax_regression(n, inputs, classes):
    """Return the log-probabilities of all classes, to differentiate with respect to the weights."""
    f = lambda x, w: jax.nn.log_softmax(w @ x)  # noqa: E731
    return f, {"x": array(n, inputs)}, {"w": array(classes, inputs)}, "w"


def convolution(n, length, taps):
    """Return a nonlinear function of a 1D convolution, to differentiate with respect to the signal."""
    f = lambda x, k: jnp.tanh(jnp.convolve(x, k, mode="same"))  # noqa: E731
    return f, {"x": array(n, length)}, {"k": array(taps)}


def banded(n, size):
    """Return the residual of a nonlinear tridiagonal system of equations."""
    f = lambda x: x[1:-1] ** 3 - 2 * x[1:-1] + x[2:] * x[:-2]  # noqa: E731
    return f, {"x": array(n, size)}, {}


def reprojection(n, observed):
    """Return the image positions of points in a 9-parameter camera, to differentiate with respect to both."""

    def residual(camera, points):
        r, angle = camera[:3], jnp.sqrt(jnp.sum(camera[:3] ** 2))
        k = r / angle
        rotated = points * jnp.cos(angle) + jnp.cross(k, points) * jnp.sin(angle)
        rotated += k * (points @ k)[:, None] * (1 - jnp.cos(angle))
        p = rotated + camera[3:6]
        xy = -p[:, :2] / p[:, 2:]
        s = jnp.sum(xy**2, -1, keepdims=True)
        return camera[6] * (1 + camera[7] * s + camera[8] * s**2) * xy

    return residual, {"camera": array(n, 9), "points": array(n, observed, 3)}, {}, "camera+points"


def sensitivity(n, parameters, steps):
    """Return the final state of an ODE by explicit Euler steps, to differentiate with respect to the rates."""

    def end(rates, y):
        step = lambda y, _: (y + 0.01 * (jnp.roll(y, 1) * rates - y * rates), None)  # noqa: E731
        return jax.lax.scan(step, y, length=steps)[0][:4]

    return end, {"rates": array(n, parameters)}, {"y": array(parameters)}


def attention(n, tokens, width):
    """Return an attention block, to differentiate with respect to its input."""

    def block(x, q, k, v):
        weights = jax.nn.softmax((x @ q) @ (x @ k).T / width**0.5)
        return weights @ (x @ v)

    return block, {"x": array(n, tokens, width)}, {name: array(width, width) / width for name in "qkv"}


def lorenz(n, state, steps):
    """Return the final state of a Lorenz-96 system by the explicit Euler method."""
    rate = lambda y: (jnp.roll(y, -1) - jnp.roll(y, 2)) * jnp.roll(y, 1) - y + 8  # noqa: E731
    step = lambda y, _: (y + 0.01 * rate(y), None)  # noqa: E731
    return (lambda y: jax.lax.scan(step, y, length=steps)[0]), {"y": array(n, state)}, {}


def mixture(n, components, dimensions):
    """Return the log-density of a Gaussian mixture, to differentiate with respect to the point."""
    f = lambda x, means: jax.nn.logsumexp(-0.5 * jnp.sum((x - means) ** 2, -1))  # noqa: E731
    return f, {"x": array(n, dimensions)}, {"means": array(components, dimensions)}


def power_sums(n, inputs, powers):
    """Return sums of powers of the inputs."""
    f = lambda x: jnp.stack([jnp.sum(x**k) for k in range(1, powers + 1)])  # noqa: E731
    return f, {"x": array(n, inputs)}, {}


def distances(n, count):
    """Return all pairwise distances of positions in space, to differentiate with respect to the positions."""
    f = lambda r: jnp.sqrt(jnp.sum((r[:, None] - r[None]) ** 2, -1) + 0.01)  # noqa: E731
    return f, {"r": array(n, count, 3)}, {}


def roots(n, size, iterations):
    """Return running sums of square roots, which are computed by Newton iterations."""
    step = lambda y, x: 0.5 * (y + x / y)  # noqa: E731
    f = lambda x: jnp.cumsum(jax.lax.fori_loop(0, iterations, lambda _, y: step(y, x), x + 1, unroll=True))  # noqa: E731
    return f, {"x": array(n, size)}, {}


def normalized(n, inputs, outputs):
    """Return a layer with normalization and softplus, to differentiate with respect to its input."""

    def layer(x, w):
        z = w @ x
        return jax.nn.softplus((z - jnp.mean(z)) / jnp.sqrt(jnp.var(z) + 1e-3))

    return layer, {"x": array(n, inputs)}, {"w": array(outputs, inputs)}


def spring(n, links):
    """Return the forces in a chain of springs, to differentiate with respect to the positions."""
    f = lambda x, stiffness: stiffness * jnp.sin(x[1:] - x[:-1])  # noqa: E731
    return f, {"x": array(n, links + 1)}, {"stiffness": array(links)}


def heat(n, side):
    """Return the right-hand side of a reaction-diffusion equation on a periodic square grid."""

    def rate(u):
        grid = u.reshape(side, side)
        neighbors = sum(jnp.roll(grid, shift, axis) for shift in (-1, 1) for axis in (0, 1))
        return (neighbors - 4 * grid + grid * (1 - grid)).ravel()

    return rate, {"u": array(n, side * side)}, {}


def burgers(n, size):
    """Return the right-hand side of Burgers' equation on a periodic grid."""
    left, right = (lambda u: jnp.roll(u, 1)), (lambda u: jnp.roll(u, -1))
    f = lambda u: -u * (right(u) - left(u)) + 0.1 * (right(u) - 2 * u + left(u))  # noqa: E731
    return f, {"u": array(n, size)}, {}


def brusselator(n, size):
    """Return the right-hand side of the Brusselator on a periodic line, for two concentrations."""

    def rate(y):
        u, v = y[:size], y[size:]
        laplacian = lambda w: jnp.roll(w, 1) + jnp.roll(w, -1) - 2 * w  # noqa: E731
        return jnp.concatenate([1 + u * u * v - 4 * u + laplacian(u), 3 * u - u * u * v + laplacian(v)])

    return rate, {"y": array(n, 2 * size)}, {}


def second_difference(n, size):
    """Return exponentials of second differences of neighboring inputs."""
    return (lambda x: jnp.exp(x[2:] - 2 * x[1:-1] + x[:-2])), {"x": array(n, size)}, {}


def quotient(n, size):
    """Return quotients of neighboring inputs."""
    return (lambda x: x[1:] / (1 + x[:-1] ** 2)), {"x": array(n, size)}, {}


# Maps a function that returns (function, points, shared inputs[, wrt]) for `scaling.advise` to lists of its
# arguments, of which the first one is the number of points.
FAMILIES = {
    mlp: [(64, 8, 32, 8), (64, 32, 64, 4), (64, 4, 64, 32), (512, 16, 16, 16), (8, 128, 256, 10),
          (8, 10, 256, 128), (1024, 3, 32, 1), (1024, 8, 32, 2)],
    product: [(64, 32, 16), (64, 16, 32), (512, 64, 4), (512, 4, 64), (8, 256, 256), (4096, 8, 8), (1, 512, 64),
              (1024, 3, 1)],
    runge_kutta: [(64, 8, 20), (64, 32, 20), (512, 4, 50), (8, 128, 10), (1, 256, 20), (256, 16, 10), (16, 40, 40),
                  (1024, 3, 10)],
    kinematics: [(256, 7), (64, 16), (1024, 3), (16, 64), (4096, 6), (8, 100), (128, 12), (512, 30)],
    particles: [(64, 8), (256, 4), (16, 16), (4, 32), (1, 64), (1024, 3), (32, 12), (8, 24)],
    kernel_matrix: [(64, 50, 3), (64, 10, 10), (512, 100, 2), (16, 400, 8), (1024, 20, 4), (64, 4, 30), (8, 64, 64),
                    (2048, 16, 1)],
    softmax_regression: [(64, 8, 10), (16, 32, 10), (128, 4, 3), (4, 64, 20), (256, 10, 5), (32, 20, 2), (8, 50, 10),
                         (512, 3, 4)],
    convolution: [(64, 32, 3), (16, 128, 5), (256, 16, 3), (4, 256, 9), (1, 512, 3), (512, 24, 5), (32, 64, 7),
                  (1024, 12, 3)],
    banded: [(64, 34), (16, 130), (256, 18), (4, 258), (1, 1026), (1024, 10), (8192, 17), (32, 66)],
    reprojection: [(64, 4), (256, 1), (16, 16), (1024, 2), (4, 50), (512, 3), (32, 10), (128, 6)],
    sensitivity: [(64, 8, 50), (16, 32, 50), (256, 4, 100), (4, 100, 30), (32, 16, 200), (512, 6, 20), (8, 64, 20),
                  (128, 12, 50)],
    attention: [(8, 8, 8), (4, 16, 8), (32, 4, 4), (1, 16, 16), (16, 6, 8), (2, 32, 4), (64, 4, 8), (4, 8, 16)],
}  # fmt: skip

MORE_FAMILIES = {
    lorenz: [(64, 8, 20), (16, 40, 10), (256, 5, 40), (4, 128, 5)],
    mixture: [(64, 10, 3), (512, 4, 8), (16, 50, 20), (1024, 20, 2)],
    power_sums: [(64, 16, 4), (256, 4, 12), (16, 100, 10), (1024, 3, 3)],
    distances: [(64, 4), (16, 10), (4, 20), (256, 3)],
    roots: [(64, 16, 5), (16, 64, 5), (512, 6, 3), (4, 200, 4)],
    normalized: [(64, 16, 8), (64, 8, 32), (8, 128, 64), (512, 6, 6)],
    spring: [(1000, 16), (100, 64), (3000, 8), (30, 200)],
    heat: [(64, 5), (16, 10), (4, 20), (256, 4)],
    burgers: [(64, 32), (16, 128), (512, 12), (4, 200)],
    brusselator: [(64, 10), (8, 50), (256, 8), (4, 100)],
    second_difference: [(64, 34), (1000, 18), (16, 130), (4, 300)],
    quotient: [(64, 33), (2000, 17), (16, 129), (4, 250)],
}  # fmt: skip


def choose(advice: advisor.Advice) -> dict[str, Record | None]:
    """Return a dict from the name of each rule to the candidate that it chooses, None if there is none."""
    inputs, outputs = advice.derivative.inputs, advice.derivative.outputs
    forward, reverse = advice.find_plain("jacfwd"), advice.find_plain("jacrev")
    compiled = [record for record in advice.records if record.program_flops]
    return {
        ADVICE: advice.best, "always forward": forward, "always reverse": reverse,
        "forward where inputs <= outputs": forward if inputs <= outputs else reverse,
        # patrick-kidger/lineax, lineax/_misc.py
        "rule of lineax": forward if inputs < 100 or inputs <= 1.5 * outputs else reverse,
        "fewest operations of XLA": min(compiled, key=lambda record: record.program_flops, default=None),
    }  # fmt: skip


def regrets(problem: tuple, budget: float, truth: float) -> tuple[dict[str, float], str]:
    """Return (dict from the name of each rule to the regret of its choice, description of the results).

    The regret is infinity if the choice was not measured.

    Args:
        problem: function, points, shared inputs and, if it is not the default, wrt, as for `scaling.advise`.
        budget: the seconds of the advice that measures, or 0 to omit this advice.
        truth: the seconds to measure all candidates.
    """
    function, points, shared, *wrt = problem
    options = {"wrt": wrt[0] if wrt else None}
    predicted = advisor.advise(function, points, shared, budget=0, **options)
    chosen = choose(predicted)
    if budget:
        chosen[MEASURED] = advisor.advise(function, points, shared, budget=budget, **options).best
    with measuring_all():
        measured = advisor.advise(function, points, shared, budget=truth, **options)
    seconds = {
        key_of(record): statistics.median(record.seconds) for record in measured.records if record.seconds
    }
    shortest = min(seconds.values())
    keys = {name: record and key_of(record) for name, record in chosen.items()}
    values = {name: seconds[key] / shortest - 1 if key in seconds else np.inf for name, key in keys.items()}
    best = measured.best.case
    sizes = f"{measured.derivative.outputs} x {measured.derivative.inputs} at {best.points} points"
    advised = f"advised {predicted.describe(predicted.best.case)}, best {measured.describe(best)}"
    counts = f"{len(seconds)} of {len(measured.records)} measured"
    return values, f"{sizes}: {advised}, {format_duration(shortest)}, {counts}"


@contextlib.contextmanager
def measuring_all():
    """Return a context manager in which `scaling.advise` measures all candidates to the end of its budget.

    No candidate is dropped as slow, because one that was disturbed by another process appears slow, too.
    """
    limits = {"_MAX_PREDICTED_RATIO": np.inf, "_CHECKING_SHARE": 1.0, "_may_be_as_fast": lambda *_: True}
    before = {name: getattr(measurement, name) for name in limits}
    for name, value in limits.items():
        setattr(measurement, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(measurement, name, value)


def key_of(record: Record) -> tuple:
    """Return the method of a candidate, a key that is the same in each call of `scaling.advise`.

    The name of the workload differs between calls.
    """
    case = record.case
    return case.mode, case.chunk, case.block, case.forward, case.batch


def main() -> int:
    """Print the regrets of the advice and of the rules as a Markdown table, and return the exit status."""
    shapes_of = MORE_FAMILIES if "more" in sys.argv[1:] else FAMILIES
    by_name, numbers = {f.__name__: f for f in shapes_of}, {"shapes": 8.0, "budget": 20.0, "truth": 60.0}
    for word in sys.argv[1:]:
        name, _, value = word.partition("=")
        if name in numbers and value.isdecimal():
            numbers[name] = float(value)
        elif word not in by_name and word != "more":
            known = ["more", *by_name, *(f"{name}=NUMBER" for name in numbers)]
            print(f"{word!r} is none of {', '.join(known)}", file=sys.stderr)
            return 2
    families = [family for name, family in by_name.items() if name in sys.argv[1:]] or list(shapes_of)
    shapes, budget, truth = numbers.values()
    table: dict[str, list[float]] = {}
    for family in families:
        for size in shapes_of[family][: int(shapes)]:
            try:
                values, text = regrets(family(*size), budget, truth)
            except Refusal as refusal:
                print(f"{family.__name__} {size}: {refusal}", flush=True)
                continue
            losses = ", ".join(
                f"{name} {100 * values[name]:.1f} %" for name in (ADVICE, MEASURED) if name in values
            )
            print(f"{family.__name__} {text}; {losses}", flush=True)
            for name, regret in values.items():
                table.setdefault(name, []).append(regret)
    print("\n| choice | mean regret | 95th percentile | worst | lost |\n" + "| --- " * 5 + "|")
    for name, values in table.items():
        measured = [100 * value for value in values if value < np.inf]
        percentages = measured or [np.nan]
        figures = (np.mean(percentages), np.percentile(percentages, 95), max(percentages))
        lost = f"{len(values) - len(measured)} of {len(values)}"
        print(f"| {name} | {' | '.join(f'{x:.1f} %' for x in figures)} | {lost} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
