"""Check cases in child processes before a study runs, cache the answers, and make each `PreflightResult`.

There is one process (preflight_process.py) for each set of user modules, so that a module that crashes or
hangs affects only the cases that use it. Answers about built-in workloads are cached in the results folder.
This module does not import JAX.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.core import environment
from scaling.core.case import VIEWS, Case, Refusal, defaults, from_dict, to_dict, user_modules
from scaling.core.grouping import group_by
from scaling.results import store
from scaling.study import user_workload
from scaling.study.grid import GridCell, UnusedField, add_source, refuse_unused
from scaling.workers.child_process import rejects_variable
from scaling.workers.machine import ProcessShape
from scaling.workers.schedule import PreflightResult
from scaling.workers.worker_group import Variant, WorkerDied, WorkerGroup, open_worker_group

_MAX_FAILURES = 20  # number of consecutive failures after which the other cells fail without a check
_FAILURES_PER_TIMEOUT = 7  # number of failures that a timeout counts as
_FAILED_WHILE = {
    "import": "while it was imported",
    "answer": "while workload(case), its function or its reference was called",
}
_EXIT_MARK = "(SystemExit)"  # part of the text of a failure if a module calls sys.exit
_CACHE_FILE = ".examined.json"
_LAYOUT_DEFAULTS = defaults((*VIEWS["layout"], *VIEWS["memory"], "cache"))
Answer = dict[str, Any]  # an event of preflight_process.py, or {"failure": (reason, text)}
ProgressCallback = Callable[[int, int], None]  # (number of checked cells, number of all cells)


def check_cells(cells: Sequence[GridCell], seconds: float, note: ProgressCallback) -> list[Answer]:
    """Check whether the cases of a study can run, and return one answer per case, in the same order.

    The checks run in child processes. Each element of `cells` is a case as given in the study. During the
    checks, `note(checked, total)` is called with the number of checked cases and of all cases. An answer is:

    - the dict that `preflight_process.check_cell` returns, if the case is valid
    - {"refusal": error message, ...}, if the case is invalid
    - {"failure": (reason, text)}, if the check crashed or took more than `seconds`
    """
    examination = _Examination(cells, seconds, note)
    for cell_indices in group_by(range(len(cells)), lambda index: user_modules(cells[index].case)).values():
        examination.examine(cell_indices)
    return [examination.answers[cell_index] for cell_index in range(len(cells))]


def results_from_answers(cells: Sequence[GridCell], answers: Sequence[Answer]) -> list[PreflightResult]:
    """Convert the answers of `check_cells` to one `PreflightResult` per distinct case.

    Raise `Refusal` if a case is invalid, if a field has no effect, or if no case can be checked because a
    module calls sys.exit.
    """
    refusals = [
        (answer["refusal"], cell) for cell, answer in zip(cells, answers, strict=True) if "refusal" in answer
    ]
    if refusals:
        text, first = refusals[0]
        others = len({text for text, _ in refusals}) - 1
        more = f" (and {others} more like this)" if others else ""
        all_sizes = {tuple(cell.case.sizes.items()) for cell in cells}
        sizes = " ".join(f"{name}={size}" for name, size in first.case.sizes.items())
        if sizes and {tuple(cell.case.sizes.items()) for _, cell in refusals} < all_sizes:
            text += f", with {sizes}"
        raise Refusal(add_source(text, first.sources[0] if first.sources else {}) + more)
    refuse_unused(cells, [
        {name: UnusedField(*why) for name, why in answer.get("unused", {}).items()} for answer in answers
    ])  # fmt: skip
    if all(_EXIT_MARK in answer.get("failure", ("", ""))[1] for answer in answers):  # the module is a script
        fix = "remove that exit, or write it under if __name__ == '__main__'"
        raise Refusal(f"{answers[0]['failure'][1]}; {fix}")
    results: dict[Case, PreflightResult] = {}
    for cell, answer in zip(cells, answers, strict=True):
        if "failure" in answer:
            case = cell.scaled(cell.case)
            results.setdefault(case, PreflightResult(case, ("failed", *answer["failure"]), None))
        else:
            case, engine = from_dict(answer["case"]), tuple(map(tuple, answer["engine"]))
            outcome = ("skipped", *answer["unfit"]) if answer["unfit"] else None
            results[case] = PreflightResult(case, outcome, answer["workload_digest"], engine)
    return list(results.values())


def without_layout(case: Case) -> Case:
    """Return a copy of a case with default values for its layout, memory and cache fields."""
    return dataclasses.replace(case, **_LAYOUT_DEFAULTS)


@dataclass
class _Examination:
    """The arguments of `check_cells`, and the answers found so far."""

    cells: Sequence[GridCell]
    seconds: float  # time limit for the check of one case
    note: ProgressCallback
    answers: dict[int, Answer] = field(default_factory=dict)  # cell index -> answer

    def examine(self, cell_indices: list[int]) -> None:
        """Check the cases with the given indices in a child process.

        If the process fails, so does its current case, and a new process checks the next cases.
        """
        # Each list in `layout_groups` contains the indices of cells that differ only in layout.
        layout_groups = list(
            group_by(cell_indices, lambda index: without_layout(self.cells[index].case)).values()
        )
        failures = 0  # number since the last answer; a timeout counts as several
        while layout_groups:
            first_cell = layout_groups[0][0]
            failure = self._answer_in_order(layout_groups)
            if failure is None:
                return
            reason, text = failure["failure"]
            failures *= layout_groups[0][0] == first_cell
            failures += _FAILURES_PER_TIMEOUT if reason == "timeout" else 1
            case = self.cells[layout_groups[0][0]].case
            self._answer_all([layout_groups.pop(0)], failure)  # cells that differ only in layout fail alike
            if failures >= _MAX_FAILURES:
                text += " (several cases in a row ended like this; this one was not examined)"
                self._answer_all(layout_groups, {"failure": (reason, text)})
                return
            similar = operator.attrgetter("target", "variant", "sizes")  # such cases are checked last
            layout_groups.sort(key=lambda group: similar(self.cells[group[0]].case) == similar(case))

    def _answer_all(self, layout_groups: Iterable[Iterable[int]], answer: Answer) -> None:
        self.answers |= {cell_index: answer for cell_indices in layout_groups for cell_index in cell_indices}

    def _answer_in_order(self, layout_groups: list[list[int]]) -> Answer | None:
        """Check cases in one child process, in order, until a check crashes or times out.

        Return {"failure": (reason, text)} for this check, or None if all cases were checked. Each list in
        `layout_groups` contains the indices of cases that differ only in layout. The indices of checked cases
        are removed, and their answers are added to `self.answers`. If the user's modules cannot be imported,
        this error is the answer for all cases.
        """
        module, variables = "scaling.study.preflight_process", {"JAX_PLATFORMS": "cpu"}
        program = Variant("preflight", module=module, variables=variables)
        try:
            with open_worker_group({"platform": "cpu"}, program, ProcessShape(1), None) as process:
                imported = self._ask(process, layout_groups[0][0], "import")
                if "failure" in imported or "refusal" in imported:
                    self._answer_all(layout_groups, imported)
                    layout_groups.clear()
                while layout_groups:
                    answer = self._ask(process, layout_groups[0][0], "answer")
                    if "failure" in answer:
                        return answer
                    self.answers[layout_groups[0].pop(0)] = answer
                    self.note(len(self.answers), len(self.cells))
                    if not layout_groups[0]:
                        del layout_groups[0]
        except WorkerDied as death:  # at the start, if JAX is missing or fails; `_ask` handles later ones
            why = str(death) or "JAX cannot be imported in time"
            why += "; correct or unset it" if rejects_variable(why) else ""
            raise Refusal(f"the study cannot be examined: {why}{user_workload.advise_renaming()}") from None
        return None

    def _ask(self, process: WorkerGroup, cell_index: int, step: str) -> Answer:
        """Send the request `step` ("import" or "answer") about a case to `process`, and return the answer."""
        cell = self.cells[cell_index]
        request = {"do": step, "case": to_dict(cell.case), "scaling": cell.scaling}
        try:
            return list(process.request(request, self.seconds))[-1]
        except WorkerDied as death:
            text = death.text or f"timed out after {self.seconds:g} s (case_seconds)"
            subject = " and ".join(user_modules(cell.case)) or cell.case.workload
            return {"failure": (death.reason, f"{subject}: {text} {_FAILED_WHILE[step]}{death.detail}")}


def cache_key(cells: Sequence[GridCell]) -> str | None:
    """Return the cache key of the preflight answers for `cells`, or None if they must not be cached.

    The key is a hash of all data that affect the answers, such as the versions of the installed packages.
    """
    if any(cell.case.engine != "jax" or user_modules(cell.case) for cell in cells):
        return None
    packages = importlib.metadata.distributions()
    installed = sorted((package.name or "", package.version) for package in packages)
    variables = sorted(item for item in os.environ.items() if item[0].startswith(("JAX_", "XLA_")))
    given_cases = [[to_dict(cell.case), cell.scaling] for cell in cells]
    return _digest((given_cases, installed, variables, environment.source()))


def load_answers(folder: Path, key: str | None) -> list[Answer]:
    """Return the preflight answers cached under `key` in a results folder, or [] if none can be used."""
    cached = store.read_json(folder / _CACHE_FILE)
    if key is None or not isinstance(cached, dict):
        return []
    is_valid = cached.get("digest") == _digest((key, cached.get("answers")))
    return cached["answers"] if is_valid else []


def save_answers(folder: Path, key: str | None, answers: Sequence[Answer]) -> None:
    """Cache the answers of `check_cells` in a results folder under `key`. Do nothing if `key` is None.

    Also do nothing if an answer may change later, such as a failure or a lack of memory.
    """
    is_cacheable = all("case" in answer and (answer["unfit"] or [""])[0] != "too_large" for answer in answers)
    if key is not None and is_cacheable:
        with contextlib.suppress(OSError):
            store.write_json(folder / _CACHE_FILE, {"digest": _digest((key, answers)), "answers": answers})


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
