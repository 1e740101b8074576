"""Preflight: the questions about a study that need JAX or a user's module, answered on the CPU before
anything starts.

The questions are answered in processes (examine.py): one for each user's module, and one for all that is
built in, so that a module that dies, hangs or is interrupted costs its own cases and no others. Answers about
built-in workloads are kept in the results folder: they follow from the cells, this package and the installed
packages, so that an unchanged study need not start JAX. Does not import JAX.
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

_START_SECONDS = 300.0  # to import JAX
_MOST_HANGS, _MOST_DEATHS = 3, 20  # in a row, before the other cases of a module are given up
_POLL_SECONDS = 0.1
_EXITED = "(SystemExit)"  # in the text of a failure
_FILE = ".examined.json"
_LAYOUT_DEFAULTS: dict[str, Any] = {
    "devices": 1, "api": "shard_map", "split": "points", "mesh": None, "chunk": None, "block": None,
    "cache": None, "memory_limit": None, "storage": None, "overlap": False,
}  # fmt: skip
Answer = dict[str, Any]  # an event of examine.py, or the failure of its process
Note = Callable[[int, int], None]


class _Unanswered(Exception):
    """A process did not answer: the reason of a record, a text, and whether it would answer none."""

    def __init__(self, reason: str, text: str, importing: bool) -> None:
        super().__init__(text)
        self.reason, self.importing = reason, importing


def examine_cells(
    cells: Sequence[GridCell], seconds: float = 600.0, note: Note = lambda done, total: None
) -> list[PreflightResult]:
    """Return an answer for each cell, each completed case once; bad input raises the first `Refusal` of them.

    seconds: the time limit of a question. note: called several times a second with how many are answered, and
    of how many.
    """
    return judge_answers(cells, ask_cells(cells, seconds, note))


def ask_cells(cells: Sequence[GridCell], seconds: float, note: Note) -> list[Answer]:
    """Return what the processes that examine the cells answer about each of them; see `examine_cells`.

    As many modules at a time are examined as there are cores.
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
                done, pending = wait(pending, _POLL_SECONDS)  # in pieces, so that Ctrl-C is noticed
                note(len(examination.answers), len(cells))
                for future in done:
                    future.result()
        finally:
            examination.stopped = True
    return [examination.answers[number] for number in range(len(cells))]


def judge_answers(cells: Sequence[GridCell], answers: Sequence[Answer]) -> list[PreflightResult]:
    """Return the examined case of each cell, each completed case once.

    Bad input raises the first `Refusal`.
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
    """Return the case without the fields that a function does not depend on.

    These fields describe where the case runs and how it is divided.
    """
    return dataclasses.replace(case, **_LAYOUT_DEFAULTS)


def _family(case: Case) -> tuple[Any, ...]:
    return case.target, case.variant, tuple(case.sizes.items())


@dataclass
class _Examination:
    """The questions about the cells of a study, and the answers so far by the number of the cell."""

    cells: Sequence[GridCell]
    seconds: float
    answers: dict[int, Answer] = field(default_factory=dict)
    stopped: bool = False

    def examine(self, modules: tuple[str, ...], numbers: Sequence[int]) -> None:
        """Have a process answer questions, those of one problem in a row, and a fresh one the rest where it
        dies or hangs.

        A failure is that of all cases of the same problem. After several in a row, or one at import, all
        others fail too.

        """
        problems = {number: without_layout(self.cells[number].case) for number in numbers}
        first = {
            problem: number for number, problem in reversed(problems.items())
        }  # the last one set is the first
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
        """Fail the cases of the first problem, or all that remain.

        All fail after `deaths` failures in a row, or after a failure at import.
        """
        first = self.cells[remaining[0]].case
        alike = {n for n in remaining if without_layout(self.cells[n].case) == without_layout(first)}
        text = f"{' and '.join(modules) or first.workload}: {why}"
        others = f"{text} ({deaths} questions in a row ended like this; this one was not asked)"
        for number in remaining if deaths or why.importing else alike:
            asked = why.importing or number in alike
            self.answers[number] = {"failure": (why.reason, text if asked else others)}
        remaining[:] = [number for number in remaining if number not in self.answers]
        # Those of the same variant come last, so that the others are answered.
        remaining.sort(key=lambda number: _family(self.cells[number].case) == _family(first))

    def _answer_in_order(self, modules: tuple[str, ...], remaining: list[int]) -> None:
        """Have one process answer what remains; a number is taken from the list when it is answered."""
        from scaling.workers.child_process import ChildProcess

        cells = [{"case": to_dict(self.cells[n].case), "scaling": self.cells[n].scaling} for n in remaining]
        process = ChildProcess(
            [sys.executable, "-m", "scaling.study.examine"],
            stdin_text=json.dumps({"modules": modules, "cells": cells}) + "\n",
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        with contextlib.closing(process):
            try:
                self._next(process, _START_SECONDS, "before it was ready", True)
            except _Unanswered as why:  # JAX is absent or fails, which is no module's fault
                raise Refusal(f"the study cannot be examined: {why}") from None
            imported = self._next(process, self.seconds, "while it was imported", True)
            if "refusal" in imported:
                self.answers |= dict.fromkeys(remaining, imported)
                remaining.clear()
            while remaining and not self.stopped:
                answer = self._next(process, self.seconds, "while workload(case) was called", False)
                self.answers[remaining.pop(0)] = answer

    def _next(self, process: "ChildProcess", seconds: float, when: str, importing: bool) -> "Event":
        """Return the next event of a process.

        Raise `_Unanswered` if it fails, ends, or sends nothing for `seconds`.
        """
        deadline = time.monotonic() + seconds
        while (event := process.receive(_POLL_SECONDS)) is None:
            if self.stopped or time.monotonic() > deadline:
                raise _Unanswered("timeout", f"no end after {seconds:g} s (case_seconds) {when}", importing)
        if event["event"] == "exit":
            ended = process.explain_exit(event["status"])
            last = f": {ended.last_line}" if ended.last_line else ""
            raise _Unanswered(ended.reason, f"its process {ended.text} {when}{last}", importing)
        if event["event"] == "failure":
            fix = f"; {event['fix']}" if event["fix"] else ""
            raise _Unanswered(event["reason"], f"{event['text']} {when}{fix}", importing)
        return event


def cache_key(cells: Sequence[GridCell]) -> str | None:
    """Return a digest of everything that determines the answers about these cells.

    Return None if the answers may depend on more.
    """
    if any(cell.case.engine != "jax" or user_modules(cell.case) for cell in cells):
        return None
    installed = sorted((each.name or "", each.version) for each in importlib.metadata.distributions())
    variables = sorted(item for item in os.environ.items() if item[0].startswith(("JAX_", "XLA_")))
    stated = [[to_dict(cell.case), cell.scaling] for cell in cells]
    return _digest((stated, installed, variables, environment.source()))


def load_answers(folder: Path, key: str | None) -> list[Answer] | None:
    """Return the answers that were kept under a key; None where there are none, or they are damaged."""
    kept = store.read_json(folder / _FILE)
    if key is None or not isinstance(kept, dict) or kept.get("key") != key:
        return None
    return kept["answers"] if kept.get("digest") == _digest(kept.get("answers")) else None


def save_answers(folder: Path, key: str | None, answers: Sequence[Answer]) -> None:
    """Store the answers of a fully examined study; a full disk does not stop the run."""
    # Whether a case is too large depends on the machine.
    lasting = all("case" in each and (each["unfit"] or [""])[0] != "too_large" for each in answers)
    if key is not None and lasting:
        with contextlib.suppress(OSError):
            kept = {"key": key, "digest": _digest(answers), "answers": answers}
            store.write_json(folder / _FILE, kept)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
