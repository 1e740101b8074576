"""Benchmark of sparse Jacobians: coloring compared with a handwritten Jacobian and with a dense Jacobian.

Measures a colored stencil Jacobian with 5e6 nonzeros and its handwritten equivalent, and a colored arrowhead
Jacobian and its dense equivalent, in turns in one process on one core. Prints the times of pattern detection
and coloring, and ratios of medians with confidence intervals. `scripts/bench sparse SIDE` sets the side of
the stencil grid, which is 1,000 by default.
"""

import sys

from side_by_side import complete_case, measure_in_turns

from scaling.analysis.ratios import ratio_interval

ARROWHEAD = (256, 1024)


def main() -> None:
    """Measure the colored, handwritten and dense Jacobians, and print the ratios of their times."""
    side = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    stencil = {"workload": "stencil", "sizes": {"side": side}, "seeds": "colored"}
    by_hand, *modes = measure_in_turns(
        [complete_case(**stencil, mode=mode) for mode in ("analytic", "jacfwd", "jacrev")]
    )
    print(f"stencil, n = {side * side:,}, {modes[0].nonzeros:,} entries, error {modes[0].error:.1e}")
    print(f"  detection {modes[0].detect_seconds:.1f} s, coloring {modes[0].color_seconds:.1f} s")
    for record in modes:
        ratio, low, high = ratio_interval(record.seconds, by_hand.seconds)
        text = f"{ratio:.2f} times by hand ({low:.2f} to {high:.2f})"
        print(f"  {record.case.mode}, {sum(record.colors.values())} seeds: {text}")
    for n in ARROWHEAD:
        arrowhead = {"workload": "arrowhead", "sizes": {"n": n}}
        cases = [("jacrev", "identity"), ("jacfwd", "colored"), ("jacrev", "colored"), ("mixed", "colored")]
        dense, *colored = measure_in_turns(
            [complete_case(**arrowhead, mode=mode, seeds=seeds) for mode, seeds in cases]
        )
        print(f"arrowhead, n = {n:,}, dense in reverse mode: {n} seeds")
        for record in colored:
            ratio, low, high = ratio_interval(dense.seconds, record.seconds)
            print(
                f"  {record.case.mode} colored, {sum(record.colors.values())} seeds: "
                f"{ratio:.3g} times as fast ({low:.3g} to {high:.3g})"
            )


if __name__ == "__main__":
    main()
