"""Implement `scaling.advise` and `mode=auto`: choose the fastest candidate, and describe it (`Advice`).

A candidate is a case that computes the derivative by one method: an AD mode with a chunk, a block and a
number of devices, or a coloring. candidates.py lists and compiles the candidates, measurement.py measures
them, and plain_code.py writes the code to paste. mode=auto measures nothing.
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
from scaling.core.case import Case, Refusal, non_default_fields
from scaling.core.compile_case import Stages
from scaling.core.derivative import Derivative
from scaling.core.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_interval,
    format_number,
)
from scaling.core.record import Record, bytes_while_running
from scaling.core.run_case import CaseEnded, ProcessGroup
from scaling.core.timing import median_interval
from scaling.options.coloring import Coloring
from scaling.plan.hardware import Hardware, find_compiler, find_model, read_hardware

if TYPE_CHECKING:
    import pandas

_COMPILING_SECONDS = 30.0  # seconds after which no compilation begins, unless half of the budget is longer
_NO_ADVICE = "no way to differentiate it can be advised"  # start of a message
_OBVIOUS_MODES = ("jacfwd", "jacrev", "fwd_over_rev")  # modes that the advice is compared with


@dataclass(frozen=True, repr=False)
class Advice:
    """A ranking of methods to differentiate a function. `str(advice)` is a summary with the code to use."""

    # One record for each candidate, best first. Its status is "ok" if it was measured, "planned" if it was
    # only compiled, and otherwise "skipped" or "failed". `text` states why it was left out.
    records: Sequence[Record]
    derivative: Derivative  # the derivative that all candidates compute
    machine: str  # the name of the machine for which the times are valid
    xla_options: Mapping[str, str] = field(default_factory=dict)  # the XLA options of all candidates
    problem: Problem | None = None  # the function with its inputs, or None for a workload
    coloring: Coloring | None = None  # the coloring of the candidate that compresses the Jacobian, or None

    def __post_init__(self) -> None:
        fastest, *others = sorted(self.records, key=_candidate_sort_key)
        equal = [fastest, *(record for record in others if measurement.is_equally_fast(record, fastest))]
        plainest = min(equal, key=lambda record: _complexity(record.case))
        others = [record for record in [fastest, *others] if record is not plainest]
        object.__setattr__(self, "records", (plainest, *others))

    def __repr__(self) -> str:
        """Return `str(self)` for a notebook, or the reason why no candidate can be recommended."""
        try:
            return str(self)
        except Refusal as refusal:
            return str(refusal)

    @property
    def best(self) -> Record:
        """Return the record of the recommended candidate. Raise `Refusal` if none can be recommended."""
        best = self.records[0]
        if time_per_call(best) is not None and not best.text:
            return best
        run = [record for record in self.records if record.started_at]
        text = next(filter(None, (record.text for record in [*run, *self.records])))
        if any(record.predicted for record in run):
            text += "; budget=0 gives advice without a check"
        elif "not predicted" in text:
            text += "; `scaling advise` can measure it on this machine, such as budget=30"
        if "a device has" in text:
            text += "; use fewer points or smaller inputs"
        raise Refusal(f"{_NO_ADVICE}: {text}")

    @property
    def table(self) -> "pandas.DataFrame":
        """Return a DataFrame with one row for each candidate, best first."""
        import pandas

        return pandas.DataFrame(self.rows)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of `table` as dicts, best first. A value is None if it is unknown."""
        return [self._row(record) for record in self.records]

    @property
    def code(self) -> str:
        """Return the Python code to paste for a function, or a `scaling run` command for a workload."""
        case = self.best.case
        if self.problem is not None:
            return plain_code.write_code(self.problem, case, self.coloring, self.xla_options)
        # study=function has other values of these fields than a case by default.
        fields = {name: getattr(case, name) for name in ("points", "mode", "api", "devices")}
        fields |= non_default_fields(case)
        fields |= {f"sizes.{name}": size for name, size in fields.pop("sizes", {}).items()}
        return " ".join(
            ["scaling run study=function", *(f"{name}={value}" for name, value in fields.items())]
        )

    @functools.cached_property
    def jacobian(self) -> Callable[..., Any]:
        """Return a jitted function that computes the derivative at each point by the recommended method.

        The function takes the inputs of `problem.function`, in the order of the parameters. For target=hvp
        and target=gauss_newton, its last argument contains one direction per point. The result is the same
        pytree as from `jax.vmap(jax.jacfwd(function))`. For target=hessian, it is the same as from
        `jax.vmap(jax.hessian(function))`. If there is a direction, it has the structure of the differentiated
        inputs.

        With jaxlib 0.10 on a CPU, other JAX transformations can call the function only if XLA_FLAGS contain
        `xla_options` before JAX starts. Raise `Refusal` if `problem` is None.
        """
        if self.problem is None:
            raise Refusal(
                "advice on a workload has no function: call scaling.advise with a function of your own"
            )
        code = plain_code.write_code(self.problem, self.best.case, self.coloring)
        function = plain_code.execute_code(self.problem, code)
        return jax.jit(function, compiler_options=dict(self.xla_options) or None)

    def describe(self, case: Case) -> str:
        """Return the method of a candidate as text, such as "jacrev, 128 seeds at a time"."""
        method, is_coded = case.mode, case.mode == candidates.CODED
        if self._is_gauss_newton:
            method = "the explicit Jacobian" if is_coded else "jvp, then vjp"
        elif self.coloring and is_coded:
            columns, rows = self.coloring.column_count, self.coloring.row_count
            method = format_count(columns or rows, f"compressed {'column' if columns else 'row'}")
        details = [
            (True, method),
            (case.forward, f"{case.forward} forward"),
            (case.chunk, f"{format_count(int(case.chunk or 0), 'seed')} at a time"),
            (case.block, f"{format_count(case.block or 0, 'point')} at a time"),
            (case.batch == "whole", "the batch in one call"),
            (case.devices > 1, f"{case.devices} devices"),
        ]
        return ", ".join(text for applies, text in details if applies)

    @property
    def duration(self) -> str:
        """Return the time of the recommended method as text, such as "1.06 ms per call, measured"."""
        interval = median_interval(self.best.seconds) or ()
        how = "measured" if self.best.seconds else "predicted"
        return f"{format_duration(time_per_call(self.best) or 0.0, *interval)} per call, {how}"

    def __str__(self) -> str:
        best = self.best
        certainty = "nothing was measured, and the prediction may be wrong by a factor of two or more"
        if best.seconds:
            others = [record for record in self.records if record.seconds and record != best]
            certainty = measurement.describe_certainty(best, others)
        uncompiled = [record for record in self.records if record.reason == candidates.NOT_COMPILED]
        if uncompiled:
            certainty += f"; {format_count(len(uncompiled), 'candidate')} {uncompiled[0].text}"
        needed_bytes = bytes_while_running(vars(best))
        amount = "an unknown amount" if needed_bytes is None else format_bytes(needed_bytes)
        return (
            f"Use {self.describe(best.case)}: {self.duration} on {self.machine}.\n"
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
        for record in filter(None, (self.find_plain(mode) for mode in modes)):
            mode = record.case.mode
            name = f"plain {mode}" + (" (the choice by shape)" if mode == by_shape else "")
            name = self.describe(record.case) if self._is_gauss_newton else name
            texts.append(f"{name} {self._compare(record)}")
        return "; ".join(texts) or "there is no other obvious choice"

    def find_plain(self, mode: str) -> Record | None:
        """Return the record of the AD mode `mode` with default batch, chunk and block, or None.

        If there are records for several numbers of devices, return the record with the fewest devices.
        """
        plain = (mode, "vmap", None, None)
        records = [
            r for r in self.records if (r.case.mode, r.case.batch, r.case.chunk, r.case.block) == plain
        ]
        return min(records, key=lambda record: record.case.devices, default=None)

    def _compare(self, record: Record) -> str:
        """Return how a candidate compares with the best one, as text such as "takes 1.4 times as long"."""
        best = self.best
        if record == best:
            return "takes the same time, as it is this choice"
        if record.text and time_per_call(record) is None:
            return f"is left out: {record.text.rstrip('.')}"
        if record.seconds and best.seconds:
            ratio = statistics.median(record.seconds) / statistics.median(best.seconds)
            limits = (ratio_interval(record.seconds, best.seconds) or (ratio, None, None))[1:]
            return f"takes {format_number(ratio)} times as long{format_interval(*limits)}"
        if record.predicted and best.predicted:
            predicted_ratio = record.predicted["seconds"] / best.predicted["seconds"]
            return f"takes {format_number(predicted_ratio)} times as long (predicted)"
        return "takes an unknown time"

    def _row(self, record: Record) -> dict[str, Any]:
        case, predicted, samples = record.case, record.predicted or {}, record.seconds
        low, high = median_interval(samples) or (None, None)
        has_ad_mode = self.problem is None or case.mode != candidates.CODED
        return {
            "method": self.describe(case), "mode": case.mode if has_ad_mode else None,
            "chunk": case.chunk, "block": case.block, "devices": case.devices,
            "predicted_seconds": predicted.get("seconds"), "predicted_low": predicted.get("low"),
            "predicted_high": predicted.get("high"), "samples": len(samples),
            "measured_seconds": statistics.median(samples) if samples else None,
            "measured_low": low, "measured_high": high,
            "memory_bytes": bytes_while_running(vars(record)), "left_out": record.text,
        }  # fmt: skip


def time_per_call(record: Record) -> float | None:
    """Return the measured (median) or predicted time of a candidate in seconds, or None if it has none."""
    if record.seconds:
        return statistics.median(record.seconds)
    return record.predicted["seconds"] if record.predicted and record.status == "planned" else None


def _candidate_sort_key(record: Record) -> tuple[Any, ...]:
    """Return a sort key that puts the best candidate first.

    The order is: measured candidates, predicted candidates, candidates without a time, failed candidates.
    Candidates of the same kind are sorted by time, and candidates with equal times by complexity.
    """
    seconds = time_per_call(record)
    has_failed = record.status == "failed" or record.reason in ("not_offered", "indivisible")
    return seconds is None, has_failed, record.status != "ok", seconds or 0.0, *_complexity(record.case)


def _complexity(case: Case) -> tuple[int, int]:
    """Return (number of devices, number of options), a sort key that puts simpler cases first.

    The counted options are chunk, block, mixed mode and mode=vmap_grad.
    """
    return case.devices, sum(map(bool, (case.chunk, case.block, case.forward, case.mode == candidates.CODED)))


def advise(
    function: Callable[..., Any],
    points: Mapping[str, Any],
    shared: Mapping[str, Any] | None = None,
    *,
    wrt: str | None = None,
    target: str = "jacobian",
    budget: float = 30.0,
    devices: int | Sequence[int] = 1,
    hardware: str | None = None,
    note: Callable[[str], None] | None = None,
    import_line: str = "",
) -> Advice:
    """Return an `Advice` on a function. `scaling.advise` documents the arguments."""
    if note is not None and not callable(note):
        raise Refusal(f"note must be a function of a line of text, such as print, or None, not {note!r}")
    problem = make_problem(function, points, shared, wrt, target, import_line)
    note = note or (lambda text: None)
    _check_advice_options(budget, devices, hardware)  # before the sparsity pattern is detected
    note("tracing the function")
    is_gauss_newton = target == "gauss_newton"
    with registered(problem) as base:
        candidates.check_captured_arrays(base)
        coloring = None if is_gauss_newton else candidates.find_useful_coloring(base)

    def write(case: Case) -> Callable[..., Any]:
        """Return the derivative function that the printed code for `case` defines, on one device."""
        code = plain_code.write_code(problem, dataclasses.replace(case, devices=1), coloring)
        return plain_code.execute_code(problem, code)

    coded_modes = [candidates.CODED] if coloring or is_gauss_newton else []
    with registered(problem, write, coded_modes) as base:
        advice = advise_case(base, budget, devices, hardware, note)
    if is_gauss_newton and any(record.status == "ok" for record in advice.records):
        _check_reverse_mode(problem)
    records = [
        dataclasses.replace(record, text=record.text and name_user_function(record.text))
        for record in advice.records
    ]
    return dataclasses.replace(advice, records=records, problem=problem, coloring=coloring)


def _check_reverse_mode(problem: Problem) -> None:
    """Raise `Refusal` if reverse mode differentiates the function of `problem` incorrectly.

    The gradient of a weighted sum of the outputs is checked. The check of a Gauss-Newton product cannot find
    such an error, because its reference also uses reverse mode.
    """

    @functools.wraps(problem.function)
    def weighted_sum(*inputs: Any) -> Any:
        generator, outputs = np.random.default_rng(0), jax.tree.leaves(problem.function(*inputs))
        return sum((generator.uniform(0.5, 1.5, y.shape).astype(y.dtype) * y).sum() for y in outputs)

    with registered(dataclasses.replace(problem, function=weighted_sum, target="jacobian")) as base:
        gradient = Record(dataclasses.replace(base, mode="jacrev"), "planned", {})
        record = measurement.check_candidate(gradient).record
    if record.reason == "wrong_answer":
        text = name_user_function(record.text or "")
        raise Refusal(f"{_NO_ADVICE}: its gradient in reverse mode: {text}")


def advise_case(
    base: Case,
    budget: float = 30.0,
    devices: int | Sequence[int] = 1,
    hardware: str | None = None,
    note: Callable[[str], None] | None = None,
) -> Advice:
    """Return an `Advice` on the derivative that the case `base` computes.

    The AD mode and the layout of `base` are ignored. `scaling.advise` documents the other arguments.
    """
    counts, machine = _check_advice_options(budget, devices, hardware)
    note = note or (lambda text: None)
    records, derivative = candidates.list_candidates(base, counts)
    entries = f"{derivative.outputs:,} x {derivative.inputs:,} entries"
    note(f"{entries} at {format_count(base.points, 'point')}, {format_count(len(records), 'candidate')}")
    stages: Mapping[Case, Stages] = {}
    if model := machine or find_model(jax.devices()[0]):  # without a model, all candidates are measured
        seconds = max(_COMPILING_SECONDS, budget / 2)
        records, stages = candidates.predict_candidates(records, model, note, seconds)
    is_interrupted = any(record.text == candidates.INTERRUPTED for record in records)
    if budget and machine is None and not is_interrupted:
        records = measurement.measure_candidates(records, stages, budget, note)
    platform = machine.platform if machine else jax.default_backend()
    title = machine.title if machine else f"this machine ({platform})"
    xla_options = environment.fusion_options() if platform == "cpu" else {}
    return Advice(records, derivative, title, xla_options)


def _check_advice_options(budget: Any, devices: Any, hardware: Any) -> tuple[list[int], Hardware | None]:
    """Return the numbers of devices, and the model of the machine `hardware` (None for this machine).

    Raise `Refusal` if an option is invalid, a number of devices is not available, or a compiler is missing.
    """
    machine = None if hardware in (None, "cpu") else read_hardware(hardware)
    if isinstance(budget, bool) or not (isinstance(budget, numbers.Real) and 0 <= float(budget) < math.inf):
        raise Refusal(f"budget must be a number of seconds, zero or more, not {budget!r}")
    counts = list(devices) if isinstance(devices, Sequence) else [devices]
    are_integers = all(isinstance(n, numbers.Integral) and not isinstance(n, bool) for n in counts)
    if not counts or not are_integers or min(counts) < 1:
        raise Refusal(f"devices must be positive integers, such as [1, 2], not {devices!r}")
    available = jax.devices()
    if machine is not None:
        for count in counts:
            machine.check_devices(int(count))
        find_compiler(machine)
    elif max(counts) > len(available):
        text = f"JAX has {len(available)} {available[0].platform} devices here"
        fix = "set jax_num_cpu_devices before JAX starts, or hardware=NAME"
        raise Refusal(f"devices={max(counts)}: {text}; use fewer, or {fix}")
    return list(map(int, counts)), machine


def choose_case(case: Case, group: ProcessGroup) -> Case:
    """Return a copy of `case` with the AD mode and the options that are predicted to be fastest.

    `case` has mode=auto. Raise `CaseEnded` if conf/hardware has no model of the machine, or if no candidate
    has a predicted time. In the latter case, the exception has the reason of the first candidate, such as
    "too_large".
    """
    base = dataclasses.replace(case, mode=case.ad_mode.name)
    records, derivative = candidates.list_candidates(base)
    model = find_model(jax.devices()[0])
    if model is None:
        text = f"mode=auto needs the rates of the machine, and conf/hardware has none for {group.devices[0]}"
        raise CaseEnded("skipped", "not_offered", text)
    records, _ = candidates.predict_candidates(records, model)
    advice = Advice(records, derivative, model.title)
    try:
        return advice.best.case
    except Refusal as error:  # contains the text of the first candidate that has one
        first = next(record for record in advice.records if record.text)
        status = "failed" if first.status == "failed" else "skipped"
        raise CaseEnded(status, first.reason or "not_offered", f"mode=auto: {error}") from None
