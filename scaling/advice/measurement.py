"""Measure the candidates of `scaling.advise` within a time budget, and the peak rates of this CPU.

Candidates are measured in rounds. Each round takes a few samples of the time of every remaining candidate.
The first round drops only candidates that take more than four times as long as the fastest, because other
processes may have disturbed it. A later round drops candidates that are significantly slower, or, with few
samples, take more than twice as long. The derivative of each candidate is checked before its time is
measured.

The peak rates of this CPU are measured with few samples, and stored as records in the user's cache folder.
plan/time_model.py predicts times from them.
"""

import contextlib
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import jax

from scaling.analysis.ratios import ratio_interval
from scaling.analysis.timings import describe_disturbed_turns, pool_processes
from scaling.core import environment, run_case
from scaling.core.case import Case, Refusal
from scaling.core.compile_case import Stages
from scaling.core.formatting import format_count
from scaling.core.record import Record, RecordFields, Writer
from scaling.core.run_case import Attempt, ProcessGroup
from scaling.core.timing import Sampling, median_interval
from scaling.options import machine_peaks
from scaling.plan import time_model
from scaling.plan.hardware import Hardware
from scaling.results import store

EQUAL_RATIO = 1.03  # ratio of two times up to which two candidates are equally good
# After this fraction of the budget, a candidate is checked only if fewer than two are ready.
_CHECKING_SHARE = 0.6
_MAX_CALL_SHARE = 0.1  # the fraction of the budget that a call of the second candidate may then take
_MAX_MEASURED_RATIO = 2.0  # ratio of the median times of few samples above which a candidate is dropped
_MAX_FIRST_ROUND_RATIO = 4.0  # the same after the first round
_MAX_PREDICTED_RATIO = 20.0  # ratio to the shortest predicted time, above which a candidate is not measured
_TURN_SAMPLING = Sampling(width=0.0, least=9, most=10**6, seconds=0.5, warm_up=0.01, turns=3)
_MAX_PEAK_MEASUREMENTS = 4  # maximum number of measurements of a peak while other processes use the CPU
_PEAK_SAMPLING = Sampling(width=0.1, least=5, most=20, seconds=0.03, warm_up=0.005, turns=1)
_PEAK_OF_WORK = {  # kind of work of a library kernel -> target of the benchmark of its peak rate
    "products": "matmul", "divisions": "transcendental", "transcendentals": "transcendental",
}  # fmt: skip


def measure_candidates(
    fields: Mapping[Case, RecordFields],
    stages: Mapping[Case, Stages],
    budget: float,
    note: Callable[[str], None],
) -> dict[Case, Record]:
    """Measure candidates until the fastest is known or `budget` seconds have passed.

    Return {case: record} for the cases that were run. `fields` maps each candidate to its record fields.
    `stages` maps compiled cases to their programs. `note` is called with lines of progress text.
    """
    deadline, attempts = time.monotonic() + budget, dict[Case, Attempt]()
    ordered = _order_by_prediction(fields)
    try:
        for case in ordered:
            remaining, seconds = deadline - time.monotonic(), _predicted_seconds(fields[case])
            ready_count = sum(not attempt.ended for attempt in attempts.values())
            is_late = remaining < max((1 - _CHECKING_SHARE) * budget, seconds)
            if is_late and (ready_count > 1 or (ready_count == 1 and seconds > _MAX_CALL_SHARE * budget)):
                continue
            note(f"checking candidate {len(attempts) + 1} of {len(ordered)}")
            attempts[case] = check_case(case, stages.get(case))
        _take_turns(attempts, deadline, note)
    except KeyboardInterrupt:
        note("interrupted: the advice so far")
    records = {case: run_case.finish_case(attempt) for case, attempt in attempts.items()}
    return {case: record for case, record in records.items() if record.seconds or record.status != "ok"}


def check_case(case: Case, stages: Stages | None = None) -> Attempt:
    """Compile a case, check the result of one call, and return the `Attempt`. No time is measured.

    `stages` is the program if it is already compiled. If an error occurs, `Attempt.ended` is true.
    """
    devices = jax.devices()[: case.devices]
    group = ProcessGroup(devices, devices[0].platform, cores=_bound_cores())
    return run_case.prepare_case(Record(case, "failed", {}), group, _TURN_SAMPLING, stages=stages)


def _order_by_prediction(fields: Mapping[Case, RecordFields]) -> list[Case]:
    """Return the cases to measure, in the order of measurement.

    Cases whose predicted time is more than 20 times the shortest predicted time are omitted.
    """
    planned = {case: each for case, each in fields.items() if each["status"] == "planned"}
    seconds = {case: _predicted_seconds(each) for case, each in planned.items()}
    longest = _MAX_PREDICTED_RATIO * min(filter(None, seconds.values()), default=0.0)
    ordered = sorted(planned, key=lambda case: (seconds[case], planned[case].get("flops") or 0.0))
    ordered = [case for case in ordered if seconds[case] <= longest]
    first = {(case.mode, case.devices): case for case in reversed(ordered)}
    # The fastest case of each mode and device count is first.
    return sorted(ordered, key=lambda case: first[case.mode, case.devices] != case)


def _predicted_seconds(fields: RecordFields) -> float:
    """Return the predicted time of a call in seconds, or 0 if it is unknown."""
    return float((fields.get("predicted") or {"seconds": 0})["seconds"])


def _take_turns(attempts: Mapping[Case, Attempt], deadline: float, note: Callable[[str], None]) -> None:
    """Sample the times of candidates in rounds, until the fastest is known or `deadline` passes.

    `deadline` is a value of `time.monotonic()`. The first round is always completed.
    """
    active = [case for case, attempt in attempts.items() if not attempt.ended]
    while active and not (time.monotonic() > deadline and attempts[active[-1]].record.seconds):
        note(f"measuring {len(active)} of {len(attempts)} candidates")
        for case in active:
            run_case.take_turn(attempts[case])
        active = _select_undecided({c: attempts[c].record for c in active if not attempts[c].ended})


def _select_undecided(records: Mapping[Case, Record]) -> list[Case]:
    """Return the fastest case and its rivals, which are measured again.

    After the first round, the rivals are the cases that take at most four times as long as the fastest case.
    After later rounds, they are the cases that may be as fast (`_may_be_as_fast`). If there are no rivals, or
    if all of them take almost the same time as the fastest case (`_is_close`), return this case alone until
    its samples have an interval, then [].
    """
    if not records:
        return []
    medians = {case: statistics.median(record.seconds) for case, record in records.items()}
    best = min(medians, key=medians.__getitem__)
    others = [case for case in records if case != best]
    if all(len(record.turns) == 1 for record in records.values()):  # the first round
        rivals = [case for case in others if medians[case] <= _MAX_FIRST_ROUND_RATIO * medians[best]]
    else:
        rivals = [case for case in others if _may_be_as_fast(records[case], records[best])]
    if not all(_is_close(records[case], records[best]) for case in rivals):
        return [best, *rivals]
    return [] if median_interval(records[best].seconds) else [best]


def _may_be_as_fast(record: Record, best: Record) -> bool:
    """Return whether a case may be as fast as the fastest case, whose record is `best`.

    The lower limit of the 95 % confidence interval of the ratio of their times must be at most 1. If there
    are too few samples for an interval, the median time of the case must be at most twice that of `best`.
    """
    if ratio := ratio_interval(record.seconds, best.seconds):
        return ratio[1] <= 1
    return statistics.median(record.seconds) <= _MAX_MEASURED_RATIO * statistics.median(best.seconds)


def _is_close(record: Record, best: Record) -> bool:
    """Return whether a case takes at most 3 % longer than `best` with 95 % confidence."""
    ratio = ratio_interval(record.seconds, best.seconds)
    return ratio is not None and ratio[2] <= EQUAL_RATIO


def may_be_equal(record: Record, best: Record) -> bool:
    """Return whether a case may be as fast as the fastest case `best`, and takes at most 3 % longer."""
    return _may_be_as_fast(record, best) and _is_close(record, best)


def describe_certainty(best: Record, others: Sequence[Record]) -> str:
    """Return text that states how many of the cases `others` may be as fast as the measured case `best`."""
    rivals = [other for other in others if _may_be_as_fast(other, best)]
    if not others:
        text = "no other candidate was measured"
    elif rivals:
        close = ", within 3 % of it" if all(_is_close(rival, best) for rival in rivals) else ""
        text = f"{format_count(len(rivals), 'other measured candidate')} may be as fast{close}"
    else:
        count = f"{len(others) + 1} candidates that were measured in this process"
        text = f"it is the fastest of the {count}; the others are slower at 95 % confidence, or twice as slow"
    disturbances = describe_disturbed_turns([best, *others])
    return "; ".join([text, *(f"{each}: repeat it on an idle machine" for each in disturbances)])


def add_rates(model: Hardware, fields: Mapping[Case, RecordFields]) -> Hardware:
    """Return a copy of `model` with the peak rates of this CPU, from the cache or from a measurement.

    `fields` contains the record fields of each compiled case. Only peak rates that limit these cases are
    measured. Raise `Refusal` if the rates cannot be measured.
    """
    peaks = _load_or_measure(_needed_peaks(fields))
    try:
        return time_model.calibrate(model, pool_processes(peaks), bound_only=False)
    except Refusal:
        reason = next((record.text for record in peaks if record.text), "no peak is known")
        raise Refusal(f"the peak rates of this CPU cannot be measured: {reason}; try again") from None


def _needed_peaks(fields: Mapping[Case, RecordFields]) -> list[Case]:
    """Return the benchmark cases that measure the peak rates needed for predictions.

    `fields` maps each compiled case to its record fields, which describe its kernels and collectives.
    """
    kernels = [kernel for case_fields in fields.values() for kernel in case_fields.get("kernels", ())]
    messages = [message for case_fields in fields.values() for message in case_fields.get("messages", ())]
    work = {name for kernel in kernels if not kernel.get("operations") for name in kernel}
    targets = {"copy", "arithmetic", "call", *(peak for name, peak in _PEAK_OF_WORK.items() if name in work)}
    targets |= {"all_reduce", "collective"} if any(message["group"] > 1 for message in messages) else set()
    most_bytes = max((kernel.get("bytes", 0) for kernel in kernels), default=0)
    needed_peaks, copied_bytes = list[Case](), dict[int, int]()  # number of devices -> bytes of the last copy
    for case in machine_peaks.peak_cases(list(fields), "cpu"):  # with copies in ascending order of the bytes
        if case.target == "copy":
            if copied_bytes.get(case.devices, -1) < most_bytes:
                needed_peaks.append(case)
            copied_bytes[case.devices] = machine_peaks.peak_work(case)
        elif case.target in targets:
            needed_peaks.append(case)
    return needed_peaks


def _load_or_measure(cases: Iterable[Case]) -> list[Record]:
    """Return a record of each peak benchmark, from the cache or from a new measurement."""
    this_environment = environment.describe("cpu", None, os.environ, None, _bound_cores())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ad-scaling" / "peaks"
    key, cached_records = _peak_key(this_environment), list[Record]()
    with contextlib.suppress(OSError, Refusal):  # the cache may be unreadable, or of a newer version
        cached_records = store.load(folder).records
    usable_records = [r for r in cached_records if r.status == "ok" and _peak_key(r.environment) == key]
    peaks, writer = list[Record](), Writer(folder)
    for case in cases:
        records = [record for record in usable_records if record.case == case]
        if len(records) < _MAX_PEAK_MEASUREMENTS and all(record.marked for record in records):
            devices, record = jax.devices("cpu")[: case.devices], Record(case, "failed", this_environment)
            records.append(run_case.run_case(record, devices, "cpu", _PEAK_SAMPLING))
            with contextlib.suppress(OSError):  # without a cache, peaks are measured again next time
                folder.mkdir(parents=True, exist_ok=True)
                writer.append(records[-1])
        best_record = min(records, key=lambda r: (bool(r.marked), statistics.median(r.seconds or [inf])))
        peaks.append(dataclasses.replace(best_record, environment=this_environment))
    return peaks


def _peak_key(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the parts of the environment `fields` that affect the peak rates, as a cache key."""
    cores, versions = fields["cores"] or (), fields["versions"]
    settings = fields["xla_flags"], fields["glibc_tunables"], fields["source"]
    return fields["device_kind"], *settings, versions["jaxlib"], len(cores)


def _bound_cores() -> list[int] | None:
    """Return the CPU cores of this process if it is bound to one core per JAX device, otherwise None."""
    bound = sorted(os.sched_getaffinity(0))
    return bound if jax.default_backend() == "cpu" and len(bound) == jax.device_count() else None
