"""The trial: a case computed as a worker does, and the check asked about its result, right and wrong."""

import contextlib
import dataclasses
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from scaling.core import check, compile_case, layout, run_case, shape, workload
from scaling.core.case import Case
from scaling.core.record import Record
from scaling.core.timing import Sampling
from scaling.study import applicability, completion

HERE = {"digest": "planted", "platform": "cpu"}
ONCE = Sampling(least=2, most=2, warm_up=0.0, turns=1)
NO_DIGITS = "skipped: no_digits"


class Outcome(NamedTuple):
    """What became of a result: `ok`, or a status and a reason; with the error, the tolerance and the message."""

    status: str
    error: float | None = None
    tolerance: float | None = None
    text: str = ""


class Asked(NamedTuple):
    """A call of the check: its arguments, the result being one of them."""

    words: tuple
    named: dict[str, Any]

    @property
    def result(self) -> np.ndarray:
        return self.words[3]


@contextlib.contextmanager
def as_worker(case: Case) -> Iterator[None]:
    """Set JAX's configuration as a worker of this case has it."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", case.dtype == "float64")
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def complete(case: Case) -> Case | None:
    """Return the case with all its fields, or None where it cannot run by its nature."""
    with as_worker(case):
        case = completion.complete(case)
        built = workload.build(case)
        return (
            None if applicability.why_inapplicable(case, built, shape.derivative_shape(case, built)) else case
        )


def run(case: Case, samples: bool = False) -> tuple[Outcome, Asked | None]:
    """Compute and check a case; return its outcome and the first call of the check. samples: go on until there is a record."""
    calls: list[Asked] = []
    verdict = check.verdict

    def kept(*words: Any, **named: Any) -> check.Verdict:
        if not calls:
            calls.append(Asked((*words[:3], np.array(words[3]), *words[4:]), named))
        return verdict(*words, **named)

    blank, devices = Record(case, "failed", HERE), jax.devices()[: case.devices]
    with as_worker(case), unittest.mock.patch.object(check, "verdict", kept):
        if samples:
            record = run_case.run_case(blank, devices, "cpu", ONCE)
        else:
            record = run_case.prepare_case(blank, run_case.ProcessGroup(devices, "cpu"), ONCE).record
    status = record.status if record.status == "ok" else f"{record.status}: {record.reason}"
    return Outcome(status, record.error, record.tolerance, record.text or ""), calls[0] if calls else None


def run_right(case: Case) -> tuple[Case, Outcome]:
    """Run a whole attempt at a case that can run; return it with all its fields, and its outcome."""
    try:
        completed = complete(case)
    except ValueError as error:  # a `Refusal`
        return case, Outcome("failed: refused", text=str(error))
    if completed is None:
        raise ValueError(f"{case} cannot run")
    return completed, run(completed, samples=True)[0]


def judge(asked: Asked, result: np.ndarray) -> Outcome:
    """Ask the check about another result of the same case."""
    with as_worker(asked.words[0]):
        try:
            found = check.verdict(*asked.words[:3], result, *asked.words[4:], **asked.named)
        except Exception as error:
            return Outcome("failed: error", text=f"{type(error).__name__}: {error}")
    reason = found.reason
    status = "ok" if reason is None else NO_DIGITS if reason == "no_digits" else f"failed: {reason}"
    return Outcome(status, found.error, found.tolerance, found.text or "")


Change = Callable[[Any], Any]


def _multiplied(tree: Any, factor: float, where: Any = ()) -> Any:
    return jax.tree.map(lambda a: a.at[where].multiply(np.asarray(factor, a.dtype)), tree)


def second_device_off(case: Case, factor: float) -> contextlib.AbstractContextManager:
    """What the second device computes is multiplied by a factor."""
    where: tuple = (1,) if case.api == "pmap" else (0, 1) if case.axes[0] == 1 else (1,)
    program = layout.lay_out

    def changed(*words: Any, **named: Any) -> Any:
        made = program(*words, **named)
        return dataclasses.replace(
            made, function=jax.jit(lambda *given: _multiplied(made.function(*given), factor, where))
        )

    return unittest.mock.patch.object(layout, "lay_out", changed)


def inputs_of_another_seed(case: Case) -> contextlib.AbstractContextManager:
    """The program always answers for the inputs that it was compiled with, which are those of another case."""
    program = layout.lay_out

    def changed(case: Case, built: Any, devices: Any, *words: Any, **named: Any) -> Any:
        made = program(case, built, devices, *words, **named)

        stale = layout.place_inputs(dataclasses.replace(case, data_seed=case.data_seed + 1), built, made)
        return dataclasses.replace(made, function=jax.jit(lambda *given: made.function(*stale)))

    return unittest.mock.patch.object(layout, "lay_out", changed)


def later_calls_off(case: Case, factor: float, first_wrong: int = 2) -> contextlib.AbstractContextManager:
    """The first calls are right, the others multiplied by a factor."""
    runner = compile_case.make_runner

    def changed(*words: Any) -> Any:
        ask, collect = runner(*words)
        calls = 0

        def counted() -> Any:
            nonlocal calls
            calls += 1
            result = ask()
            if calls < first_wrong:
                return result
            if isinstance(result, np.ndarray):
                return (result * factor).astype(result.dtype)
            return _multiplied(result, factor)

        return counted, collect

    return unittest.mock.patch.object(compile_case, "make_runner", changed)


def run_with(case: Case, error: Callable[[Case], contextlib.AbstractContextManager]) -> Outcome:
    """Run a whole attempt at a case with an error in its program."""
    with as_worker(case), error(case):
        return run(case, samples=True)[0]
