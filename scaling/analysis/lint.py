"""Lint: what a strict reviewer would criticise in a results folder, and how to fix it.

A rule is a function that returns where it is broken, in words with numbers, and a row of the table RULES.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scaling.analysis import autocorrelation
from scaling.analysis.certainty import DISTURBED, disturbed_share, marks_of, near_floor
from scaling.analysis.curves import KINDS, Curve, Timing, family_name, size_name, stem
from scaling.analysis.findings import Findings, describe_environment
from scaling.analysis.meshes import padding_share
from scaling.analysis.pareto import OUT_OF_MEMORY_REASONS, automatic_blocks
from scaling.core.case import Case, label, problem
from scaling.core.environment import OF_THE_CASE
from scaling.core.formatting import count_of, format_duration, format_percentage
from scaling.core.record import REASONS, Record

ERROR, WARNING, NOTE = "error", "warning", "note"
Rule = Callable[[Findings], list[str]]  # returns where it is broken, in words
COLUMNS = ("severity", "what", "how many", "which", "how to fix it")
_LEAST = 7  # samples
_WIDE = 0.05  # of the median, either side
_TREND = 0.02  # of the median, within a process
_NARROW = 0.01  # of the median, by which an interval is too narrow
_PADDED = 0.1  # of points times seeds
_WRONG = ("wrong_answer", "not_finite")
_IGNORED_FACTS = {
    *OF_THE_CASE,
    "versions",
    "engine",
}  # of an environment: shown elsewhere, or fields of the case


@dataclass(frozen=True)
class LintFinding:
    """A rule that the folder breaks: how often, the first cases with their numbers, and the command or
    change that fixes it.
    """

    rule: str
    severity: str
    count: int
    text: str
    fix: str


def lint_findings(findings: Findings) -> list[LintFinding]:
    """Return every rule that the folder breaks, errors first."""
    broken = ((name, severity, fix, find_places(findings)) for name, severity, fix, find_places in RULES)
    return [
        LintFinding(name, severity, len(places), _text(places), fix)
        for name, severity, fix, places in broken
        if places
    ]


def _text(places: Sequence[str]) -> str:
    """Return the first two different places, the most frequent first, and how many more there are."""
    counts = [
        place if count == 1 else f"{place} ({count} times)" for place, count in Counter(places).most_common()
    ]
    return "; ".join([*counts[:2], *([f"and {len(counts) - 2} more"] if len(counts) > 2 else [])])


def verdict(remarks: Sequence[LintFinding]) -> str:
    """Return the number of errors and warnings in words, such as '1 error, 3 warnings'; notes do not
    count.
    """
    errors, warnings = (
        sum(remark.severity == severity for remark in remarks) for severity in (ERROR, WARNING)
    )
    return (
        f"{count_of(errors, 'error')}, {count_of(warnings, 'warning')}"
        if errors or warnings
        else "publishable as it is"
    )


def lint_rows(findings: Findings) -> list[tuple[str, ...]]:
    """Return the verdict and the findings under COLUMNS."""
    remarks = lint_findings(findings)
    return [
        ("verdict", verdict(remarks), "", "", ""),
        *((r.severity, r.rule, str(r.count), r.text, r.fix) for r in remarks),
    ]


def _timed_cases(findings: Findings) -> list[Timing]:
    return [timing for timing in findings.timings if timing.case.kind == "case"]


def _rule_for_timings(fault: Callable[[Timing], str]) -> Rule:
    """Return a rule for each timed case, from a function that returns its fault in words, or nothing."""

    def find_places(findings: Findings) -> list[str]:
        environments = {
            environment: describe_environment(findings, environment) for environment in findings.environments
        }
        remarks = ((timing, fault(timing)) for timing in _timed_cases(findings))
        return [
            f"{label(timing.case)}{environments[timing.environment]}: {words}"
            for timing, words in remarks
            if words
        ]

    return find_places


def _failed_cases(fault: bool) -> Rule:
    """Return a rule for the failed cases: those with a wrong answer, or the others."""
    return lambda findings: [
        f"{label(r.case)}: {r.reason or 'no reason given'}: {r.text or 'no words'}"
        for r in findings.records
        if r.status == "failed" and (r.reason in _WRONG) is fault
    ]


def _describe_skipped(reason: str | None) -> str:
    return f"{reason}: {REASONS[reason]}" if reason else "no reason given"


def _half_width(timing: Timing) -> float:
    """Return the larger distance from the median to an end of its interval, as a fraction; 0 without an
    interval.
    """
    low, high = timing.interval or (timing.median, timing.median)
    return max(high - timing.median, timing.median - low) / timing.median


def _first_compilation(record: Record) -> list[float]:
    """Return the samples of the first compilation; each further one may have another level."""
    return record.seconds[
        : len(record.seconds) - sum(int(further.get("samples", 0)) for further in record.compilations)
    ]


# What is wrong with a timed case.


def _unverified(timing: Timing) -> str:
    pairs = [(r.error, r.tolerance) for r in timing.records]
    bad = [
        f"error {error}, tolerance {most}"
        for error, most in pairs
        if error is None or most is None or not error <= most
    ]
    return bad[0] if bad else ""


def _oversubscribed(timing: Timing) -> str:
    cores = timing.records[0].environment.get("cores")
    held = count_of(len(cores), "core") if isinstance(cores, list) else "no core of its own"
    return "" if timing.honest else f"{count_of(timing.case.devices, 'device')}, {held}"


def _few_samples(timing: Timing) -> str:
    least = min(len(record.seconds) for record in timing.records)
    return count_of(least, "sample") if least < _LEAST or timing.interval is None else ""


def _near_floor(timing: Timing) -> str:
    floor = near_floor(timing)
    return f"{format_duration(timing.median)}, an empty call {format_duration(floor)}" if floor else ""


def _wide_interval(timing: Timing) -> str:
    stopped = " and ".join(sorted({record.stop_reason or "nothing known" for record in timing.records}))
    return f"{_half_width(timing):.1%}, stopped by {stopped}" if _half_width(timing) > _WIDE else ""


def _disturbed(timing: Timing) -> str:
    part = disturbed_share(timing)
    return (
        f"{format_percentage(part)} of its samples, {' and '.join(marks_of(timing))}"
        if part > DISTURBED
        else ""
    )


def _trend(timing: Timing) -> str:
    change = max(
        (autocorrelation.trend(_first_compilation(record)) or 0.0 for record in timing.records), key=abs
    )
    return f"{change:+.1%} from the first third to the last" if abs(change) > _TREND else ""


def _autocorrelated(timing: Timing) -> str:
    """Of one process only: an interval between processes does not rest on their samples."""
    times = (
        autocorrelation.interval_widening(_first_compilation(timing.records[0])) or 1.0
        if timing.replicates == 1
        else 1.0
    )
    short = (times - 1) * _half_width(timing) > _NARROW
    return (
        f"{_half_width(timing):.1%} either side ought to be {times * _half_width(timing):.1%}"
        if short
        else ""
    )


def _padded(timing: Timing) -> str:
    return format_percentage(padding_share(timing)) if padding_share(timing) > _PADDED else ""


def _varying_blocks(timing: Timing) -> str:
    """Processes that chose other blocks ran other programs: an interval between them means nothing."""
    counts = dict.fromkeys(words for record in timing.records if (words := automatic_blocks(record)))
    return "; ".join(counts) if len(counts) > 1 else ""


# What is wrong with a folder.


def _mixed_environments(findings: Findings) -> list[str]:
    by_workload: dict[str, dict[str, dict]] = {}
    for timing in _timed_cases(findings):
        facts = timing.records[0].environment
        versions = facts.get("versions")
        together = {**facts, **versions} if isinstance(versions, dict) else facts
        by_workload.setdefault(timing.case.workload, {})[timing.environment] = together
    remarks = []
    for workload, environments in by_workload.items():
        names = sorted({name for facts in environments.values() for name in facts} - _IGNORED_FACTS)
        values = {
            name: dict.fromkeys(str(facts.get(name)) for facts in environments.values()) for name in names
        }
        differ = [f"{name} ({', '.join(each)})" for name, each in values.items() if len(each) > 1]
        remarks += (
            [f"{workload}: {len(environments)} environments that differ in {', '.join(differ)}"]
            if len(environments) > 1
            else []
        )
    return remarks


def _scaled_curves(findings: Findings) -> list[Curve]:
    return [curve for curve in findings.curves if curve.points[-1].devices > 1]


def _not_weak(findings: Findings) -> list[str]:
    lengths = [len(curve.points) for curve in findings.curves if curve.kind == "weak"]
    return findings.weak_refusals or ["nothing was measured on several numbers of devices"] * (
        max(lengths, default=2) == 1
    )


def _curves_without_one_device(findings: Findings) -> list[str]:
    """Return the curves not measured on one device, though no record says that the problem does not fit
    there.
    """
    too_large: dict[tuple, int] = {}  # the fewest devices on which a problem was too large
    for record in findings.records:
        for kind in KINDS if record.reason in OUT_OF_MEMORY_REASONS else ():
            of = (kind, record.setting, stem(record.case, kind))
            too_large[of] = min(too_large.get(of, record.case.devices), record.case.devices)
    curves = [
        (curve, (curve.kind, curve.environment, stem(curve.timings[0].case, curve.kind)))
        for curve in _scaled_curves(findings)
    ]
    return [
        curve.name
        for curve, of in curves
        if curve.baseline_devices > 1 and too_large.get(of, curve.baseline_devices) >= curve.baseline_devices
    ]


def _list_problems(cases: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(f"{family_name(case)} {size_name(case)}" for case in cases))


def _cases_without_comparison(findings: Findings) -> list[str]:
    compared = {
        problem(timing.case)
        for timing in _timed_cases(findings)
        if timing.case.ad_mode.closed_form or timing.case.engine != "jax"
    }
    return _list_problems(
        [row.first.case for row in findings.fastest if problem(row.first.case) not in compared]
    )


def _uncommitted_code(findings: Findings) -> list[str]:
    environments = {timing.environment: timing.records[0].environment for timing in _timed_cases(findings)}
    loose = {
        digest: facts.get("commit")
        for digest, facts in environments.items()
        if facts.get("dirty") or not facts.get("commit")
    }
    return [
        f"{digest}: {f'{commit[:12]} with changes' if commit else 'no commit'}"
        for digest, commit in loose.items()
    ]


_FRESH = "run again into a fresh folder, results=PATH"
RULES: tuple[tuple[str, str, str, Rule], ...] = (  # rule, severity, fix, where it is broken
    (
        "nothing measured",
        ERROR,
        "`scaling run study=...`",
        lambda findings: [] if _timed_cases(findings) or findings.forecasts else [findings.name],
    ),
    (
        "nothing measured, only planned",
        WARNING,
        "`scaling run study=...` on a machine of that kind",
        lambda findings: [] if _timed_cases(findings) else [each.title for each in findings.forecasts],
    ),
    ("unverified answers", ERROR, f"{_FRESH}: every answer is checked first", _rule_for_timings(_unverified)),
    (
        "wrong answers",
        ERROR,
        "fix the program, or leave the case out of the study",
        _failed_cases(fault=True),
    ),
    ("mixed environments", ERROR, f"{_FRESH}, the whole study at once", _mixed_environments),
    (
        "weak scaling that is not weak",
        ERROR,
        "scaling=strong, or work that grows with the points alone",
        _not_weak,
    ),
    (
        "oversubscribed or unbound devices",
        ERROR,
        f"fewer devices, bind=true; {_FRESH}",
        _rule_for_timings(_oversubscribed),
    ),
    (
        "no baseline: the same program on one device",
        ERROR,
        "add 1 to devices: 'devices=[1,2]'",
        _curves_without_one_device,
    ),
    (
        f"too few samples: under {_LEAST}, or no interval",
        ERROR,
        f"sampling.least={_LEAST}; {_FRESH}",
        _rule_for_timings(_few_samples),
    ),
    (
        "failed cases",
        WARNING,
        "fix the cause, then the same command with retry=true",
        _failed_cases(fault=False),
    ),
    ("cases without a record", WARNING, "the same command runs them", lambda findings: findings.missing),
    ("damaged lines", WARNING, "the same command runs their cases again", lambda findings: findings.damaged),
    ("times under ten floors", WARNING, "larger sizes, or more points", _rule_for_timings(_near_floor)),
    (
        f"intervals wider than {format_percentage(_WIDE)} either side",
        WARNING,
        f"sampling.seconds=5, sampling.most=1000, replicates=5 or more; {_FRESH}",
        _rule_for_timings(_wide_interval),
    ),
    (
        "one process only",
        WARNING,
        "replicates=3 adds to what is there",
        _rule_for_timings(
            lambda timing: count_of(len(timing.seconds), "sample") if timing.replicates == 1 else ""
        ),
    ),
    (
        "foreign load or throttling",
        WARNING,
        f"stop what else runs there; {_FRESH}",
        _rule_for_timings(_disturbed),
    ),
    (
        "trend within a process",
        WARNING,
        f"sampling.warm_up=0.5, a machine at rest; {_FRESH}",
        _rule_for_timings(_trend),
    ),
    (
        "autocorrelation: the interval within the process is too narrow",
        WARNING,
        "replicates=3, for an interval between processes",
        _rule_for_timings(_autocorrelated),
    ),
    (
        f"padding of more than {format_percentage(_PADDED)}",
        WARNING,
        "points and seeds, or a mesh, that divide evenly: see the table of meshes",
        _rule_for_timings(_padded),
    ),
    (
        "chunk=auto: other blocks in other processes",
        WARNING,
        f"memory_limit=..., the same for all, or chunk and block; {_FRESH}",
        _rule_for_timings(_varying_blocks),
    ),
    (
        "no baseline: a plain jit program on one device",
        WARNING,
        "add a grid with `api: jit` and `devices: 1`",
        lambda findings: _list_problems(
            [
                c.case
                for c in _scaled_curves(findings)
                if c.case.engine == "jax" and c.points[0].against_jit is None
            ]
        ),
    ),
    ("code that is not committed", WARNING, f"commit, then {_FRESH}", _uncommitted_code),
    (
        "skipped cases",
        NOTE,
        "smaller sizes, where memory was short",
        lambda findings: [_describe_skipped(r.reason) for r in findings.records if r.status == "skipped"],
    ),
    (
        "no measured ceiling beside",
        NOTE,
        "`ceilings: true` in the study",
        lambda findings: _list_problems(
            [s.timing.case for s in findings.baselines if s.bound is None and s.timing.case.engine == "jax"]
        ),
    ),
    (
        "no derivative by hand, no other system beside",
        NOTE,
        "mode=analytic, or a peer with engine=...",
        _cases_without_comparison,
    ),
)
