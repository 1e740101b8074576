"""Trends in words: where the fastest mode changes, how time grows with a size, which law a curve follows.

Beside answer.py, which says what holds at the largest problem; knows no tables, pages or figures.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from scaling.case import problem
from scaling.reading import curves as analysis
from scaling.reading.crossover import Flip, Map
from scaling.reading.curves import Curve, family_name, size_name, volume, way_of
from scaling.reading.findings import Findings, marks
from scaling.reading.laws import Law
from scaling.reading.resampling import Estimate
from scaling.words import counted, number, share

T = TypeVar("T")
FAR = 0.1  # of the times: a law that is off by more describes little
_MOST_WAYS = 4  # whose growth is told of a family


def crossovers(found: Findings) -> list[str]:
    """For each family the map of the largest sizes in which the fastest mode changes: from which to which, and where."""
    told = []
    for group in _by_family((each for each in found.maps if each.flips), lambda each: (each.environment, each.honest, each.case)):
        each = max(group, key=lambda each: volume(each.case))
        held = f" with {each.held}" if each.held else ""
        flips: dict[tuple, list[Flip]] = {}
        for flip in each.flips:
            flips.setdefault((flip.before, flip.after, flip.below, flip.above), []).append(flip)
        text = "; ".join(_flip(some, each) for some in flips.values())
        more = f" ({len(group) - 1} more of its sweeps cross as well)" if len(group) > 1 else ""
        told.append(f"Crossover of {family_name(each.case)}{held}: {text}{more}.{marks(found, each.environment, each.honest)}")
    return told


def _flip(flips: Sequence[Flip], of: Map) -> str:
    first, name = flips[0], of.swept.partition(" = ")[0].partition(" (")[0]
    devices = ", ".join(str(flip.devices) for flip in flips)
    where = sorted(flip.at for flip in flips if flip.at is not None)
    verb = "is fastest" if all(flip.sure for flip in flips) else "is ahead"
    text = f"{first.before.name} {verb} up to {name} = {first.below:,}, {first.after.name} from {first.above:,}"
    text += f" on {devices} {'device' if devices == '1' else 'devices'}"
    if where:
        between = number(where[0]) if number(where[0]) == number(where[-1]) else f"{number(where[0])} to {number(where[-1])}"
        text += f" (their times meet at about {between})"
    return text if all(flip.sure for flip in flips) else f"{text}, not told apart everywhere"


def growth(found: Findings) -> list[str]:
    """For each family, on the fewest devices and at the largest sizes: the exponent with which each mode's time grows."""
    told = []
    for group in _by_family(found.growths, lambda one: (one.panel.environment, one.panel.honest, one.panel.case)):
        fewest = min(one.panel.case.devices for one in group)
        panel = max((one.panel for one in group if one.panel.case.devices == fewest), key=lambda panel: volume(panel.case))
        rows = sorted((one for one in group if one.panel is panel), key=lambda one: one.exponent.value)
        shown = rows if len(rows) <= _MOST_WAYS else [*rows[: _MOST_WAYS // 2], *rows[-_MOST_WAYS // 2 :]]
        each = ", ".join(f"{_with_interval(one.exponent)} in {one.way.name}" for one in shown)
        on = counted(panel.case.devices, "device")
        where = marks(found, panel.environment, panel.honest)
        told.append(f"Time of {family_name(panel.case)} grows with {panel.swept} on {on} to the power of {each}.{where}")
    return told


def _with_interval(estimate: Estimate) -> str:
    low, high = estimate.low, estimate.high
    around = "" if low is None or high is None else f" ({low:.3g} to {high:.3g})"
    return f"{estimate.value:.3g}{around}"


def laws(found: Findings) -> list[str]:
    """For each family and kind, of its largest problem the fastest curve that a law was fitted to: the law, and its limit."""
    fitted = [(curve, law) for curve, several in found.laws for law in several if law.best and curve.case.engine == "jax"]
    told = []
    for group in _by_family(fitted, lambda one: (one[0].kind, one[0].environment, one[0].case)):
        largest = problem(max(group, key=lambda one: volume(one[0].case))[0].case)
        curve, law = min((o for o in group if problem(o[0].case) == largest), key=lambda one: one[0].points[-1].seconds)
        told.append(f"{_law(curve, law)}.{marks(found, curve.environment)}")
    return told


def _law(curve: Curve, law: Law) -> str:
    parts = ", ".join(f"{name} {_with_interval(estimate)}" for name, estimate in law.parts.items())
    what = f"{family_name(curve.case)} at {_size(curve)}, {way_of(curve.case).name}"
    off = f", though off by {share(law.spread)}" if law.spread > FAR else ""
    text = f"{what}: of the laws of {curve.kind} scaling, {law.name} describes it best{off}: {parts}"
    if law.limit is None:
        return text
    where = counted(round(law.peak), "device") if law.peak else "any number of devices"
    return f"{text}; no more than {number(law.limit)}x as fast on {where}{law.doubt}"


def _size(curve: Curve) -> str:
    """The size of a curve's problem; of a weak one the share of each device."""
    if curve.kind == "strong":
        return size_name(curve.case)
    return f"{size_name(replace(curve.case, devices=1, points=curve.case.points // curve.case.devices))} for each device"


def _by_family(items: Iterable[T], place: Callable[[T], tuple]) -> list[list[T]]:
    """Items of one family in one place together: `place` gives where it was measured, and last its case."""
    groups: dict[tuple, list[T]] = {}
    for item in items:
        *where, case = place(item)
        groups.setdefault((*where, *analysis.family(case)), []).append(item)
    return list(groups.values())
