"""Standing: where each timing stands against the derivative written by hand, the memory of the machine, and JAX.

Takes timings and gives values, as curves.py does, whose words it uses. Compares within one environment and on as many devices.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scaling.case import ANALYTIC, CEILING
from scaling.curves import Timing, problem, ratio_of

Ratio = tuple[float, float | None, float | None]  # with its 95 % interval


@dataclass(frozen=True)
class Standing:
    """A timing beside others of the same problem on as many devices; None for what was not measured."""

    timing: Timing
    by_hand: Ratio | None  # over the fastest that is written by hand
    of_roof: float | None  # the time in which memory could bring the inputs and take the result, over the time taken
    rival: Timing | None = None  # for a peer: JAX's fastest way
    by_jax: Ratio | None = None  # over that


def standings(timings: Sequence[Timing]) -> list[Standing]:
    """Where each timing of a derivative stands."""
    groups: dict[tuple, list[Timing]] = {}
    for timing in timings:
        if timing.case.workload != CEILING:
            groups.setdefault((*_place(timing), problem(timing.case)), []).append(timing)
    copied = _copied(timings)
    return [_standing(timing, group, copied) for group in groups.values() for timing in group]


def _place(timing: Timing) -> tuple:
    return timing.environment, timing.honest, timing.case.devices


def _machine(timing: Timing) -> tuple:
    """Where a timing was taken, whichever function and system it is of."""
    own = ("digest", "setting", "workload_digest", "engine", "hosts", "cores", "load")
    rest = {name: value for name, value in timing.records[0].environment.items() if name not in own}
    return json.dumps(rest, sort_keys=True), timing.honest, timing.case.devices


def _standing(timing: Timing, group: Sequence[Timing], copied: Mapping[tuple, float]) -> Standing:
    value = timing.case.mode == "value"
    ours = [t for t in group if t.case.engine == "jax"]
    hand = _fastest(t for t in ours if t.case.mode in ANALYTIC)
    rival = _fastest(t for t in ours if t.case.mode not in ANALYTIC) if timing.case.engine != "jax" else None
    moved, speed = _moved(timing), copied.get(_machine(timing))
    return Standing(
        timing,
        by_hand=ratio_of(timing, hand) if hand and not value else None,
        of_roof=moved / speed / timing.median if moved and speed else None,
        rival=rival,
        by_jax=ratio_of(timing, rival) if rival else None,
    )


def _fastest(timings: Iterable[Timing]) -> Timing | None:
    return min(timings, key=lambda t: t.median, default=None)


def _moved(timing: Timing) -> int | None:
    """Bytes per device that must move whatever the program does: the inputs that it reads, and the result."""
    record = timing.records[0]
    if record.argument_bytes is None or record.output_bytes is None:
        return None
    return record.argument_bytes + record.output_bytes


def _copied(timings: Iterable[Timing]) -> dict[tuple, float]:
    """Bytes per second and device of the fastest copy, by where it ran."""
    speeds: dict[tuple, float] = {}
    for timing in timings:
        if timing.case.workload == CEILING and (moved := _moved(timing)):
            speeds[_machine(timing)] = max(speeds.get(_machine(timing), 0.0), moved / timing.median)
    return speeds
