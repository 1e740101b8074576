"""Run cases as a worker does, with a correct or a wrong program, and check correct and wrong results."""

import contextlib
import dataclasses
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from scaling.core import check, compile_case, layout, run_case, workload
from scaling.core.case import Case
from scaling.core.derivative import Derivative, describe_derivative
from scaling.core.record import Record
from scaling.core.timing import Sampling
from scaling.study import case_rules

HERE = {"digest": "planted", "platform": "cpu"}
ONCE = Sampling(least=2, most=2, warm_up=0.0, turns=1)
NO_DIGITS = "skipped: no_digits"


class Outcome(NamedTuple):
    """Outcome of the correctness check of a case.

    Attributes:
        status: "ok", or status and reason, such as "failed: wrong_answer".
        error, tolerance: The error of the result and its tolerance, if known.
        text: The message of the check.
    """

    status: str
    error: float | None = None
    tolerance: float | None = None
    text: str = ""


class CheckCall(NamedTuple):
    """The positional (`words`) and keyword (`named`) arguments of a call of `check.verdict`."""

    words: tuple
    named: dict[str, Any]

    @property
    def result(self) -> np.ndarray:
        """Return the checked result."""
        return self.words[1]


@contextlib.contextmanager
def configure_as_worker(case: Case) -> Iterator[None]:
    """Return a context manager in which JAX is configured for the dtype of a case, as in a worker."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", case.dtype == "float64")
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def complete(case: Case) -> Case | None:
    """Return the case with all defaults filled in, or None if the case cannot run."""
    with configure_as_worker(case):
        case = case_rules.complete(case)
        built = workload.build(case)
        reason = case_rules.why_inapplicable(describe_derivative(case, built))
        return None if reason else case


def run(case: Case, samples: bool = False) -> tuple[Outcome, CheckCall | None]:
    """Compute and check a case. Return (outcome, arguments of the first call of `check.verdict` or None).

    Args:
        samples: Whether to sample the case until it has a complete record.
    """
    calls: list[CheckCall] = []
    verdict = check.verdict

    def record_call(*words: Any, **named: Any) -> check.Verdict:
        if not calls:
            calls.append(CheckCall((words[0], np.array(words[1]), *words[2:]), named))
        return verdict(*words, **named)

    blank, devices = Record(case, "failed", HERE), jax.devices()[: case.devices]
    with configure_as_worker(case), unittest.mock.patch.object(check, "verdict", record_call):
        if samples:
            record = run_case.run_case(blank, devices, "cpu", ONCE)
        else:
            record = run_case.prepare_case(blank, run_case.ProcessGroup(devices, "cpu"), ONCE).record
    status = record.status if record.status == "ok" else f"{record.status}: {record.reason}"
    return Outcome(status, record.error, record.tolerance, record.text or ""), calls[0] if calls else None


def run_correct(case: Case) -> tuple[Case, Outcome]:
    """Compile, check and sample a case. Return (case with all defaults, outcome).

    Raise `ValueError` if the case cannot run.
    """
    try:
        completed = complete(case)
    except ValueError as error:  # a `Refusal`
        return case, Outcome("failed: refused", text=str(error))
    if completed is None:
        raise ValueError(f"{case} cannot run")
    return completed, run(completed, samples=True)[0]


def check_result(call: CheckCall, result: np.ndarray) -> Outcome:
    """Call `check.verdict` again with another result, and return the outcome."""
    with configure_as_worker(call.words[0].case):
        try:
            verdict = check.verdict(call.words[0], result, *call.words[2:], **call.named)
        except Exception as error:
            return Outcome("failed: error", text=f"{type(error).__name__}: {error}")
    reason = verdict.reason
    status = "ok" if reason is None else NO_DIGITS if reason == "no_digits" else f"failed: {reason}"
    return Outcome(status, verdict.error, verdict.tolerance, verdict.text or "")


Change = Callable[[Any], Any]


def _scale_leaves(tree: Any, factor: float, where: Any = ()) -> Any:
    """Return a pytree with the selected entries of each leaf multiplied by a factor."""
    return jax.tree.map(lambda a: a.at[where].multiply(np.asarray(factor, a.dtype)), tree)


def scale_second_device(case: Case, factor: float) -> contextlib.AbstractContextManager:
    """Return a context manager in which programs multiply the result of the second device by a factor."""
    where: tuple = (1,) if case.api == "pmap" else (0, 1) if case.mesh_shape[0] == 1 else (1,)
    lay_out = layout.lay_out

    def lay_out_wrong(*words: Any, **named: Any) -> Any:
        program = lay_out(*words, **named)
        function = jax.jit(lambda *arrays: _scale_leaves(program.function(*arrays), factor, where))
        return dataclasses.replace(program, function=function)

    return unittest.mock.patch.object(layout, "lay_out", lay_out_wrong)


def use_other_inputs(case: Case) -> contextlib.AbstractContextManager:
    """Return a context manager in which programs use the inputs of another data seed."""
    lay_out = layout.lay_out

    def lay_out_wrong(derivative: Derivative, *words: Any, **named: Any) -> Any:
        program = lay_out(derivative, *words, **named)
        case = dataclasses.replace(derivative.case, data_seed=derivative.case.data_seed + 1)
        other = dataclasses.replace(program, derivative=dataclasses.replace(derivative, case=case))
        other_inputs = layout.place_inputs(other)
        return dataclasses.replace(program, function=jax.jit(lambda *arrays: program.function(*other_inputs)))

    return unittest.mock.patch.object(layout, "lay_out", lay_out_wrong)


def scale_later_calls(case: Case, factor: float, first_wrong: int = 2) -> contextlib.AbstractContextManager:
    """Return a context manager in which programs multiply their results by a factor in later calls.

    Call number `first_wrong` is the first one with a wrong result.
    """
    make_runner = compile_case.make_runner

    def make_wrong_runner(*words: Any) -> Any:
        run, collect = make_runner(*words)
        calls = 0

        def run_wrong() -> Any:
            nonlocal calls
            calls += 1
            result = run()
            if calls < first_wrong:
                return result
            if isinstance(result, np.ndarray):
                return (result * factor).astype(result.dtype)
            return _scale_leaves(result, factor)

        return run_wrong, collect

    return unittest.mock.patch.object(compile_case, "make_runner", make_wrong_runner)


def run_with_error(case: Case, error: Callable[[Case], contextlib.AbstractContextManager]) -> Outcome:
    """Compile, check and sample a case whose program is made wrong by `error`. Return its outcome."""
    with configure_as_worker(case), error(case):
        return run(case, samples=True)[0]
