"""Preflight, parent process: check cases before a study starts, in child processes, and cache the answers.

The child processes (preflight_process.py) import JAX and the user's modules: one process for each set of user
modules, and one for everything built in. A module that crashes or hangs therefore affects only its own cases.
The results for built-in workloads are cached in the results folder, so that an unchanged study starts without
JAX. This module does not import JAX.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaling.core import environment, store
from scaling.core.case import Case, Refusal, from_dict, to_dict, user_modules
from scaling.study.grid import GridCell, UnusedField, refuse_unused
from scaling.workers import cores
from scaling.workers.preflight_result import PreflightResult

if TYPE_CHECKING:
    from scaling.workers.child_process import ChildProcess, Event

_START_SECONDS = 300.0  # timeout of importing JAX
_MOST_HANGS, _MOST_DEATHS = 3, 20  # in a row, after which all remaining cells of a module fail
_POLL_SECONDS = 0.1
_EXITED = "(SystemExit)"  # marks an exit of the module in the text of a failure
_FILE = ".examined.json"
_LAYOUT_DEFAULTS: dict[str, Any] = {
    "devices": 1, "api": "shard_map", "split": "points", "mesh": None, "chunk": None, "block": None,
    "cache": None, "memory_limit": None, "storage": None, "overlap": False,
}  # fmt: skip
Answer = dict[str, Any]  # an event of preflight_process.py, or {"failure": (reason, text)}
Note = Callable[[int, int], None]


class _Unanswered(Exception):
    """Raised if a child process exits, hangs or reports a failure instead of an answer about a case.

    `importing` is true if that happened while modules were imported, so that no case can be checked.
    """

    def __init__(self, reason: str, text: str, importing: bool) -> None:
        super().__init__(text)
        self.reason, self.importing = reason, importing


def examine_cells(
    cells: Sequence[GridCell], seconds: float = 600.0, note: Note = lambda done, total: None
) -> list[PreflightResult]:
    """Check the cases of a study, and return one `PreflightResult` for each distinct case.

    Raise the first `Refusal` if any case is invalid.

    Args:
        cells: The cases as stated in the study.
        seconds: The timeout of the check of one case.
        note: A function that is called with the numbers of checked and of all cells, several times a second.
    """
    return judge_answers(cells, ask_cells(cells, seconds, note))


def ask_cells(cells: Sequence[GridCell], seconds: float, note: Note) -> list[Answer]:
    """Check the cells of a study (cases as stated) in child processes, and return their answers in order.

    An answer is a JSON object of the child process, or {"failure": (reason, text)} if the check itself
    failed. At most as many processes run at a time as there are usable cores. The arguments are those of
    `examine_cells`.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, cell in enumerate(cells):
        groups.setdefault(user_modules(cell.case), []).append(number)
    examination = _Examination(cells, seconds)
    with ThreadPoolExecutor(min(len(groups), len(cores.usable_cores()))) as pool:
        pending: Iterable[Future[None]] = [
            pool.submit(examination.examine, modules, numbers) for modules, numbers in groups.items()
        ]
        try:
            while pending:
                done, pending = wait(pending, _POLL_SECONDS)  # poll, so that Ctrl-C is handled
                note(len(examination.answers), len(cells))
                for future in done:
                    future.result()
        finally:
            examination.stopped = True
    return [examination.answers[number] for number in range(len(cells))]


def judge_answers(cells: Sequence[GridCell], answers: Sequence[Answer]) -> list[PreflightResult]:
    """Convert the answers of `ask_cells` into one result for each distinct case with its defaults filled in.

    Raise the first `Refusal` if any case is invalid or a stated field has no effect.
    """
    refusals = list(dict.fromkeys(answer["refusal"] for answer in answers if "refusal" in answer))
    if refusals:
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

    `workload(case)` does not depend on the layout, which says how a case is partitioned over devices.
    """
    return dataclasses.replace(case, **_LAYOUT_DEFAULTS)


def _problem_key(case: Case) -> tuple[Any, ...]:
    return case.target, case.variant, tuple(case.sizes.items())


@dataclass
class _Examination:
    """The state of the checks of a study: its cells (cases as stated), and a dict from index to answer."""

    cells: Sequence[GridCell]
    seconds: float
    answers: dict[int, Answer] = field(default_factory=dict)
    stopped: bool = False

    def examine(self, modules: tuple[str, ...], numbers: Sequence[int]) -> None:
        """Check the cells with these indices in child processes, and start a new one after a crash or hang.

        Cells that differ only in their layout are checked consecutively, and a failure applies to all of
        them. After several failures in a row, or a failure at import, all remaining cells fail.
        """
        problems = {number: without_layout(self.cells[number].case) for number in numbers}
        first = {
            problem: number for number, problem in reversed(problems.items())
        }  # in reverse order, so that the first index is kept
        remaining = sorted(numbers, key=lambda number: first[problems[number]])
        hangs = deaths = 0
        while remaining and not self.stopped:
            before = len(remaining)
            try:
                self._answer_in_order(modules, remaining)
            except _Unanswered as why:
                if len(remaining) < before:
                    hangs = deaths = 0
                hangs, deaths = hangs + (why.reason == "timeout"), deaths + 1
                repeated = hangs == _MOST_HANGS or deaths == _MOST_DEATHS
                self._record_failure(modules, remaining, why, deaths if repeated else 0)

    def _record_failure(
        self, modules: tuple[str, ...], remaining: list[int], why: _Unanswered, deaths: int
    ) -> None:
        """Record that the first remaining cell failed, and all cells that differ from it only in layout.

        All remaining cells fail if the failure happened at import, or after `deaths` > 0 failures in a row.
        """
        first = self.cells[remaining[0]].case
        same_problem = {n for n in remaining if without_layout(self.cells[n].case) == without_layout(first)}
        text = f"{' and '.join(modules) or first.workload}: {why}"
        unasked_text = f"{text} ({deaths} cases in a row ended like this; this one was not examined)"
        for number in remaining if deaths or why.importing else same_problem:
            was_asked = why.importing or number in same_problem
            self.answers[number] = {"failure": (why.reason, text if was_asked else unasked_text)}
        remaining[:] = [number for number in remaining if number not in self.answers]
        # Cells with the same target, variant and sizes go last, so that the others are answered first.
        remaining.sort(key=lambda number: _problem_key(self.cells[number].case) == _problem_key(first))

    def _answer_in_order(self, modules: tuple[str, ...], remaining: list[int]) -> None:
        """Start a child process, and record its answers about the remaining cells.

        The index of a cell is removed from `remaining` once it is answered. Raise `_Unanswered` if the
        process fails to answer.
        """
        from scaling.workers.child_process import ChildProcess

        cells = [{"case": to_dict(self.cells[n].case), "scaling": self.cells[n].scaling} for n in remaining]
        process = ChildProcess(
            [sys.executable, "-m", "scaling.study.preflight_process"],
            stdin_text=json.dumps({"modules": modules, "cells": cells}) + "\n",
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        with contextlib.closing(process):
            try:
                self._next_event(process, _START_SECONDS, "before it was ready", True)
            except _Unanswered as why:  # JAX is not installed or fails, independent of any module
                raise Refusal(f"the study cannot be examined: {why}") from None
            imported = self._next_event(process, self.seconds, "while it was imported", True)
            if "refusal" in imported:
                self.answers |= dict.fromkeys(remaining, imported)
                remaining.clear()
            while remaining and not self.stopped:
                answer = self._next_event(process, self.seconds, "while workload(case) was called", False)
                self.answers[remaining.pop(0)] = answer

    def _next_event(self, process: "ChildProcess", seconds: float, when: str, importing: bool) -> "Event":
        """Return the next event of a child process, or raise `_Unanswered` if it fails, exits or hangs."""
        deadline = time.monotonic() + seconds
        while (event := process.receive(_POLL_SECONDS)) is None:
            if self.stopped or time.monotonic() > deadline:
                raise _Unanswered(
                    "timeout", f"timed out after {seconds:g} s (case_seconds) {when}", importing
                )
        if event["event"] == "exit":
            ended = process.explain_exit(event["status"])
            last = f": {ended.last_line}" if ended.last_line else ""
            raise _Unanswered(ended.reason, f"its process {ended.text} {when}{last}", importing)
        if event["event"] == "failure":
            fix = f"; {event['fix']}" if event["fix"] else ""
            raise _Unanswered(event["reason"], f"{event['text']} {when}{fix}", importing)
        return event


def cache_key(cells: Sequence[GridCell]) -> str | None:
    """Return a hash of everything that the answers about the given cells (cases as stated) depend on.

    Return None if the answers cannot be cached, because a cell uses a user's module or an engine other than
    JAX.
    """
    if any(cell.case.engine != "jax" or user_modules(cell.case) for cell in cells):
        return None
    installed = sorted((each.name or "", each.version) for each in importlib.metadata.distributions())
    variables = sorted(item for item in os.environ.items() if item[0].startswith(("JAX_", "XLA_")))
    stated = [[to_dict(cell.case), cell.scaling] for cell in cells]
    return _digest((stated, installed, variables, environment.source()))


def load_answers(folder: Path, key: str | None) -> list[Answer] | None:
    """Return the preflight answers that a results folder caches under a key, or None if there are none."""
    cached = store.read_json(folder / _FILE)
    if key is None or not isinstance(cached, dict) or cached.get("key") != key:
        return None
    return cached["answers"] if cached.get("digest") == _digest(cached.get("answers")) else None


def save_answers(folder: Path, key: str | None, answers: Sequence[Answer]) -> None:
    """Cache the answers about the cells of a study in its results folder.

    Nothing is cached if the key is None, or if a case is invalid, failed or is too large for this machine.
    Errors of writing, such as a full disk, are ignored.
    """
    # Whether a case is too large depends on the machine, so that answer is not cached.
    is_cacheable = all("case" in each and (each["unfit"] or [""])[0] != "too_large" for each in answers)
    if key is not None and is_cacheable:
        with contextlib.suppress(OSError):
            cached = {"key": key, "digest": _digest(answers), "answers": answers}
            store.write_json(folder / _FILE, cached)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
