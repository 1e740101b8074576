"""Tests of operations and compulsory bytes: for every workload they equal formulas in its sizes and the number of devices.

tests/options/test_program_stats.py has the formulas of `linear`, and of `rbf` with formulation=rowwise. Compulsory bytes are read
and written by any program: each argument that the result depends on once, and the result once.
"""

import pytest

from tests.support.devices import HERE  # noqa: F401  # isort: skip  # before JAX is used
import jax

from scaling.core import compile_case, layout, workload
from scaling.core.case import Case
from scaling.core.derivative import describe_derivative
from scaling.programs import program_stats
from scaling.study import case_rules

pytestmark = pytest.mark.thin(4, "thorough")

FLOAT = 4  # bytes
N, M = 48, 1200  # rbf: points and support points
P, OUT, SAMPLES = 96, 16, 40  # linear: inputs, outputs, points
G, PAIRS = 21, 3000  # residual: grid size and points
TERMS = 60_000  # poisson: points

RBF = {"workload": "rbf", "variant": "squared", "sizes": {"m": M}, "points": N}
LINEAR = {"workload": "linear", "sizes": {"p": P, "o": OUT}, "points": SAMPLES}
RESIDUAL = {"workload": "residual", "points": PAIRS}
BOTH = RESIDUAL | {"wrt": "d+m"}
POISSON = {"workload": "poisson", "points": TERMS}

# rbf, k = exp(-(x - y)^2 / 2) for every pair of a point and a support point: a difference, its square, a sum over the single
# dimension, a product with -1/2, and an exponential.
#   Forward mode, one seed per point: 2 (x - y), times the seed, a sum, times -1/2, times k. Then the m values of the point are
#   summed: 4 + 5 + 1 per pair.
#   Reverse mode, m seeds per point: for each seed m values are multiplied by k, by -1/2, by 2 (x - y), and summed: 4 m^2 per
#   point, in addition to the forward pass (4 m, and 2 (x - y)) and the sum over rows (m).
#   Reverse mode of the sum: one such seed.
# Every device reads all support points and its own points, and writes one value per point.
_RBF_BYTES = FLOAT * (N + M + N)
# linear, x @ W. Reverse mode of the sum over outputs: an outer product of x and o ones, two operations per weight (XLA counts
# a product like this although nothing is summed). `vmap_grad`: the same for a single column, since all are equal: 2 p. Forward
# mode: for each of p o seeds a product of x with a p x o matrix, whose o results are summed. W itself is never read.
_LINEAR_BYTES = FLOAT * (SAMPLES * P + SAMPLES * P * OUT)
# residual, on a grid of g: d - (d.f / f.f) f with f = exp(-1.5 (x - m)^2): x - m, its square, times -1.5, an exponential; d f and
# its sum; f f and its sum; their quotient; times f; and the last difference: 9 g + 1, or 7 g + 1 without the last two, which no
# derivative needs.
_FORWARD = 7 * G + 1
#   One seed with respect to m: 2 (x - m), times the seed, times -1.5, times f (which is f'); d f' and its sum; f' f + f f' and
#   its sum; the derivative of the quotient, 7 (2 of them for the inverse square); a' f + a f' and the sign: 14 g + 7.
#   With respect to d and m, 22 seeds: of these 14 g, 2 (x - m) is computed once for all seeds (g), and so is the inverse square
#   (2). In addition d' f is added to d f' (2 g): 15 g + 5 per seed.
_ONCE = _FORWARD + G + 2
_PER_SEED = 15 * G + 5
#   Reverse mode with respect to m, g seeds: for each -seed f and its sum; the two cotangents of the quotient, 4; -a seed; the
#   cotangents through f f twice and through d f once, each a product and a sum; times f, -1.5, 2 (x - m), a sum; the sign: 13 g + 5.
_ROW = 13 * G + 5
#   22 finite differences: d + h d' and m + h m' (g + 1), an evaluation, minus the first evaluation, divided by h: 12 g + 2.
_PAIR_BYTES = FLOAT * PAIRS * (G + 1)
# poisson, the logarithm of lam^c e^-lam / c!: xlogy(c, lam), its derivative 0 log(lam) + 1 (c - 0) / lam, and -1. c is rounded to
# test whether it is an integer. Forward mode: the shift by loc = 0, three products, a quotient, a sum, -1, the rounding: 7
# operations, and the logarithm that is multiplied by zero. Reverse mode: the shift, the rounding, a sign, a quotient, a product,
# a sum: 6. Analytic: c / lam - 1.
_TERM_BYTES = TERMS * (4 + FLOAT + FLOAT)  # integers, rates, results

FORMULAS = {  # fields of a case, operations, transcendental functions, compulsory bytes
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
        BOTH | {"mode": "jacfwd"}, PAIRS * (_ONCE + 22 * _PER_SEED), PAIRS * G, _PAIR_BYTES + FLOAT * PAIRS * G * 22),
    # 22 seeds are five chunks of 4 and a chunk of 2: six forward passes.
    "residual jacfwd by both in chunks with a remainder": (
        BOTH | {"mode": "jacfwd", "chunk": 4}, PAIRS * (6 * _ONCE + 22 * _PER_SEED), PAIRS * 6 * G,
        _PAIR_BYTES + FLOAT * PAIRS * G * 22),
    "residual finite differences in chunks": (
        BOTH | {"mode": "finite_difference", "chunk": 11}, PAIRS * (9 * G + 1 + 22 * (12 * G + 2)), PAIRS * 23 * G,
        _PAIR_BYTES + FLOAT * PAIRS * G * 22),
    "poisson value": (POISSON | {"mode": "value"}, 6 * TERMS, 2 * TERMS, _TERM_BYTES),
    "poisson jacfwd": (POISSON | {"mode": "jacfwd"}, 7 * TERMS, TERMS, _TERM_BYTES),
    "poisson jacrev": (POISSON | {"mode": "jacrev"}, 6 * TERMS, 0, _TERM_BYTES),
    "poisson analytic": (POISSON | {"mode": "analytic"}, 2 * TERMS, 0, _TERM_BYTES),
}  # fmt: skip


def count_work(devices=1, **fields):
    """Return the operations and the compulsory bytes of one device for the compiled program of a case."""
    case = case_rules.complete(Case(**{"api": "shard_map", "devices": devices} | fields))
    program = layout.lay_out(describe_derivative(case, workload.build(case)), jax.devices()[:devices])
    stages = compile_case.compile_stages(program.function, list(program.arguments.values()))
    needs = compile_case.program_bytes(stages.compiled)
    return program_stats.count_operations(stages.jaxpr), needs["argument_bytes"] + needs["output_bytes"]


@pytest.mark.parametrize("name", FORMULAS)
def test_operations_and_compulsory_bytes_equal_the_formula(name):
    fields, flops, transcendentals, expected_bytes = FORMULAS[name]
    counts, compulsory_bytes = count_work(**fields)
    assert counts.flops == pytest.approx(flops, rel=0.02)
    assert counts.transcendentals == pytest.approx(transcendentals, rel=0.02)
    assert compulsory_bytes == pytest.approx(expected_bytes, rel=0.02)


@pytest.mark.parametrize(
    ("name", "shared_size"),
    [("rbf jacfwd", M), ("linear grad_of_sum", 0), ("residual jacfwd", 0), ("poisson jacrev", 0)],
)
def test_each_of_several_devices_computes_its_part_and_reads_all_shared_inputs(name, shared_size):
    fields, flops, _, expected_bytes = FORMULAS[name]
    counts, compulsory_bytes = count_work(devices=4, **fields)
    assert counts.flops == pytest.approx(flops / 4, rel=0.02)
    assert compulsory_bytes == pytest.approx(
        (expected_bytes - FLOAT * shared_size) / 4 + FLOAT * shared_size, rel=0.02
    )


def test_a_data_parallel_gradient_costs_a_device_its_own_points_and_writes_it_whole():
    counts, compulsory_bytes = count_work(devices=4, **LINEAR, mode="jacrev", split="data")
    # The sum of an outer product for each point.
    assert counts.flops == pytest.approx(2 * SAMPLES // 4 * P * OUT, rel=0.02)
    assert compulsory_bytes == pytest.approx(FLOAT * (SAMPLES // 4 * P + P * OUT), rel=0.02)


def test_split_seeds_are_divided_among_the_devices():
    fields, flops, _, _ = FORMULAS["rbf jacrev"]
    counts, _ = count_work(devices=4, **fields, split="seeds")
    assert counts.flops == pytest.approx(flops / 4, rel=0.02)
