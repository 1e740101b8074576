"""Score: how far predictions were from measurements of the same case on the same kind of device, per workload and mode.

Takes timings and planned records and gives values. What lies under ten empty calls is left out: it says what asking takes.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaling.analysis.certainty import near_floor
from scaling.analysis.curves import Timing
from scaling.analysis.methods import Method, method_of
from scaling.core.case import problem
from scaling.core.record import Record

APART = 2.0  # how many times as long one of a pair must take for their order to be asked after


class PlannedPair(NamedTuple):
    """A case that was both planned and measured."""

    plan: Record
    timing: Timing

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.plan.predicted["seconds"] / self.timing.median  # type: ignore[index]

    @property
    def held(self) -> bool:
        """Whether the measured median lies in the predicted interval."""
        told = self.plan.predicted
        return told is not None and told["low"] <= self.timing.median <= told["high"]


@dataclass(frozen=True)
class PlanScore:
    """The errors of a group of predictions."""

    workload: str | None  # None: of all
    way: Method | None
    pairs: tuple[PlannedPair, ...]

    @property
    def ratios(self) -> list[float]:
        """Predicted over measured, sorted."""
        return sorted(pair.ratio for pair in self.pairs)

    @property
    def middle(self) -> float:
        """The median of these."""
        return statistics.median(self.ratios)

    @property
    def error(self) -> float:
        """The median absolute error, as a share of what was measured."""
        return statistics.median(abs(ratio - 1) for ratio in self.ratios)

    @property
    def worst(self) -> float:
        """The ratio that is furthest from 1."""
        return max(self.ratios, key=lambda ratio: abs(math.log(ratio)))

    @property
    def held(self) -> float:
        """The share of measurements within the predicted interval."""
        return sum(pair.held for pair in self.pairs) / len(self.pairs)


@dataclass(frozen=True)
class PlanScores:
    """All of a folder: in all, by workload and mode, and of how many pairs of ways to a problem the order was right."""

    hardware: str
    whole: PlanScore
    parts: tuple[PlanScore, ...]
    ordered: int
    asked: int  # pairs whose measured times differ by more than a factor of two


def scores(plans: Iterable[Record], timings: Sequence[Timing]) -> list[PlanScores]:
    """The scores of each hardware that was both planned for and measured on."""
    by_hardware: dict[str, list[Record]] = {}
    for record in sorted(plans, key=lambda record: record.started_at or ""):  # so that the last plan of a case counts
        if record.predicted is not None:
            by_hardware.setdefault(record.environment["hardware"]["name"], []).append(record)
    found = []
    for name, records in by_hardware.items():
        known = {(record.key, record.environment["device_kind"]): record for record in records}
        pairs = [
            PlannedPair(known[of], timing)
            for timing in timings
            if timing.honest and near_floor(timing) is None
            if (of := (timing.case.key, timing.records[0].environment.get("device_kind"))) in known
        ]
        if pairs:
            found.append(_scores(name, pairs))
    return found


def _scores(name: str, pairs: Sequence[PlannedPair]) -> PlanScores:
    groups: dict[tuple[str, Method], list[PlannedPair]] = {}
    rivals: dict[tuple, list[PlannedPair]] = {}
    for pair in pairs:
        case = pair.timing.case
        groups.setdefault((case.workload, method_of(case).plain), []).append(pair)
        rivals.setdefault((problem(case), case.devices, pair.timing.environment), []).append(pair)
    parts = tuple(
        PlanScore(workload, way, tuple(some)) for (workload, way), some in sorted(groups.items(), key=lambda g: str(g[0]))
    )
    told = [
        right
        for some in rivals.values()
        for one, other in itertools.combinations(some, 2)
        if (right := _order(one, other)) is not None
    ]
    return PlanScores(name, PlanScore(None, None, tuple(pairs)), parts, sum(told), len(told))


def _order(one: PlannedPair, other: PlannedPair) -> bool | None:
    """Whether the order of two was predicted; None where they are too near to each other to ask."""
    slow, fast = sorted((one, other), key=lambda pair: -pair.timing.median)
    if slow.timing.median <= APART * fast.timing.median:
        return None
    return slow.plan.predicted["seconds"] > fast.plan.predicted["seconds"]  # type: ignore[index]
