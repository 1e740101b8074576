"""Mutation testing: plant known defects in copies of the checkout, and report which test detects each.

A defect replaces a text in the package (defects.toml). The checkout itself is never changed. A test counts as
a detection only if it passes in a copy without the defect.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.tiers import TIERS

TOP = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("defects.toml")
PACKAGE = "scaling"
DEFAULT_RUN = ("-m", f"default or not ({' or '.join(TIERS)})")  # the same tests as scripts/test
WHOLE = ("-n", "2", "--dist", "loadfile")
ALLOWED_MISSES = 1
FAILED, BAD_INPUT = 1, 2


@dataclass(frozen=True)
class Defect:
    """A replacement of a text that occurs exactly once in the package.

    Attributes:
        breaks: The property that the defect violates.
        found_by: Name of a test that runs first. If it passes, the whole default run follows.
    """

    name: str
    breaks: str
    old: str
    new: str
    found_by: str | None = None


@dataclass(frozen=True)
class Planted:
    """The result of planting a defect.

    Attributes:
        test: The first test that failed, or None if no test failed.
        why: Explanation if `test` is None.
    """

    defect: Defect
    path: str
    test: str | None
    seconds: float
    why: str = ""


@dataclass
class Copies:
    """Copies of the checkout in a temporary folder.

    Attributes:
        seconds: Timeout of a run of pytest.
        passes_without: Whether a test passes in a copy without a defect, by test.
    """

    folder: Path
    seconds: float  # that one run of pytest may take
    passes_without: dict[str, bool] = field(default_factory=dict)  # by test, in a copy without a defect

    def make(self, name: str) -> Path:
        """Copy the tracked files to a new folder, as a git repository of its own."""
        copy = self.folder / name
        for path in tracked_files():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TOP / path, copy / path)
        (copy / ".venv").symlink_to(TOP / ".venv")
        author = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-c", "commit.gpgsign=false")
        for words in (("init", "-q"), ("add", "-A"), (*author, "commit", "-q", "-m", "copy")):
            subprocess.run(["git", *words], cwd=copy, check=True)
        return copy

    def passes_clean(self, test: str) -> bool:
        """Return whether a test passes in a copy without a defect."""
        if test not in self.passes_without:
            clean = self.folder / "clean"
            if not clean.exists():
                self.make("clean")
            self.passes_without[test] = run_tests(clean, [test], self.seconds).passed
        return self.passes_without[test]


@dataclass(frozen=True)
class Run:
    """Result of a run of pytest.

    Attributes:
        passed: Whether at least one test ran and none failed.
        failed: IDs of the failed tests.
        late: Whether the run exceeded its timeout.
    """

    passed: bool
    failed: tuple[str, ...]
    late: bool
    output: str


def tracked_files() -> list[str]:
    """Return the paths of the existing files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=TOP, check=True, capture_output=True, text=True)
    return [path for path in listed.stdout.split("\0") if path and (TOP / path).is_file()]


def read_table(path: Path = TABLE) -> list[Defect]:
    """Return the defects of the table. Raise ValueError for an invalid field or a duplicate name."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["defect"]
    try:
        defects = [Defect(**{name: text.strip("\n") for name, text in row.items()}) for row in rows]
    except TypeError as error:
        raise ValueError(f"{path.name}: {error}") from None
    names = [defect.name for defect in defects]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{path.name}: several defects are named {', '.join(twice)}")
    return defects


def find_place(defect: Defect, top: Path = TOP) -> Path:
    """Return the file of the package that contains the text of a defect.

    Raises:
        ValueError: If the text does not occur exactly once.
        SyntaxError: If the file with the defect is not valid Python.
    """
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((top / PACKAGE).rglob("*.py"))}
    counts = {path: count for path, text in texts.items() if (count := text.count(defect.old))}
    if list(counts.values()) != [1]:
        where = ", ".join(f"{count} times in {path.relative_to(top)}" for path, count in counts.items())
        text = f"{defect.name}: its text must occur once in {PACKAGE}/, but occurs {where or 'nowhere'}"
        raise ValueError(f"{text}: {defect.old!r}; correct it in {TABLE.relative_to(TOP)}")
    [path] = counts
    compile(texts[path].replace(defect.old, defect.new), str(path), "exec")
    return path.relative_to(top)


def run_tests(copy: Path, words: Sequence[str], seconds: float) -> Run:
    """Run pytest in a copy, so that all child processes import the package of the copy."""
    environment = os.environ | {"PYTHONPATH": str(copy)}
    python = str(copy / ".venv" / "bin" / "python")
    command = [python, "-m", "pytest", "-x", "--tb=no", "-rfE", *DEFAULT_RUN, *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=copy, env=environment, start_new_session=True, **streams)
    late = False
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        late = True
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    failed = tuple(re.findall(r"^(?:FAILED|ERROR) (\S+?\.py(?:::.+?)?)(?: - .*)?$", output, re.MULTILINE))
    return Run(process.returncode == 0, failed, late, output)


def files_with(test: str) -> list[str]:
    """Return the test files that define a test of this name."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((TOP / "tests").rglob("test_*.py"))}
    return [str(path.relative_to(TOP)) for path, text in texts.items() if f"def {test}(" in text]


def plant(defect: Defect, copies: Copies, whole: bool) -> Planted:
    """Plant a defect in a new copy, and run the tests there: first its known test, and then all."""
    began, place, copy = time.monotonic(), find_place(defect), copies.make(defect.name)
    path = copy / place
    path.write_text(path.read_text(encoding="utf-8").replace(defect.old, defect.new), encoding="utf-8")
    test, why = None, ""
    if defect.found_by and not whole and (files := files_with(defect.found_by)):
        test, _ = first_finding(run_tests(copy, [*files, "-k", defect.found_by], copies.seconds), copies)
    if test is None:
        test, why = first_finding(run_tests(copy, WHOLE, copies.seconds), copies)
    shutil.rmtree(copy)
    return Planted(defect, str(place), test, time.monotonic() - began, why)


def first_finding(done: Run, copies: Copies) -> tuple[str | None, str]:
    """Return the first failed test that passes without the defect, or None and the reason."""
    tests = [test for test in done.failed if "::" in test]
    found = next((test for test in tests if copies.passes_clean(test)), None)
    if found:
        return found, ""
    if tests:
        return None, f"{tests[0]} fails without the defect too"
    if done.failed:
        return None, f"{done.failed[0]} cannot be collected"
    if done.late:
        return None, "the tests took too long"
    return None, "" if done.passed else (done.output.strip().splitlines() or ["no output"])[-1]


def report(planted: Planted) -> str:
    """Return a row of the printed table."""
    found = f"found by {planted.test}" if planted.test else " ".join(["NOT FOUND", planted.why]).strip()
    return f"{planted.defect.name:32} {planted.path:36} {planted.seconds:4.0f} s  {found}"


def parse(words: Sequence[str] | None, defects: Sequence[Defect]) -> argparse.Namespace:
    """Parse the command line. An unknown name ends the program with exit status 2."""
    parser = argparse.ArgumentParser(prog="scripts/plant_defects", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="defects of the table (default: all)")
    parser.add_argument("--check", action="store_true", help="only check that each text occurs once")
    parser.add_argument("--whole", action="store_true", help="run all tests, without the known test first")
    parser.add_argument("--seconds", type=float, default=1200.0, help="timeout of a run of tests (1200)")
    given = parser.parse_args(words)
    known = [defect.name for defect in defects]
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"unknown defect {unknown[0]!r}: choose from {', '.join(known)}")
    return given


def main(words: Sequence[str] | None = None) -> int:
    """Plant the requested defects.

    Returns:
        Exit status: 0, 1 if more than one defect was missed, or 2 if the text of a defect was not found.
    """
    try:
        defects = read_table()
        given = parse(words, defects)
        defects = [defect for defect in defects if not given.names or defect.name in given.names]
        places = {defect.name: find_place(defect) for defect in defects}
    except (ValueError, SyntaxError) as error:
        print(f"scripts/plant_defects: {error}", file=sys.stderr)
        return BAD_INPUT
    if given.check:
        print("\n".join(f"{name:32} {place!s:36}" for name, place in places.items()))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))  # so that the tests that run end too
    missed = []
    with tempfile.TemporaryDirectory(prefix="defects-") as folder:
        copies = Copies(Path(folder), given.seconds)
        for defect in defects:
            planted = plant(defect, copies, given.whole)
            print(report(planted), flush=True)
            missed += [] if planted.test else [defect.name]
    names = f"; not found: {', '.join(missed)}" if missed else ""
    print(f"{len(defects) - len(missed)} of {len(defects)} found{names}")
    return FAILED if len(missed) > ALLOWED_MISSES else 0


if __name__ == "__main__":
    sys.exit(main())
