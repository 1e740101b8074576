"""Sparse: a coloured Jacobian of 5e6 entries beside the same written by hand; the arrowhead, coloured, beside its dense Jacobian.

Prints what detection and colouring took, and ratios of medians with intervals, measured in turns in one process on one core.
`scripts/bench sparse SIDE` takes another side of the grid than 1,000.
"""

import sys

from side_by_side import completed, in_turns

from scaling.core.intervals import ratio_interval

ARROWHEAD = (256, 1024)


def main() -> None:
    """Measure and print."""
    side = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    stencil = {"workload": "stencil", "sizes": {"side": side}, "seeds": "colored"}
    by_hand, *modes = in_turns([completed(**stencil, mode=mode) for mode in ("analytic", "jacfwd", "jacrev")])
    print(f"stencil, n = {side * side:,}, {modes[0].nonzeros:,} entries, error {modes[0].error:.1e}")
    print(f"  detection {modes[0].detect_seconds:.1f} s, colouring {modes[0].color_seconds:.1f} s")
    for record in modes:
        found = ratio_interval(record.seconds, by_hand.seconds)
        words = f"{found[0]:.2f} times by hand ({found[1]:.2f} to {found[2]:.2f})"
        print(f"  {record.case.mode}, {sum(record.colors.values())} seeds: {words}")
    for n in ARROWHEAD:
        arrowhead = {"workload": "arrowhead", "sizes": {"n": n}}
        cases = [("jacrev", "identity"), ("jacfwd", "colored"), ("jacrev", "colored"), ("mixed", "colored")]
        dense, *colored = in_turns([completed(**arrowhead, mode=mode, seeds=seeds) for mode, seeds in cases])
        print(f"arrowhead, n = {n:,}, dense in reverse mode: {n} seeds")
        for record in colored:
            found = ratio_interval(dense.seconds, record.seconds)
            print(
                f"  {record.case.mode} coloured, {sum(record.colors.values())} seeds: "
                f"{found[0]:.3g} times as fast ({found[1]:.3g} to {found[2]:.3g})"
            )


if __name__ == "__main__":
    main()
