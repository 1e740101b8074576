"""Methods section of a compute-time proposal: sampling, statistics, correctness, software, time used."""

from collections import Counter
from collections.abc import Iterable, Sequence

from scaling.analysis.cases import base_method, method_of
from scaling.analysis.environments import environment_columns
from scaling.analysis.estimate import format_percentage
from scaling.analysis.findings import Findings
from scaling.analysis.lint import lint_findings, verdict
from scaling.core.formatting import count_of, format_number, list_first
from scaling.core.record import STAGES, Record

_STOP_REASONS = {
    "width": "when the 95 % interval of the median was as narrow as requested",
    "most": "at the largest number of samples allowed",
    "seconds": "at the time allowed",
}
_ENVIRONMENT_FACTS = (
    "platform", "device_kind", "driver", "hosts", "versions", "xla_flags", "governor", "kernel", "processes",
)  # fmt: skip
_MAX_METHODS = 8  # number of methods named in the text
_STATISTICS = (
    "A time is the median of the medians of its processes. Its 95 % interval is the rank interval of these "
    "medians for six or more processes, Student's interval of their logarithms for two to five, and the "
    "rank interval of the samples for one. A speed-up is the time on the baseline divided by the time of "
    "the same program on more devices; the baseline is one device, or the smallest number that was "
    "measured{}. The efficiency is the speed-up divided by the ideal speed-up, which is the number of "
    "devices divided by that of the baseline. Their 95 % intervals are Student's intervals of logarithms, "
    "by level (samples within processes within allocations), and paired where sampling alternated."
)
_MESH = (
    " The curve of a split over points and seeds shows the fastest mesh on each number of devices. It is "
    "chosen by the same times, so that it is slightly better than a new measurement of these meshes would "
    "be."
)
_WEAK = (
    " In weak scaling the number of points grows with the devices; the counted operations and the "
    "compulsory bytes (inputs read once, the result written once) of each device are constant within 1 %, "
    "and the speed-up is scaled by the work."
)
_PREDICTED = (
    "Times for {} are predicted and not measured: each program was compiled for that hardware and not run. "
    "Each kernel of the optimized program takes the longer of the times for its bytes and for its "
    "operations at the rates of the hardware. Kernels do not overlap; communication and waiting for the "
    "slowest device are added. A predicted time is the median over random machines, and its interval "
    "contains 95 % of them: they differ in the fraction of the rates that a program reaches, in the "
    "variation between devices, and in stragglers. For more devices than a program can be compiled for, "
    "communication and waiting are computed by formula from the program of a smaller machine."
)


def describe_methods(findings: Findings) -> list[str]:
    """Return the methods section of a compute-time proposal as a list of paragraphs.

    The paragraphs describe the cases, the samples, the confidence intervals, the check of the results and the
    predictions.
    """
    ok = [record for record in findings.records if record.status == "ok" and record.case.kind == "case"]
    paragraphs = ["Nothing has been measured."]
    if ok:
        several = [curve for curve in findings.curves if len(curve.points) > 1]
        others = ", ".join(map(str, sorted({curve.baseline_devices for curve in several} - {1})))
        statistics = _STATISTICS.format(f" (here also {others} devices)" if others else "")
        statistics += _MESH if findings.mesh_comparisons else ""
        statistics += _WEAK if any(curve.kind == "weak" for curve in several) else ""
        paragraphs = [_describe_cases(ok), _describe_samples(ok), statistics, _describe_check(ok)]
    if any(record.predicted for forecast in findings.forecasts for record in forecast.records):
        paragraphs.append(_PREDICTED.format(", ".join(forecast.title for forecast in findings.forecasts)))
    return paragraphs


def _describe_cases(ok: Sequence[Record]) -> str:
    workloads = ", ".join(dict.fromkeys(record.case.workload for record in ok))
    methods = list(dict.fromkeys(base_method(record.case).name for record in ok))
    settings = {method_of(record.case).memory_setting for record in ok}
    kinds = dict.fromkeys(f"{record.case.dtype} at {record.case.precision} precision" for record in ok)
    text = (
        f"{count_of(len({record.key for record in ok}), 'case')} of {workloads}, measured on "
        f"{_format_range([r.case.devices for r in ok], 'device')}, in {', '.join(kinds)}. "
        f"Methods: {list_first(methods, _MAX_METHODS)}."
    )
    if len(settings) > 1:
        text += f" {len(settings)} memory settings were measured."
    return text + _describe_devices(ok)


def _describe_devices(ok: Sequence[Record]) -> str:
    on_cpu, text = [record for record in ok if record.environment.get("platform") == "cpu"], ""
    bound = [record for record in on_cpu if record.environment.get("bound")]
    if on_cpu:
        which = "" if len(bound) == len(on_cpu) else f" in {len(bound)} of {count_of(len(on_cpu), 'record')}"
        text = f" A CPU device is a core that the process was bound to before it started JAX{which}."
    if shared := sum(not record.honest for record in ok):
        text += (
            f" {count_of(shared, 'record')} without a core for each device are not part of any scaling curve "
            "or table."
        )
    return text


def _describe_samples(ok: Sequence[Record]) -> str:
    processes = Counter((record.key, record.setting, record.honest) for record in ok)
    stops = Counter(_STOP_REASONS.get(str(r.stop_reason), str(r.stop_reason)) for r in ok if r.stop_reason)
    batch = max((record.calls_per_sample or 1 for record in ok), default=1)
    text = "A sample is the time of one call until all outputs are ready, in the slowest process"
    text += f"; a sample of short calls is the mean of up to {batch} of them." if batch > 1 else "."
    text += (
        " After tracing, compiling, a first call and a warm-up, which are recorded separately, each process "
        f"took {_format_range([len(r.seconds) for r in ok], 'sample')}, {sum(len(r.seconds) for r in ok)} in "
        "total; all of them are used. "
        f"Each case has {_format_range(list(processes.values()), 'process')} in each environment."
    )
    stopped = "; ".join(f"{why} ({count} times)" for why, count in stops.most_common())
    return text + (f" Sampling ended {stopped}." if stopped else "")


def _describe_check(ok: Sequence[Record]) -> str:
    known = [(r.error, r.tolerance) for r in ok if r.error is not None and r.tolerance]
    if not known:
        return "No record contains the error of its result."
    worst = max(error / tolerance for error, tolerance in known)
    ends = sorted(tolerance for _, tolerance in known)
    allowed = " to ".join(dict.fromkeys(format_number(edge) for edge in (ends[0], ends[-1])))
    without = len(ok) - len(known)
    return (
        "Every result was checked before its time was kept, at every point, against a reference in float64: "
        f"the largest error is {format_percentage(worst)} of its tolerance ({allowed}, relative to the "
        "largest value)."
    ) + (f" {count_of(without, 'record')} without a recorded error." if without else "")


def _format_range(values: Sequence[int], noun: str) -> str:
    low, high = min(values), max(values)
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{low} {noun if low == 1 else plural}" if low == high else f"{low} to {high} {plural}"


def describe_compute_time(records: Sequence[Record]) -> str:
    """Return a paragraph that states how many device-hours (on CPUs, core-hours) a study has used.

    Args:
        records: All records of the study, including failed and repeated attempts.
    """
    hours, unknown = Counter[str](), 0
    for record in records:
        seconds = _wall_seconds(record)
        unknown += not seconds
        unit = "core-hours" if record.environment.get("platform") == "cpu" else "device-hours"
        hours[unit] += _count_devices(record) * seconds / 3600  # type: ignore[assignment]
    used = " and ".join(f"{format_number(value)} {unit}" for unit, value in sorted(hours.items()) if value)
    nothing = f"; {unknown} of them ended without a recorded time and are not counted" if unknown else ""
    return (
        f"The records of this study add up to {used or 'no time'}: devices times the wall-clock seconds of "
        f"tracing, compiling, first calls, checks and sampling, over {count_of(len(records), 'attempt')}, "
        f"including failed and repeated ones{nothing}. The start of processes, waiting within an allocation "
        "or in a queue, and attempts without a record are not counted."
    )


def _count_devices(record: Record) -> int:
    cores = record.environment.get("cores")
    on_cpu = record.environment.get("platform") == "cpu"
    return len(cores) if on_cpu and isinstance(cores, list) and cores else record.case.devices


def _wall_seconds(record: Record) -> float:
    further = [stages.get(name) for stages in record.compilations for name in STAGES]
    stages = [getattr(record, name) for name in STAGES]
    if record.sampling_seconds is None:
        stages.append(sum(record.seconds) * (record.calls_per_sample or 1))
    return sum(value for value in (*stages, *further) if isinstance(value, int | float))


def describe_provenance(findings: Findings) -> list[str]:
    """Return sentences on the environments, the command that repeats the study, and what `lint` found."""
    return [
        *(_describe_environment(findings, digest) for digest in findings.environments),
        f"Study: {findings.name}; {count_of(len(findings.records), 'record')}. Command to repeat it: "
        f"scaling run study={findings.name}, with the overrides of the original command, which the records "
        "do not contain; for the proposal: scaling report DIR --proposal.",
        f"Result of scaling lint: {verdict(lint_findings(findings))}.",
    ]


def _describe_environment(findings: Findings, digest: str) -> str:
    records = [record for record in findings.records if record.setting == digest]
    facts: dict[str, dict[str, None]] = {}
    for record in records:
        known = {name: record.environment.get(name) for name in _ENVIRONMENT_FACTS}
        for name, value in environment_columns(known):
            facts.setdefault(name, {}).update({value: None} if value else {})
    words = [f"{name.replace('_', ' ')} {' or '.join(values)}" for name, values in facts.items() if values]
    started = sorted(record.started_at for record in records if record.started_at)
    dates = [f"measured from {started[0]} to {started[-1]}"] if started else []
    text = "; ".join([*words, _describe_commits(records), *dates, count_of(len(records), "record")])
    return f"Environment {digest}: {text}."


def _describe_commits(records: Iterable[Record]) -> str:
    commits: dict[str, None] = {}
    for facts in (record.environment for record in records):
        changes = " with changes" if facts.get("dirty") else ""
        known = f"commit {facts['commit']}{changes}" if facts.get("commit") else ""
        commits[known or f"no commit, source {facts.get('source')}"] = None
    return " or ".join(commits)
