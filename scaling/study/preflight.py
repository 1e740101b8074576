"""Preflight: the questions about a study that need JAX or a user's module, answered on the CPU before anything starts.

The questions are answered in processes (examine.py): one for each user's module, and one for all that is built in, so that a
module that dies, hangs or is interrupted costs its own cases and no others. Does not import JAX.
"""

import contextlib
import dataclasses
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaling.core.case import Case, Refusal, from_dict, to_dict, user_modules
from scaling.study.grid import GridCell, UnusedField, refuse_unused
from scaling.workers import cores
from scaling.workers.child_process import ChildProcess, Event
from scaling.workers.examined import Examined

_START_SECONDS = 300.0  # to import JAX
_MOST_HANGS, _MOST_DEATHS = 3, 20  # in a row, before the other cases of a module are given up
_POLL_SECONDS = 0.1
_EXITED = "(SystemExit)"  # in the text of a failure
_PLAIN: dict[str, Any] = {
    "devices": 1, "api": "shard_map", "split": "points", "mesh": None, "chunk": None, "block": None, "cache": None,
    "memory_limit": None, "storage": None, "overlap": False,
}  # fmt: skip
Note = Callable[[int, int], None]


def no_note(done: int, total: int) -> None:
    """Tell nobody how many questions are answered."""


class _Unanswered(Exception):
    """A process did not answer a question: the reason of a record, a text, and whether it would answer none."""

    def __init__(self, reason: str, text: str, importing: bool) -> None:
        super().__init__(text)
        self.reason, self.importing = reason, importing


def examine_cells(cells: Sequence[GridCell], seconds: float = 600.0, note: Note = no_note) -> list[Examined]:
    """Return an answer for each cell, each completed case once; bad input raises the first `Refusal` of them.

    seconds: the time limit of a question. note: called several times a second with how many are answered, and of how many.
    """
    return judge_answers(cells, ask_cells(cells, seconds, note))


def ask_cells(
    cells: Sequence[GridCell], seconds: float = 600.0, note: Note = no_note
) -> list[dict[str, Any]]:
    """Return what the processes that examine the cells answer about each of them; see `examine_cells`."""
    return _Examination(cells, seconds).run(note)


def judge_answers(cells: Sequence[GridCell], found: Sequence[dict[str, Any]]) -> list[Examined]:
    """Return the examined case of each cell, each completed case once; bad input raises the first `Refusal` of them."""
    refusals = list(dict.fromkeys(answer["refusal"] for answer in found if "refusal" in answer))
    if refusals:
        more = f" (and {len(refusals) - 1} more like this)" if len(refusals) > 1 else ""
        raise Refusal(refusals[0] + more)
    refuse_unused(
        cells,
        [{name: UnusedField(*why) for name, why in answer.get("unused", {}).items()} for answer in found],
    )
    if all(_EXITED in answer.get("failure", ("", ""))[1] for answer in found):  # a script, not a workload
        raise Refusal(found[0]["failure"][1])
    whole: dict[Case, Examined] = {}
    for cell, answer in zip(cells, found, strict=True):
        if "failure" in answer:
            case = cell.scaled(cell.case)
            whole.setdefault(case, Examined(case, None, None, failure=answer["failure"]))
        else:
            case = from_dict(answer["case"])
            unfit = tuple(answer["unfit"]) if answer["unfit"] else None
            engine = tuple((name, version) for name, version in answer["engine"])
            whole[case] = Examined(case, unfit, answer["workload_digest"], engine)
    return list(whole.values())


def without_layout(case: Case) -> Case:
    """Return the case without the fields that say where and in which pieces it runs, on which a function does not depend."""
    return dataclasses.replace(case, **_PLAIN)


def _family(case: Case) -> tuple:
    return case.target, case.variant, tuple(case.sizes.items())


@dataclass
class _Examination:
    """The questions about the cells of a study, and the answers so far by the number of the cell."""

    cells: Sequence[GridCell]
    seconds: float
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    error: BaseException | None = None
    stopped: bool = False

    def run(self, note: Note) -> list[dict[str, Any]]:
        """Examine the cells of each module in processes of their own, as many modules at a time as there are cores."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for number, cell in enumerate(self.cells):
            groups.setdefault(user_modules(cell.case), []).append(number)
        waiting: queue.SimpleQueue = queue.SimpleQueue()
        for modules, numbers in groups.items():
            waiting.put((modules, self._by_problem(numbers)))
        count = min(len(groups), len(cores.allowed()))
        threads = [threading.Thread(target=self._work, args=(waiting,), daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            while self.error is None and (busy := [thread for thread in threads if thread.is_alive()]):
                busy[0].join(_POLL_SECONDS)  # in pieces, so that Ctrl-C is heard
                note(len(self.answers), len(self.cells))
        finally:
            self.stopped = True
            for thread in threads:
                thread.join()
        if self.error is not None:
            raise self.error
        return [self.answers[number] for number in range(len(self.cells))]

    def _work(self, waiting: queue.SimpleQueue) -> None:
        try:
            with contextlib.suppress(queue.Empty):
                while not self.stopped:
                    self._examine(*waiting.get_nowait())
        except BaseException as error:
            self.error = error

    def _by_problem(self, numbers: Sequence[int]) -> list[int]:
        """Return the numbers with those of the same problem one after another, because these share their answers."""
        together: dict[Case, list[int]] = {}
        for number in numbers:
            together.setdefault(without_layout(self.cells[number].case), []).append(number)
        return [number for each in together.values() for number in each]

    def _examine(self, modules: tuple[str, ...], left: list[int]) -> None:
        """Have a process answer the questions that are left, and fresh ones the rest where it dies or hangs.

        A failure is that of all cases of the same problem. After several in a row, or one at import, all that is left has failed.
        """
        hangs = deaths = 0
        while left and not self.stopped:
            before = len(left)
            try:
                self._answer_in_order(modules, left)
            except _Unanswered as why:
                hangs, deaths = (hangs, deaths) if len(left) == before else (0, 0)
                hangs, deaths = hangs + (why.reason == "timeout"), deaths + 1
                text = f"{' and '.join(modules) or self.cells[left[0]].case.workload}: {why}"
                alike = self._like(left[0], without_layout, left)
                self._fail(alike, why.reason, text, left)
                if why.importing or hangs == _MOST_HANGS or deaths == _MOST_DEATHS:
                    more = (
                        ""
                        if why.importing
                        else f" ({deaths} questions in a row ended like this; this one was not asked)"
                    )
                    self._fail(left[:], why.reason, text + more, left)
                else:  # those of the same variant come last, so that the others are answered
                    later = self._like(alike[0], _family, left)
                    left[:] = [number for number in left if number not in later] + later

    def _like(self, number: int, by: Callable[[Case], Any], of: Sequence[int]) -> list[int]:
        """Return the numbers of the cells that are like a cell in something."""
        wanted = by(self.cells[number].case)
        return [each for each in of if by(self.cells[each].case) == wanted]

    def _fail(self, numbers: Sequence[int], reason: str, text: str, left: list[int]) -> None:
        self.answers |= {number: {"failure": (reason, text)} for number in numbers}
        left[:] = [number for number in left if number not in self.answers]

    def _answer_in_order(self, modules: tuple[str, ...], left: list[int]) -> None:
        """Have one process answer what is left, each of which is taken from the list when it is answered."""
        cells = [{"case": to_dict(self.cells[n].case), "scaling": self.cells[n].scaling} for n in left]
        job = {"modules": modules, "cell": cells[0], "cells": cells}
        process = ChildProcess(
            [sys.executable, "-m", "scaling.study.examine"], stdin_text=json.dumps(job) + "\n",
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )  # fmt: skip
        with contextlib.closing(process):
            self._await_start(process)
            imported = self._next(process, self.seconds, "while it was imported", True)
            if "refusal" in imported:
                self.answers |= dict.fromkeys(left, imported)
                left.clear()
            while left and not self.stopped:
                answer = self._next(process, self.seconds, "while workload(case) was called", False)
                self.answers[left.pop(0)] = answer

    def _await_start(self, process: ChildProcess) -> None:
        """Wait for JAX, whose absence or failure is no module's fault."""
        try:
            self._next(process, _START_SECONDS, "before it was ready", True)
        except _Unanswered as why:
            if not self.stopped:
                raise Refusal(f"the study cannot be examined: {why}") from None

    def _next(self, process: ChildProcess, seconds: float, when: str, importing: bool) -> Event:
        """Return the next event of a process; raise `_Unanswered` if it fails, ends, or sends nothing for `seconds`."""
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
