"""Standing: where each timing stands against the derivative written by hand, the roofs and floors of the machine, and JAX.

Takes timings and gives values, as curves.py does, whose words it uses. Compares within one environment and on as many devices.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaling.analysis.curves import Timing, problem, ratio_of
from scaling.core.case import CEILING
from scaling.core.environment import OF_THE_CASE
from scaling.core.record import Record
from scaling.options import machine_peaks

Ratio = tuple[float, float | None, float | None]  # with its 95 % interval
_NAMES = {"copy": "memory", "matmul": "arithmetic", "transcendental": "transcendentals", "all_reduce": "communication"}


class Bound(NamedTuple):
    """The ceiling that binds a timing: of all that were measured the one that allows the longest of least times.

    fraction: that least time over the time taken; above 1 where what the ceiling counts is not what was done, as when data
    stays in a cache and its bytes never reach the memory.
    """

    name: str
    fraction: float


@dataclass(frozen=True)
class Baseline:
    """A timing beside others of the same problem on as many devices; None for what was not measured."""

    timing: Timing
    by_hand: Ratio | None  # over the fastest that is written by hand
    roof: Bound | None
    rival: Timing | None = None  # for a peer: JAX's fastest way
    by_jax: Ratio | None = None  # over that


def baselines(timings: Sequence[Timing]) -> list[Baseline]:
    """Where each timing of a derivative stands."""
    groups: dict[tuple, list[Timing]] = {}
    for timing in timings:
        if timing.case.workload != CEILING:
            groups.setdefault((*_place(timing), problem(timing.case)), []).append(timing)
    measured = speeds(timings)
    return [_standing(timing, group, measured) for group in groups.values() for timing in group]


def _place(timing: Timing) -> tuple:
    return timing.environment, timing.honest, timing.case.devices


def machine(timing: Timing) -> tuple:
    """Where a timing was taken, whichever function and system it is of."""
    own = (*OF_THE_CASE, "workload_digest", "engine", "hosts", "governor")
    rest = {name: value for name, value in timing.records[0].environment.items() if name not in own}
    return json.dumps(rest, sort_keys=True), timing.honest, timing.case.devices


def _standing(timing: Timing, group: Sequence[Timing], speeds: Mapping[tuple, list[tuple[int, float]]]) -> Baseline:
    value = timing.case.ad_mode.is_value
    ours = [t for t in group if t.case.engine == "jax"]
    hand = _fastest(t for t in ours if t.case.ad_mode.closed_form and t.case.seeds == timing.case.seeds)
    rival = _fastest(t for t in ours if not t.case.ad_mode.closed_form) if timing.case.engine != "jax" else None
    return Baseline(
        timing,
        by_hand=ratio_of(timing, hand) if hand and not value else None,
        roof=_roof(timing, speeds),
        rival=rival,
        by_jax=ratio_of(timing, rival) if rival else None,
    )


def _fastest(timings: Iterable[Timing]) -> Timing | None:
    return min(timings, key=lambda t: t.median, default=None)


def _roof(timing: Timing, speeds: Mapping[tuple, list[tuple[int, float]]]) -> Bound | None:
    """The roof that binds, of those whose ceiling was measured in the same place and whose work was counted."""
    roofs, here = [], machine(timing)
    for target, amount in _work(timing.records[0]).items():
        measured = speeds.get((target, *machine_peaks.peak_like(target, timing.case), here))
        if amount and measured:
            roofs.append(Bound(_NAMES[target], amount / speed_of(amount, measured) / timing.median))
    return max(roofs, key=lambda roof: roof.fraction, default=None)


def speed_of(amount: float, measured: Sequence[tuple[int, float]]) -> float:
    """How much of so much work a device does in a second, of a ceiling that was measured in these sizes."""
    # Of several sizes the largest that is no more work: what stays in a cache there may stay in it here.
    return max([one for one in measured if one[0] <= amount] or [min(measured)])[1]


def _work(record: Record) -> dict[str, float | None]:
    """What one device must do whatever the program: bytes of the inputs that it reads and of the result, operations, messages."""
    return {
        "copy": record.compulsory,
        "matmul": record.flops,
        "transcendental": record.transcendentals,
        "all_reduce": record.collective_bytes,
    }


def speeds(timings: Iterable[Timing]) -> dict[tuple, list[tuple[int, float]]]:
    """By ceiling, dtype, precision and where it ran: how much work it is, and how much of that a device does in a second."""
    made: dict[tuple, list[tuple[int, float]]] = {}
    for timing in timings:
        case = timing.case
        if case.kind == "ceiling":
            at, work = (case.target, case.dtype, case.precision, machine(timing)), machine_peaks.peak_work(case)
            made.setdefault(at, []).append((work, work / timing.median))
    return made
