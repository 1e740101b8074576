"""Lint: what a strict reviewer would say of a results folder, and what mends it.

A rule is a small function that says what is wrong, with figures, and a row of one table. Knows what a folder holds (findings.py);
not how remarks are printed.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scaling.analysis import autocorrelation
from scaling.analysis.certainty import DISTURBED, disturbed_share, marks_of, near_floor
from scaling.analysis.curves import KINDS, Curve, Timing, family_name, size_name
from scaling.analysis.findings import Findings, marks
from scaling.analysis.meshes import padding
from scaling.analysis.pareto import TOO_MUCH, chosen
from scaling.core.case import Case, label, problem
from scaling.core.environment import OF_THE_CASE
from scaling.core.formatting import count_of, format_duration, format_percentage
from scaling.core.record import REASONS, Record

ERROR, WARNING, NOTE = "error", "warning", "note"
Places = Callable[[Findings], list[str]]  # where a rule is broken, in words
COLUMNS = ("severity", "what", "how many", "which", "what mends it")
_LEAST = 7  # samples
_WIDE = 0.05  # of the median, either side
_DRIFT = 0.02  # of the median, within a process
_NARROW = 0.01  # of the median, either side, by which an interval falls short
_PADDED = 0.1  # of points times seeds, computed in vain
_WRONG = ("wrong_answer", "not_finite")
_NO_FACTS = {*OF_THE_CASE, "versions", "engine"}  # of an environment: told elsewhere, or of the case


@dataclass(frozen=True)
class LintFinding:
    """A rule that the folder breaks: how often, the first cases with their figures, and the command or change that mends it."""

    rule: str
    severity: str
    count: int
    text: str
    mend: str


def lint_findings(found: Findings) -> list[LintFinding]:
    """Every rule that the folder breaks, errors first."""
    broken = ((name, severity, mend, places(found)) for name, severity, mend, places in RULES)
    return [LintFinding(name, severity, len(where), _text(where), mend) for name, severity, mend, where in broken if where]


def _text(places: Sequence[str]) -> str:
    """The first two that differ, the most frequent first, and how many more there are."""
    several = [place if count == 1 else f"{place} ({count} times)" for place, count in Counter(places).most_common()]
    return "; ".join([*several[:2], *([f"and {len(several) - 2} more"] if len(several) > 2 else [])])


def verdict(told: Sequence[LintFinding]) -> str:
    """In a few words, such as '1 error, 3 warnings'; notes stand in nobody's way."""
    errors, warnings = (sum(remark.severity == severity for remark in told) for severity in (ERROR, WARNING))
    return f"{count_of(errors, 'error')}, {count_of(warnings, 'warning')}" if errors or warnings else "publishable as it is"


def rows(found: Findings) -> list[tuple[str, ...]]:
    """The verdict and the remarks, under COLUMNS."""
    told = lint_findings(found)
    return [("verdict", verdict(told), "", "", ""), *((r.severity, r.rule, str(r.count), r.text, r.mend) for r in told)]


def _cases(found: Findings) -> list[Timing]:
    return [timing for timing in found.timings if timing.case.kind == "case"]


def _each(wrong: Callable[[Timing], str]) -> Places:
    """A rule for each timed case, from what is wrong with one: nothing, or words."""

    def places(found: Findings) -> list[str]:
        beside = {environment: marks(found, environment) for environment in found.environments}
        told = ((timing, wrong(timing)) for timing in _cases(found))
        return [f"{label(timing.case)}{beside[timing.environment]}: {words}" for timing, words in told if words]

    return places


def _failed(wrong: bool) -> Places:
    """A rule for the failed cases: those that gave a wrong answer, or those that gave none."""
    return lambda found: [
        f"{label(r.case)}: {r.reason or 'no reason given'}: {r.text or 'no words'}"
        for r in found.records
        if r.status == "failed" and (r.reason in _WRONG) is wrong
    ]


def _skipped(reason: str | None) -> str:
    return f"{reason}: {REASONS[reason]}" if reason else "no reason given"


def _half(timing: Timing) -> float:
    """The farther end of the interval from the median, as a share of it; 0 without an interval."""
    low, high = timing.interval or (timing.median, timing.median)
    return max(high - timing.median, timing.median - low) / timing.median


def _first(record: Record) -> list[float]:
    """The samples of the first compilation; each further one may have a level of its own."""
    return record.seconds[: len(record.seconds) - sum(int(further.get("samples", 0)) for further in record.compilations)]


# What is wrong with a timed case.


def _unverified(timing: Timing) -> str:
    pairs = [(r.error, r.tolerance) for r in timing.records]
    bad = [f"error {error}, tolerance {most}" for error, most in pairs if error is None or most is None or not error <= most]
    return bad[0] if bad else ""


def _oversubscribed(timing: Timing) -> str:
    cores = timing.records[0].environment.get("cores")
    held = count_of(len(cores), "core") if isinstance(cores, list) else "no core of its own"
    return "" if timing.honest else f"{count_of(timing.case.devices, 'device')}, {held}"


def _few(timing: Timing) -> str:
    least = min(len(record.seconds) for record in timing.records)
    return count_of(least, "sample") if least < _LEAST or timing.interval is None else ""


def _floored(timing: Timing) -> str:
    floor = near_floor(timing)
    return f"{format_duration(timing.median)}, an empty call {format_duration(floor)}" if floor else ""


def _wide(timing: Timing) -> str:
    stopped = " and ".join(sorted({record.stop_reason or "nothing known" for record in timing.records}))
    return f"{_half(timing):.1%}, stopped by {stopped}" if _half(timing) > _WIDE else ""


def _disturbed(timing: Timing) -> str:
    part = disturbed_share(timing)
    return f"{format_percentage(part)} of its samples, {' and '.join(marks_of(timing))}" if part > DISTURBED else ""


def _drift(timing: Timing) -> str:
    change = max((autocorrelation.trend(_first(record)) or 0.0 for record in timing.records), key=abs)
    return f"{change:+.1%} from the first third to the last" if abs(change) > _DRIFT else ""


def _autocorrelated(timing: Timing) -> str:
    """Of one process alone: the interval between several does not rest on its samples."""
    times = autocorrelation.widening(_first(timing.records[0])) or 1.0 if timing.replicates == 1 else 1.0
    short = (times - 1) * _half(timing) > _NARROW
    return f"{_half(timing):.1%} either side ought to be {times * _half(timing):.1%}" if short else ""


def _padded(timing: Timing) -> str:
    return format_percentage(padding(timing)) if padding(timing) > _PADDED else ""


def _unsettled(timing: Timing) -> str:
    """Processes that chose other blocks ran other programs: an interval between them is one of neither."""
    several = dict.fromkeys(words for record in timing.records if (words := chosen(record)))
    return "; ".join(several) if len(several) > 1 else ""


# What is wrong with a folder.


def _mixed(found: Findings) -> list[str]:
    around: dict[str, dict[str, dict]] = {}
    for timing in _cases(found):
        facts = timing.records[0].environment
        versions = facts.get("versions")
        together = {**facts, **versions} if isinstance(versions, dict) else facts
        around.setdefault(timing.case.workload, {})[timing.environment] = together
    told = []
    for workload, several in around.items():
        names = sorted({name for facts in several.values() for name in facts} - _NO_FACTS)
        values = {name: dict.fromkeys(str(facts.get(name)) for facts in several.values()) for name in names}
        differ = [f"{name} ({', '.join(each)})" for name, each in values.items() if len(each) > 1]
        told += [f"{workload}: {len(several)} environments that differ in {', '.join(differ)}"] if len(several) > 1 else []
    return told


def _scaled(found: Findings) -> list[Curve]:
    return [curve for curve in found.curves if curve.points[-1].devices > 1]


def _not_weak(found: Findings) -> list[str]:
    lengths = [len(curve.points) for curve in found.curves if curve.kind == "weak"]
    return found.refusals or ["nothing was measured on several numbers of devices"] * (max(lengths, default=2) == 1)


def _without_one(found: Findings) -> list[str]:
    """Curves that were not measured on fewer devices, though no record says that the problem does not fit there."""
    unfit: dict[tuple, int] = {}  # the fewest devices on which a problem was too large
    for record in found.records:
        for kind in KINDS if record.reason in TOO_MUCH else ():
            of = (kind, record.setting, _stem(record.case, kind))
            unfit[of] = min(unfit.get(of, record.case.devices), record.case.devices)
    curves = [(curve, (curve.kind, curve.environment, _stem(curve.timings[0].case, curve.kind))) for curve in _scaled(found)]
    return [
        curve.name
        for curve, of in curves
        if curve.baseline_devices > 1 and unfit.get(of, curve.baseline_devices) >= curve.baseline_devices
    ]


def _stem(case: Case, kind: str) -> Case:
    """What the cases of a curve have in common."""
    return replace(case, devices=1, mesh=None, points=case.points if kind == "strong" else case.points // case.devices)


def _problems(cases: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(f"{family_name(case)} {size_name(case)}" for case in cases))


def _unrivalled(found: Findings) -> list[str]:
    beside = {problem(timing.case) for timing in _cases(found) if timing.case.ad_mode.closed_form or timing.case.engine != "jax"}
    return _problems([row.first.case for row in found.fastest if problem(row.first.case) not in beside])


def _uncommitted(found: Findings) -> list[str]:
    around = {timing.environment: timing.records[0].environment for timing in _cases(found)}
    loose = {digest: facts.get("commit") for digest, facts in around.items() if facts.get("dirty") or not facts.get("commit")}
    return [f"{digest}: {f'{commit[:12]} with changes' if commit else 'no commit'}" for digest, commit in loose.items()]


_FRESH = "run again into a fresh folder, results=PATH"
RULES: tuple[tuple[str, str, str, Places], ...] = (  # what must not be, how bad it is, what mends it, where it is
    ("nothing measured", ERROR, "`scaling run study=...`",
     lambda found: [] if _cases(found) or found.forecasts else [found.name]),
    ("nothing measured, only planned", WARNING, "`scaling run study=...` on a machine of that kind",
     lambda found: [] if _cases(found) else [each.title for each in found.forecasts]),
    ("unverified answers", ERROR, f"{_FRESH}: every answer is checked first", _each(_unverified)),
    ("wrong answers", ERROR, "mend the program, or leave the case out of the study", _failed(wrong=True)),
    ("mixed environments", ERROR, f"{_FRESH}, the whole study at once", _mixed),
    ("weak scaling that is not weak", ERROR, "scaling=strong, or work that grows with the points alone", _not_weak),
    ("oversubscribed or unbound devices", ERROR, f"fewer devices, bind=true; {_FRESH}", _each(_oversubscribed)),
    ("no baseline: the same program on one device", ERROR, "add 1 to devices: 'devices=[1,2]'", _without_one),
    (f"too few samples: under {_LEAST}, or no interval", ERROR, f"sampling.least={_LEAST}; {_FRESH}", _each(_few)),
    ("failed cases", WARNING, "mend the cause, and the same command runs them again", _failed(wrong=False)),
    ("cases without a record", WARNING, "the same command runs them", lambda found: found.missing),
    ("damaged lines", WARNING, "the same command runs their cases again", lambda found: found.damaged),
    ("times under ten floors", WARNING, "larger sizes, or more points", _each(_floored)),
    (f"intervals wider than {format_percentage(_WIDE)} either side", WARNING,
     f"sampling.seconds=5, sampling.most=1000, replicates=5 or more; {_FRESH}", _each(_wide)),
    ("one process only", WARNING, "replicates=3 adds to what is there",
     _each(lambda timing: count_of(len(timing.seconds), "sample") if timing.replicates == 1 else "")),
    ("foreign load or throttling", WARNING, f"stop what else runs there; {_FRESH}", _each(_disturbed)),
    ("trend within a process", WARNING, f"sampling.warm_up=0.5, a machine at rest; {_FRESH}", _each(_drift)),
    ("autocorrelation: the interval within the process is too narrow", WARNING,
     "replicates=3, for an interval between processes", _each(_autocorrelated)),
    (f"padding of more than {format_percentage(_PADDED)}", WARNING, "points and seeds, or a mesh, that share out: see the table of meshes",
     _each(_padded)),
    ("chunk=auto: other blocks in other processes", WARNING, f"memory_limit=..., the same for all, or chunk and block; {_FRESH}",
     _each(_unsettled)),
    ("no baseline: a plain jit program on one device", WARNING, "add a grid with `api: jit` and `devices: 1`",
     lambda found: _problems([c.case for c in _scaled(found) if c.case.engine == "jax" and c.points[0].against_jit is None])),
    ("code that is not committed", WARNING, f"commit, then {_FRESH}", _uncommitted),
    ("skipped cases", NOTE, "smaller sizes, where memory was short",
     lambda found: [_skipped(r.reason) for r in found.records if r.status == "skipped"]),
    ("no measured ceiling beside", NOTE, "`ceilings: true` in the study",
     lambda found: _problems([s.timing.case for s in found.standings if s.roof is None and s.timing.case.engine == "jax"])),
    ("no derivative by hand, no other system beside", NOTE, "mode=analytic, or a peer with engine=...", _unrivalled),
)  # fmt: skip
