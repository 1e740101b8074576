"""Write the sentences for summary.py on crossovers, growth, scaling laws, memory, meshes and coloring."""

from collections.abc import Callable, Iterable, Sequence

from scaling.analysis.cases import Subject, group_by
from scaling.analysis.curves import KINDS, Curve
from scaling.analysis.estimate import format_exponent, format_percentage, format_ratio, format_share
from scaling.analysis.fastest import find_runner_up
from scaling.analysis.findings import Findings
from scaling.analysis.scaling_fits import ScalingFit
from scaling.analysis.setting_comparison import ColoringGain, MemoryPoint, ParetoFront, SettingComparison
from scaling.analysis.size_series import Crossover, SizeExponent
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

_LARGE_ERROR = 0.1  # relative error of the times above which a law is called inaccurate
_SMALL_FACTOR = 1.1  # the largest slowdown accepted for saving memory
_MOST_METHODS = 4  # the largest number of methods named in a sentence


def _select_largest(findings: Findings, texts: Iterable[tuple[Subject, tuple, str]]) -> list[str]:
    """Return one sentence per function on its largest problem. `texts` are (subject, sort key, text) tuples.

    If several texts describe this problem, the text with the smallest sort key is selected. A function has a
    separate sentence for each varying size (`swept`).
    """
    sentences = []
    for group in group_by(texts, lambda row: (row[0].family_key, getattr(row[0], "swept", None))).values():
        subject, _, text = min(group, key=lambda row: (-row[0].volume, row[1]))
        sentences.append(f"{text}.{findings.suffix(subject.environment, subject.honest)}")
    return sentences


def describe_crossovers(findings: Findings) -> list[str]:
    """Return a sentence for each function on the sizes at which its fastest AD mode changes."""
    texts: list[tuple[Subject, tuple, str]] = []
    for modes in findings.fastest_mode_maps:
        changes = group_by(modes.crossovers, lambda c: (c.before, c.after, c.below, c.above)).values()
        sizes = f" with {modes.fixed_sizes}" if modes.fixed_sizes else ""
        text = "; ".join(_describe_crossover(change, modes.swept) for change in changes)
        if changes:
            texts.append((modes, (), f"Crossover of {modes.family}{sizes}: {text}"))
    return _select_largest(findings, texts)


def _describe_crossover(crossovers: Sequence[Crossover], swept: str) -> str:
    first, name = crossovers[0], swept.partition(" = ")[0].partition(" (")[0]
    devices = ", ".join(str(crossover.devices) for crossover in crossovers)
    sizes = sorted(crossover.at for crossover in crossovers)
    between = " to ".join(dict.fromkeys(format_number(size) for size in (sizes[0], sizes[-1])))
    doubts = dict.fromkeys(doubt for crossover in crossovers for doubt in crossover.doubts)
    return (
        f"{first.before.name} is fastest up to {name} = {first.below:,}, "
        f"{first.after.name} from {first.above:,} on {devices} {'device' if devices == '1' else 'devices'} "
        f"(their times meet at about {between})" + (f"; not sure: {', '.join(doubts)}" if doubts else "")
    )


def describe_growth(findings: Findings) -> list[str]:
    """Return a sentence for each function on how its time on the fewest devices grows with the size."""
    groups = group_by(findings.size_exponents, lambda row: id(row.sweep)).values()
    texts = ((rows[0].sweep, (rows[0].sweep.case.devices,), _describe_exponents(rows)) for rows in groups)
    return _select_largest(findings, texts)


def _describe_exponents(exponents: Iterable[SizeExponent]) -> str:
    rows = sorted(exponents, key=lambda row: row.exponent.value)
    sweep, half = rows[0].sweep, _MOST_METHODS // 2
    shown = rows if len(rows) <= _MOST_METHODS else [*rows[:half], *rows[-half:]]
    powers = ", ".join(f"{format_exponent(*row.exponent)} in {row.method.name}" for row in shown)
    return f"Time of {sweep.family} grows with {sweep.swept} on {sweep.devices_text} to the power of {powers}"


def describe_laws(findings: Findings, kinds: Sequence[str] = KINDS) -> list[str]:
    """Return a sentence for each function and kind of scaling on the scaling law that fits best.

    Among the JAX curves of the largest problem, the sentence describes the curve with the shortest time on
    its last device count.
    """
    sentences = []
    for kind in kinds:
        texts = (
            (curve, (curve.points[-1].seconds,), _describe_law(curve, law))
            for curve, law in findings.best_fits
            if curve.kind == kind and curve.case.engine == "jax"
        )
        sentences += _select_largest(findings, texts)
    return sentences


def _describe_law(curve: Curve, law: ScalingFit) -> str:
    program = f"{curve.family} at {curve.size}, {curve.method.name}"
    return f"{program}: of the laws of {curve.kind} scaling, {describe_fit(curve, law)}"


def describe_fit(curve: Curve, law: ScalingFit) -> str:
    """Return a clause on the law that fits a curve best, such as 'Amdahl describes it best: serial 0.05'.

    The clause states the fitted parameters of the law and, if they are determined, the largest speed-up that
    the law allows.
    """
    parts = ", ".join(f"{name} {format_share(*estimate)}" for name, estimate in law.parts.items())
    error = f", though off by {format_percentage(law.spread)}" if law.spread > _LARGE_ERROR else ""
    text = f"{law.name} describes it best{error}: {parts}"
    limit = law.limit_estimate
    if limit is None or not law.determined:
        return text
    if not limit.is_determined:
        return f"{text}; its largest speed-up is {format_ratio(*limit)}{law.doubt}"
    devices = count_of(round(law.peak), "device") if law.peak else "any number of devices"
    reference = "" if curve.baseline_devices == 1 else " as one device by this law"
    return f"{text}; no more than {format_ratio(*limit)} as fast{reference} on {devices}{law.doubt}"


def describe_variants(findings: Findings) -> list[str]:
    """Return sentences that compare memory settings, meshes, forward inputs, overlap, and colored seeds."""
    fronts = ((f.best[-1].timing, (f.best[-1].seconds,), _describe_memory(f)) for f in findings.pareto_fronts)
    sentences = _select_largest(findings, fronts)
    describe: dict[str, Callable[[SettingComparison], str]] = {  # by field of `Case`
        "mesh": lambda each: _describe_comparison(
            each, "Mesh (points x seeds)", lambda case: "x".join(map(str, case.mesh_shape))
        ),
        "forward": lambda each: _describe_comparison(each, "Forward inputs", lambda case: str(case.forward)),
        "overlap": _describe_overlap,
    }
    for field, describe_one in describe.items():
        texts = ((each, _rank(each.first), describe_one(each)) for each in findings.comparisons[field])
        sentences += _select_largest(findings, texts)
    gains = ((gain.timing, _rank(gain.timing), _describe_coloring(gain)) for gain in findings.coloring_gains)
    return [*sentences, *_select_largest(findings, gains)]


def _rank(timing: Timing) -> tuple[int, float]:
    return -timing.case.devices, timing.median


def _describe_program(head: str, subject: Subject) -> str:
    program = f"{subject.base_method.name} at {subject.size}, {subject.call}"
    return f"{head} of {subject.family}: {program}, {subject.devices_text}"


def _describe_memory(front: ParetoFront) -> str:
    first, smallest = front.best[-1], front.best[0]
    _, ratio = find_runner_up(first.timing, (s.timing for s in front.settings if s is not first))
    verb = "is fastest" if ratio and ratio.above_one else "has the shortest time"
    text = f"{first.name} {verb}, {format_time(first.timing)} in {format_bytes(first.memory)} of a device"
    small = next(setting for setting in front.best if setting.seconds <= _SMALL_FACTOR * first.seconds)
    automatic = [setting for setting in front.settings if setting.timing.case.chunk == AUTO]
    others = {id(setting): setting for setting in (small, smallest, *automatic[:1]) if setting is not first}
    text += "".join(f"; {_describe_cost(first, setting)}" for setting in others.values())
    text += ", and nothing is smaller" if smallest is first else ""
    text += f"; {count_of(len(front.not_fitting), 'setting')} did not fit" if front.not_fitting else ""
    return f"{_describe_program('Memory against time', first.timing)}: {text}"


def _describe_cost(first: MemoryPoint, setting: MemoryPoint) -> str:
    auto = automatic_blocks(setting.timing.record)
    name = f"{setting.name} ({auto})" if auto else setting.name
    share = format_percentage(setting.memory / first.memory)
    return f"{name}: {share} of the memory, {describe_slower('it', setting.timing, first.timing)}"


def _describe_comparison(comparison: SettingComparison, head: str, name: Callable[[Case], str]) -> str:
    first, last = comparison.first, comparison.timings[-1]
    second = comparison.second or last
    doubts = f", not surely ({', '.join(comparison.doubts)})," if comparison.doubts else ""
    tied = f"is not distinguished from {name(second.case)},"
    text = f"{name(first.case)} {f'is fastest{doubts}' if comparison.distinguished else tied}"
    text += f" with {format_time(first)}; {describe_slower(name(second.case), second, first)}"
    if last is not second:
        text += f"; {describe_slower(f'{name(last.case)}, the slowest,', last, first)}"
    return f"{_describe_program(head, comparison)}: {text}"


def _describe_overlap(comparison: SettingComparison) -> str:
    at_end, overlapped = sorted(comparison.timings, key=lambda t: t.case.overlap)
    text = describe_slower("sending everything at the end", at_end, overlapped)
    tied = "" if comparison.distinguished else ", not distinguished"
    return f"{_describe_program('Overlapped sending', overlapped)}: {text}{tied}"


def _describe_coloring(gain: ColoringGain) -> str:
    timing, nonzeros = gain.timing, gain.timing.record.nonzeros
    text = f"{format_time(timing)} with {gain.seeds} seeds" if gain.seeds else format_time(timing)
    text += f" for {nonzeros:,} nonzeros" if nonzeros else ""
    if detection := stage_seconds(timing, *SPARSITY_STAGES):
        text += f", found in {format_duration(detection)}"
    if gain.uncolored and gain.ratio:
        text += f"; {describe_slower(f'{gain.uncolored.method.name} with all seeds', gain.uncolored, timing)}"
        phrases = {"never": ", so that it never pays", "not distinguished": ", not distinguished", "": ""}
        text += phrases.get(gain.pays_after, f", so that it pays after {gain.pays_after}")
    return f"{_describe_program('Sparsity', timing)}: {text}"
