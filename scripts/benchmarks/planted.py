"""Does the check find planted errors, and does it accept right derivatives?

Hundreds of errors are planted: in results of functions without a closed form, in whole attempts (wrong rules, a wrong device,
wrong later calls), and in results of the workloads that come with the package. Then functions of many kinds are run whose
derivatives are right. Prints each error that is missed and each right derivative that is refused as it is found, how many
errors of each kind were caught, and ends with the two fractions.

An error is caught where the case is failed, and missed where it is `ok`. A case that is skipped because its result has no digits
claims nothing, and counts as neither. Exit status 1 unless 99 % are caught and no right derivative is refused. Takes some minutes
on one core. `scripts/bench planted WORD...` takes only the parts named: attempts, families, built-in, right.
"""

import os
import sys

from scaling.core import environment
from scaling.workers import cores

os.sched_setaffinity(0, cores.usable_cores()[:1])
if not os.environ.get(
    "SCALING_BENCH"
):  # XLA and glibc read theirs before Python starts, and processes that it starts find modules
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
    """An error that was planted, or a right derivative, and what became of it."""

    part: str
    kind: str
    case: Case
    outcome: trial.Outcome
    right: bool = False

    @property
    def claimed(self) -> str:
        """Return `nothing`, `caught` or `missed`; of a right derivative `nothing`, `refused` or `accepted`."""
        if self.outcome.status.startswith("skipped"):
            return "nothing"
        if self.outcome.status == "ok":
            return "accepted" if self.right else "missed"
        return "refused" if self.right else "caught"


def in_results(part: str, some: Iterable[Case], seen: dict[str, int]) -> Iterator[Row]:
    """Plant errors in the right results of cases; each of these is a right derivative itself."""
    for number, case in enumerate(some):
        outcome, asked = trial.run(case)
        yield Row(part, "right", case, outcome, right=True)
        if asked is None or outcome.status.startswith("skipped"):
            continue
        for kind, wrong in plants.chosen(asked.words[0], asked.result, EACH[part], seen, number):
            yield Row(part, kind, case, trial.judge(asked, wrong))


def in_attempts() -> Iterator[Row]:
    """Plant errors in whole attempts."""
    for each in whole_attempts():
        yield Row("attempts", each.kind, each.case, each.run())


def of_right_functions() -> Iterator[Row]:
    """Run functions whose derivatives are right."""
    for name in right.VARIANTS:
        for case in right.cases(name):
            yield Row("right", name, *trial.run_right(case), right=True)


def table(rows: list[Row], title: str, of: Iterable[str]) -> None:
    """Print how many errors were caught, by what `of` says of each."""
    counts: dict[str, Counter] = {}
    for row, value in zip(rows, of, strict=True):
        counts.setdefault(value, Counter())[row.claimed] += 1
    print(f"\n{title:34} {'caught':>8} {'missed':>8} {'nothing claimed':>16}")
    for value, found in sorted(
        counts.items(), key=lambda row: (len(row[0]) if row[0].isdecimal() else 0, row[0])
    ):
        print(f"{value:34} {found['caught']:8} {found['missed']:8} {found['nothing']:16}")


def described(row: Row) -> str:
    """Return a row in one line, with its error and its tolerance."""
    error, tolerance = (f"{x:.2g}" if x is not None else "none" for x in row.outcome[1:3])
    words = f"; {row.outcome.text}" if row.outcome.text else ""
    return f"  {row.kind} | {label(row.case)} | {row.outcome.status}, error {error}, tolerance {tolerance}{words}"


def report(rows: list[Row]) -> int:
    """Print the tables, each error that was missed and each right derivative that was not accepted; the exit status."""
    wrong, good = [row for row in rows if not row.right], [row for row in rows if row.right]
    table(wrong, "kind", (row.kind for row in wrong))
    table(wrong, "inputs", (str(row.case.sizes.get("n", "built-in")) for row in wrong))
    for title, name in (
        ("dtype", "dtype"),
        ("mode", "mode"),
        ("reduction", "reduce"),
        ("devices", "devices"),
    ):
        table(wrong, title, (str(getattr(row.case, name)) for row in wrong))
    table(wrong, "part", (row.part for row in wrong))
    for title, some, claimed in (
        ("missed", wrong, "missed"), ("right derivatives that are refused", good, "refused"),
        ("right derivatives of which nothing is claimed", good, "nothing"),
    ):  # fmt: skip
        found = [row for row in some if row.claimed == claimed]
        print(f"\n{title}: {len(found)}", *map(described, found), sep="\n")
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
    """Run the parts and report; the exit status."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    seen: dict[str, int] = {}
    parts = {
        "attempts": in_attempts,
        "families": lambda: in_results("families", cases.planted_cases(), seen),
        "built-in": lambda: in_results("built-in", cases.built_in_cases(), seen),
        "right": of_right_functions,
    }
    rows: list[Row] = []
    for name in sys.argv[1:] or parts:
        began, before = time.monotonic(), len(rows)
        for row in parts[name]():
            rows.append(row)
            if row.claimed in ("missed", "refused"):
                print(f"{row.claimed}:{described(row)}", flush=True)
        print(f"{name}: {len(rows) - before} results in {time.monotonic() - began:.0f} s", flush=True)
    return report(rows)


if __name__ == "__main__":
    sys.exit(main())
