"""Preflight, parent process: check cases in child processes before a study starts, and cache the answers.

The child processes (preflight_process.py) import JAX and the user's modules. There is one process for each
set of user modules, and one for all cases without user modules. Therefore, a module that crashes or hangs
affects only the cases that use it. The answers about built-in workloads are cached in the results folder, so
that an unchanged study starts without JAX. This module does not import JAX.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import operator
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaling.core import environment
from scaling.core.case import VIEWS, Case, Refusal, defaults, from_dict, to_dict, user_modules
from scaling.results import store
from scaling.study.grid import GridCell, UnusedField, refuse_unused
from scaling.workers import cores
from scaling.workers.schedule import PreflightResult

if TYPE_CHECKING:
    from scaling.workers.child_process import ChildProcess, Event

_START_SECONDS = 300.0  # timeout of importing JAX
_MOST_HANGS, _MOST_DEATHS = 3, 20  # timeouts or failures in a row after which all remaining cells fail
_POLL_SECONDS = 0.1
_EXITED = "(SystemExit)"  # part of the text of a failure if a module exits
_FILE = ".examined.json"
_LAYOUT_DEFAULTS = defaults((*VIEWS["layout"], *VIEWS["memory"], "cache"))
Answer = dict[str, Any]  # an event of preflight_process.py, or {"failure": (reason, text)}
Note = Callable[[int, int], None]


class _Unanswered(Exception):
    """Raised if a child process exits, hangs or reports a failure instead of an answer about a case.

    `reason` is a code for the record. `importing` is whether it occurred before any case was checked.
    """

    def __init__(self, reason: str, text: str, importing: bool) -> None:
        super().__init__(text)
        self.reason, self.importing = reason, importing


def examine_cells(
    cells: Sequence[GridCell], seconds: float = 600.0, note: Note = lambda done, total: None
) -> list[PreflightResult]:
    """Check the cases of a study, and return one `PreflightResult` for each different case.

    If any case is invalid, raise `Refusal` for the first one.

    Args:
        cells: The cases as given in the study.
        seconds: The time limit for the check of one case.
        note: A function that is called several times a second with (number of checked cells, number of
            cells).
    """
    return judge_answers(cells, ask_cells(cells, seconds, note))


def ask_cells(cells: Sequence[GridCell], seconds: float, note: Note) -> list[Answer]:
    """Check the cells of a study in child processes, and return one answer per cell, in the same order.

    An answer is the JSON object that the child process sends, or {"failure": (reason, text)} if the check
    itself failed. The arguments are those of `examine_cells`.
    """
    groups: dict[tuple[str, ...], dict[Case, list[int]]] = {}  # user modules -> problem -> indices of cells
    for number, cell in enumerate(cells):
        problems = groups.setdefault(user_modules(cell.case), {})
        problems.setdefault(without_layout(cell.case), []).append(number)
    examination = _Examination(cells, seconds)
    with ThreadPoolExecutor(min(len(groups), len(cores.usable_cores()))) as pool:
        checks = [
            pool.submit(examination.examine, modules, list(problems.values()))
            for modules, problems in groups.items()
        ]
        try:
            while wait(checks, _POLL_SECONDS).not_done:  # poll, so that Ctrl-C is handled
                note(len(examination.answers), len(cells))
        finally:
            examination.stopped = True
    for check in checks:
        check.result()
    return [examination.answers[number] for number in range(len(cells))]


def judge_answers(cells: Sequence[GridCell], answers: Sequence[Answer]) -> list[PreflightResult]:
    """Convert the answers of `ask_cells` to one result for each different case.

    Cases are compared after their defaults are filled in, unless the check of the case failed. Raise
    `Refusal` if any case is invalid, if a field that is set in the study has no effect, or if every check
    ends with SystemExit.
    """
    if refusals := list(dict.fromkeys(answer["refusal"] for answer in answers if "refusal" in answer)):
        more = f" (and {len(refusals) - 1} more like this)" if len(refusals) > 1 else ""
        raise Refusal(refusals[0] + more)
    unused = [answer.get("unused", {}) for answer in answers]
    refuse_unused(cells, [{name: UnusedField(*why) for name, why in each.items()} for each in unused])
    if all(_EXITED in answer.get("failure", ("", ""))[1] for answer in answers):  # a script, not a workload
        raise Refusal(answers[0]["failure"][1])
    examined: dict[Case, PreflightResult] = {}
    for cell, answer in zip(cells, answers, strict=True):
        if "failure" in answer:
            case = cell.scaled(cell.case)
            examined.setdefault(case, PreflightResult(case, None, None, failure=answer["failure"]))
        else:
            case, engine = from_dict(answer["case"]), tuple(map(tuple, answer["engine"]))
            unfit = tuple(answer["unfit"]) if answer["unfit"] else None
            examined[case] = PreflightResult(case, unfit, answer["workload_digest"], engine)
    return list(examined.values())


def without_layout(case: Case) -> Case:
    """Return the case with its layout fields, such as devices, split and chunk, set to their defaults.

    The layout defines how a case is partitioned over devices. `workload(case)` does not depend on the layout,
    so that cases that differ only in layout share one workload.
    """
    return dataclasses.replace(case, **_LAYOUT_DEFAULTS)


@dataclass
class _Examination:
    """The state of the checks of a study.

    Attributes:
        answers: A dict from the index of a cell to its answer.
        stopped: Whether the checks must stop, for example after Ctrl-C.
    """

    cells: Sequence[GridCell]
    seconds: float
    answers: dict[int, Answer] = field(default_factory=dict)
    stopped: bool = False

    def examine(self, modules: tuple[str, ...], problems: list[list[int]]) -> None:
        """Check cells in a child process, and in a new one after a crash or hang.

        If the check of a cell fails, the remaining cells of its problem fail without a check. After several
        failures in a row, or after a failure during import, all remaining cells fail.

        Args:
            modules: The user modules of the cells.
            problems: The indices of the cells, in one list for all cells that differ only in layout.
        """
        failures: list[str] = []  # the reasons of the failures in a row
        while problems and not self.stopped:
            first = problems[0][0]
            try:
                self._answer_in_order(modules, problems)
            except _Unanswered as why:
                failures = [*(failures if problems[0][0] == first else []), why.reason]
                case = self.cells[problems[0][0]].case
                text = f"{' and '.join(modules) or case.workload}: {why}"
                failed = problems if why.importing else [problems.pop(0)]
                self._answer_all(failed, {"failure": (why.reason, text)})
                if why.importing:
                    return
                if failures.count("timeout") == _MOST_HANGS or len(failures) == _MOST_DEATHS:
                    text += f" ({len(failures)} cases in a row ended like this; this one was not examined)"
                    self._answer_all(problems, {"failure": (why.reason, text)})
                    return
                similar = operator.attrgetter("target", "variant", "sizes")  # such cases are checked last
                problems.sort(key=lambda each: similar(self.cells[each[0]].case) == similar(case))

    def _answer_all(self, problems: Iterable[Iterable[int]], answer: Answer) -> None:
        self.answers |= {number: answer for numbers in problems for number in numbers}

    def _answer_in_order(self, modules: tuple[str, ...], problems: list[list[int]]) -> None:
        """Check the cells of the problems in a child process, and remove each cell that is answered."""
        from scaling.workers.child_process import ChildProcess

        cells = [self.cells[number] for numbers in problems for number in numbers]
        asked = [{"case": to_dict(cell.case), "scaling": cell.scaling} for cell in cells]
        process = ChildProcess(
            [sys.executable, "-m", "scaling.study.preflight_process"],
            stdin_text=json.dumps({"modules": modules, "cells": asked}) + "\n",
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        with contextlib.closing(process):
            try:
                self._next_event(process, _START_SECONDS, "before it was ready", True)
            except _Unanswered as why:  # JAX is not installed or fails, independent of any module
                raise Refusal(f"the study cannot be examined: {why}") from None
            imported = self._next_event(process, self.seconds, "while it was imported", True)
            if "refusal" in imported:
                self._answer_all(problems, imported)
                problems.clear()
            while problems and not self.stopped:
                answer = self._next_event(process, self.seconds, "while workload(case) was called", False)
                self.answers[problems[0].pop(0)] = answer
                if not problems[0]:
                    del problems[0]

    def _next_event(self, process: "ChildProcess", seconds: float, when: str, importing: bool) -> "Event":
        """Return the next event of a child process. Raise `_Unanswered` if it fails, exits or hangs."""
        deadline = time.monotonic() + seconds
        while (event := process.receive(_POLL_SECONDS)) is None:
            if self.stopped or time.monotonic() > deadline:
                text = f"timed out after {seconds:g} s (case_seconds) {when}"
                raise _Unanswered("timeout", text, importing)
        if event["event"] == "exit":
            ended = process.explain_exit(event["status"])
            last = f": {ended.last_line}" if ended.last_line else ""
            raise _Unanswered(ended.reason, f"its process {ended.text} {when}{last}", importing)
        if event["event"] == "failure":
            fix = f"; {event['fix']}" if event["fix"] else ""
            raise _Unanswered(event["reason"], f"{event['text']} {when}{fix}", importing)
        return event


def cache_key(cells: Sequence[GridCell]) -> str | None:
    """Return a hash of everything that determines the answers about the given cells.

    Return None if a cell uses a user's module or an engine other than JAX. Answers about such cells must not
    be cached.
    """
    if any(cell.case.engine != "jax" or user_modules(cell.case) for cell in cells):
        return None
    installed = sorted((each.name or "", each.version) for each in importlib.metadata.distributions())
    variables = sorted(item for item in os.environ.items() if item[0].startswith(("JAX_", "XLA_")))
    stated = [[to_dict(cell.case), cell.scaling] for cell in cells]
    return _digest((stated, installed, variables, environment.source()))


def load_answers(folder: Path, key: str | None) -> list[Answer] | None:
    """Return the cached answers of a results folder, or None if it has none for this `cache_key`."""
    cached = store.read_json(folder / _FILE)
    if key is None or not isinstance(cached, dict) or cached.get("key") != key:
        return None
    return cached["answers"] if cached.get("digest") == _digest(cached.get("answers")) else None


def save_answers(folder: Path, key: str | None, answers: Sequence[Answer]) -> None:
    """Cache the answers in a results folder with their `cache_key`, unless a case is invalid or failed.

    Nothing is written if `key` is None. Write errors, such as a full disk, are ignored.
    """
    # Whether a case is too large depends on the machine, so that answer is not cached.
    is_cacheable = all("case" in each and (each["unfit"] or [""])[0] != "too_large" for each in answers)
    if key is not None and is_cacheable:
        with contextlib.suppress(OSError):
            store.write_json(folder / _FILE, {"key": key, "digest": _digest(answers), "answers": answers})


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
