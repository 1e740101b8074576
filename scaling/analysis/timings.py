"""Define `Timing` (the pooled records of a case), compare timings, and describe doubts, stages and blocks.

An empty call is a call of a compiled program that computes nothing. Its time is the dispatch latency.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.analysis import ratios
from scaling.analysis.cases import MEMORY_FIELDS, Subject
from scaling.analysis.estimate import Estimate, format_ratio
from scaling.core.formatting import format_count, format_duration
from scaling.core.grouping import group_by
from scaling.core.record import COMPILING_STAGES, Record
from scaling.results.store import latest_records

_LEAST_EMPTY_CALLS = 10  # a time shorter than this many empty calls is mostly dispatch latency
# Reasons why a time may not be reliable, in the words of all tables, sentences and warnings.
SHORT, ONE_PROCESS = "under 10x the overhead of a call", "measured in one process"
DISTURBED = 0.2  # largest fraction of disturbed samples in a reliable time
SPARSITY_STAGES = ("detect_seconds", "color_seconds")  # sparsity detection, coloring
# Fields of a case by which timings are sorted, most significant first.
_ORDER = (
    "workload", "target", "variant", "wrt", "reduce", "dtype", "formulation", "sizes", "points", "data_seed",
    "engine", "mode", "batch", "seeds", "forward", "split", "api", "precision", "jit", *MEMORY_FIELDS,
    "devices", "overlap", "mesh_shape",
)  # fmt: skip


@dataclass(frozen=True, eq=False)  # compares only what `Subject` compares
class Timing(Subject):
    """The measured or predicted time of one case in one environment, from one record per process."""

    records: tuple[Record, ...]  # one per replicate, which is a process in which the case was measured
    estimate: Estimate  # time per call in seconds, predicted or from `ratios.estimate_time`

    @property
    def record(self) -> Record:
        """Return the record of the first process."""
        return self.records[0]

    @property
    def median(self) -> float:
        """Return the measured (median) or predicted time per call in seconds."""
        return self.estimate.value

    @property
    def seconds(self) -> tuple[float, ...]:
        """Return the time samples of all processes, in seconds."""
        return tuple(seconds for record in self.records for seconds in record.seconds)


def count_nodes(record: Record) -> int | None:
    """Return the number of nodes on which a case ran, or None if it was not recorded."""
    shape, hosts = record.environment.get("shape") or {}, record.environment.get("hosts") or ()
    return shape.get("nodes") or len(hosts) or None


def pool_processes(records: Iterable[Record]) -> list[Timing]:
    """Return a `Timing` for each measured case in each environment, from all processes that measured it.

    The timings are sorted by environment and case.
    """
    measured = (record for record in latest_records(records) if record.status == "ok")
    groups = group_by(measured, lambda record: (record.setting, record.key, record.honest))
    timings = (
        Timing(group[0].case, environment, honest, tuple(group), ratios.estimate_time(group))
        for (environment, _, honest), group in groups.items()
    )
    return sorted(timings, key=_timing_sort_key)


def _timing_sort_key(timing: Timing) -> tuple:
    fields = (_sortable(getattr(timing.case, name)) for name in _ORDER)
    return timing.environment, *fields, timing.honest


def _sortable(value: Any) -> tuple:
    return tuple(value.items()) if isinstance(value, Mapping) else (isinstance(value, str), value or 0)


def format_time(timing: Timing) -> str:
    """Return a median time with its 95 % confidence interval as text, such as '12.3 µs (12.1 to 12.6)'."""
    return format_duration(*timing.estimate)


def dispatch_floor(timing: Timing) -> float:
    """Return the time of an empty call in seconds, on the devices of `timing`, or 0 if it is unknown."""
    return max((record.floor_seconds or 0.0 for record in timing.records), default=0.0)


def significant_floor(timing: Timing) -> float | None:
    """Return the time of an empty call in seconds, or None if `timing` is at least ten times as long."""
    floor = dispatch_floor(timing)
    return floor if timing.median < _LEAST_EMPTY_CALLS * floor else None


def is_empty_call(timing: Timing) -> bool:
    """Return whether a time is too short to be distinguished from the time of an empty call.

    This is so if the lower limit of its 95 % confidence interval does not exceed the time of an empty call.
    """
    return (timing.estimate.low or timing.median) <= dispatch_floor(timing)


def disturbed_samples(record: Record) -> list[bool]:
    """Return for each time sample of a record whether it was disturbed.

    A sample is disturbed if the device was throttled, or if other processes loaded the CPU.
    """
    disturbed_turns = {turn for turns in record.marked.values() for turn in turns}
    return [turn in disturbed_turns for turn, count in enumerate(record.turns) for _ in range(count)]


def describe_disturbances(timing: Timing) -> tuple[float, list[str]]:
    """Return the fraction of the samples that were disturbed, and the causes, such as ['throttled']."""
    count = sum(sum(disturbed_samples(record)) for record in timing.records)
    causes = {_name_disturbance(mark) for record in timing.records for mark in record.marked}
    return count / len(timing.seconds), sorted(causes)


def describe_disturbed_turns(records: Sequence[Record]) -> list[str]:
    """Return text for each cause of disturbed turns, such as 'throttled in 1 of 8 turns'.

    A turn is a series of consecutive samples of one case. The list is empty if no turn was disturbed.
    """
    turns = format_count(sum(len(record.turns) for record in records), "turn")
    marks = sorted({mark for record in records for mark in record.marked})
    counts = {mark: sum(len(record.marked.get(mark, ())) for record in records) for mark in marks}
    return [f"{_name_disturbance(mark)} in {count} of {turns}" for mark, count in counts.items()]


def _name_disturbance(mark: str) -> str:
    return "load of other processes" if mark == "foreign_load" else mark.replace("_", " ")


def reasons_for_doubt(fast: Timing, slow: Timing) -> tuple[str, ...]:
    """Return the reasons why `fast` may not be faster than `slow`, such as 'measured in one process'."""
    ten_empty_calls = _LEAST_EMPTY_CALLS * max(map(dispatch_floor, (fast, slow)))
    is_short, difference = fast.median < ten_empty_calls, abs(slow.median - fast.median)
    possible_reasons = {
        SHORT: is_short,
        "the times differ by under 10x the overhead of a call": not is_short and difference < ten_empty_calls,
        ONE_PROCESS: min(len(fast.records), len(slow.records)) < 2,
    }
    reasons = [reason for reason, applies in possible_reasons.items() if applies]
    for fraction, causes in map(describe_disturbances, (fast, slow)):
        reasons += causes if fraction > DISTURBED else []
    return tuple(dict.fromkeys(reasons))


def time_ratio(top: Timing, bottom: Timing) -> Estimate:
    """Return the time of `top` divided by the time of `bottom`, with its 95 % confidence interval.

    If both times are predicted, the interval is computed from random draws of the machine parameters. Its
    limits are None if the predictions contain no draws.
    """
    if top.record.predicted and bottom.record.predicted:
        value = top.median / bottom.median
        draws, bottom_draws = ((t.record.predicted or {}).get("draws") or [] for t in (top, bottom))
        if not draws or len(draws) != len(bottom_draws):
            return Estimate(value, None, None)
        # The i-th draws of both times assume the same machine parameters.
        low, high = np.percentile(np.divide(draws, bottom_draws), (2.5, 97.5))
        return Estimate(value, float(low), float(high))
    if top is bottom:
        return Estimate(1.0, 1.0, 1.0)
    return ratios.estimate_ratio(top.records, bottom.records).estimate


def describe_slower(top: Timing, bottom: Timing) -> str:
    """Return how much longer `top` takes than `bottom`, as text such as 'jacfwd takes 1.77x as long'.

    The text states the number of devices of `top` if `bottom` is on a different number.
    """
    ratio = time_ratio(top, bottom)
    on_devices = f" on {top.devices_text}" if top.case.devices != bottom.case.devices else ""
    name, text = f"{top.method.name}{on_devices}", format_ratio(*ratio)
    return f"{name} takes {text} as long" if ratio.is_determined else f"the ratio to {name} is {text}"


def stage_seconds(timing: Timing, *names: str) -> float | None:
    """Return the total time of some stages in seconds, or None if it is unknown.

    `names` are fields of a record, such as "compile_seconds". Fields that are None are omitted. If there are
    several processes, the median of their totals is returned.
    """
    values = ([getattr(record, name) for name in names] for record in timing.records)
    totals = [sum(recorded) for stages in values if (recorded := [v for v in stages if v is not None])]
    return statistics.median(totals) if totals else None


def first_call_seconds(timing: Timing) -> float | None:
    """Return the time to the first result in seconds, including compilation, or None if it is unknown."""
    if any(record.first_seconds is None for record in timing.records):
        return None
    return stage_seconds(timing, *SPARSITY_STAGES, *COMPILING_STAGES, "first_seconds")


def blocks_of(timing: Timing) -> str:
    """Return the block sizes that chunk=auto chose, as text such as '4 seeds and all points at a time'.

    If the processes have different block sizes, the text joins them by 'or'. It is '' without chunk=auto.
    """
    block_texts = []
    for blocks in (record.blocks for record in timing.records if record.blocks is not None):
        counts_and_nouns = ((blocks.get("chunk"), "seed"), (blocks.get("block"), "point"))
        counts = " and ".join(format_count(n, noun) if n else f"all {noun}s" for n, noun in counts_and_nouns)
        on_host = ", kept on the host" if blocks.get("storage") == "host" else ""
        block_texts.append(f"{counts} at a time{on_host}")
    return " or ".join(dict.fromkeys(block_texts))


def name_with_blocks(timing: Timing) -> str:
    """Return the name of a method, followed by the block sizes in parentheses if chunk=auto chose them."""
    auto = blocks_of(timing)
    return f"{timing.method.name} ({auto})" if auto else timing.method.name
