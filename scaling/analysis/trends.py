"""Trends in words: crossovers, growth with size, laws of scaling, memory, meshes, overlap and coloring.

Besides answer.py, which describes the largest problem; knows no tables, pages or figures.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from scaling.analysis import curves as analysis
from scaling.analysis import stages
from scaling.analysis.crossover import Crossover, FastestModeMap
from scaling.analysis.curves import Curve, Timing, family_name, problem_size, size_name
from scaling.analysis.findings import Findings, describe_environment
from scaling.analysis.grouping import group_by
from scaling.analysis.growth import SizeExponent
from scaling.analysis.meshes import mesh_name, padding_share
from scaling.analysis.methods import describe_call, method_of
from scaling.analysis.pareto import MethodTime, ParetoFront, automatic_blocks
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
LARGE_ERROR = 0.1  # of the times: a law with a larger error describes little
_SMALL_FACTOR = 1.1  # the factor in time that saving memory may cost
_MOST_METHODS = 4  # named for a family


def describe_crossovers(findings: Findings) -> list[str]:
    """Return for each family the map of the largest sizes in which the fastest mode changes: from which
    to which, and where.
    """
    sentences = []
    for group in _group_by_family(
        (each for each in findings.fastest_mode_maps if each.crossovers),
        lambda each: (each.environment, each.honest, each.case),
    ):
        each = max(group, key=lambda each: problem_size(each.case))
        held = f" with {each.held}" if each.held else ""
        changes = group_by(each.crossovers, lambda c: (c.before, c.after, c.below, c.above)).values()
        text = "; ".join(_describe_crossover(change, each) for change in changes)
        more = f" ({len(group) - 1} more of its sweeps cross as well)" if len(group) > 1 else ""
        sentences.append(
            f"Crossover of {family_name(each.case)}{held}: "
            f"{text}{more}.{describe_environment(findings, each.environment, each.honest)}"
        )
    return sentences


def _describe_crossover(crossovers: Sequence[Crossover], of: FastestModeMap) -> str:
    first, name = crossovers[0], of.swept.partition(" = ")[0].partition(" (")[0]
    devices = ", ".join(str(crossover.devices) for crossover in crossovers)
    where = sorted(crossover.at for crossover in crossovers)
    text = (
        f"{first.before.name} is fastest up to {name} = {first.below:,}, "
        f"{first.after.name} from {first.above:,}"
    )
    text += f" on {devices} {'device' if devices == '1' else 'devices'}"
    between = (
        format_number(where[0])
        if format_number(where[0]) == format_number(where[-1])
        else f"{format_number(where[0])} to {format_number(where[-1])}"
    )
    text += f" (their times meet at about {between})"
    doubts = dict.fromkeys(doubt for crossover in crossovers for doubt in crossover.doubts)
    return f"{text}; not sure: {', '.join(doubts)}" if doubts else text


def describe_growth(findings: Findings) -> list[str]:
    """Return for each family the exponent of each method's time, on the fewest devices and at the largest
    sizes.
    """
    sentences = []
    for group in _group_by_family(
        findings.size_exponents, lambda one: (one.sweep.environment, one.sweep.honest, one.sweep.case)
    ):
        fewest = min(one.sweep.case.devices for one in group)
        sweep = max(
            (one.sweep for one in group if one.sweep.case.devices == fewest),
            key=lambda sweep: problem_size(sweep.case),
        )
        rows = sorted((one for one in group if one.sweep is sweep), key=lambda one: one.exponent.value)
        shown = (
            rows
            if len(rows) <= _MOST_METHODS
            else [*rows[: _MOST_METHODS // 2], *rows[-_MOST_METHODS // 2 :]]
        )
        on = count_of(sweep.case.devices, "device")
        where = describe_environment(findings, sweep.environment, sweep.honest)
        sentences.append(
            f"Time of {family_name(sweep.case)} grows with {sweep.swept} on {on} "
            f"{_describe_exponents(shown)}.{where}"
        )
    return sentences


def _describe_exponents(rows: Sequence[SizeExponent]) -> str:
    """Return the exponents in words; those that are not determined come last."""
    known = [one for one in rows if is_exponent_determined(*one.exponent[1:])]
    sentences = ", ".join(f"{format_exponent(*one.exponent)} in {one.method.name}" for one in known)
    left = ", ".join(
        f"{one.method.name} ({one.exponent.low:.3g} to {one.exponent.high:.3g})"
        for one in rows
        if one not in known
    )
    parts = [f"to the power of {sentences}"] if sentences else []
    return "; ".join(
        [*parts, *([f"{'' if sentences else 'to a power '}{UNDETERMINED} in {left}"] if left else [])]
    )


def describe_laws(findings: Findings) -> list[str]:
    """Return for each family and kind the law fitted to the fastest curve of the largest problem, and its
    limit.
    """
    fitted = [
        (curve, law)
        for curve, several in findings.scaling_fits
        for law in several
        if law.best and curve.case.engine == "jax"
    ]
    sentences = []
    for group in _group_by_family(fitted, lambda one: (one[0].kind, one[0].environment, one[0].case)):
        largest = problem(max(group, key=lambda one: problem_size(one[0].case))[0].case)
        curve, law = min(
            (o for o in group if problem(o[0].case) == largest), key=lambda one: one[0].points[-1].seconds
        )
        sentences.append(f"{_describe_law(curve, law)}.{describe_environment(findings, curve.environment)}")
    return sentences


def _describe_law(curve: Curve, law: ScalingFit) -> str:
    parts = ", ".join(f"{name} {format_share(*estimate)}" for name, estimate in law.parts.items())
    what = f"{family_name(curve.case)} at {curve.size}, {method_of(curve.case).name}"
    off = f", though off by {format_percentage(law.spread)}" if law.spread > LARGE_ERROR else ""
    text = f"{what}: of the laws of {curve.kind} scaling, {law.name} describes it best{off}: {parts}"
    if law.limit is None or not law.determined:
        return text
    where = count_of(round(law.peak), "device") if law.peak else "any number of devices"
    than = "" if curve.baseline_devices == 1 else " as one device by this law"
    return f"{text}; no more than {format_number(law.limit)}x as fast{than} on {where}{law.doubt}"


def describe_memory(findings: Findings) -> list[str]:
    """Return for each family, at the largest size, the fastest memory setting, and what less memory costs."""
    sentences = []
    for group in _group_by_family(findings.pareto_fronts, lambda one: (one.environment, one.case)):
        front = max(group, key=lambda one: (problem_size(one.case), -one.fastest.timing.median))
        first = front.fastest
        text = (
            f"{first.name} is fastest, {_format_time(first.timing)} in "
            f"{format_bytes(first.memory)} of a device"
        )
        others = [front.smallest_within(_SMALL_FACTOR), front.smallest, *front.automatic[:1]]
        text += "".join(
            f"; {_describe_cost(front, one)}"
            for at, one in enumerate(others)
            if one not in (first, *others[:at])
        )
        text += ", and nothing is smaller" if front.smallest is first else ""
        text += f"; {count_of(len(front.not_fitting), 'setting')} did not fit" if front.not_fitting else ""
        more = f" ({count_of(len(group) - 1, 'more front')} in the table)" if len(group) > 1 else ""
        sentences.append(
            f"{_describe_program('Memory against time', first.timing)}: "
            f"{text}{more}.{describe_environment(findings, front.environment)}"
        )
    return sentences


def _describe_cost(front: ParetoFront, setting: MethodTime) -> str:
    """Return the memory and time of a setting relative to the fastest."""
    auto, first = automatic_blocks(setting.timing.records[0]), front.fastest
    name = f"{setting.name} ({auto})" if auto else setting.name
    times = analysis.time_ratio(setting.timing, first.timing)
    sentences = format_ratio(*times) + (
        " the time" if is_ratio_determined(*times[1:]) else ": its time over that of the fastest"
    )
    return f"{name}: {format_percentage(setting.memory / first.memory)} of the memory for {sentences}"


def describe_meshes(findings: Findings) -> list[str]:
    """Return for each family, on the most devices and at the largest size, the fastest mesh, the next,
    and the slowest.
    """
    sentences = []
    for group in _group_by_family(
        findings.mesh_comparisons, lambda one: (one.environment, one.honest, one.case)
    ):
        of = max(group, key=lambda one: (one.case.devices, problem_size(one.case), -one.rows[0][0].median))
        (first, _), (second, second_ratio), *rest = of.rows
        doubts = f", not surely ({', '.join(of.doubts)})," if of.doubts else ""
        verb = f"is fastest{doubts}" if of.distinguished else "is ahead, but not distinguished,"
        text = f"{mesh_name(first.case)} (points x seeds) {verb} with {_format_time(first)}"
        text += f"; {mesh_name(second.case)} takes {format_ratio(*second_ratio)}"
        text += f", the slowest, {mesh_name(rest[-1][0].case)}, {format_ratio(*rest[-1][1])}" if rest else ""
        text += " as long"
        waste = (
            f"; {format_percentage(padding_share(first))} of it is padding" if padding_share(first) else ""
        )
        sentences.append(
            f"{_describe_program('Mesh', first, cut=False)}: "
            f"{text}{waste}.{describe_environment(findings, of.environment, of.honest)}"
        )
    return sentences


def describe_overlaps(findings: Findings) -> list[str]:
    """Return for each family, on the most devices and at the largest size, what overlapped communication
    gains.
    """
    sentences = []
    for group in _group_by_family(
        findings.overlaps, lambda one: (one.timing.environment, one.timing.honest, one.timing.case)
    ):
        of = max(
            group,
            key=lambda one: (one.timing.case.devices, problem_size(one.timing.case), -one.timing.median),
        )
        value, low, high = of.ratio
        apart = low is not None and high is not None and not low <= 1 <= high
        end = "sending everything at the end"
        text = (
            f"it takes {format_ratio(value, low, high)} as long as {end}"
            if is_ratio_determined(low, high)
            else (f"the ratio to {end} is {format_ratio(value, low, high)}")
        )
        text += "" if apart else ", not distinguished"
        where = describe_environment(findings, of.timing.environment, of.timing.honest)
        sentences.append(f"{_describe_program('Overlapped sending', of.timing)}: {text}.{where}")
    return sentences


def describe_colorings(findings: Findings) -> list[str]:
    """Return for each family, at the largest size, the fastest method with colored seeds, its cost, and
    when it pays.
    """
    sentences = []
    for group in _group_by_family(
        findings.coloring_gains, lambda one: (one.timing.environment, one.timing.honest, one.timing.case)
    ):
        of = max(group, key=lambda one: (problem_size(one.timing.case), -one.timing.median))
        record, before = of.timing.records[0], stages.sparsity_seconds(of.timing)
        text = f"{_format_time(of.timing)} with {of.seeds} seeds" if of.seeds else _format_time(of.timing)
        text += f" for {record.nonzeros:,} nonzeros" if record.nonzeros else ""
        text += f", found in {format_duration(before)}" if before else ""
        if of.dense and of.ratio:
            pays = f"pays after {count_of(of.break_even, 'evaluation')}" if of.break_even else "never pays"
            text += (
                f"; {format_seconds(f'{method_of(of.dense.case).name} with all seeds', *of.ratio)}, "
                f"so that it {pays}"
            )
        where = describe_environment(findings, of.timing.environment, of.timing.honest)
        sentences.append(f"{_describe_program('Sparsity', of.timing)}: {text}.{where}")
    return sentences


def _describe_program(head: str, timing: Timing, cut: bool = True) -> str:
    """Return what a sentence is about: a family, the method without its memory setting, its call, and its
    devices.
    """
    case = timing.case
    call = describe_call(case) if cut else case.api
    what = (
        f"{method_of(case).without_memory_setting.name} at {size_name(case)}, {call}, "
        f"{count_of(case.devices, 'device')}"
    )
    return f"{head} of {family_name(case)}: {what}"


def _format_time(timing: Timing) -> str:
    return format_duration(timing.median, *(timing.interval or (None, None)))


def _group_by_family(items: Iterable[T], key: Callable[[T], tuple]) -> list[list[T]]:
    """Return items by family; `key` gives what they have in common otherwise, and last their case."""

    def family_of(item: T) -> tuple:
        *where, case = key(item)
        return (*where, *analysis.family_key(case))

    return list(group_by(items, family_of).values())
