"""Roofline: the rate of each timing against the machine's measured peaks at its operational intensity.

Counts operations as traced and compulsory bytes (inputs read, result written), as baselines.py does: bytes
that a program moves beyond those show as distance from the roof.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaling.analysis.baselines import Rates, machine_key, measured_rates
from scaling.analysis.curves import Timing, family_key, problem_size
from scaling.analysis.grouping import group_by
from scaling.analysis.methods import Method, method_of
from scaling.core.case import Case
from scaling.options import machine_peaks


class RooflinePoint(NamedTuple):
    """A timing with its intensity and its rate on one device."""

    timing: Timing
    intensity: float  # operations per compulsory byte
    rate: float  # operations per second


@dataclass(frozen=True)
class Roofline:
    """The timings of a family on one number of devices of one machine, with the machine's peaks."""

    case: Case  # that of the largest size
    environment: str
    honest: bool
    memory: float  # bytes per second of the fastest copy
    arithmetic: float  # operations per second of the fastest matrix product
    points: Mapping[Method, tuple[RooflinePoint, ...]]  # by intensity


def rooflines(timings: Sequence[Timing]) -> list[Roofline]:
    """Return a roofline for each family in each environment, on the fewest devices whose peaks were
    measured.
    """
    rates = measured_rates(timings)
    cases = (timing for timing in timings if timing.case.kind == "case" and timing.case.engine == "jax")
    made = []
    for family in group_by(cases, lambda t: (t.environment, t.honest, *family_key(t.case))).values():
        by_devices = group_by(sorted(family, key=lambda t: t.case.devices), lambda t: t.case.devices)
        tried = (_roofline(same, rates) for same in by_devices.values())
        if roofline := next(filter(None, tried), None):
            made.append(roofline)
    return made


def _roofline(timings: Sequence[Timing], rates: Rates) -> Roofline | None:
    points = [point for timing in timings if (point := _point(timing))]
    last = max((point.timing for point in points), key=lambda t: problem_size(t.case), default=None)
    if last is None:
        return None
    memory, arithmetic = (_peak_rate(name, last, rates) for name in ("copy", "matmul"))
    if memory is None or arithmetic is None:
        return None
    methods = group_by(sorted(points, key=lambda p: p.intensity), lambda p: method_of(p.timing.case))
    lines = {method: tuple(group) for method, group in methods.items()}
    return Roofline(last.case, last.environment, last.honest, memory, arithmetic, lines)


def _peak_rate(target: str, timing: Timing, rates: Rates) -> float | None:
    key = (target, *machine_peaks.peak_like(target, timing.case), machine_key(timing))
    return max((rate for _, rate in rates.get(key, ())), default=None)


def _point(timing: Timing) -> RooflinePoint | None:
    """Return the point of a timing; None where operations or bytes are not counted, or are zero."""
    flops, moved = timing.records[0].flops, timing.records[0].compulsory
    return RooflinePoint(timing, flops / moved, flops / timing.median) if moved and flops else None
