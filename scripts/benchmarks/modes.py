"""Benchmark of AD modes: the modes of each workload and its handwritten derivative, at large sizes.

Calls are interleaved in one process on one core. Prints a Markdown table with the fastest mode of each
problem, and the ratio of its median to the faster of `analytic` and `analytic_vmap`, with an interval.
"""

import itertools

import jax
import side_by_side  # noqa: F401 binds this process to one core and restarts it

from scaling.analysis.cases import method_of
from scaling.analysis.estimate import format_ratio
from scaling.analysis.ratios import ratio_interval
from scaling.core import compile_case, layout, timing, workload
from scaling.core.case import Case
from scaling.core.derivative import describe_derivative
from scaling.core.formatting import format_duration
from scaling.core.modes import MODES
from scaling.study import case_rules

ROUNDS = 15
WHOLE = {"batch": "whole"}
PROBLEMS = {
    "rbf grad_map, source, by a product, n = 10,000": (
        {"workload": "rbf", "points": 10000}, [{"mode": m} for m in ("jacfwd", "linearize", "grad_of_sum")]
    ),
    "rbf grad_map, source, row by row, n = 10,000": (
        {"workload": "rbf", "points": 10000, "formulation": "rowwise"},
        [{"mode": m} for m in ("jacfwd", "linearize", "grad_of_sum")],
    ),
    "linear, n = 10, p = 8,192, o = 5": (
        {"workload": "linear", "points": 10, "sizes": {"p": 8192, "o": 5}},
        [{"mode": "vmap_grad"}, {"mode": "jacrev"}, {"mode": "jacrev", **WHOLE}, {"mode": "grad_of_sum"}],
    ),
    "residual by m, 1,000,000 pairs": (
        {"workload": "residual", "points": 10**6}, [{"mode": m} for m in ("jacfwd", "jacrev", "linearize")]
    ),
    "residual by d+m, 1,000,000 pairs": (
        {"workload": "residual", "points": 10**6, "wrt": "d+m"}, [{"mode": m} for m in ("jacfwd", "jacrev")]
    ),
    "residual, scalar, by d+m, 1,000,000 pairs": (
        {"workload": "residual", "points": 10**6, "wrt": "d+m", "variant": "scalar"}, [{"mode": "jacrev"}]
    ),
    "poisson gradient, N = 100,000,000": (
        {"workload": "poisson", "points": 10**8}, [{"mode": "jacfwd"}, {"mode": "jacrev"}, {"mode": "jacrev", **WHOLE}]
    ),
}  # fmt: skip


def prepare(fields: dict) -> tuple:
    """Compile a case with these fields. Return (case, function that runs its program on its inputs)."""
    case = case_rules.complete(Case(api="jit", **fields))
    program = layout.lay_out(describe_derivative(case, workload.build(case)), jax.devices()[:1])
    arguments = layout.place_inputs(program)
    compiled = compile_case.compile_stages(program.function, arguments).compiled
    return case, lambda: jax.block_until_ready(compiled(*arguments))


def main() -> None:
    """Time all modes of each problem in turns, and print one row of a Markdown table per problem."""
    print("| problem | fastest mode | time | time / hand-written |\n| --- | --- | --- | --- |")
    for name, (problem, methods) in PROBLEMS.items():
        by_hand = [{"mode": mode.name} for mode in MODES.values() if mode.closed_form]
        cases = [prepare({**problem, **method}) for method in itertools.chain(methods, by_hand)]
        seconds: list[list[float]] = [[] for _ in cases]
        for turn in range(ROUNDS + 1):
            for (_, call), samples in zip(cases, seconds, strict=True):
                calls = 1 if not samples else max(1, int(0.01 / samples[0]))
                total = sum(timing.time_once(call)[0] for _ in range(calls))
                if turn:  # the first turn warms up
                    samples.append(total / calls)
        timed = sorted(zip(cases, seconds, strict=True), key=lambda row: sorted(row[1])[ROUNDS // 2])
        hand = next(samples for (case, _), samples in timed if case.ad_mode.closed_form)
        case, best = next((case, samples) for (case, _), samples in timed if not case.ad_mode.closed_form)
        ratio = ratio_interval(best, hand)
        assert ratio is not None
        duration = format_duration(sorted(best)[ROUNDS // 2])
        print(f"| {name} | {method_of(case).name} | {duration} | {format_ratio(*ratio)} |", flush=True)


if __name__ == "__main__":
    main()
