"""Write the methods section of a compute-time proposal: cases, sampling, statistics and correctness."""

from collections import Counter
from collections.abc import Iterable, Sequence

from scaling.analysis.cases import method_of, without_memory_setting
from scaling.analysis.estimate import format_percentage
from scaling.analysis.findings import Findings
from scaling.core.formatting import count_of, format_number, list_first
from scaling.core.record import Record

_STOP_REASONS = {
    "width": "when the 95 % interval of the median was as narrow as requested",
    "most": "at the largest number of samples allowed",
    "seconds": "at the time allowed",
}
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
    """Return the paragraphs of the methods section of a proposal.

    They describe the measured cases, the samples, the confidence intervals, the check of the results and the
    predictions.
    """
    measured = [r for r in findings.records if r.status == "ok" and r.case.kind == "case"]
    paragraphs = ["Nothing has been measured."]
    if measured:
        several = [curve for curve in findings.curves if len(curve.points) > 1]
        others = ", ".join(map(str, sorted({curve.baseline_devices for curve in several} - {1})))
        statistics = _STATISTICS.format(f" (here also {others} devices)" if others else "")
        statistics += _MESH if findings.comparisons["mesh"] else ""
        statistics += _WEAK if any(curve.kind == "weak" for curve in several) else ""
        samples, check = _describe_samples(measured), _describe_check(measured)
        paragraphs = [_describe_cases(measured), samples, statistics, check]
    if any(record.predicted for forecast in findings.forecasts for record in forecast.records):
        paragraphs.append(_PREDICTED.format(", ".join(forecast.title for forecast in findings.forecasts)))
    return paragraphs


def _describe_cases(records: Sequence[Record]) -> str:
    workloads = ", ".join(dict.fromkeys(record.case.workload for record in records))
    methods = list(dict.fromkeys(method_of(without_memory_setting(record.case)).name for record in records))
    settings = {method_of(record.case).memory_setting for record in records}
    kinds = dict.fromkeys(f"{record.case.dtype} at {record.case.precision} precision" for record in records)
    sentences = [
        f"{count_of(len({record.key for record in records}), 'case')} of {workloads}, measured on "
        f"{_format_range((r.case.devices for r in records), 'device')}, in {', '.join(kinds)}.",
        f"Methods: {list_first(methods, _MAX_METHODS)}.",
    ]
    if len(settings) > 1:
        sentences.append(f"{len(settings)} memory settings were measured.")
    on_cpu = [record for record in records if record.environment.get("platform") == "cpu"]
    if bound := sum(bool(record.environment.get("bound")) for record in on_cpu):
        where = "" if bound == len(on_cpu) else f" in {bound} of {count_of(len(on_cpu), 'record')}"
        text = f"A CPU device is a core that the process was bound to before it started JAX{where}."
        sentences.append(text)
    if shared := sum(not record.honest for record in records):
        sentences.append(
            f"{count_of(shared, 'record')} without a core for each device are not part of any scaling curve "
            "or table."
        )
    return " ".join(sentences)


def _describe_samples(records: Sequence[Record]) -> str:
    processes = Counter((record.key, record.setting, record.honest) for record in records)
    stops = Counter(_STOP_REASONS.get(str(r.stop_reason), "for an unrecorded reason") for r in records)
    batch = max(record.calls_per_sample or 1 for record in records)
    ended = "; ".join(f"{why} ({count} times)" for why, count in stops.most_common())
    samples = [len(record.seconds) for record in records]
    return (
        "A sample is the time of one call until all outputs are ready, in the slowest process; of short "
        f"calls it is the mean of up to {batch}. After tracing, compiling, a first call and a warm-up, which "
        f"are recorded separately, each process took {_format_range(samples, 'sample')}, "
        f"{sum(samples)} in total; all of them are used. Each case has "
        f"{_format_range(processes.values(), 'process')} in each environment. Sampling ended {ended}."
    )


def _describe_check(records: Sequence[Record]) -> str:
    checked = [(r.error, r.tolerance) for r in records if r.error is not None and r.tolerance]
    if not checked:
        return "No record contains the error of its result."
    worst = max(error / tolerance for error, tolerance in checked)
    tolerances = sorted(tolerance for _, tolerance in checked)
    allowed = " to ".join(dict.fromkeys(map(format_number, (tolerances[0], tolerances[-1]))))
    unchecked = len(records) - len(checked)
    without = f" {count_of(unchecked, 'record')} without a recorded error." if unchecked else ""
    return (
        "Every result was checked before its time was kept, at every point, against a reference in float64: "
        f"the largest error is {format_percentage(worst)} of its tolerance ({allowed}, relative to the "
        f"largest value).{without}"
    )


def _format_range(values: Iterable[int], noun: str) -> str:
    """Return the smallest and the largest value with a noun, such as '1 to 8 devices'."""
    distinct = sorted(set(values))
    bounds = " to ".join(map(str, dict.fromkeys((distinct[0], distinct[-1]))))
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{bounds} {noun if distinct == [1] else plural}"
