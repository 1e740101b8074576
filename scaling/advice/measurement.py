"""Measure the candidates of `scaling.advise` within a time budget, and the peak rates of this CPU.

The derivative of each candidate is checked first. Then the candidates are measured in rounds. A round takes a
few samples of every remaining candidate, and drops the candidates that are significantly slower than the
fastest. After the first round, or with few samples, only candidates that take over four times as long are
dropped, because other processes may have disturbed the samples.

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

import jax

from scaling.analysis.ratios import ratio_interval
from scaling.analysis.timings import describe_disturbed_turns, pool_processes
from scaling.core import environment, run_case
from scaling.core.case import Case, Refusal
from scaling.core.compile_case import Stages
from scaling.core.formatting import format_count
from scaling.core.record import Record, Writer
from scaling.core.run_case import Attempt, ProcessGroup
from scaling.core.timing import Sampling, median_interval
from scaling.options import machine_peaks
from scaling.plan import time_model
from scaling.plan.hardware import Hardware
from scaling.results import store

_EQUAL_RATIO = 1.03  # ratio of two times up to which two candidates are equally good
# After this fraction of the budget, a candidate is checked only if fewer than two are ready.
_CHECKING_SHARE = 0.6
_MAX_CALL_SHARE = 0.1  # the fraction of the budget that a call of the second candidate may then take
_MAX_UNCERTAIN_RATIO = 4.0  # ratio of uncertain median times above which a candidate is dropped
_MAX_PREDICTED_RATIO = 20.0  # ratio to the shortest predicted time, above which a candidate is not measured
_TURN_SAMPLING = Sampling(width=0.0, least=9, most=10**6, seconds=0.5, warm_up=0.01, turns=3)
_MAX_PEAK_MEASUREMENTS = 4  # maximum number of measurements of a peak while other processes use the CPU
_PEAK_SAMPLING = Sampling(width=0.1, least=5, most=20, seconds=0.03, warm_up=0.005, turns=1)
# The benchmarks whose rates the time model uses.
_PEAKS_OF_MODEL = ("copy", "matmul", "arithmetic", "transcendental", "all_reduce", "collective", "call")


def measure_candidates(
    records: Sequence[Record], stages: Mapping[Case, Stages], budget: float, note: Callable[[str], None]
) -> list[Record]:
    """Measure candidates until the fastest is known or `budget` seconds have passed. Return their records.

    The record of a candidate that was not measured states the reason. `stages` maps compiled cases to their
    programs. `note` is called with lines of progress text.
    """
    deadline, attempts = time.monotonic() + budget, dict[Case, Attempt]()
    ordered = _order_by_prediction(records)
    try:
        for record in ordered:
            remaining, seconds = deadline - time.monotonic(), _predicted_seconds(record)
            ready_count = sum(not attempt.ended for attempt in attempts.values())
            is_late = remaining < max((1 - _CHECKING_SHARE) * budget, seconds)
            if is_late and (ready_count > 1 or (ready_count == 1 and seconds > _MAX_CALL_SHARE * budget)):
                continue
            note(f"checking candidate {len(attempts) + 1} of {len(ordered)}")
            attempts[record.case] = check_candidate(record, stages.get(record.case))
        _sample_in_rounds(attempts, deadline, note)
    except KeyboardInterrupt:
        note("interrupted: the advice so far")
    finished = {case: run_case.finish_case(attempt) for case, attempt in attempts.items()}
    measured = {case: record for case, record in finished.items() if record.seconds or record.text}
    text = "not measured: no time was left, or predicted to be slow" if measured else None
    others = {record.case: dataclasses.replace(record, text=record.text or text) for record in records}
    return list((others | measured).values())


def check_candidate(record: Record, stages: Stages | None = None) -> Attempt:
    """Compile a candidate, and check the result of one call. Return the `Attempt`, which can then be timed.

    `stages` is the program if it is already compiled. After an error, `Attempt.ended` is true.
    """
    devices = jax.devices()[: record.case.devices]
    group = ProcessGroup(devices, devices[0].platform, cores=_bound_cores())
    blank = dataclasses.replace(record, text=None)  # it may state why no time is predicted
    return run_case.prepare_case(blank, group, _TURN_SAMPLING, stages=stages)


def _order_by_prediction(records: Sequence[Record]) -> list[Record]:
    """Return the records of the planned cases in the order in which to measure them.

    First comes the case with the shortest predicted time for each AD mode and number of devices. The other
    cases follow, sorted by predicted time. Cases are omitted if they are predicted to take more than 20 times
    as long as the fastest case.
    """
    planned = [record for record in records if record.status == "planned"]
    longest = _MAX_PREDICTED_RATIO * min(filter(None, map(_predicted_seconds, planned)), default=0.0)
    planned.sort(key=lambda record: (_predicted_seconds(record), record.flops or 0.0))
    ordered = [record for record in planned if _predicted_seconds(record) <= longest]
    first = {(record.case.mode, record.case.devices): record for record in reversed(ordered)}
    return sorted(ordered, key=lambda record: first[record.case.mode, record.case.devices] is not record)


def _predicted_seconds(record: Record) -> float:
    """Return the predicted time of a call in seconds, or 0 if it is unknown."""
    return float((record.predicted or {"seconds": 0})["seconds"])


def _sample_in_rounds(attempts: Mapping[Case, Attempt], deadline: float, note: Callable[[str], None]) -> None:
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
    """Return the cases to measure again: the fastest case, and all cases that may be as fast.

    If all these cases take almost the same time (`_is_close`), return only the fastest case. If its time
    already has a confidence interval, return [].
    """
    if not records:
        return []
    best = min(records, key=lambda case: statistics.median(records[case].seconds))
    rivals = [case for case in records if case != best and _may_be_as_fast(records[case], records[best])]
    if not all(_is_close(records[case], records[best]) for case in rivals):
        return [best, *rivals]
    return [] if median_interval(records[best].seconds) else [best]


def _may_be_as_fast(record: Record, best: Record) -> bool:
    """Return whether a case may be as fast as the fastest case, whose record is `best`.

    Return false if the case is significantly slower: the 95 % confidence interval of the ratio of their times
    is above 1. With too few samples or a single turn of sampling, return false if the ratio of their medians
    is above four.
    """
    ratio = ratio_interval(record.seconds, best.seconds)
    if ratio and len(record.turns) > 1:
        return ratio[1] <= 1
    return statistics.median(record.seconds) <= _MAX_UNCERTAIN_RATIO * statistics.median(best.seconds)


def _is_close(record: Record, best: Record) -> bool:
    """Return whether a case takes at most 3 % longer than `best` with 95 % confidence."""
    ratio = ratio_interval(record.seconds, best.seconds)
    return ratio is not None and ratio[2] <= _EQUAL_RATIO


def is_equally_fast(record: Record, fastest: Record) -> bool:
    """Return whether the times of two cases, both measured or both predicted, are equal within 3 %."""
    if fastest.seconds:
        return bool(record.seconds) and _may_be_as_fast(record, fastest) and _is_close(record, fastest)
    return 0 < _predicted_seconds(record) <= _EQUAL_RATIO * _predicted_seconds(fastest)


def describe_certainty(best: Record, others: Sequence[Record]) -> str:
    """Return text: how many of the cases `others` may be as fast as `best`, and any disturbances."""
    rivals = [other for other in others if _may_be_as_fast(other, best)]
    close = ", within 3 % of it" if rivals and all(_is_close(rival, best) for rival in rivals) else ""
    count = format_count(len(rivals), "other measured candidate") if rivals else "no other measured candidate"
    text = f"{count} may be as fast{close}"
    disturbances = describe_disturbed_turns([best, *others])
    return "; ".join([text, *(f"{each}: repeat it on an idle machine" for each in disturbances)])


def add_rates(model: Hardware, cases: Sequence[Case]) -> Hardware:
    """Return a copy of `model` with the peak rates of this CPU that the programs of `cases` need.

    The rates are read from a cache or measured. Raise `Refusal` if the measurement fails.
    """
    benchmarks = machine_peaks.peak_cases(cases, "cpu")
    peaks = _load_or_measure_peaks([case for case in benchmarks if case.target in _PEAKS_OF_MODEL])
    try:
        return time_model.calibrate(model, pool_processes(peaks), bound_only=False)
    except Refusal:
        reason = next((record.text for record in peaks if record.text), "no peak is known")
        raise Refusal(f"the peak rates of this CPU cannot be measured: {reason}; try again") from None


def _load_or_measure_peaks(cases: Iterable[Case]) -> list[Record]:
    """Return a record of each peak benchmark in `cases`, from the cache or from a new measurement."""
    this_environment = environment.describe("cpu", None, os.environ, None, _bound_cores())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ad-scaling" / "peaks"
    cached_records = list[Record]()
    with contextlib.suppress(OSError, Refusal):  # the cache may be unreadable, or of a newer version
        cached_records = store.load(folder).records
    peaks, writer = list[Record](), Writer(folder)
    for case in cases:
        records = [
            record
            for record in cached_records
            if record.case == case
            and record.status == "ok"
            and record.environment["digest"] == this_environment["digest"]
        ]
        if len(records) < _MAX_PEAK_MEASUREMENTS and all(record.marked for record in records):
            devices, record = jax.devices("cpu")[: case.devices], Record(case, "failed", this_environment)
            records.append(run_case.run_case(record, devices, "cpu", _PEAK_SAMPLING))
            with contextlib.suppress(OSError):  # without a cache, peaks are measured again next time
                folder.mkdir(parents=True, exist_ok=True)
                writer.append(records[-1])
        peaks.append(min(records, key=lambda r: (bool(r.marked), statistics.median(r.seconds or [inf]))))
    return peaks


def _bound_cores() -> list[int] | None:
    """Return the CPU cores of this process if it is bound to one core per JAX device, otherwise None."""
    bound = sorted(os.sched_getaffinity(0))
    return bound if jax.default_backend() == "cpu" and len(bound) == jax.device_count() else None
