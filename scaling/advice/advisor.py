"""Implement `scaling.advise` and `mode=auto`: choose the fastest candidate, and describe it (`Advice`).

A method is an AD mode with a chunk, a block and a number of devices, or a coloring. A candidate is a case
that computes the derivative with one of the methods. candidates.py lists and compiles the candidates,
measurement.py measures them, and plain_code.py writes the code to paste. mode=auto measures nothing.
"""

import dataclasses
import functools
import math
import numbers
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from scaling.advice import candidates, measurement, plain_code
from scaling.advice.problem import Problem, make_problem, name_user_function, registered
from scaling.analysis.ratios import ratio_interval
from scaling.core import environment
from scaling.core.case import Case, Refusal, check_names, non_default_fields
from scaling.core.compile_case import Stages
from scaling.core.derivative import Derivative
from scaling.core.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_interval,
    format_number,
)
from scaling.core.record import Record, RecordFields, bytes_while_running
from scaling.core.run_case import CaseEnded, ProcessGroup
from scaling.core.timing import median_interval
from scaling.options.coloring import Coloring
from scaling.plan.hardware import Hardware, find_compiler, find_model, read_hardware

if TYPE_CHECKING:
    import pandas

_COMPILING_SECONDS = 30.0  # seconds after which no compilation begins, unless half of the budget is longer
_DEFAULTS: dict[str, Any] = {"budget": 30.0, "devices": 1, "hardware": None, "note": None}
_NO_ADVICE = "no way to differentiate it can be advised"  # start of a message
_OBVIOUS_MODES = ("jacfwd", "jacrev", "fwd_over_rev")  # modes that the advice is compared with


@dataclass(frozen=True, repr=False)
class Advice:
    """A ranking of methods to differentiate a function. `str(advice)` is a summary with the code to use."""

    cases: tuple[Case, ...]  # the candidates, best first
    excluded: Mapping[Case, str]  # case that cannot run on these devices -> reason
    derivative: Derivative  # the derivative that all candidates compute
    fields: Mapping[Case, RecordFields]  # candidate -> record fields, such as its status and predicted time
    records: Mapping[Case, Record]  # measured candidate -> record
    machine: str  # the name of the machine for which the times are valid
    xla_options: Mapping[str, str] = field(default_factory=dict)  # the XLA options of all candidates
    problem: Problem | None = None  # the function with its inputs, or None for a workload
    coloring: Coloring | None = None  # the coloring of the candidate that compresses the Jacobian, or None

    def __post_init__(self) -> None:
        cases = sorted(self.cases, key=self._rank)
        if cases and self.seconds(cases[0]):
            equal = [cases[0], *(case for case in cases[1:] if self._is_equally_fast(case, cases[0]))]
            plainest = min(equal, key=_complexity)
            cases = [plainest, *(case for case in cases if case != plainest)]
        object.__setattr__(self, "cases", tuple(cases))

    def __repr__(self) -> str:
        """Return `str(self)`, which a notebook shows, or the reason why no candidate can be advised."""
        try:
            return str(self)
        except Refusal as refusal:
            return str(refusal)

    def _rank(self, case: Case) -> tuple[Any, ...]:
        """Return a sort key that puts the best case first.

        The key puts measured times before predicted times, then unknown times, then failed cases. Shorter
        times come first.
        """
        seconds, fields = self.seconds(case), self.fields.get(case, {})
        has_failed = fields.get("status") == "failed" or fields.get("reason") == "not_offered"
        is_predicted = bool(self.records) and case not in self.records
        return seconds is None, has_failed, is_predicted, seconds or 0.0, *_complexity(case)

    def _is_equally_fast(self, case: Case, fastest: Case) -> bool:
        """Return whether the times of two cases, both measured or both predicted, are equal within 3 %."""
        seconds, fastest_seconds = self.seconds(case), self.seconds(fastest)
        if not seconds or not fastest_seconds or (case in self.records) != (fastest in self.records):
            return False
        if case in self.records:
            return measurement.may_be_equal(self.records[case], self.records[fastest])
        return seconds <= measurement.EQUAL_RATIO * fastest_seconds

    @property
    def best(self) -> Case:
        """Return the recommended case. Raise `Refusal` if no case can be recommended."""
        best = self.cases[0] if self.cases else None
        if best and self.seconds(best) is not None and (best in self.records or not self.records):
            return best
        cases = [*self.records, *self.cases, *self.excluded]
        text = next(filter(None, map(self.reason, cases)), "none is known")
        if self.records:
            text += "; budget=0 gives advice without a check"
        elif "not predicted" in text:
            text += "; `scaling advise` can measure it on this machine, such as budget=30"
        if "a device has" in text:
            text += "; use fewer points or smaller inputs"
        raise Refusal(f"{_NO_ADVICE}: {text}")

    @property
    def table(self) -> "pandas.DataFrame":
        """Return a DataFrame with one row for each candidate, best first, and for each excluded case."""
        import pandas

        return pandas.DataFrame(self.rows)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of `table` as a list of {column name: value}. Unknown values are None."""
        return [self._row(case) for case in (*self.cases, *self.excluded)]

    @property
    def code(self) -> str:
        """Return Python code of the derivative, or a `scaling run` command if `problem` is None."""
        if self.problem is not None:
            return plain_code.write_code(self.problem, self.best, self.coloring, self.xla_options)
        # study=function has other values of these fields than a case by default.
        fields = {name: getattr(self.best, name) for name in ("points", "mode", "api", "devices")}
        fields |= non_default_fields(self.best)
        fields |= {f"sizes.{name}": size for name, size in fields.pop("sizes", {}).items()}
        return " ".join(
            ["scaling run study=function", *(f"{name}={value}" for name, value in fields.items())]
        )

    @functools.cached_property
    def jacobian(self) -> Callable[..., Any]:
        """Return a jitted function that computes the derivative at each point by the recommended method.

        The function takes the inputs of `problem.function`, in the order of the parameters. It returns the
        same pytree as `jax.vmap(jax.jacfwd(function))`, or as `jax.vmap(jax.hessian(function))` for
        target=hessian. For target=hvp and target=gauss_newton, the last argument contains one direction per
        point. The direction and the result then have the structure of the differentiated inputs, with a
        leading axis of points. With jaxlib 0.10 on a CPU, the function cannot be called within another JAX
        transformation, unless XLA_FLAGS contain `xla_options` before JAX starts. Raise `Refusal` if `problem`
        is None.
        """
        if self.problem is None:
            raise Refusal(
                "advice on a workload has no function: call scaling.advise with a function of your own"
            )
        code = plain_code.write_code(self.problem, self.best, self.coloring)
        function = plain_code.execute_code(self.problem, code)
        return jax.jit(function, compiler_options=dict(self.xla_options) or None)

    def seconds(self, case: Case) -> float | None:
        """Return the time per call in seconds, or None if it is unknown.

        This is the median of the measured times, or the predicted time if the case was not measured.
        """
        if case in self.records:
            samples = self.records[case].seconds
            return statistics.median(samples) if samples else None
        return self.predicted_seconds(case)

    def predicted_seconds(self, case: Case) -> float | None:
        """Return the predicted time of one call of a candidate in seconds, or None if it is unknown."""
        return (self.fields.get(case, {}).get("predicted") or {}).get("seconds")

    def reason(self, case: Case) -> str | None:
        """Return why a case failed or was not run, or None for any other case."""
        record = self.records.get(case)
        text = record.text if record else self.fields.get(case, {}).get("text")
        if self.records and not record:
            text = text or "not measured: no time was left, or predicted to be slow"
        if case in self.cases and case not in self.fields:
            text = "not compiled: interrupted"
        text = self.excluded.get(case) or text or ""
        if self.problem:  # a user cannot add a reference to a plain function
            text = text.removesuffix("; add a reference to the workload")
        return name_user_function(text) or None

    def describe(self, case: Case) -> str:
        """Return text that describes the method of a candidate, such as "jacrev, 128 seeds at a time"."""
        method, is_coded = case.mode, case.mode == candidates.CODED
        if self._is_gauss_newton:
            method = "the explicit Jacobian" if is_coded else "jvp, then vjp"
        elif self.coloring and is_coded:
            columns, rows = self.coloring.column_count, self.coloring.row_count
            method = format_count(columns or rows, f"compressed {'column' if columns else 'row'}")
        details = {
            method: True, f"{case.forward} forward": case.forward,
            f"{format_count(int(case.chunk or 0), 'seed')} at a time": case.chunk,
            f"{format_count(case.block or 0, 'point')} at a time": case.block,
            "the batch in one call": case.batch == "whole", f"{case.devices} devices": case.devices > 1,
        }  # fmt: skip
        return ", ".join(text for text, applies in details.items() if applies)

    @property
    def duration(self) -> str:
        """Return text such as "1.06 ms (1.05 to 1.07) per call, measured", for the recommended method.

        The interval is the 95 % interval of the samples. A predicted time has none.
        """
        record = self.records.get(self.best)
        interval = median_interval(record.seconds) if record else None
        how = "measured" if record else "predicted"
        return f"{format_duration(self.seconds(self.best) or 0.0, *(interval or ()))} per call, {how}"

    def __str__(self) -> str:
        best, record = self.best, self.records.get(self.best)
        certainty = "nothing was measured, and the prediction may be wrong by a factor of two or more"
        if record:
            other_records = [other for case, other in self.records.items() if case != best and other.seconds]
            certainty = measurement.describe_certainty(record, other_records)
        if uncompiled := sum(fields.get("reason") == "no_time" for fields in self.fields.values()):
            count = format_count(uncompiled, "candidate")
            certainty += f"; {count} not compiled in half of the budget or 30 s: raise it"
        if interrupted := len(set(self.cases) - set(self.fields)):
            certainty += f"; interrupted with {format_count(interrupted, 'candidate')} not compiled"
        needed_bytes = bytes_while_running(self._all_fields(best))
        amount = "an unknown amount" if needed_bytes is None else format_bytes(needed_bytes)
        return (
            f"Use {self.describe(best)}: {self.duration} on {self.machine}.\n"
            f"For comparison, {self._compare_obvious_choices()}.\n"
            f"It needs {amount} of memory per device; {certainty}.\n\n"
            f"{self.code}"
        )

    @property
    def _is_gauss_newton(self) -> bool:
        return self.problem is not None and self.problem.target == "gauss_newton"

    def _compare_obvious_choices(self) -> str:
        modes = ("jacfwd", candidates.CODED) if self._is_gauss_newton else _OBVIOUS_MODES
        by_shape = "jacfwd" if self.derivative.inputs <= self.derivative.outputs else "jacrev"
        texts = []
        for case in filter(None, (candidates.find_case_of_mode(self.cases, mode) for mode in modes)):
            name = f"plain {case.mode}" + (" (the choice by shape)" if case.mode == by_shape else "")
            texts.append(f"{self.describe(case) if self._is_gauss_newton else name} {self._compare(case)}")
        return "; ".join(texts) or "there is no other obvious choice"

    def _compare(self, case: Case) -> str:
        """Return text that compares a candidate with the best one, such as "takes 1.4 times as long"."""
        if case == self.best:
            return "takes the same time, as it is this choice"
        if self.seconds(case) is None and (reason := self.reason(case)):
            return f"is left out: {reason.rstrip('.')}"
        samples, best_samples = (
            self.records[c].seconds if c in self.records else [] for c in (case, self.best)
        )
        if ratio := ratio_interval(samples, best_samples):
            return f"takes {format_number(ratio[0])} times as long{format_interval(*ratio[1:])}"
        are_measured = samples and best_samples  # but there are too few samples for an interval
        get_seconds = self.seconds if are_measured else self.predicted_seconds
        seconds, best_seconds = get_seconds(case), get_seconds(self.best)
        how = f"measured, {len(samples)} samples" if are_measured else "predicted"
        if not seconds or not best_seconds:
            return "takes an unknown time"
        return f"takes {format_number(seconds / best_seconds)} times as long ({how})"

    def _all_fields(self, case: Case) -> RecordFields:
        record = self.records.get(case)
        return (vars(record) if record else {}) | self.fields.get(case, {})

    def _row(self, case: Case) -> dict[str, Any]:
        fields, record = self._all_fields(case), self.records.get(case)
        predicted, samples = fields.get("predicted") or {}, record.seconds if record else []
        low, high = median_interval(samples) or (None, None)
        names = ("mode", "chunk", "block", "devices")
        columns = {"method": self.describe(case)} | {name: getattr(case, name) for name in names}
        if self.problem and case.mode == candidates.CODED:
            columns["mode"] = None  # the code of a compressed Jacobian or a Gauss-Newton product, no AD mode
        return columns | {
            "predicted_seconds": predicted.get("seconds"), "predicted_low": predicted.get("low"),
            "predicted_high": predicted.get("high"), "samples": len(samples),
            "measured_seconds": statistics.median(samples) if samples else None,
            "measured_low": low, "measured_high": high,
            "memory_bytes": bytes_while_running(fields), "left_out": self.reason(case),
        }  # fmt: skip


def _complexity(case: Case) -> tuple[int, int]:
    """Return (number of devices, number of options), a sort key that puts the simplest case first.

    The options are chunk, block, mixed mode and mode=vmap_grad.
    """
    return case.devices, sum(map(bool, (case.chunk, case.block, case.forward, case.mode == candidates.CODED)))


def advise(
    function: Callable[..., Any],
    points: Mapping[str, Any],
    shared: Mapping[str, Any] | None = None,
    *,
    wrt: str | None = None,
    target: str = "jacobian",
    import_line: str = "",
    **options: Any,
) -> Advice:
    """Return an `Advice` on a function. `scaling.advise` documents the arguments."""
    problem = make_problem(function, points, shared, wrt, target, import_line)
    check_names("option", options, _DEFAULTS)
    options = _DEFAULTS | options
    _check_options(**options)  # before the sparsity pattern is detected
    if note := options["note"]:
        note("tracing the function")
    is_gauss_newton = target == "gauss_newton"
    with registered(problem) as base:
        coloring = None if is_gauss_newton else candidates.find_coloring(base, problem.transforms)

    def write(case: Case) -> Callable[..., Any]:
        """Write the code that advice prints for a case on one device, and return the function it defines."""
        code = plain_code.write_code(problem, dataclasses.replace(case, devices=1), coloring)
        return plain_code.execute_code(problem, code)

    coded_modes = [candidates.CODED] if coloring or is_gauss_newton else []
    with registered(problem, write, coded_modes) as base:
        advice = advise_case(base, **options)
    if is_gauss_newton and any(record.status == "ok" for record in advice.records.values()):
        _check_reverse_mode(problem)
    return dataclasses.replace(advice, problem=problem, coloring=coloring)


def _check_reverse_mode(problem: Problem) -> None:
    """Raise `Refusal` if reverse mode computes a wrong gradient of a weighted sum of the outputs.

    Gauss-Newton products need this check, because both the product and its reference use reverse mode. A
    wrong derivative rule would cause the same error in both.
    """

    @functools.wraps(problem.function)
    def weighted_sum(*inputs: Any) -> Any:
        generator, outputs = np.random.default_rng(0), jax.tree.leaves(problem.function(*inputs))
        return sum((generator.uniform(0.5, 1.5, y.shape).astype(y.dtype) * y).sum() for y in outputs)

    with registered(dataclasses.replace(problem, function=weighted_sum, target="jacobian")) as base:
        record = measurement.check_case(dataclasses.replace(base, mode="jacrev")).record
    if record.reason == "wrong_answer":
        text = name_user_function(record.text or "")
        raise Refusal(f"{_NO_ADVICE}: its gradient in reverse mode: {text}")


def advise_case(
    base: Case,
    budget: float,
    devices: int | Sequence[int],
    hardware: str | None,
    note: Callable[[str], None] | None,
) -> Advice:
    """Return an `Advice` on the derivative that `base` computes, whose AD mode and layout are ignored.

    `scaling.advise` documents the other arguments.
    """
    other_machine = _check_options(budget, devices, hardware, note)
    devices = devices if isinstance(devices, Sequence) else [devices]
    note = note or (lambda text: None)
    cases, excluded, derivative = candidates.list_candidates(base, list(map(int, devices)))
    entries = (
        f"{derivative.outputs:,} x {derivative.inputs:,} entries at {format_count(base.points, 'point')}"
    )
    note(f"{format_count(len(cases), 'candidate')} for {entries}")
    fields: dict[Case, RecordFields] = {case: {"status": "planned"} for case in cases}
    stages, records = dict[Case, Stages](), dict[Case, Record]()
    if model := other_machine or find_model(jax.devices()[0]):  # without a model, all candidates are measured
        seconds = max(_COMPILING_SECONDS, budget / 2)
        fields, stages = candidates.predict_candidates(cases, model, note, seconds)
    machine = other_machine.title if other_machine else f"this machine ({jax.devices()[0].platform})"
    platform = other_machine.platform if other_machine else jax.default_backend()
    xla_options = environment.fusion_options() if platform == "cpu" else {}
    if budget and not other_machine and len(fields) == len(cases):  # not interrupted
        records = measurement.measure_candidates(fields, stages, budget, note)
    return Advice(tuple(cases), excluded, derivative, fields, records, machine, xla_options)


def _check_options(budget: Any, devices: Any, hardware: Any, note: Any) -> Hardware | None:
    """Return the model of the machine to compile for, or None for this machine.

    Raise `Refusal` if an option is invalid, a device count is not available, or a compiler is missing.
    """
    other_machine = None if hardware in (None, "cpu") else read_hardware(hardware)
    if isinstance(budget, bool) or not isinstance(budget, numbers.Real) or not 0 <= float(budget) < math.inf:
        raise Refusal(f"budget must be a number of seconds, zero or more, not {budget!r}")
    if not (note is None or callable(note)):
        raise Refusal(f"note must be a function of one line of text, such as print, not {note!r}")
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        raise Refusal("jax_disable_jit is set, and advice compares compiled programs: unset it")
    available, counts = jax.devices(), devices if isinstance(devices, Sequence) else [devices]
    for count in counts or [devices]:
        if not isinstance(count, numbers.Integral) or isinstance(count, bool) or int(count) < 1:
            raise Refusal(f"devices must be positive integers, such as [1, 2], not {count!r}")
        if other_machine is not None:
            other_machine.check_devices(int(count))
        elif int(count) > len(available):
            text = f"JAX has {len(available)} {available[0].platform} devices here"
            fix = "set jax_num_cpu_devices before JAX starts, or hardware=NAME"
            raise Refusal(f"devices={count}: {text}; use fewer, or {fix}")
    if other_machine is not None:
        find_compiler(other_machine)
    return other_machine


def choose_case(case: Case, group: ProcessGroup) -> Case:
    """Return a copy of `case` (mode=auto) with the AD mode and options that are predicted to be fastest.

    Raise `CaseEnded` if conf/hardware has no model of the machine. Also raise it if no candidate has a
    predicted time, with the status, reason and text of the first candidate, such as "too_large". If this
    candidate was compiled, but its time cannot be predicted, the reason is "not_offered".
    """
    base = dataclasses.replace(case, mode=case.ad_mode.name)
    cases, excluded, derivative = candidates.list_candidates(base)
    model = find_model(jax.devices()[0])
    if model is None:
        text = f"mode=auto needs the rates of the machine, and conf/hardware has none for {group.devices[0]}"
        raise CaseEnded("skipped", "not_offered", text)
    fields, _ = candidates.predict_candidates(cases, model)
    advice = Advice(tuple(cases), excluded, derivative, fields, {}, model.title)
    try:
        return advice.best
    except Refusal as error:  # whose text is that of the first candidate with a reason
        outcome = next((fields[candidate] for candidate in advice.cases if advice.reason(candidate)), {})
        status = "failed" if outcome.get("status") == "failed" else "skipped"
        raise CaseEnded(status, outcome.get("reason") or "not_offered", f"mode=auto: {error}") from None
