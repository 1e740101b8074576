"""Benchmark of the correctness check: hundreds of planted errors, and functions with correct derivatives.

Errors are planted in results of functions without a closed form, in whole attempts (wrong rules, a wrong
device, wrong later calls), and in results of the built-in workloads. Correct derivatives of many kinds of
functions are checked as well. Prints each missed error and each rejected correct derivative when it is found,
the number of detected errors by kind, and the two fractions.

An error is detected if the case is failed, and missed if it is `ok`. A case that is skipped because its
result has no significant digits counts as neither. The exit status is 1 unless 99 % of the errors are
detected and no correct derivative is rejected. Takes some minutes on one core. `scripts/bench planted
PART...` runs only these parts: attempts, families, built-in, right.
"""

import os
import sys

from scaling.core import environment
from scaling.workers import cores

os.sched_setaffinity(0, cores.usable_cores()[:1])
if not os.environ.get(
    "SCALING_BENCH"
):  # restart, because XLA and glibc read these variables at start-up; PYTHONPATH is for child processes
    path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")])
    more = environment.variables("cpu") | {"SCALING_BENCH": "1", "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | more)

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
from planting import cases, plants, right, trial
from planting.attempts import whole_attempts

from scaling.core.case import Case, label

CAUGHT, DEVICES = 0.99, 4
EACH = {"families": 3, "built-in": 4}  # errors planted in a case
MAY_CLAIM_NOTHING = 0.1  # of the right derivatives


class Row(NamedTuple):
    """A planted error or a correct derivative, with the outcome of its check."""

    part: str
    kind: str
    case: Case
    outcome: trial.Outcome
    right: bool = False

    @property
    def claimed(self) -> str:
        """Return the classification of the outcome.

        It is "nothing" if the check makes no statement, "caught" or "missed" for an error, and "refused" or
        "accepted" for a correct derivative.
        """
        if self.outcome.status.startswith("skipped"):
            return "nothing"
        if self.outcome.status == "ok":
            return "accepted" if self.right else "missed"
        return "refused" if self.right else "caught"


def check_results(part: str, some: Iterable[Case], seen: dict[str, int]) -> Iterator[Row]:
    """Check the correct results of cases, and the same results with planted errors."""
    for number, case in enumerate(some):
        outcome, asked = trial.run(case)
        yield Row(part, "right", case, outcome, right=True)
        if asked is None or outcome.status.startswith("skipped"):
            continue
        for kind, wrong in plants.choose_plants(asked.words[0], asked.result, EACH[part], seen, number):
            yield Row(part, kind, case, trial.check_result(asked, wrong))


def check_attempts() -> Iterator[Row]:
    """Check whole attempts with planted errors."""
    for each in whole_attempts():
        yield Row("attempts", each.kind, each.case, each.run())


def check_right_functions() -> Iterator[Row]:
    """Check functions with correct derivatives."""
    for name in right.VARIANTS:
        for case in right.cases(name):
            yield Row("right", name, *trial.run_correct(case), right=True)


def print_table(rows: list[Row], title: str, of: Iterable[str]) -> None:
    """Print the number of detected errors by a property of the rows."""
    counts: dict[str, Counter] = {}
    for row, value in zip(rows, of, strict=True):
        counts.setdefault(value, Counter())[row.claimed] += 1
    print(f"\n{title:34} {'caught':>8} {'missed':>8} {'nothing claimed':>16}")
    for value, found in sorted(
        counts.items(), key=lambda row: (len(row[0]) if row[0].isdecimal() else 0, row[0])
    ):
        print(f"{value:34} {found['caught']:8} {found['missed']:8} {found['nothing']:16}")


def describe(row: Row) -> str:
    """Return a row as one line, with its error and tolerance."""
    error, tolerance = (f"{x:.2g}" if x is not None else "none" for x in row.outcome[1:3])
    words = f"; {row.outcome.text}" if row.outcome.text else ""
    return f"  {row.kind} | {label(row.case)} | {row.outcome.status}, error {error}, tolerance {tolerance}{words}"


def report(rows: list[Row]) -> int:
    """Print the tables, the missed errors, and the rejected derivatives. Return the exit status."""
    wrong, good = [row for row in rows if not row.right], [row for row in rows if row.right]
    print_table(wrong, "kind", (row.kind for row in wrong))
    print_table(wrong, "inputs", (str(row.case.sizes.get("n", "built-in")) for row in wrong))
    for title, name in (
        ("dtype", "dtype"),
        ("mode", "mode"),
        ("reduction", "reduce"),
        ("devices", "devices"),
    ):
        print_table(wrong, title, (str(getattr(row.case, name)) for row in wrong))
    print_table(wrong, "part", (row.part for row in wrong))
    for title, some, claimed in (
        ("missed", wrong, "missed"), ("right derivatives that are refused", good, "refused"),
        ("right derivatives of which nothing is claimed", good, "nothing"),
    ):  # fmt: skip
        found = [row for row in some if row.claimed == claimed]
        print(f"\n{title}: {len(found)}", *map(describe, found), sep="\n")
    found = Counter(row.claimed for row in rows)
    unclaimed = [row for row in good if row.claimed == "nothing" and row.part == "right"]
    unjustified = [row for row in unclaimed if right.RIGHT[row.kind].digits]
    asked = found["caught"] + found["missed"]
    print(f"\ncaught: {found['caught']} of {asked} planted errors ({found['caught'] / max(asked, 1):.1%})")
    print(
        f"refused: {found['refused']} of {len(good)} right derivatives; nothing is claimed of {found['nothing']}",
        flush=True,
    )
    enough = (
        found["caught"] >= CAUGHT * asked
        and not unjustified
        and len(unclaimed) <= MAY_CLAIM_NOTHING * len(good)
    )
    return int(not enough or bool(found["refused"]))


def main() -> int:
    """Run the parts, report, and return the exit status."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    seen: dict[str, int] = {}
    parts = {
        "attempts": check_attempts,
        "families": lambda: check_results("families", cases.planted_cases(), seen),
        "built-in": lambda: check_results("built-in", cases.built_in_cases(), seen),
        "right": check_right_functions,
    }
    if unknown := [name for name in sys.argv[1:] if name not in parts]:
        print(f"unknown part {unknown[0]!r}: choose from {', '.join(parts)}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    for name in sys.argv[1:] or parts:
        began, before = time.monotonic(), len(rows)
        for row in parts[name]():
            rows.append(row)
            if row.claimed in ("missed", "refused"):
                print(f"{row.claimed}:{describe(row)}", flush=True)
        print(f"{name}: {len(rows) - before} results in {time.monotonic() - began:.0f} s", flush=True)
    return report(rows)


if __name__ == "__main__":
    sys.exit(main())
