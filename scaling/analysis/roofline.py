"""Roofline: how fast each timing works beside what the machine's measured ceilings allow at its operational intensity.

Counts operations as traced and the compulsory bytes (inputs read, result written), as standing.py does: what a program moves
beyond those shows as distance from the roof. Knows nothing of how it is drawn.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaling.analysis.baselines import machine, speeds
from scaling.analysis.curves import Timing, family, volume
from scaling.analysis.methods import Method, method_of
from scaling.core.case import Case
from scaling.options import machine_peaks


class RooflinePoint(NamedTuple):
    """A timing by its work, of one device."""

    timing: Timing
    intensity: float  # operations for each compulsory byte
    rate: float  # operations a second


@dataclass(frozen=True)
class Roofline:
    """The timings of a family on so many devices of one machine, under its ceilings."""

    case: Case  # that of the largest size
    environment: str
    honest: bool
    memory: float  # bytes a second, the fastest copy
    arithmetic: float  # operations a second, the fastest product
    dots: Mapping[Method, tuple[RooflinePoint, ...]]  # by intensity


def rooflines(timings: Sequence[Timing]) -> list[Roofline]:
    """A roofline for each family in each environment, on the fewest devices whose ceilings were measured."""
    measured, groups = speeds(timings), dict[tuple, list[Timing]]()
    for timing in timings:
        if timing.case.kind == "case" and timing.case.engine == "jax":
            groups.setdefault((timing.environment, timing.honest, *family(timing.case)), []).append(timing)
    made = []
    for group in groups.values():
        for devices in sorted({timing.case.devices for timing in group}):
            if found := _roofline([timing for timing in group if timing.case.devices == devices], measured):
                made.append(found)
                break
    return made


def _roofline(group: Sequence[Timing], measured: Mapping[tuple, list[tuple[int, float]]]) -> Roofline | None:
    dots = [dot for timing in group if (dot := _dot(timing))]
    last = max((dot.timing for dot in dots), key=lambda timing: volume(timing.case), default=None)
    if last is None:
        return None
    memory, arithmetic = (
        _fastest(measured.get((name, *machine_peaks.peak_like(name, last.case), machine(last)), ())) for name in _ROOFS
    )
    if memory is None or arithmetic is None:
        return None
    ways: dict[Method, list[RooflinePoint]] = {}
    for dot in sorted(dots, key=lambda dot: dot.intensity):
        ways.setdefault(method_of(dot.timing.case), []).append(dot)
    return Roofline(last.case, last.environment, last.honest, memory, arithmetic, {way: tuple(of) for way, of in ways.items()})


_ROOFS = ("copy", "matmul")


def _fastest(speeds_of: Iterable[tuple[int, float]]) -> float | None:
    return max((speed for _, speed in speeds_of), default=None)


def _dot(timing: Timing) -> RooflinePoint | None:
    """None where operations or bytes are not counted, or there are none."""
    record = timing.records[0]
    moved = record.compulsory
    return RooflinePoint(timing, record.flops / moved, record.flops / timing.median) if moved and record.flops else None
