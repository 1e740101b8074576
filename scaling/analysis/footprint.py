"""Footprint: how much memory of a device a timing needs, and which timings are not beaten in memory and
time.
"""

from collections.abc import Iterable
from typing import NamedTuple

from scaling.analysis.curves import Timing


class MemoryPoint(NamedTuple):
    """A timing with its memory and its time."""

    memory: int  # bytes of a device
    seconds: float
    timing: Timing


def memory_of(timing: Timing) -> int | None:
    """Return the bytes of one device: the measured peak, else what the program needs; None where neither
    is known.
    """
    record = timing.records[0]
    if record.peak_bytes:
        return record.peak_bytes
    if record.temp_bytes is None or record.argument_bytes is None or record.output_bytes is None:
        return None
    return record.temp_bytes + record.argument_bytes + record.output_bytes or None


def find_front(points: Iterable[MemoryPoint]) -> list[MemoryPoint]:
    """Return the points that no other beats in both memory and time, the smallest first."""
    front: list[MemoryPoint] = []
    for point in sorted(points, key=lambda point: point[:2]):
        if not front or point.seconds < front[-1].seconds:
            front.append(point)
    return front
