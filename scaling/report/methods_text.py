"""Methods text: how a study was measured and with what, and the compute time it took, in sentences made
from its records.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from scaling.analysis.findings import Findings
from scaling.analysis.lint import lint_findings, verdict
from scaling.analysis.methods import method_of
from scaling.analysis.table import environment_columns
from scaling.core.formatting import count_of, format_number, format_percentage
from scaling.core.record import STAGES, Record

_STOP_REASONS = {
    "width": "when the 95 % interval of the median was as narrow as asked for",
    "most": "at the largest number of samples allowed",
    "seconds": "at the time allowed",
}
_ENVIRONMENT_FACTS = (
    "platform",
    "device_kind",
    "driver",
    "hosts",
    "versions",
    "xla_flags",
    "governor",
    "kernel",
    "processes",
)
_MOST_METHODS = 8  # named in the text


def describe_methods(findings: Findings) -> list[str]:
    """Return paragraphs on what was measured, samples and processes, intervals, the check, and
    predictions.
    """
    ok = [record for record in findings.records if record.status == "ok" and record.case.kind == "case"]
    measured = (
        (_describe_cases(ok), _describe_samples(ok), _describe_statistics(findings, ok), _describe_check(ok))
        if ok
        else (["Nothing has been measured."],)
    )
    return [" ".join(part) for part in (*measured, _describe_predictions(findings)) if part]


def _describe_predictions(findings: Findings) -> list[str]:
    """Return how the times of plans are predicted."""
    if not any(record.predicted for forecast in findings.forecasts for record in forecast.records):
        return []
    titles = ", ".join(forecast.title for forecast in findings.forecasts)
    return [
        f"Times for {titles} are predicted and not measured: each program was compiled for that hardware "
        "without running, each kernel of the optimised program takes the longer of its bytes and its "
        "operations at that hardware's rates, kernels follow one another, and what is sent, and waiting "
        "for the slowest device, is added.",
        "A predicted time is the median, and its interval the middle 95 %, of draws of what share of its "
        "rates such a machine reaches, of how much devices differ, and of stragglers; for more devices "
        "than a program can be compiled for, communication and waiting follow by formula from the program "
        "of a smaller machine.",
    ]


def _describe_cases(ok: Sequence[Record]) -> list[str]:
    workloads = ", ".join(dict.fromkeys(record.case.workload for record in ok))
    methods = list(dict.fromkeys(method_of(record.case).without_memory_setting.name for record in ok))
    settings = {method_of(record.case).memory_setting for record in ok}
    named = ", ".join(methods[:_MOST_METHODS]) + (
        f" and {len(methods) - _MOST_METHODS} more" if len(methods) > _MOST_METHODS else ""
    )
    kinds = dict.fromkeys(f"{record.case.dtype} at {record.case.precision} precision" for record in ok)
    cases = count_of(len({record.key for record in ok}), "case")
    return [
        (
            f"{cases} of {workloads}, measured on {_format_range([r.case.devices for r in ok], 'device')}, "
            f"in {', '.join(kinds)}."
        ),
        f"Methods: {named}.",
        *([f"{len(settings)} memory settings were measured."] if len(settings) > 1 else []),
        *_describe_devices(ok),
    ]


def _describe_devices(ok: Sequence[Record]) -> list[str]:
    """Return what a device was on a CPU, and whether devices were oversubscribed."""
    on_cpu = [record for record in ok if record.environment.get("platform") == "cpu"]
    bound = [record for record in on_cpu if record.environment.get("bound")]
    sentences = []
    if on_cpu:
        which = "" if len(bound) == len(on_cpu) else f" in {len(bound)} of {count_of(len(on_cpu), 'record')}"
        sentences.append(
            f"A CPU device is a core that the process was bound to before it started JAX{which}."
        )
    if shared := sum(not record.honest for record in ok):
        sentences.append(
            f"{count_of(shared, 'record')} without a core for each device are in no figure and no table of "
            "scaling here."
        )
    return sentences


def _describe_samples(ok: Sequence[Record]) -> list[str]:
    processes = Counter((record.key, record.setting, record.honest) for record in ok)
    stops = Counter(
        _STOP_REASONS.get(str(record.stop_reason), str(record.stop_reason))
        for record in ok
        if record.stop_reason
    )
    stopped = "; ".join(f"{why} ({count} times)" for why, count in stops.most_common())
    batches = [record.calls_per_sample for record in ok if record.calls_per_sample]
    batch = (
        f"; a sample of short calls is of up to {max(batches)} of them" if max(batches, default=1) > 1 else ""
    )
    count = sum(len(record.seconds) for record in ok)
    return [
        f"A sample is the time of one call, every output waited for, the slowest process counting{batch}.",
        "After tracing, compiling, a first call and a warm-up, which are kept apart, each process took "
        f"{_format_range([len(record.seconds) for record in ok], 'sample')}, {count} in all; none is left "
        "out.",
        f"Each case has {_format_range(list(processes.values()), 'process')} in each environment.",
        *([f"Sampling ended {stopped}."] if stopped else []),
    ]


def _describe_statistics(findings: Findings, ok: Sequence[Record]) -> list[str]:
    sentences = [
        "A time is the median of the medians of its processes. Its 95 % interval is the rank interval of "
        "those medians where there are six or more, Student's on their logarithms where there are two to "
        "five, and that of the samples within it where there is one.",
        "A speed-up is the time of the same program on its baseline over that on more devices; the "
        f"baseline is one device, or the smallest number that was measured{_list_baselines(findings)}. An "
        "efficiency is the speed-up over the ideal one, the number of devices over that of the baseline. "
        "Their 95 % intervals are Student's on logarithms, by level (samples within processes within "
        "allocations), in pairs where turns of sampling alternated.",
    ]
    if findings.mesh_comparisons:
        sentences.append(
            "The curve of a split over points and seeds is that of the fastest mesh on each number of "
            "devices, chosen by the same times, so that it is a little better than another measurement of "
            "these meshes would be."
        )
    if any(curve.kind == "weak" and len(curve.points) > 1 for curve in findings.curves):
        sentences.append(
            "Weak scaling grows the points with the devices; it is called so only where counted operations "
            "and compulsory bytes (inputs read once, the result written once) for each device stay within "
            "1 %, and its speed-up is scaled by the work."
        )
    return sentences


def _list_baselines(findings: Findings) -> str:
    """Return the baselines other than one device in words."""
    others = sorted({curve.baseline_devices for curve in findings.curves if len(curve.points) > 1} - {1})
    return f" (here also {', '.join(map(str, others))} devices)" if others else ""


def _describe_check(ok: Sequence[Record]) -> list[str]:
    known = [(r.error, r.tolerance) for r in ok if r.error is not None and r.tolerance]
    if not known:
        return ["No record tells the error of its answer."]
    worst, tolerances = (
        max(error / tolerance for error, tolerance in known),
        [tolerance for _, tolerance in known],
    )
    allowed = " to ".join(dict.fromkeys(format_number(edge) for edge in (min(tolerances), max(tolerances))))
    sentences = [
        "Every answer was checked before its time was kept, at every point, against a reference in "
        f"float64: the largest error is {format_percentage(worst)} of its tolerance ({allowed}, relative to "
        "the largest value)."
    ]
    without = len(ok) - len(known)
    return sentences + ([f"{count_of(without, 'record')} tell no error."] if without else [])


def _format_range(values: Iterable[int], noun: str) -> str:
    """Return a range such as '1 process' or '7 to 200 samples'."""
    low, high = min(values), max(values)
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{low} {noun if low == 1 else plural}" if low == high else f"{low} to {high} {plural}"


def describe_compute_time(records: Sequence[Record]) -> str:
    """Return the device-hours of all attempts of a study, and what is not counted."""
    hours: dict[str, float] = {}
    unknown = 0
    for record in records:
        seconds = _wall_seconds(record)
        unknown += not seconds
        unit = "core-hours" if record.environment.get("platform") == "cpu" else "device-hours"
        hours[unit] = hours.get(unit, 0.0) + _count_devices(record) * seconds / 3600
    sentences = (
        " and ".join(f"{format_number(value)} {unit}" for unit, value in sorted(hours.items()) if value)
        or "no time at all"
    )
    nothing = f", {unknown} of which ended without a time on record and count nothing" if unknown else ""
    return (
        f"The records of this study hold {sentences}: devices times the wall-clock seconds of tracing, "
        f"compiling, first calls, checks and sampling, over {count_of(len(records), 'attempt')}, failed and "
        f"repeated ones too{nothing}. Starting processes, waiting for others within an allocation or in a "
        "queue, and whatever left no record are not counted."
    )


def _count_devices(record: Record) -> int:
    """Return how many devices a record occupied; on a CPU the cores."""
    cores = record.environment.get("cores")
    return (
        len(cores)
        if record.environment.get("platform") == "cpu" and isinstance(cores, list) and cores
        else record.case.devices
    )


def _wall_seconds(record: Record) -> float:
    """Return the wall-clock seconds from tracing to the last sample, as far as recorded."""
    further = [stages.get(name) for stages in record.compilations for name in STAGES]
    stages = [getattr(record, name) for name in STAGES]
    if record.sampling_seconds is None:
        stages.append(sum(record.seconds) * (record.calls_per_sample or 1))
    return sum(value for value in (*stages, *further) if isinstance(value, int | float))


def describe_provenance(findings: Findings) -> list[str]:
    """Return where the numbers come from: the environments, the command, and the result of lint."""
    sentences = []
    for digest in findings.environments:
        records = [record for record in findings.records if record.setting == digest]
        facts: dict[str, dict[str, None]] = {}
        for record in records:
            for name, value in environment_columns(
                {name: record.environment.get(name) for name in _ENVIRONMENT_FACTS}
            ):
                facts.setdefault(name, {}).update({value: None} if value else {})
        words = [
            f"{name.replace('_', ' ')} {' or '.join(values)}" for name, values in facts.items() if values
        ]
        started = sorted(record.started_at for record in records if record.started_at)
        dates = [f"measured from {started[0]} to {started[-1]}"] if started else []
        text = "; ".join([*words, _describe_commits(records), *dates, count_of(len(records), "record")])
        sentences.append(f"Environment {digest}: {text}.")
    return [
        *sentences,
        f"Study: {findings.name}; {count_of(len(findings.records), 'record')}, to be made again with "
        "scaling run study=NAME and the words that it was given, which no record keeps.",
        f"Result of scaling lint: {verdict(lint_findings(findings))}.",
    ]


def _describe_commits(records: Iterable[Record]) -> str:
    """Return the code that ran, as far as it is known."""
    commits: dict[str, None] = {}
    for facts in (record.environment for record in records):
        changes = " with changes" if facts.get("dirty") else ""
        commits[
            f"commit {facts['commit']}{changes}"
            if facts.get("commit")
            else f"no commit, source {facts.get('source')}"
        ] = None
    return " or ".join(commits)
