"""Footprint: how much memory a timing takes of a device, and which timings nothing beats in both memory and time."""

from collections.abc import Iterable
from typing import NamedTuple

from scaling.analysis.curves import Timing


class MemoryPoint(NamedTuple):
    """A timing by what it costs."""

    memory: int  # bytes of a device
    seconds: float
    timing: Timing


def memory(timing: Timing) -> int | None:
    """Bytes of one device at the most: what was seen, else what the program asks for; None where neither is known."""
    record = timing.records[0]
    if record.peak_bytes:
        return record.peak_bytes
    if record.temp_bytes is None or record.argument_bytes is None or record.output_bytes is None:
        return None
    return record.temp_bytes + record.argument_bytes + record.output_bytes or None


def front(places: Iterable[MemoryPoint]) -> list[MemoryPoint]:
    """Those that no other beats in one of memory and time without losing in the other, the smallest first."""
    kept: list[MemoryPoint] = []
    for place in sorted(places, key=lambda place: place[:2]):
        if not kept or place.seconds < kept[-1].seconds:
            kept.append(place)
    return kept
