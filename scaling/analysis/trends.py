"""Summary sentences on crossovers, growth with size, scaling laws, memory settings, meshes and coloring."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from scaling.analysis.cases import (
    base_method,
    describe_call,
    family_key,
    family_name,
    group_by,
    method_of,
    problem_size,
    size_name,
)
from scaling.analysis.crossover import Crossover, FastestModeMap
from scaling.analysis.curves import KINDS, Curve
from scaling.analysis.estimate import (
    format_exponent,
    format_percentage,
    format_share,
    is_ratio_determined,
)
from scaling.analysis.findings import Findings, describe_environment
from scaling.analysis.growth import SizeExponent, SizeSweep
from scaling.analysis.scaling_fits import ScalingFit
from scaling.analysis.setting_comparison import Gain, MemoryPoint, ParetoFront, SettingComparison, mesh_name
from scaling.analysis.timings import (
    SPARSITY_STAGES,
    Timing,
    automatic_blocks,
    describe_slower,
    format_time,
    stage_seconds,
)
from scaling.core.case import AUTO, Case
from scaling.core.formatting import count_of, format_bytes, format_duration, format_number

T = TypeVar("T")
Subject = Timing | SizeSweep | FastestModeMap | SettingComparison  # has a case, an environment and `honest`
LARGE_ERROR = 0.1  # relative error of the times above which a law is called inaccurate
_SMALL_FACTOR = 1.1  # the largest slowdown accepted for saving memory
_MOST_METHODS = 4  # the largest number of methods named in a sentence


def _describe_largest(
    findings: Findings,
    items: Iterable[T],
    subject_of: Callable[[T], Subject],
    cost: Callable[[T], tuple],
    describe: Callable[[T], str],
) -> list[str]:
    """Return a sentence for each differentiated function that describes the item of its largest problem.

    Args:
        subject_of: returns the timing or the sweep that an item is about.
        cost: returns a sort key. If several items have the largest problem, the one with the least key is
            described.
        describe: returns the sentence for an item, without the period.
    """

    def family(item: T) -> tuple:
        subject = subject_of(item)
        return subject.environment, subject.honest, *family_key(subject.case)

    sentences = []
    for group in group_by(items, family).values():
        chosen = min(group, key=lambda item: (-problem_size(subject_of(item).case), *cost(item)))
        subject = subject_of(chosen)
        where = describe_environment(findings, subject.environment, subject.honest)
        sentences.append(f"{describe(chosen)}.{where}")
    return sentences


def describe_crossovers(findings: Findings) -> list[str]:
    """Return a sentence for each function that states the sizes at which its fastest AD mode changes."""
    crossing = (modes for modes in findings.fastest_mode_maps if modes.crossovers)
    return _describe_largest(findings, crossing, lambda modes: modes, lambda modes: (), _describe_map)


def _describe_map(modes: FastestModeMap) -> str:
    held = f" with {modes.held}" if modes.held else ""
    changes = group_by(modes.crossovers, lambda c: (c.before, c.after, c.below, c.above)).values()
    text = "; ".join(_describe_crossover(change, modes.swept) for change in changes)
    return f"Crossover of {family_name(modes.case)}{held}: {text}"


def _describe_crossover(crossovers: Sequence[Crossover], swept: str) -> str:
    first, name = crossovers[0], swept.partition(" = ")[0].partition(" (")[0]
    devices = ", ".join(str(crossover.devices) for crossover in crossovers)
    where = sorted(crossover.at for crossover in crossovers)
    between = " to ".join(dict.fromkeys(format_number(at) for at in (where[0], where[-1])))
    doubts = dict.fromkeys(doubt for crossover in crossovers for doubt in crossover.doubts)
    return (
        f"{first.before.name} is fastest up to {name} = {first.below:,}, "
        f"{first.after.name} from {first.above:,} on {devices} {'device' if devices == '1' else 'devices'} "
        f"(their times meet at about {between})" + (f"; not sure: {', '.join(doubts)}" if doubts else "")
    )


def describe_growth(findings: Findings) -> list[str]:
    """Return a sentence for each function that states how its time grows with the problem size.

    Each sentence describes the times on the fewest devices.
    """
    groups = group_by(findings.size_exponents, lambda row: id(row.sweep)).values()
    return _describe_largest(
        findings,
        groups,
        lambda rows: rows[0].sweep,
        lambda rows: (rows[0].sweep.case.devices,),
        lambda rows: _describe_exponents(sorted(rows, key=lambda row: row.exponent.value)),
    )


def _describe_exponents(rows: Sequence[SizeExponent]) -> str:
    sweep, half = rows[0].sweep, _MOST_METHODS // 2
    shown = rows if len(rows) <= _MOST_METHODS else [*rows[:half], *rows[-half:]]
    powers = ", ".join(f"{format_exponent(*row.exponent)} in {row.method.name}" for row in shown)
    what = f"Time of {family_name(sweep.case)} grows with {sweep.swept}"
    return f"{what} on {count_of(sweep.case.devices, 'device')} to the power of {powers}"


def describe_laws(findings: Findings, kinds: Sequence[str] = KINDS) -> list[str]:
    """Return a sentence for each function and kind of scaling that names the scaling law with the best fit.

    Of the JAX curves of the largest problem, the one with the shortest time on its most devices is described.
    """
    best = [(curve, law) for curve, laws in findings.scaling_fits for law in laws if law.best]
    return [
        sentence
        for kind in kinds
        for sentence in _describe_largest(
            findings,
            [pair for pair in best if pair[0].kind == kind and pair[0].case.engine == "jax"],
            lambda pair: pair[0].timings[0],
            lambda pair: (pair[0].points[-1].seconds,),
            lambda pair: _describe_law(*pair),
        )
    ]


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


def describe_variants(findings: Findings) -> list[str]:
    """Return sentences that compare the settings with which the same problem was measured.

    The settings are chunks and storage, device meshes, the inputs that mixed mode differentiates in forward
    mode, overlapped communication, and colored seeds.
    """
    comparisons = (
        ("Mesh (points x seeds)", findings.mesh_comparisons, mesh_name),
        ("Forward inputs", findings.forward_comparisons, lambda case: str(case.forward)),
    )
    return [
        *_describe_largest(
            findings,
            findings.pareto_fronts,
            lambda front: front.best[-1].timing,
            lambda front: (front.best[-1].seconds,),
            _describe_memory,
        ),
        *(
            sentence
            for head, found, name in comparisons
            for sentence in _describe_comparisons(findings, head, found, name)
        ),
        *_describe_largest(
            findings,
            findings.overlaps,
            lambda comparison: comparison,
            lambda comparison: (-comparison.case.devices, comparison.rows[0][0].median),
            _describe_overlap,
        ),
        *_describe_largest(
            findings,
            findings.coloring_gains,
            lambda gain: gain.timing,
            lambda gain: (-gain.timing.case.devices, gain.timing.median),
            _describe_coloring,
        ),
    ]


def _describe_comparisons(
    findings: Findings, head: str, comparisons: Iterable[SettingComparison], name: Callable[[Case], str]
) -> list[str]:
    return _describe_largest(
        findings,
        comparisons,
        lambda comparison: comparison,
        lambda comparison: (-comparison.case.devices, comparison.rows[0][0].median),
        lambda comparison: _describe_comparison(comparison, head, name),
    )


def _describe_program(head: str, case: Case) -> str:
    what = f"{base_method(case).name} at {size_name(case)}, {describe_call(case)}"
    return f"{head} of {family_name(case)}: {what}, {count_of(case.devices, 'device')}"


def _describe_memory(front: ParetoFront) -> str:
    first, smallest = front.best[-1], front.best[0]
    text = f"{first.name} is fastest, {format_time(first.timing)} in {format_bytes(first.memory)} of a device"
    small = next(setting for setting in front.best if setting.seconds <= _SMALL_FACTOR * first.seconds)
    automatic = [setting for setting in front.settings if setting.timing.case.chunk == AUTO]
    others = {id(setting): setting for setting in (small, smallest, *automatic[:1]) if setting is not first}
    text += "".join(f"; {_describe_cost(first, setting)}" for setting in others.values())
    text += ", and nothing is smaller" if smallest is first else ""
    text += f"; {count_of(len(front.not_fitting), 'setting')} did not fit" if front.not_fitting else ""
    return f"{_describe_program('Memory against time', first.timing.case)}: {text}"


def _describe_cost(first: MemoryPoint, setting: MemoryPoint) -> str:
    auto = automatic_blocks(setting.timing.records[0])
    name = f"{setting.name} ({auto})" if auto else setting.name
    share = format_percentage(setting.memory / first.memory)
    return f"{name}: {share} of the memory, {describe_slower('it', setting.timing, first.timing)}"


def _describe_comparison(comparison: SettingComparison, head: str, name: Callable[[Case], str]) -> str:
    first, second, *rest = (timing for timing, _ in comparison.rows)
    doubts = f", not surely ({', '.join(comparison.doubts)})," if comparison.doubts else ""
    verb = f"is fastest{doubts}" if comparison.distinguished else "is tied with the next, not distinguished,"
    text = f"{name(first.case)} {verb} with {format_time(first)}"
    text += f"; {describe_slower(name(second.case), second, first)}"
    text += f"; {describe_slower(f'{name(rest[-1].case)}, the slowest,', rest[-1], first)}" if rest else ""
    return f"{_describe_program(head, comparison.case)}: {text}"


def _describe_overlap(comparison: SettingComparison) -> str:
    at_end, overlapped = sorted((timing for timing, _ in comparison.rows), key=lambda t: t.case.overlap)
    text = describe_slower("sending everything at the end", at_end, overlapped)
    tied = "" if comparison.distinguished else ", not distinguished"
    return f"{_describe_program('Overlapped sending', overlapped.case)}: {text}{tied}"


def _describe_coloring(gain: Gain) -> str:
    timing, nonzeros = gain.timing, gain.timing.records[0].nonzeros
    text = f"{format_time(timing)} with {gain.seeds} seeds" if gain.seeds else format_time(timing)
    text += f" for {nonzeros:,} nonzeros" if nonzeros else ""
    if before := stage_seconds(timing, *SPARSITY_STAGES):
        text += f", found in {format_duration(before)}"
    if gain.other and gain.ratio:
        name = f"{method_of(gain.other.case).name} with all seeds"
        text += f"; {describe_slower(name, gain.other, timing)}"
        if is_ratio_determined(*gain.ratio[1:]):
            after = gain.break_even and count_of(gain.break_even, "evaluation")
            text += f", so that it pays after {after}" if after else ", so that it never pays"
    return f"{_describe_program('Sparsity', timing.case)}: {text}"
