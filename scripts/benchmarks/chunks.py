"""Benchmark of chunk=auto: its speed with a quarter of the memory that the unchunked program needs.

For each workload and several modes, the peak memory of the unchunked program is its arguments, temporaries,
and result, as counted by XLA. chunk=auto then runs with a quarter of it. Both are measured in turns in one
process on one core. Prints a Markdown table. The exit status is 1 if the interval of the relative speed of a
case is entirely below 0.8, unless its inputs or its result alone exceed the quarter, because those are
transferred between host and device.
"""

import sys

from side_by_side import complete_case, measure_in_turns

from scaling.analysis.estimate import format_ratio
from scaling.analysis.ratios import ratio_interval

ENOUGH = 0.8
PROBLEMS = {
    "rbf grad_map, n = 500": {"workload": "rbf", "points": 500, "mode": "jacrev"},
    "rbf grad_map, squared in 3 dimensions, n = 500": {
        "workload": "rbf", "points": 500, "variant": "squared", "sizes": {"d": 3}, "mode": "jacrev",
    },
    "rbf grad_map by a product, n = 4,000": {"workload": "rbf", "points": 4000, "mode": "grad_of_sum"},
    "linear, n = 20, p = 1,024, o = 5": {"workload": "linear", "points": 20, "sizes": {"p": 1024, "o": 5}, "mode": "jacfwd"},
    "linear at once, n = 20, p = 1,024, o = 5": {
        "workload": "linear", "points": 20, "sizes": {"p": 1024, "o": 5}, "mode": "jacfwd", "batch": "whole",
    },
    "linear at once, n = 1,000, p = 64, o = 5": {
        "workload": "linear", "points": 1000, "sizes": {"p": 64, "o": 5}, "mode": "jacrev", "batch": "whole",
    },
    "linear, n = 1,000, p = 4,096, o = 5": {"workload": "linear", "points": 1000, "sizes": {"p": 4096, "o": 5}, "mode": "jacrev"},
    "residual by d+m, 200,000 pairs": {"workload": "residual", "points": 200000, "wrt": "d+m", "mode": "jacrev"},
    "residual by d+m, 200,000 pairs, forward": {"workload": "residual", "points": 200000, "wrt": "d+m", "mode": "jacfwd"},
    "residual, Gram matrix by d+m, 100,000 pairs": {
        "workload": "residual", "points": 100000, "wrt": "d+m", "mode": "jacrev", "reduce": "gram",
    },
    "poisson gradient at once, N = 8,192": {"workload": "poisson", "points": 8192, "mode": "jacfwd", "batch": "whole"},
    "poisson gradient, N = 10,000,000": {"workload": "poisson", "points": 10**7, "mode": "jacrev"},
    "stencil, dense, n = 4,900": {"workload": "stencil", "sizes": {"side": 70}, "mode": "jacfwd"},
    "stencil, colored, 8 states of n = 250,000": {
        "workload": "stencil", "sizes": {"side": 500}, "mode": "jacfwd", "seeds": "colored", "points": 8,
    },
    "arrowhead, dense, n = 6,000": {"workload": "arrowhead", "sizes": {"n": 6000}, "mode": "jacrev"},
}  # fmt: skip


def row(name: str, fields: dict) -> tuple[str, bool]:
    """Measure a problem at once and with chunk=auto. Return (row of the table, whether it is fast enough).

    Args:
        name: the name of the problem in the table.
        fields: the fields of its case.
    """
    (plain,) = measure_in_turns([complete_case(**fields)], seconds=0.1)
    start = f"| {name} | {fields['mode']} |"
    if plain.status != "ok":
        return f"{start} {plain.reason}: {plain.text} |", False
    peak = plain.argument_bytes + plain.temp_bytes + plain.output_bytes
    start += f" {peak / 1e6:,.1f} MB | {peak / 4e6:,.1f} MB |"
    plain, auto = measure_in_turns(
        [complete_case(**fields), complete_case(**fields, chunk="auto", memory_limit=peak // 4)]
    )
    if plain.status != "ok" or auto.status != "ok":
        return f"{start} {auto.reason or plain.reason}: {auto.text or plain.text} |", False
    chosen = [
        f"{what}={auto.blocks[what]}"
        for what in ("block", "chunk", "storage")
        if auto.blocks[what] not in (None, "device")
    ]
    too_large = None  # the arrays that alone need more than the memory limit
    if plain.argument_bytes > peak // 4:
        too_large = "inputs alone are"
    elif plain.output_bytes > peak // 4:
        too_large = "result alone is"
    blocks = ", ".join(chosen) + (f" (its {too_large} more)" if too_large else "")
    ratio, low, high = ratio_interval(plain.seconds, auto.seconds)
    is_fast_enough = high >= ENOUGH or too_large is not None
    return f"{start} {blocks} | {format_ratio(ratio, low, high, sign='')} |", is_fast_enough


def main() -> int:
    """Print a row for each problem, or for those whose name contains a word of the command line.

    Return the exit status.
    """
    for word in sys.argv[1:]:
        if not any(word in name for name in PROBLEMS):
            print(f"{word!r} is in no name of a problem: {'; '.join(PROBLEMS)}", file=sys.stderr)
            return 2
    print("| problem | mode | all at once | a quarter of it | blocks | speed relative to all at once |")
    print("| --- " * 6 + "|")
    all_fast_enough = True
    for name, fields in PROBLEMS.items():
        if not sys.argv[1:] or any(word in name for word in sys.argv[1:]):
            text, is_fast_enough = row(name, fields)
            print(text, flush=True)
            all_fast_enough &= is_fast_enough
    return 0 if all_fast_enough else 1


if __name__ == "__main__":
    sys.exit(main())
