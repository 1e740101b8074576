"""Work by hand: the operations and the compulsory bytes of the four workloads are formulas of n, m, p, o and the devices.

tests/options/test_program_stats.py has those of `linear`, and of `rbf` in its row-by-row source form. Here are the rest of what a
plan compiles. Compulsory bytes are what must be read and written whatever the program: each argument that the result depends on
once, and the result once.
"""

import os

import pytest

from scaling.core import environment, memory, workload
from scaling.core.case import Case

os.environ["XLA_FLAGS"] = environment.variables("cpu")["XLA_FLAGS"]
import jax

from scaling.core import layout, timing
from scaling.options.program import jaxpr_flops
from scaling.study import completion

pytestmark = pytest.mark.thin(4, "contract")

jax.config.update("jax_num_cpu_devices", 8)  # as test_contract.py wants it too
jax.config.update("jax_enable_x64", True)

FLOAT = 4  # bytes
N, M = 48, 1200  # of rbf: points and support
P, OUT, SAMPLES = 96, 16, 40  # of linear: inputs, outputs
G, PAIRS = 21, 3000  # of residual: its grid
TERMS = 60_000  # of poisson

RBF = {"workload": "rbf", "variant": "squared", "sizes": {"m": M}, "points": N}
LINEAR = {"workload": "linear", "sizes": {"p": P, "o": OUT}, "points": SAMPLES}
RESIDUAL = {"workload": "residual", "points": PAIRS}
BOTH = RESIDUAL | {"wrt": "d+m"}
POISSON = {"workload": "poisson", "points": TERMS}

# rbf, k = exp(-(x - y)^2 / 2) for every pair of a point and one of the support: a difference, its square, a sum over the one
# dimension, a product with -1/2, and an exponential.
#   Forward, one seed for the point's one number: 2 (x - y), that times the seed, summed, times -1/2, times k; then the m numbers
#   of the point are added up: 4 + 5 + 1 for each pair.
#   Reverse, m seeds for a point: of each seed m numbers are multiplied by k, by -1/2, by 2 (x - y), and added up: 4 m^2 for each
#   point, beside the pass forward (4 m, and 2 (x - y)) and the sum over rows (m).
#   Reverse of the sum: one such seed.
# The support is read whole by every device; so are its points, and each gives one number.
_RBF_BYTES = FLOAT * (N + M + N)
# linear, x @ W: by reverse mode of the sum over outputs an outer product of x and o ones, two operations for each weight (XLA's
# count of a product, though nothing is added). `vmap_grad`: the same for one column, which is the same for all: 2 p. Forward:
# each of p o seeds is a product of x with a p x o matrix, whose o results are added up. W itself is never looked at.
_LINEAR_BYTES = FLOAT * (SAMPLES * P + SAMPLES * P * OUT)
# residual, on a grid of g: d - (d.f / f.f) f with f = exp(-1.5 (x - m)^2): x - m, its square, times -1.5, an exponential; d f and
# its sum; f f and its sum; their quotient; times f; and the last difference: 9 g + 1, or 7 g + 1 without the last two, which no
# derivative needs.
_FORWARD = 7 * G + 1
#   One seed by m: 2 (x - m), times the seed, times -1.5, times f (which is f'); d f' and its sum; f' f + f f' and its sum; the
#   quotient's derivative, 7 (the inverse square is 2 of them); a' f + a f' and the sign: 14 g + 7.
#   By d and m, 22 seeds: of these 14 g, 2 (x - m) is the same for all seeds (g), and so is the inverse square (2); but d' f is
#   added to d f' (2 g): 15 g + 5 for each.
_ONCE = _FORWARD + G + 2
_EACH = 15 * G + 5
#   Reverse by m, g seeds: for each, -seed f and its sum; the quotient's two cotangents, 4; -a seed; what comes through f f twice
#   and through d f once, each a product and a sum; times f, -1.5, 2 (x - m), summed; the sign: 13 g + 5.
_ROW = 13 * G + 5
#   Differences, 22 of them: d + h d' and m + h m' (g + 1), an evaluation, less the first one, over h: 12 g + 2.
_PAIR_BYTES = FLOAT * PAIRS * (G + 1)
# poisson, the logarithm of lam^c e^-lam / c!: xlogy(c, lam), its derivative 0 log(lam) + 1 (c - 0) / lam, and -1; c is rounded to
# see whether it is whole. Forward: the shift by loc = 0, three products and a quotient and a sum, -1, the rounding: 7 operations
# and the logarithm that is multiplied by zero. Reverse: the shift, the rounding, a sign, a quotient, a product, a sum: 6.
# By hand, c / lam - 1.
_TERM_BYTES = TERMS * (4 + FLOAT + FLOAT)  # whole numbers, rates, results

HAND = {  # a case, its operations, its transcendental functions, its compulsory bytes
    "rbf value": (RBF | {"target": "kernel", "mode": "value"}, 4 * N * M, N * M, FLOAT * (N + M + N * M)),
    "rbf jacfwd": (RBF | {"mode": "jacfwd"}, 10 * N * M, N * M, _RBF_BYTES),
    "rbf linearize": (RBF | {"mode": "linearize"}, 10 * N * M, N * M, _RBF_BYTES),
    "rbf jacrev": (RBF | {"mode": "jacrev"}, N * (4 * M**2 + 6 * M), N * M, _RBF_BYTES),
    "rbf jacrev in chunks": (RBF | {"mode": "jacrev", "chunk": 100}, N * (4 * M**2 + 6 * M), N * M, _RBF_BYTES),
    "rbf jacrev in chunks with a remainder": (RBF | {"mode": "jacrev", "chunk": 70}, N * (4 * M**2 + 6 * M), N * M, _RBF_BYTES),
    "rbf grad_of_sum": (RBF | {"mode": "grad_of_sum"}, 9 * N * M, N * M, _RBF_BYTES),
    "linear vmap_grad": (LINEAR | {"mode": "vmap_grad"}, 2 * SAMPLES * P, 0, _LINEAR_BYTES),
    "linear grad_of_sum": (LINEAR | {"mode": "grad_of_sum"}, 2 * SAMPLES * P * OUT, 0, _LINEAR_BYTES),
    "linear linearize in chunks with a remainder": (
        LINEAR | {"mode": "linearize", "chunk": 100}, SAMPLES * P * OUT * (2 * P * OUT + OUT), 0, _LINEAR_BYTES),
    "linear analytic": (LINEAR | {"mode": "analytic"}, 0, 0, _LINEAR_BYTES),
    "residual value": (RESIDUAL | {"mode": "value"}, PAIRS * (9 * G + 1), PAIRS * G, _PAIR_BYTES + FLOAT * PAIRS * G),
    "residual jacfwd": (
        RESIDUAL | {"mode": "jacfwd"}, PAIRS * (_FORWARD + 14 * G + 7), PAIRS * G, _PAIR_BYTES + FLOAT * PAIRS * G),
    "residual jacrev": (RESIDUAL | {"mode": "jacrev"}, PAIRS * (_ONCE + G * _ROW), PAIRS * G, _PAIR_BYTES + FLOAT * PAIRS * G),
    "residual jacfwd by both": (
        BOTH | {"mode": "jacfwd"}, PAIRS * (_ONCE + 22 * _EACH), PAIRS * G, _PAIR_BYTES + FLOAT * PAIRS * G * 22),
    # 22 seeds are five times four and two: six times the pass forward.
    "residual jacfwd by both in chunks with a remainder": (
        BOTH | {"mode": "jacfwd", "chunk": 4}, PAIRS * (6 * _ONCE + 22 * _EACH), PAIRS * 6 * G,
        _PAIR_BYTES + FLOAT * PAIRS * G * 22),
    "residual differences in chunks": (
        BOTH | {"mode": "finite_difference", "chunk": 11}, PAIRS * (9 * G + 1 + 22 * (12 * G + 2)), PAIRS * 23 * G,
        _PAIR_BYTES + FLOAT * PAIRS * G * 22),
    "poisson value": (POISSON | {"mode": "value"}, 6 * TERMS, 2 * TERMS, _TERM_BYTES),
    "poisson jacfwd": (POISSON | {"mode": "jacfwd"}, 7 * TERMS, TERMS, _TERM_BYTES),
    "poisson jacrev": (POISSON | {"mode": "jacrev"}, 6 * TERMS, 0, _TERM_BYTES),
    "poisson analytic": (POISSON | {"mode": "analytic"}, 2 * TERMS, 0, _TERM_BYTES),
}  # fmt: skip


def measured(devices=1, **fields):
    """(operations, compulsory bytes) of a device, of the program as it is traced and compiled."""
    case = completion.complete(Case(**{"api": "shard_map", "devices": devices} | fields))
    program = layout.lay_out(case, workload.build(case), jax.devices()[:devices])
    stages = timing.compile_stages(program.function, list(program.arguments.values()))
    needs = memory.program_bytes(stages.compiled)
    return jaxpr_flops.count_operations(stages.jaxpr), needs["argument_bytes"] + needs["output_bytes"]


@pytest.mark.parametrize("name", HAND)
def test_work_and_compulsory_bytes_are_those_of_a_formula(name):
    fields, flops, transcendentals, moved = HAND[name]
    found, compulsory = measured(**fields)
    assert found.flops == pytest.approx(flops, rel=0.02)
    assert found.transcendentals == pytest.approx(transcendentals, rel=0.02)
    assert compulsory == pytest.approx(moved, rel=0.02)


@pytest.mark.parametrize(
    ("name", "shared"),
    [("rbf jacfwd", M), ("linear grad_of_sum", 0), ("residual jacfwd", 0), ("poisson jacrev", 0)],
)
def test_a_device_of_several_does_its_share_and_reads_all_that_is_shared(name, shared):
    fields, flops, _, moved = HAND[name]
    found, compulsory = measured(devices=4, **fields)
    assert found.flops == pytest.approx(flops / 4, rel=0.02)
    assert compulsory == pytest.approx((moved - FLOAT * shared) / 4 + FLOAT * shared, rel=0.02)


def test_the_gradient_over_data_costs_each_device_its_samples_and_gives_the_whole_of_it():
    found, compulsory = measured(devices=4, **LINEAR, mode="jacrev", split="data")
    assert found.flops == pytest.approx(
        2 * SAMPLES // 4 * P * OUT, rel=0.02
    )  # an outer product for each sample, added up
    assert compulsory == pytest.approx(FLOAT * (SAMPLES // 4 * P + P * OUT), rel=0.02)


def test_seeds_that_are_cut_are_shared_out():
    fields, flops, _, _ = HAND["rbf jacrev"]
    found, _ = measured(devices=4, **fields, split="seeds")
    assert found.flops == pytest.approx(flops / 4, rel=0.02)
