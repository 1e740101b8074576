"""Trends in words: where the fastest mode changes, how time grows with a size, which law a curve follows; what memory buys,
which mesh is fastest, what overlapping and colouring bring.

Beside answer.py, which says what holds at the largest problem; knows no tables, pages or figures.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from scaling.analysis import curves as analysis
from scaling.analysis import stages
from scaling.analysis.crossover import Crossover, FastestModeMap
from scaling.analysis.curves import Curve, Timing, family_name, size_name, volume
from scaling.analysis.findings import Findings, marks
from scaling.analysis.growth import SizeExponent
from scaling.analysis.meshes import padding, shape
from scaling.analysis.methods import describe_call, method_of
from scaling.analysis.pareto import MethodTime, ParetoFront, chosen
from scaling.analysis.scaling_fits import ScalingFit
from scaling.core.case import problem
from scaling.core.formatting import (
    UNDETERMINED,
    count_of,
    format_bytes,
    format_duration,
    format_exponent,
    format_number,
    format_percentage,
    format_ratio,
    format_seconds,
    format_share,
    is_exponent_determined,
    is_ratio_determined,
)

T = TypeVar("T")
FAR = 0.1  # of the times: a law that is off by more describes little
_LITTLE = 1.1  # times as long: what few would mind for less memory
_MOST_WAYS = 4  # whose growth is told of a family


def crossovers(found: Findings) -> list[str]:
    """For each family the map of the largest sizes in which the fastest mode changes: from which to which, and where."""
    told = []
    for group in _by_family((each for each in found.maps if each.flips), lambda each: (each.environment, each.honest, each.case)):
        each = max(group, key=lambda each: volume(each.case))
        held = f" with {each.held}" if each.held else ""
        flips: dict[tuple, list[Crossover]] = {}
        for flip in each.flips:
            flips.setdefault((flip.before, flip.after, flip.below, flip.above), []).append(flip)
        text = "; ".join(_flip(some, each) for some in flips.values())
        more = f" ({len(group) - 1} more of its sweeps cross as well)" if len(group) > 1 else ""
        told.append(f"Crossover of {family_name(each.case)}{held}: {text}{more}.{marks(found, each.environment, each.honest)}")
    return told


def _flip(flips: Sequence[Crossover], of: FastestModeMap) -> str:
    first, name = flips[0], of.swept.partition(" = ")[0].partition(" (")[0]
    devices = ", ".join(str(flip.devices) for flip in flips)
    where = sorted(flip.at for flip in flips)
    text = f"{first.before.name} is fastest up to {name} = {first.below:,}, {first.after.name} from {first.above:,}"
    text += f" on {devices} {'device' if devices == '1' else 'devices'}"
    between = (
        format_number(where[0])
        if format_number(where[0]) == format_number(where[-1])
        else f"{format_number(where[0])} to {format_number(where[-1])}"
    )
    text += f" (their times meet at about {between})"
    doubts = dict.fromkeys(doubt for flip in flips for doubt in flip.doubts)
    return f"{text}; not sure: {', '.join(doubts)}" if doubts else text


def growth(found: Findings) -> list[str]:
    """For each family, on the fewest devices and at the largest sizes: the exponent with which each mode's time grows."""
    told = []
    for group in _by_family(found.growths, lambda one: (one.panel.environment, one.panel.honest, one.panel.case)):
        fewest = min(one.panel.case.devices for one in group)
        panel = max((one.panel for one in group if one.panel.case.devices == fewest), key=lambda panel: volume(panel.case))
        rows = sorted((one for one in group if one.panel is panel), key=lambda one: one.exponent.value)
        shown = rows if len(rows) <= _MOST_WAYS else [*rows[: _MOST_WAYS // 2], *rows[-_MOST_WAYS // 2 :]]
        on = count_of(panel.case.devices, "device")
        where = marks(found, panel.environment, panel.honest)
        told.append(f"Time of {family_name(panel.case)} grows with {panel.swept} on {on} {_powers(shown)}.{where}")
    return told


def _powers(rows: Sequence[SizeExponent]) -> str:
    """The exponents in words, and those that are not determined apart."""
    known = [one for one in rows if is_exponent_determined(*one.exponent[1:])]
    told = ", ".join(f"{format_exponent(*one.exponent)} in {one.way.name}" for one in known)
    left = ", ".join(f"{one.way.name} ({one.exponent.low:.3g} to {one.exponent.high:.3g})" for one in rows if one not in known)
    parts = [f"to the power of {told}"] if told else []
    return "; ".join([*parts, *([f"{'' if told else 'to a power '}{UNDETERMINED} in {left}"] if left else [])])


def laws(found: Findings) -> list[str]:
    """For each family and kind, of its largest problem the fastest curve that a law was fitted to: the law, and its limit."""
    fitted = [(curve, law) for curve, several in found.laws for law in several if law.best and curve.case.engine == "jax"]
    told = []
    for group in _by_family(fitted, lambda one: (one[0].kind, one[0].environment, one[0].case)):
        largest = problem(max(group, key=lambda one: volume(one[0].case))[0].case)
        curve, law = min((o for o in group if problem(o[0].case) == largest), key=lambda one: one[0].points[-1].seconds)
        told.append(f"{_law(curve, law)}.{marks(found, curve.environment)}")
    return told


def _law(curve: Curve, law: ScalingFit) -> str:
    parts = ", ".join(f"{name} {format_share(*estimate)}" for name, estimate in law.parts.items())
    what = f"{family_name(curve.case)} at {curve.size}, {method_of(curve.case).name}"
    off = f", though off by {format_percentage(law.spread)}" if law.spread > FAR else ""
    text = f"{what}: of the laws of {curve.kind} scaling, {law.name} describes it best{off}: {parts}"
    if law.limit is None or not law.determined:
        return text
    where = count_of(round(law.peak), "device") if law.peak else "any number of devices"
    than = "" if curve.baseline_devices == 1 else " as one device by this law"
    return f"{text}; no more than {format_number(law.limit)}x as fast{than} on {where}{law.doubt}"


def fronts(found: Findings) -> list[str]:
    """For each family, at the largest size: what the fastest setting of the fastest program takes, and what less memory costs."""
    told = []
    for group in _by_family(found.fronts, lambda one: (one.environment, one.case)):
        front = max(group, key=lambda one: (volume(one.case), -one.fastest.timing.median))
        first = front.fastest
        text = f"{first.name} is fastest, {_time(first.timing)} in {format_bytes(first.memory)} of a device"
        others = [front.within(_LITTLE), front.smallest, *front.chosen[:1]]
        text += "".join(f"; {_cost(front, one)}" for at, one in enumerate(others) if one not in (first, *others[:at]))
        text += ", and nothing is smaller" if front.smallest is first else ""
        text += f"; {count_of(len(front.unfit), 'setting')} did not fit" if front.unfit else ""
        more = f" ({count_of(len(group) - 1, 'more front')} in the table)" if len(group) > 1 else ""
        told.append(f"{_program('Memory against time', first.timing)}: {text}{more}.{marks(found, front.environment)}")
    return told


def _cost(front: ParetoFront, setting: MethodTime) -> str:
    """What another setting than the fastest takes, beside that."""
    auto, first = chosen(setting.timing.records[0]), front.fastest
    name = f"{setting.name} ({auto})" if auto else setting.name
    times = analysis.ratio_of(setting.timing, first.timing)
    told = format_ratio(*times) + (" the time" if is_ratio_determined(*times[1:]) else ": its time beside that of the fastest")
    return f"{name}: {format_percentage(setting.memory / first.memory)} of the memory for {told}"


def meshes(found: Findings) -> list[str]:
    """For each family, on the most devices and at the largest size: the fastest mesh, the next, and the slowest."""
    told = []
    for group in _by_family(found.meshes, lambda one: (one.environment, one.honest, one.case)):
        of = max(group, key=lambda one: (one.case.devices, volume(one.case), -one.rows[0][0].median))
        (first, _), (second, second_ratio), *rest = of.rows
        doubts = f", not surely ({', '.join(of.doubts)})," if of.doubts else ""
        verb = f"is fastest{doubts}" if of.distinguished else "is ahead, but not told apart,"
        text = f"{shape(first.case)} (points x seeds) {verb} with {_time(first)}"
        text += f"; {shape(second.case)} takes {format_ratio(*second_ratio)}"
        text += f", the slowest, {shape(rest[-1][0].case)}, {format_ratio(*rest[-1][1])}" if rest else ""
        text += " as long"
        waste = f"; {format_percentage(padding(first))} of it is computed in vain" if padding(first) else ""
        told.append(f"{_program('Mesh', first, cut=False)}: {text}{waste}.{marks(found, of.environment, of.honest)}")
    return told


def overlaps(found: Findings) -> list[str]:
    """For each family, on the most devices and at the largest size: what sending each part as it is ready brings."""
    told = []
    for group in _by_family(found.overlaps, lambda one: (one.timing.environment, one.timing.honest, one.timing.case)):
        of = max(group, key=lambda one: (one.timing.case.devices, volume(one.timing.case), -one.timing.median))
        value, low, high = of.ratio
        apart = low is not None and high is not None and not low <= 1 <= high
        end = "sending everything at the end"
        text = (
            f"it takes {format_ratio(value, low, high)} as long as {end}"
            if is_ratio_determined(low, high)
            else (f"the ratio to {end} is {format_ratio(value, low, high)}")
        )
        text += "" if apart else ", not told apart"
        where = marks(found, of.timing.environment, of.timing.honest)
        told.append(f"{_program('Overlapped sending', of.timing)}: {text}.{where}")
    return told


def colorings(found: Findings) -> list[str]:
    """For each family, at the largest size: the fastest way with coloured seeds, what finding them took, and when it pays."""
    told = []
    for group in _by_family(found.colorings, lambda one: (one.timing.environment, one.timing.honest, one.timing.case)):
        of = max(group, key=lambda one: (volume(one.timing.case), -one.timing.median))
        record, before = of.timing.records[0], stages.found(of.timing)
        text = f"{_time(of.timing)} with {of.seeds} seeds" if of.seeds else _time(of.timing)
        text += f" for {record.nonzeros:,} nonzeros" if record.nonzeros else ""
        text += f", found in {format_duration(before)}" if before else ""
        if of.rival and of.ratio:
            pays = f"pays after {count_of(of.pays, 'evaluation')}" if of.pays else "never pays"
            text += f"; {format_seconds(f'{method_of(of.rival.case).name} with all seeds', *of.ratio)}, so that it {pays}"
        where = marks(found, of.timing.environment, of.timing.honest)
        told.append(f"{_program('Sparsity', of.timing)}: {text}.{where}")
    return told


def _program(head: str, timing: Timing, cut: bool = True) -> str:
    """What is told of what: a family, the program whatever its setting, how it is called, and where."""
    case = timing.case
    call = describe_call(case) if cut else case.api
    what = f"{method_of(case).plain.name} at {size_name(case)}, {call}, {count_of(case.devices, 'device')}"
    return f"{head} of {family_name(case)}: {what}"


def _time(timing: Timing) -> str:
    return format_duration(timing.median, *(timing.interval or (None, None)))


def _by_family(items: Iterable[T], place: Callable[[T], tuple]) -> list[list[T]]:
    """Items of one family in one place together: `place` gives where it was measured, and last its case."""
    groups: dict[tuple, list[T]] = {}
    for item in items:
        *where, case = place(item)
        groups.setdefault((*where, *analysis.family(case)), []).append(item)
    return list(groups.values())
