"""Trials of the correctness check: compute a case like a worker does, and check right and wrong results."""

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
    """Outcome of a check: `ok`, or status and reason, with the error, the tolerance, and the message."""

    status: str
    error: float | None = None
    tolerance: float | None = None
    text: str = ""


class CheckCall(NamedTuple):
    """The arguments of a call of the check, one of which is the result."""

    words: tuple
    named: dict[str, Any]

    @property
    def result(self) -> np.ndarray:
        """Return the checked result."""
        return self.words[3]


@contextlib.contextmanager
def configure_as_worker(case: Case) -> Iterator[None]:
    """Set the JAX configuration that a worker has for this case."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", case.dtype == "float64")
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def complete(case: Case) -> Case | None:
    """Return the case with all defaults filled in, or None if it is inapplicable."""
    with configure_as_worker(case):
        case = completion.complete(case)
        built = workload.build(case)
        return (
            None if applicability.why_inapplicable(case, built, shape.derivative_shape(case, built)) else case
        )


def run(case: Case, samples: bool = False) -> tuple[Outcome, CheckCall | None]:
    """Compute and check a case. Return its outcome and the arguments of the first call of the check.

    Args:
        samples: Whether to sample the case until it has a complete record.
    """
    calls: list[CheckCall] = []
    verdict = check.verdict

    def kept(*words: Any, **named: Any) -> check.Verdict:
        if not calls:
            calls.append(CheckCall((*words[:3], np.array(words[3]), *words[4:]), named))
        return verdict(*words, **named)

    blank, devices = Record(case, "failed", HERE), jax.devices()[: case.devices]
    with configure_as_worker(case), unittest.mock.patch.object(check, "verdict", kept):
        if samples:
            record = run_case.run_case(blank, devices, "cpu", ONCE)
        else:
            record = run_case.prepare_case(blank, run_case.ProcessGroup(devices, "cpu"), ONCE).record
    status = record.status if record.status == "ok" else f"{record.status}: {record.reason}"
    return Outcome(status, record.error, record.tolerance, record.text or ""), calls[0] if calls else None


def run_correct(case: Case) -> tuple[Case, Outcome]:
    """Run a whole attempt at an applicable case. Return the completed case and its outcome."""
    try:
        completed = complete(case)
    except ValueError as error:  # a `Refusal`
        return case, Outcome("failed: refused", text=str(error))
    if completed is None:
        raise ValueError(f"{case} cannot run")
    return completed, run(completed, samples=True)[0]


def check_result(asked: CheckCall, result: np.ndarray) -> Outcome:
    """Check another result of the same case."""
    with configure_as_worker(asked.words[0]):
        try:
            found = check.verdict(*asked.words[:3], result, *asked.words[4:], **asked.named)
        except Exception as error:
            return Outcome("failed: error", text=f"{type(error).__name__}: {error}")
    reason = found.reason
    status = "ok" if reason is None else NO_DIGITS if reason == "no_digits" else f"failed: {reason}"
    return Outcome(status, found.error, found.tolerance, found.text or "")


Change = Callable[[Any], Any]


def _scale_leaves(tree: Any, factor: float, where: Any = ()) -> Any:
    """Return a pytree with the selected entries of each leaf multiplied by a factor."""
    return jax.tree.map(lambda a: a.at[where].multiply(np.asarray(factor, a.dtype)), tree)


def scale_second_device(case: Case, factor: float) -> contextlib.AbstractContextManager:
    """Multiply the result of the second device by a factor."""
    where: tuple = (1,) if case.api == "pmap" else (0, 1) if case.axes[0] == 1 else (1,)
    program = layout.lay_out

    def changed(*words: Any, **named: Any) -> Any:
        made = program(*words, **named)
        return dataclasses.replace(
            made, function=jax.jit(lambda *given: _scale_leaves(made.function(*given), factor, where))
        )

    return unittest.mock.patch.object(layout, "lay_out", changed)


def use_other_inputs(case: Case) -> contextlib.AbstractContextManager:
    """Make the program ignore its inputs, and use inputs with another data seed."""
    program = layout.lay_out

    def changed(case: Case, built: Any, devices: Any, *words: Any, **named: Any) -> Any:
        made = program(case, built, devices, *words, **named)

        stale = layout.place_inputs(dataclasses.replace(case, data_seed=case.data_seed + 1), built, made)
        return dataclasses.replace(made, function=jax.jit(lambda *given: made.function(*stale)))

    return unittest.mock.patch.object(layout, "lay_out", changed)


def scale_later_calls(case: Case, factor: float, first_wrong: int = 2) -> contextlib.AbstractContextManager:
    """Multiply the results by a factor, except for those of the first calls."""
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
            return _scale_leaves(result, factor)

        return counted, collect

    return unittest.mock.patch.object(compile_case, "make_runner", changed)


def run_with_error(case: Case, error: Callable[[Case], contextlib.AbstractContextManager]) -> Outcome:
    """Run a whole attempt at a case with an error in its program."""
    with configure_as_worker(case), error(case):
        return run(case, samples=True)[0]
