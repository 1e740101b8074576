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
from scaling.analysis.estimate_text import (
    UNDETERMINED,
    format_exponent,
    format_percentage,
    format_ratio,
    format_share,
    format_time_ratio,
    is_exponent_determined,
    is_ratio_determined,
)
from scaling.analysis.findings import Findings, describe_environment
from scaling.analysis.growth import SizeExponent
from scaling.analysis.scaling_fits import ScalingFit
from scaling.analysis.setting_comparison import Gain, MemoryPoint, ParetoFront, SettingComparison, mesh_name
from scaling.analysis.timings import (
    SPARSITY_STAGES,
    Timing,
    automatic_blocks,
    format_time,
    note_on_pairs,
    padding_share,
    stage_seconds,
    time_ratio,
)
from scaling.core.case import Case
from scaling.core.formatting import count_of, format_bytes, format_duration, format_number

T = TypeVar("T")
Origin = tuple[str, bool, Case]  # environment, honest, case
LARGE_ERROR = 0.1  # relative error of the times above which a law is called inaccurate
_SMALL_FACTOR = 1.1  # the largest slowdown accepted for saving memory
_MOST_METHODS = 4  # the largest number of methods named in a sentence


def _describe_largest(
    findings: Findings,
    items: Iterable[T],
    origin_of: Callable[[T], Origin],
    cost: Callable[[T], tuple],
    describe: Callable[[T, Sequence[T]], str],
) -> list[str]:
    """Return a sentence for each differentiated function that describes the item of its largest problem.

    Args:
        origin_of: returns the environment, whether each device had its own CPU core, and the case of an item.
        cost: returns a sort key. If several items have the largest problem, the one with the least key is
            described.
        describe: returns the sentence for an item, without the period. The second argument contains all items
            of the same function.
    """

    def family(item: T) -> tuple:
        environment, honest, case = origin_of(item)
        return environment, honest, *family_key(case)

    sentences = []
    for group in group_by(items, family).values():
        largest = max(problem_size(origin_of(item)[2]) for item in group)
        chosen = min((item for item in group if problem_size(origin_of(item)[2]) == largest), key=cost)
        environment, honest, _ = origin_of(chosen)
        where = describe_environment(findings, environment, honest)
        sentences.append(f"{describe(chosen, group)}.{where}")
    return sentences


def describe_crossovers(findings: Findings) -> list[str]:
    """Return a sentence for each function that states the sizes at which its fastest AD mode changes."""
    return _describe_largest(
        findings,
        (modes for modes in findings.fastest_mode_maps if modes.crossovers),
        lambda modes: (modes.environment, modes.honest, modes.case),
        lambda modes: (),
        _describe_map,
    )


def _describe_map(of: FastestModeMap, group: Sequence[FastestModeMap]) -> str:
    held = f" with {of.held}" if of.held else ""
    changes = group_by(of.crossovers, lambda c: (c.before, c.after, c.below, c.above)).values()
    text = "; ".join(_describe_crossover(change, of) for change in changes)
    more = f" ({len(group) - 1} more of its sweeps cross as well)" if len(group) > 1 else ""
    return f"Crossover of {family_name(of.case)}{held}: {text}{more}"


def _describe_crossover(crossovers: Sequence[Crossover], of: FastestModeMap) -> str:
    first, name = crossovers[0], of.swept.partition(" = ")[0].partition(" (")[0]
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

    The sentence describes the times on the smallest device count.
    """
    groups = group_by(findings.size_exponents, lambda row: id(row.sweep)).values()
    return _describe_largest(
        findings,
        groups,
        lambda rows: (rows[0].sweep.environment, rows[0].sweep.honest, rows[0].sweep.case),
        lambda rows: (rows[0].sweep.case.devices,),
        lambda rows, _: _describe_exponents(sorted(rows, key=lambda row: row.exponent.value)),
    )


def _describe_exponents(rows: Sequence[SizeExponent]) -> str:
    sweep, half = rows[0].sweep, _MOST_METHODS // 2
    shown = rows if len(rows) <= _MOST_METHODS else [*rows[:half], *rows[-half:]]
    known = [row for row in shown if is_exponent_determined(*row.exponent[1:])]
    powers = ", ".join(f"{format_exponent(*row.exponent)} in {row.method.name}" for row in known)
    rest = (row for row in shown if row not in known)
    wide = ", ".join(f"{row.method.name} ({row.exponent.low:.3g} to {row.exponent.high:.3g})" for row in rest)
    parts = [f"to the power of {powers}"] if powers else []
    parts += [f"{'' if powers else 'to a power '}{UNDETERMINED} in {wide}"] if wide else []
    what = f"Time of {family_name(sweep.case)} grows with {sweep.swept} on"
    return f"{what} {count_of(sweep.case.devices, 'device')} {'; '.join(parts)}"


def describe_laws(findings: Findings, kinds: Sequence[str] = KINDS) -> list[str]:
    """Return a sentence for each function and kind of scaling that names the scaling law with the best fit.

    Of the JAX curves of the largest problem, the one with the shortest time on its most devices is described.
    """
    best = [
        (curve, law)
        for curve, laws in findings.scaling_fits
        for law in laws
        if law.best and curve.case.engine == "jax"
    ]
    return [
        sentence
        for kind in kinds
        for sentence in _describe_largest(
            findings,
            [pair for pair in best if pair[0].kind == kind],
            lambda pair: (pair[0].environment, True, pair[0].case),
            lambda pair: (pair[0].points[-1].seconds,),
            lambda pair, _: _describe_law(*pair),
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
    memory = _describe_largest(
        findings,
        findings.pareto_fronts,
        lambda front: (front.environment, True, front.case),
        lambda front: (front.fastest.seconds,),
        _describe_memory,
    )
    return [
        *memory,
        *_describe_comparisons(findings, findings.mesh_comparisons, "Mesh (points x seeds)", mesh_name),
        *_describe_comparisons(
            findings, findings.forward_comparisons, "Forward inputs", lambda case: str(case.forward)
        ),
        *_describe_gains(findings, findings.overlaps, _describe_overlap),
        *_describe_gains(findings, findings.coloring_gains, _describe_coloring),
    ]


def _describe_comparisons(
    findings: Findings, comparisons: Iterable[SettingComparison], head: str, name: Callable[[Case], str]
) -> list[str]:
    return _describe_largest(
        findings,
        comparisons,
        lambda comparison: (comparison.environment, comparison.honest, comparison.case),
        lambda comparison: (-comparison.case.devices, comparison.rows[0][0].median),
        lambda comparison, _: _describe_comparison(comparison, head, name),
    )


def _describe_gains(findings: Findings, gains: Iterable[Gain], describe: Callable[[Gain], str]) -> list[str]:
    return _describe_largest(
        findings,
        gains,
        lambda gain: (gain.timing.environment, gain.timing.honest, gain.timing.case),
        lambda gain: (-gain.timing.case.devices, gain.timing.median),
        lambda gain, _: describe(gain),
    )


def _describe_program(head: str, timing: Timing) -> str:
    case, call = timing.case, timing.case.api if timing.case.mesh else describe_call(timing.case)
    what = f"{base_method(case).name} at {size_name(case)}, {call}"
    return f"{head} of {family_name(case)}: {what}, {count_of(case.devices, 'device')}"


def _describe_memory(front: ParetoFront, group: Sequence[ParetoFront]) -> str:
    first = front.fastest
    text = f"{first.name} is fastest, {format_time(first.timing)} in {format_bytes(first.memory)} of a device"
    others = [front.smallest_within(_SMALL_FACTOR), front.smallest, *front.automatic[:1]]
    chosen = [setting for at, setting in enumerate(others) if setting not in (first, *others[:at])]
    text += "".join(f"; {_describe_cost(first, setting)}" for setting in chosen)
    text += ", and nothing is smaller" if front.smallest is first else ""
    text += f"; {count_of(len(front.not_fitting), 'setting')} did not fit" if front.not_fitting else ""
    more = f" ({count_of(len(group) - 1, 'more front')} in the table)" if len(group) > 1 else ""
    return f"{_describe_program('Memory against time', first.timing)}: {text}{more}"


def _describe_cost(first: MemoryPoint, setting: MemoryPoint) -> str:
    auto, times = automatic_blocks(setting.timing.records[0]), time_ratio(setting.timing, first.timing)
    name = f"{setting.name} ({auto})" if auto else setting.name
    what = " the time" if is_ratio_determined(*times[1:]) else ": its time over that of the fastest"
    share = format_percentage(setting.memory / first.memory)
    note = note_on_pairs(setting.timing, first.timing)
    return f"{name}: {share} of the memory for {format_ratio(*times)}{what}{note}"


def _describe_comparison(of: SettingComparison, head: str, name: Callable[[Case], str]) -> str:
    (first, _), (second, times), *rest = of.rows
    doubts = f", not surely ({', '.join(of.doubts)})," if of.doubts else ""
    verb = f"is fastest{doubts}" if of.distinguished else "is tied with the next, not distinguished,"
    text = f"{name(first.case)} {verb} with {format_time(first)}; {name(second.case)} takes "
    text += format_ratio(*times) + note_on_pairs(second, first)
    text += f", the slowest, {name(rest[-1][0].case)}, {format_ratio(*rest[-1][1])}" if rest else ""
    padded = padding_share(first)
    waste = f"; {format_percentage(padded)} of it is padding" if padded else ""
    return f"{_describe_program(head, first)}: {text} as long{waste}"


def _describe_overlap(gain: Gain) -> str:
    assert gain.other and gain.ratio
    low, high = gain.ratio[1:]
    text = format_time_ratio("sending everything at the end", *gain.ratio) + note_on_pairs(
        gain.other, gain.timing
    )
    apart = low is not None and high is not None and not low <= 1 <= high
    head = _describe_program("Overlapped sending", gain.timing)
    return f"{head}: {text}{'' if apart else ', not distinguished'}"


def _describe_coloring(gain: Gain) -> str:
    timing, record, before = gain.timing, gain.timing.records[0], stage_seconds(gain.timing, *SPARSITY_STAGES)
    text = f"{format_time(timing)} with {gain.seeds} seeds" if gain.seeds else format_time(timing)
    text += f" for {record.nonzeros:,} nonzeros" if record.nonzeros else ""
    text += f", found in {format_duration(before)}" if before else ""
    if gain.other and gain.ratio:
        takes = format_time_ratio(f"{method_of(gain.other.case).name} with all seeds", *gain.ratio)
        pays = f"pays after {count_of(gain.break_even, 'evaluation')}" if gain.break_even else "never pays"
        known = is_ratio_determined(*gain.ratio[1:])
        text += f"; {takes}{note_on_pairs(gain.other, timing)}{f', so that it {pays}' if known else ''}"
    return f"{_describe_program('Sparsity', timing)}: {text}"
