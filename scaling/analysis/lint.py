"""Define the rules of `scaling lint`, such as too few samples, each with a severity, a check and a fix."""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scaling.analysis import timings
from scaling.analysis.cases import describe_environments
from scaling.analysis.curves import Curve
from scaling.analysis.estimate import format_percentage
from scaling.analysis.findings import Findings
from scaling.analysis.ratios import trend
from scaling.analysis.timings import Timing
from scaling.core.case import label
from scaling.core.formatting import format_count, format_duration
from scaling.core.grouping import group_by

ERROR, WARNING = "error", "warning"
Rule = Callable[[Findings], list[str]]  # returns a description of each violation
DefectCheck = Callable[[Timing], str | bool]  # returns a description of a defect of a time, or '' or False
_LEAST_SAMPLES = 7  # per process
_MAX_HALF_WIDTH = 0.05  # limit of the relative half-width of an interval
_MAX_TREND = 0.02  # limit of the change of the time within a process, relative to the median
_WRONG = ("wrong_answer", "not_finite")


@dataclass(frozen=True)
class LintFinding:
    """A violated lint rule, with the number of violations, examples and the fix."""

    severity: str
    rule: str
    count: int
    text: str  # the most frequent violations
    fix: str


@functools.lru_cache(maxsize=1)  # a report calls this function several times
def lint_findings(findings: Findings) -> tuple[LintFinding, ...]:
    """Return a `LintFinding` for each rule that the results violate, in the order of `RULES`."""
    checked = ((severity, name, rule(findings), fix) for severity, name, rule, fix in RULES)
    return tuple(
        LintFinding(severity, name, len(violations), _summarize_violations(violations), fix)
        for severity, name, violations, fix in checked
        if violations
    )


def _summarize_violations(violations: Sequence[str]) -> str:
    by_frequency = Counter(violations).most_common()
    texts = [text if count == 1 else f"{text} ({count} times)" for text, count in by_frequency[:2]]
    return "; ".join([*texts, f"and {len(by_frequency) - 2} more"] if len(by_frequency) > 2 else texts)


def format_verdict(remarks: Sequence[LintFinding]) -> str:
    """Return the number of errors and warnings as text, or 'publishable as it is' if there are none."""
    count = Counter(remark.severity for remark in remarks)
    if not count[ERROR] + count[WARNING]:
        return "publishable as it is"
    return f"{format_count(count[ERROR], 'error')}, {format_count(count[WARNING], 'warning')}"


# Checks of one timed case. Each returns a description of the defect, or '' or False if there is none.


def _check_each(find_defect: DefectCheck) -> Rule:
    return lambda findings: [
        f"{label(timing.case)}{findings.suffix(timing.environment)}: {defect}"
        for timing in findings.case_timings
        if (defect := find_defect(timing))
    ]


def _unverified(timing: Timing) -> str:
    for record in timing.records:
        error, tolerance = record.error, record.tolerance
        if error is None or tolerance is None or not error <= tolerance:
            return f"error {error}, tolerance {tolerance}"
    return ""


def _oversubscribed(timing: Timing) -> str | bool:
    cores = timing.record.environment.get("cores")
    cores_text = format_count(len(cores), "core") if isinstance(cores, list) else "no core of its own"
    return not timing.honest and f"{timing.devices_text}, {cores_text}"


def _shared_cores(timing: Timing) -> str | bool:
    shared = any((record.before or {}).get("siblings") for record in timing.records)
    return shared and f"{timing.devices_text}, some on the same core"


def _few_samples(timing: Timing) -> str | bool:
    least = min(len(record.seconds) for record in timing.records)
    return (least < _LEAST_SAMPLES or timing.estimate.low is None) and format_count(least, "sample")


def _short_time(timing: Timing) -> str:
    floor = timings.significant_floor(timing)
    return f"{format_duration(timing.median)}, an empty call {format_duration(floor)}" if floor else ""


def _wide_interval(timing: Timing) -> str | bool:
    median, low, high = timing.estimate
    half_width = max((high or median) - median, median - (low or median)) / median
    stopped = " and ".join(sorted({record.stop_reason or "nothing known" for record in timing.records}))
    return half_width > _MAX_HALF_WIDTH and f"{100 * half_width:.1f} %, stopped by {stopped}"


def _disturbed(timing: Timing) -> str | bool:
    fraction, causes = timings.describe_disturbances(timing)
    return (
        fraction > timings.DISTURBED
        and f"{format_percentage(fraction)} of its samples, {' and '.join(causes)}"
    )


def _trend(timing: Timing) -> str | bool:
    """Return the largest significant change of the time within a process as text, or False if there is none.

    An example is '+5.2 % from the first third to the last'.
    """
    change = max((trend(record.seconds, _MAX_TREND) or 0.0 for record in timing.records), key=abs)
    return change != 0 and f"{100 * change:+.1f} % from the first third to the last"


# Rules for a whole folder. Each returns descriptions of its violations.


def _failed_cases(findings: Findings, wrong: bool) -> list[str]:
    return [
        f"{label(record.case)}{findings.suffix(record.setting)}: "
        f"{record.reason or 'no reason given'}: {record.text or 'no description'}"
        for record in findings.newest_records
        if record.status == "failed" and (record.reason in _WRONG) is wrong
    ]


def _mixed_environments(findings: Findings) -> list[str]:
    groups = group_by(findings.case_timings, lambda t: t.case.workload).items()
    descriptions = {name: describe_environments(r for t in same for r in t.records) for name, same in groups}
    return [f"{workload}: {text}" for workload, text in descriptions.items() if text]


def _intended_curves(findings: Findings) -> list[Curve]:
    """Return the scaling curves, without accidental combinations of a strong and a weak grid.

    A curve that starts on several devices is accidental if all its timings are also on curves that start on
    one device.
    """
    from_one = (curve for curve in findings.curves if curve.baseline_devices == 1)
    on_them = {timing for curve in from_one for timing in curve.timings}
    return [
        curve
        for curve in findings.curves
        if curve.baseline_devices == 1 or not on_them.issuperset(curve.timings)
    ]


def _curves_without_one_device(findings: Findings) -> list[str]:
    curves = (curve for curve in _intended_curves(findings) if curve.baseline_devices > 1)
    counts = ((curve, findings.too_large_on(curve)) for curve in curves)
    # A program that ran out of memory on fewer devices cannot have a time on one device.
    return [curve.name for curve, count in counts if count is None or count >= curve.baseline_devices]


def _curves_without_jit(findings: Findings) -> list[str]:
    long_curves = (curve for curve in _intended_curves(findings) if curve.points[-1].devices > 1)
    jax_curves = (curve for curve in long_curves if curve.case.engine == "jax")
    first_timings = [curve.timings[0] for curve in jax_curves if curve.points[0].against_jit is None]
    return list(dict.fromkeys(f"{timing.family} {timing.size}" for timing in first_timings))


_RERUN = "run again into a fresh folder, results=PATH"
_WIDE_INTERVALS = f"intervals wider than {format_percentage(_MAX_HALF_WIDTH)} either side"
RULES: tuple[tuple[str, str, Rule, str], ...] = (  # severity, name, rule, fix
    (ERROR, "nothing measured",
     lambda f: [] if f.case_timings or f.forecasts else [f.name],
     "`scaling status` lists all reasons; fix the cause, then repeat the command"),
    (ERROR, "unverified answers", _check_each(_unverified), f"{_RERUN}: every answer is checked first"),
    (ERROR, "wrong answers", lambda f: _failed_cases(f, True),
     "fix the program, or leave the case out of the study"),
    (ERROR, "mixed environments", _mixed_environments, f"{_RERUN}, the whole study at once"),
    (ERROR, "weak scaling that is not weak", lambda f: f.weak_refusals,
     "scaling=strong, or work that grows with the points alone"),
    (ERROR, "oversubscribed or unbound devices", _check_each(_oversubscribed),
     f"fewer devices, bind=true; {_RERUN}"),
    (ERROR, "no baseline: the same program on one device", _curves_without_one_device,
     "add 1 to devices: 'devices=[1,2]'"),
    (ERROR, f"too few samples: under {_LEAST_SAMPLES}, or no interval", _check_each(_few_samples),
     f"sampling.least={_LEAST_SAMPLES}; {_RERUN}"),
    (WARNING, "nothing measured, only planned",
     lambda f: [] if f.case_timings else [each.title for each in f.forecasts],
     "`scaling run study=...` on a machine of that kind"),
    (WARNING, "failed cases", lambda f: _failed_cases(f, False),
     "fix the cause, then repeat the command; on a cluster with retry=true"),
    (WARNING, "missing cases", lambda f: f.missing, "repeat the command, which runs them"),
    (WARNING, "study.json that cannot be read", lambda f: [f.study.problem] if f.study.problem else [],
     "repeat the `scaling run` command, which writes study.json again"),
    (WARNING, "damaged lines", lambda f: f.damaged,
     "repeat the command that wrote them, and delete the lines to end this warning"),
    (WARNING, f"times {timings.SHORT}", _check_each(_short_time), "larger sizes, or more points"),
    (WARNING, _WIDE_INTERVALS, _check_each(_wide_interval),
     f"sampling.seconds=5, sampling.most=1000, replicates=5 or more; {_RERUN}"),
    (WARNING, timings.ONE_PROCESS,
     _check_each(lambda timing: len(timing.records) == 1 and format_count(len(timing.seconds), "sample")),
     "replicates=3 adds to what is there"),
    (WARNING, "load of other processes, or throttling", _check_each(_disturbed),
     f"stop other programs on the machine, or raise a CPU quota; {_RERUN}"),
    (WARNING, "devices that are hardware threads of one core", _check_each(_shared_cores),
     "as many devices as physical cores at most"),
    (WARNING, "trend within a process", _check_each(_trend),
     f"sampling.warm_up=0.5, an idle machine; {_RERUN}"),
    (WARNING, "no baseline: a plain jit program on one device", _curves_without_jit,
     "add a grid with `api: jit` and `devices: 1`"),
)  # fmt: skip
