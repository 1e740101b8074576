"""`scaling.advise`: predict the run times of candidates, measure the best, and return an `Advice`.

Candidates are cases that compute the same derivative with different modes, chunks, blocks and device counts.
"""

import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from scaling.advice import candidates, local_peaks, measurement, plain_code, prediction
from scaling.advice.problem import Problem, make_problem, name_user_function, registered
from scaling.core import memory
from scaling.core.case import AUTO, Case, Refusal, non_default_fields
from scaling.core.formatting import count_of, format_bytes, format_duration, format_interval, format_number
from scaling.core.record import Record
from scaling.core.run_case import CaseEnded, ProcessGroup
from scaling.core.shape import DerivativeShape
from scaling.core.timing import median_interval, ratio_interval
from scaling.options.sparse.coloring import Coloring
from scaling.plan import plan_study
from scaling.plan.compile_worker import RecordFields
from scaling.plan.hardware import Hardware

if TYPE_CHECKING:
    import pandas

_OBVIOUS_MODES = ("jacfwd", "jacrev", "fwd_over_rev")  # modes that the advice is compared with


@dataclass(frozen=True)
class Advice:
    """The recommended way to differentiate one function. `print` shows three sentences and the code.

    Attributes:
        cases: the candidates (cases that compute the derivative), the best one first.
        excluded: a dict from each case that cannot run on these devices to the reason as text.
        sizes: the shape of the derivative.
        fields: a dict from candidate to the record fields of its compiled program: a dict with its status,
            memory, operations and predicted time.
        records: a dict from each measured candidate to its record.
        machine: the name of the machine for which the times are valid.
        problem: the function with its inputs, or None for a workload.
        coloring: the coloring of the candidate with compressed columns or rows, or None if there is none.
    """

    cases: tuple[Case, ...]
    excluded: Mapping[Case, str]
    sizes: DerivativeShape
    fields: Mapping[Case, RecordFields]
    records: Mapping[Case, Record]
    machine: str
    problem: Problem | None = None
    coloring: Coloring | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases", tuple(sorted(self.cases, key=self._rank)))

    def _rank(self, case: Case) -> tuple[Any, ...]:
        """Return the key by which candidates are sorted: time, number of devices and number of options.

        If any candidate was measured, measured candidates sort before predicted ones. Otherwise candidates
        whose prediction is doubtful sort after the others. Candidates without a time sort last.
        """
        seconds, options = self.seconds(case), [case.chunk, case.block, case.forward]
        is_doubtful = case not in self.records and (bool(self.records) or self.reason(case) is not None)
        return seconds is None, is_doubtful, seconds or 0.0, case.devices, 3 - options.count(None)

    @property
    def best(self) -> Case:
        """Return the recommended case.

        Raise `Refusal` if no candidate has a time, because none is correct, predictable and fits into memory.
        """
        best = self.cases[0] if self.cases else None
        if best and self.seconds(best) is not None and (best in self.records or not self.records):
            return best
        cases = [*self.records, *self.cases, *self.excluded]
        reasons = [reason for case in cases if (reason := self.reason(case))]
        unpredicted = [reason for reason in reasons if reason.startswith("not predicted")]
        text = next(iter(reasons), "none is known")
        if unpredicted and not self.records:
            text = f"{unpredicted[0]}; `scaling advise` can measure it on this machine, such as budget=30"
        if "is not finite" in text:
            text += "; omit such points, or use budget=0, which computes and checks nothing"
        raise Refusal(f"no way to differentiate it can be advised: {text}")

    @property
    def table(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with one row for each candidate, starting with the best one."""
        import pandas

        return pandas.DataFrame([self._row(case) for case in (*self.cases, *self.excluded)])

    @property
    def code(self) -> str:
        """Return Python code with JAX that computes the derivative by the recommended method.

        For a workload, return the `scaling run` command that measures the recommended case.
        """
        if self.problem is not None:
            coloring = self.coloring if self.best.mode == candidates.CODED else None
            return plain_code.write_code(self.problem, self.best, coloring)
        fields = {"devices": 1} | non_default_fields(self.best)
        fields |= {f"sizes.{name}": size for name, size in fields.pop("sizes", {}).items()}
        words = [f"{name}={value}" for name, value in fields.items()]
        return " ".join(["scaling run study=function", *words])

    @functools.cached_property
    def jacobian(self) -> Callable[..., Any]:
        """Return the jitted function that computes the derivatives of the batch by the recommended method.

        Its arguments are the inputs in the order of the parameters. It returns the same pytree as
        `jax.vmap(jax.jacfwd(function))`, or as `jax.vmap(jax.hessian(function))` for target=hessian. For
        target=hvp and gauss_newton, its additional last argument is a pytree of directions with the structure
        of the differentiated inputs and a leading axis of points. It then returns the products of the matrix
        and the direction at each point, as a pytree with the same structure.
        """
        if self.problem is None:
            raise Refusal(
                "advice on a workload has no function: call scaling.advise with a function of your own"
            )
        return plain_code.execute_code(self.problem, self.code)

    def seconds(self, case: Case) -> float | None:
        """Return the time of one call of a candidate in seconds, or None if it is unknown.

        If the candidate was measured, this is the median of its samples, and otherwise the predicted time.
        """
        if case in self.records:
            samples = self.records[case].seconds
            return statistics.median(samples) if samples else None
        return self.predicted_seconds(case)

    def predicted_seconds(self, case: Case) -> float | None:
        """Return the predicted time of one call of a candidate in seconds, or None if it is unknown."""
        predicted = self.fields.get(case, {}).get("predicted")
        return predicted["seconds"] if predicted else None

    def reason(self, case: Case) -> str | None:
        """Return text that states why a case is left out or why its prediction may be wrong, or None."""
        record = self.records.get(case)
        text = record.text if record else self.fields.get(case, {}).get("text")
        return name_user_function(self.excluded.get(case) or text or "") or None

    def describe(self, case: Case) -> str:
        """Return the method and layout of a candidate as text, such as 'jacrev, 128 seeds at a time'."""
        details = {
            f"{case.forward} forward": case.forward, f"{case.chunk} seeds at a time": case.chunk,
            f"{case.block} points at a time": case.block, "the batch in one call": case.batch == "whole",
            f"{case.devices} devices": case.devices > 1,
        }  # fmt: skip
        return ", ".join(
            [self._describe_method(case), *(text for text, applies in details.items() if applies)]
        )

    def _describe_method(self, case: Case) -> str:
        """Return the method of a candidate as text: its AD mode, or what its code computes."""
        if self._is_gauss_newton:
            return "the explicit Jacobian" if case.mode == candidates.CODED else "jvp, then vjp"
        if self.coloring is None or case.mode != candidates.CODED:
            return case.mode
        columns, rows = self.coloring.column_count, self.coloring.row_count
        return f"{columns} compressed columns" if columns else f"{rows} compressed rows"

    def __str__(self) -> str:
        best, record = self.best, self.records.get(self.best)
        how, interval = "predicted", None
        certainty = "nothing was measured, and the prediction may be wrong by a factor of two"
        if record:
            others = [other for case, other in self.records.items() if case != best and other.seconds]
            how, interval = "measured", median_interval(record.seconds)
            certainty = measurement.describe_certainty(record, others)
        duration = format_duration(self.seconds(best) or 0.0, *(interval or ()))
        needed = memory.bytes_while_running(self.fields.get(best, {}))
        return (
            f"Use {self.describe(best)}: {duration} per call, {how} on {self.machine}.\n"
            f"For comparison, {self._compare_obvious_choices()}.\n"
            f"It needs {format_bytes(needed or 0)} of memory per device; {certainty}.\n\n{self.code}"
        )

    @property
    def _is_gauss_newton(self) -> bool:
        return self.problem is not None and self.problem.target == "gauss_newton"

    def _compare_obvious_choices(self) -> str:
        """Return text that compares the recommended method with plain forward and reverse mode."""
        texts = []
        modes = ("jacfwd", candidates.CODED) if self._is_gauss_newton else _OBVIOUS_MODES
        by_shape = "jacfwd" if self.sizes.inputs <= self.sizes.outputs else "jacrev"
        for case in filter(None, (candidates.find_plain(self.cases, mode) for mode in modes)):
            name = f"plain {case.mode}" + (" (the choice by shape)" if case.mode == by_shape else "")
            name = self.describe(case) if self._is_gauss_newton else name
            reason = self.reason(case) if self.seconds(case) is None else None
            texts.append(f"{name} is left out: {reason}" if reason else f"{name} takes {self._compare(case)}")
        return "; ".join(texts) or "there is no other obvious choice"

    def _compare(self, case: Case) -> str:
        """Return the time of a candidate relative to the best as text: "1.4 times as long (predicted)"."""
        if case == self.best:
            return "the same time, as it is this choice"
        samples, best_samples = (
            self.records[c].seconds if c in self.records else [] for c in (case, self.best)
        )
        if ratio := ratio_interval(samples, best_samples):
            return f"{format_number(ratio[0])} times as long{format_interval(*ratio[1:])}"
        if samples and best_samples:  # too few samples for an interval
            ratio_of_medians = statistics.median(samples) / statistics.median(best_samples)
            return f"{format_number(ratio_of_medians)} times as long (measured, {len(samples)} samples)"
        seconds, best_seconds = (self.predicted_seconds(c) for c in (case, self.best))
        if not seconds or not best_seconds:
            return "an unknown time"
        return f"{format_number(seconds / best_seconds)} times as long (predicted)"

    def _row(self, case: Case) -> dict[str, Any]:
        """Return the row of a case in `table`, as a dict from column name to value."""
        fields, record = self.fields.get(case, {}), self.records.get(case)
        predicted, samples = fields.get("predicted") or {}, record.seconds if record else []
        low, high = median_interval(samples) or (None, None)
        names = ("mode", "batch", "chunk", "block", "split", "mesh", "devices")
        return {"method": self.describe(case)} | {name: getattr(case, name) for name in names} | {
            "predicted_seconds": predicted.get("seconds"), "predicted_low": predicted.get("low"),
            "predicted_high": predicted.get("high"), "samples": len(samples),
            "measured_seconds": statistics.median(samples) if samples else None,
            "measured_low": low, "measured_high": high,
            "memory_bytes": memory.bytes_while_running(fields), "flops": fields.get("flops"),
            "left_out": self.reason(case),
        }  # fmt: skip


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
    """Return an `Advice` with the fastest way to differentiate a function at each point of a batch.

    Args:
        function: a JAX function of one point that returns an array or a pytree of arrays.
        points: a dict from the name of a parameter to an array, or a pytree of arrays, with a leading axis of
            points. The function receives one point, without this axis. A `jax.ShapeDtypeStruct` can replace
            an array.
        shared: a dict of the same form, without this axis, for the parameters that all points share.
        wrt: the parameters to differentiate with respect to, joined by "+". By default the first one of
            `points`.
        target: "jacobian" (for a scalar function its gradient), "hessian", "hvp" (the product of the Hessian
            and a direction) or "gauss_newton" (the product of J^T J and a direction, with J the Jacobian).
        import_line: the line of code that imports the function.
        options: arguments of `advise_case`, such as budget, devices, hardware or note.
    Raises:
        Refusal: for invalid input. The message is one line with the value, the alternatives and the fix.
    """
    problem = make_problem(function, points, shared, wrt, target, import_line)
    is_gauss_newton, coded_derivative = target == "gauss_newton", None
    with registered(problem) as base:
        coloring = None if is_gauss_newton else candidates.find_coloring(base)
    if coloring or is_gauss_newton:
        code = plain_code.write_code(problem, dataclasses.replace(base, mode=candidates.CODED), coloring)
        coded_derivative = plain_code.execute_code(problem, code)
    with registered(problem, coded_derivative) as base:
        advice = advise_case(base, **options, may_split_seeds=False)  # the code to paste cannot split them
        return dataclasses.replace(advice, problem=problem, coloring=coloring)


def advise_case(
    base: Case,
    budget: float = 30.0,
    devices: int | Sequence[int] = 1,
    hardware: str | Hardware | None = None,
    mode: str | None = None,
    cores: Sequence[int] | None = None,
    note: Callable[[str], None] = lambda text: None,
    may_split_seeds: bool = True,
) -> Advice:
    """Return an `Advice` with the fastest way to differentiate the function of a case.

    Args:
        base: a case with the workload, its sizes and inputs. Its AD mode and its layout are ignored.
        budget: the time in seconds to measure candidates. With 0, candidates are only compiled.
        devices: the number of devices, or several numbers to compare.
        hardware: the name or model of another machine, for which times are only predicted. None or "cpu"
            selects this machine.
        mode: the only AD mode to consider, or None.
        cores: the processor cores that this process is bound to, or None.
        note: a function that is called with each line of text about the progress.
        may_split_seeds: whether the seeds may be partitioned over more devices than points.
    """
    devices = devices if isinstance(devices, Sequence) else [devices]
    if not isinstance(hardware, Hardware | None):
        hardware = local_peaks.read_hardware(hardware)
    other_machine = None if hardware is None or hardware.platform == "cpu" else hardware
    _check_options(budget, devices, other_machine)
    mode = None if mode == AUTO else mode
    cases, excluded, sizes = candidates.list_candidates(base, devices, mode, may_split_seeds)
    entries = f"{sizes.outputs:,} x {sizes.inputs:,} entries at {count_of(base.points, 'point')}"
    note(f"{count_of(len(cases), 'candidate')} for {entries}")
    model = other_machine or (local_peaks.model_this_machine(cases, cores) if cases else None)
    fields: dict[Case, RecordFields] = {case: {"status": "planned"} for case in cases}
    if model is not None:  # without a model, all candidates are measured
        fields = prediction.predict_candidates(cases, model, note)
    machine = other_machine.title if other_machine else f"this machine ({jax.devices()[0].platform})"
    advice = Advice(tuple(cases), excluded, sizes, fields, {}, machine)
    if not budget or other_machine or len(fields) < len(cases):  # fewer fields: interrupted
        return advice
    records = measurement.measure_candidates(advice.cases, fields, budget, cores, note)
    return dataclasses.replace(advice, records=records)


def _check_options(budget: Any, devices: Sequence[Any], hardware: Hardware | None) -> None:
    """Raise `Refusal` for an invalid time budget, or if a machine lacks the devices or their compiler.

    `hardware` is the model of another machine, or None for this one.
    """
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 <= budget < float("inf"):
        raise Refusal(f"budget must be a number of seconds, zero or more, not {budget!r}")
    available = jax.devices()
    for count in devices or [devices]:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise Refusal(f"devices must be positive integers, such as [1, 2], not {count!r}")
        if hardware is not None:
            hardware.check_devices(count)
        elif count > len(available):
            text = f"JAX has {len(available)} {available[0].platform} devices here"
            fix = "set jax_num_cpu_devices before JAX starts, or hardware=NAME"
            raise Refusal(f"devices={count}: {text}; use fewer, or {fix}")
    if hardware is not None:
        plan_study.find_compiler(hardware)


def choose_case(case: Case, group: ProcessGroup) -> Case:
    """Return a case with mode=auto with the AD mode, batch, chunk and block of the shortest predicted time.

    Candidates are compiled to predict their times. Raise `CaseEnded` if conf/hardware has no model of the
    machine, or if no candidate fits into memory. `group` has the devices and cores of this process.
    """
    cases, excluded, sizes = candidates.list_candidates(dataclasses.replace(case, mode=case.ad_mode.name))
    hardware = local_peaks.model_this_machine(cases, group.cores)
    if hardware is None:
        text = f"mode=auto needs the rates of the machine, and conf/hardware has none for {group.devices[0]}"
        raise CaseEnded("skipped", "not_offered", text)
    fields = prediction.predict_candidates(cases, hardware)
    try:
        return Advice(tuple(cases), excluded, sizes, fields, {}, hardware.title).best
    except Refusal as error:
        raise CaseEnded("skipped", "too_large", f"mode=auto: {error}") from None
