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
from scaling.launcher import cores

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

CAUGHT, DEVICES = 0.99, 4  # required fraction of detected errors, devices of this process
EACH = {"families": 3, "built-in": 4}  # number of errors planted in a case
MAY_CLAIM_NOTHING = 0.1  # largest fraction of correct derivatives that are skipped


class Row(NamedTuple):
    """A derivative with or without a planted error, and the outcome of the correctness check.

    Attributes:
        part: the part of the benchmark, such as "attempts".
        kind: the name of the planted error or of the correct function.
        right: whether the derivative is correct.
    """

    part: str
    kind: str
    case: Case
    outcome: trial.Outcome
    right: bool = False

    @property
    def claimed(self) -> str:
        """Return the verdict of the check: "nothing" if the case is skipped.

        Otherwise return "caught" or "missed" for an error, and "refused" or "accepted" for a correct derivative.
        """
        if self.outcome.status.startswith("skipped"):
            return "nothing"
        if self.outcome.status == "ok":
            return "accepted" if self.right else "missed"
        return "refused" if self.right else "caught"


def check_results(part: str, tested: Iterable[Case], counts: dict[str, int]) -> Iterator[Row]:
    """Check the correct results of cases, and the same results with planted errors. Yield a row for each.

    `counts` is a dict from the name of an error to how often it was planted. It is updated.
    """
    for number, case in enumerate(tested):
        outcome, call = trial.run(case)
        yield Row(part, "right", case, outcome, right=True)
        if call is None or outcome.status.startswith("skipped"):
            continue
        for kind, wrong in plants.choose_plants(call.words[0].case, call.result, EACH[part], counts, number):
            yield Row(part, kind, case, trial.check_result(call, wrong))


def check_attempts() -> Iterator[Row]:
    """Run each case with a planted error in its function or program, and yield a row for each."""
    for attempt in whole_attempts():
        yield Row("attempts", attempt.kind, attempt.case, attempt.run())


def check_right_functions() -> Iterator[Row]:
    """Run the cases of all functions with correct derivatives, and yield a row for each."""
    for name in right.VARIANTS:
        for case in right.cases(name):
            yield Row("right", name, *trial.run_correct(case), right=True)


def print_table(rows: list[Row], title: str, values: Iterable[str]) -> None:
    """Print the numbers of caught, missed and skipped rows for each value of a property.

    `values` contains the value of the property for each row, and `title` is its name.
    """
    counts: dict[str, Counter] = {}
    for row, value in zip(rows, values, strict=True):
        counts.setdefault(value, Counter())[row.claimed] += 1
    print(f"\n{title:34} {'caught':>8} {'missed':>8} {'nothing claimed':>16}")
    for value in sorted(counts, key=lambda value: (len(value) if value.isdecimal() else 0, value)):
        count = counts[value]
        print(f"{value:34} {count['caught']:8} {count['missed']:8} {count['nothing']:16}")


def describe(row: Row) -> str:
    """Return a row as one line of text: the error, the case, the status, the deviation and the tolerance."""
    error, tolerance = (f"{x:.2g}" if x is not None else "none" for x in row.outcome[1:3])
    text = f"; {row.outcome.text}" if row.outcome.text else ""
    return (
        f"  {row.kind} | {label(row.case)} | {row.outcome.status}, error {error}, tolerance {tolerance}{text}"
    )


def report(rows: list[Row]) -> int:
    """Print the tables, the missed errors, and the rejected correct derivatives. Return the exit status."""
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
    for title, checked, claimed in (
        ("missed", wrong, "missed"), ("right derivatives that are refused", good, "refused"),
        ("right derivatives of which nothing is claimed", good, "nothing"),
    ):  # fmt: skip
        selected = [row for row in checked if row.claimed == claimed]
        print(f"\n{title}: {len(selected)}", *map(describe, selected), sep="\n")
    counts = Counter(row.claimed for row in rows)
    skipped = [row for row in good if row.claimed == "nothing" and row.part == "right"]
    unjustified = [row for row in skipped if right.RIGHT[row.kind].digits]
    planted = counts["caught"] + counts["missed"]
    print(
        f"\ncaught: {counts['caught']} of {planted} planted errors ({counts['caught'] / max(planted, 1):.1%})"
    )
    print(
        f"refused: {counts['refused']} of {len(good)} right derivatives; nothing is claimed of {counts['nothing']}",
        flush=True,
    )
    is_accurate = (
        counts["caught"] >= CAUGHT * planted
        and not unjustified
        and len(skipped) <= MAY_CLAIM_NOTHING * len(good)
    )
    return int(not is_accurate or bool(counts["refused"]))


def main() -> int:
    """Run the parts of the command line, or all, print the results, and return the exit status."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    counts: dict[str, int] = {}
    parts = {
        "attempts": check_attempts,
        "families": lambda: check_results("families", cases.planted_cases(), counts),
        "built-in": lambda: check_results("built-in", cases.built_in_cases(), counts),
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
