"""Content of W&B runs: one per workload, AD method and environment, and a summary run for the whole study.

Floats are rounded to six digits, so that W&B returns them unchanged. This module does not import wandb.
"""

import hashlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scaling.analysis.cases import Method, describe_call, family_name, group_by, method_of, size_name, stem
from scaling.analysis.crossover import FastestMethod
from scaling.analysis.curves import Curve
from scaling.analysis.estimate import Estimate
from scaling.analysis.findings import Findings
from scaling.analysis.growth import SizeSweep
from scaling.core.case import Case, label, to_dict
from scaling.core.formatting import count_of
from scaling.core.record import Record, to_line
from scaling.wandb.tracked_run import Fields, Line, Plot, TrackedRun, ideal_metric

_NO_METHOD = Method("jacfwd", "vmap")._asdict() | {"mesh": None}


def make_plots(found: Findings) -> list[Plot]:
    """Return the line plots of a study, each with its own metric name, those with the most curves first."""
    used: Counter[str] = Counter()
    plots = []
    for plot in (*_plots_over_devices(found.curves), *_plots_against_size(found.size_sweeps)):
        metric = f"{plot.metric}/{re.sub('[^A-Za-z0-9]+', '_', plot.title).strip('_')}"
        used[metric] += 1
        plots.append(replace(plot, metric=metric + (f"_{used[metric]}" if used[metric] > 1 else "")))
    return sorted(plots, key=lambda plot: (-len(plot.lines), -plot.width))


def _plots_over_devices(curves: Iterable[Curve]) -> Iterator[Plot]:
    def plot_key(curve: Curve) -> tuple[str, Case]:
        return curve.kind, replace(stem(curve.case, curve.kind), **_NO_METHOD)

    for (kind, _), group in group_by(curves, plot_key).items():
        case = group[0].case
        title = f"{family_name(case)} {group[0].size}, {describe_call(case)}"
        times, speedups = dict[Line, dict[int, Estimate]](), dict[Line, dict[int, Estimate]]()
        for curve in group:
            line, points = Line(curve.environment, case.workload, method_of(curve.case)), curve.points
            times[line] = {p.devices: Estimate(p.seconds, p.low, p.high) for p in points}
            speedups[line] = {p.devices: p.speedup for p in points}
        baselines = tuple(sorted({curve.baseline_devices for curve in group}))
        yield Plot(kind, "time", title, "devices", "devices", "seconds", times)
        over = f"speed-up over {' or '.join(count_of(base, 'device') for base in baselines)}"
        over = f"scaled {over}" if kind == "weak" else over
        yield Plot(kind, "speedup", title, "devices", "devices", over, speedups, baselines)


def _plots_against_size(sweeps: Iterable[SizeSweep]) -> Iterator[Plot]:
    def plot_key(sweep: SizeSweep) -> tuple[Case, str, str, bool]:
        case = replace(sweep.case, **_NO_METHOD, points=1, sizes={})
        return case, sweep.swept, sweep.held, sweep.honest

    for (case, swept, held, honest), group in group_by(sweeps, plot_key).items():
        words = [f"{family_name(case)} {held}".strip(), count_of(case.devices, "device"), describe_call(case)]
        title = ", ".join([*words, *([] if honest else ["oversubscribed"])])
        lines = {
            Line(sweep.environment, case.workload, method): {
                size: Estimate(timing.median, *(timing.interval or (None, None))) for size, timing in row
            }
            for sweep in group
            for method, row in sweep.lines.items()
        }
        yield Plot("size", "time_by_size", title, "size", swept, "seconds", lines)


METHOD, STUDY = "method", "study"  # job types of W&B runs
_DIGITS = 6  # significant digits; the last bits may differ between machines
_ENVIRONMENT = ("platform", "device_kind", "xla_flags", "commit", "dirty")


def study_runs(
    folder: Path, found: Findings, plots: Sequence[Plot], records: Sequence[Record]
) -> list[TrackedRun]:
    """Return the W&B runs to publish for a results folder. The last run is a summary of the study.

    Raise `OSError` if the image file of a figure cannot be read.
    """
    groups = group_by(
        (record for record in found.records if record.case.kind == "case"),
        lambda record: Line(record.setting, record.case.workload, method_of(record.case)),
    )
    environments = Counter(workload for _, workload in {line[:2] for line in groups})
    methods = (
        _method_run(found.name, line, group, plots, environments[line.workload] > 1)
        for line, group in groups.items()
    )
    return [*methods, _study_run(folder, found, plots, records)]


def _make_run(
    series: str, name: str, study: str, kind: str, records: Sequence[Record], tags: Iterable[str],
    config: Fields, rows: Mapping[Any, Fields], **media: Any,
) -> TrackedRun:  # fmt: skip
    """Return the content of a W&B run for some records.

    The config contains the case and environment fields that are equal in all records. The summary contains
    the number of records with each status.

    Args:
        series: The identifier of the run. It does not depend on the results.
        study: The name of the study, used as the group of the run.
        kind: The job type of the run.
        config: Further fields of the config.
        rows: The rows of the history, as a dict from sort key to row.
        **media: The fields `tables`, `images` and `lines` of the run.
    """
    counts = Counter(record.status for record in records)
    config = _common_fields([_filter_fields(record) for record in records]) | config
    config |= {"kind": kind, "study": study, "study_digest": digest_of(study), "series": series}
    config, history = _encode_fields(config), [_encode_fields(rows[key]) for key in sorted(rows)]
    summary = {"cases": len(records), **counts}
    labels = tuple(tag[:64] for tag in (kind, *tags, *(("failures",) if counts["failed"] else ())))
    content = (name, labels, config, history, summary, media)
    config["digest"] = digest = digest_of(content)
    return TrackedRun(
        digest, series, _encode(name), _encode(study), kind, labels, config, history, summary, **media
    )


def _method_run(
    study: str, line: Line, records: Sequence[Record], plots: Iterable[Plot], several: bool
) -> TrackedRun:
    name = f"{line.workload} {line.method.name}" + (f" [environment {line.environment}]" if several else "")
    rows: defaultdict[tuple[str, int], Fields] = defaultdict(dict)
    for plot in plots:
        for x, estimate in plot.lines.get(line, {}).items():
            ends = zip(("", "_low", "_high"), estimate, strict=True)
            rows[plot.x, x] |= {plot.x: x} | {plot.metric + end: value for end, value in ends}
    config = {"method": line.method.name, "environment": line.environment}
    tags = (line.workload, line.method.mode, *sorted({record.case.api for record in records}))
    return _make_run(digest_of([study, line]), name, study, METHOD, records, tags, config, rows)


def _filter_fields(record: Record) -> Fields:
    case, environment = to_dict(record.case), record.environment
    sizes = {f"size_{name}": size for name, size in case.pop("sizes").items()}
    where = {name: environment.get(name) for name in _ENVIRONMENT}
    where |= {f"version_{name}": version for name, version in (environment.get("versions") or {}).items()}
    return case | sizes | where | {"host": ", ".join(map(str, environment.get("hosts") or ()))}


def _common_fields(rows: Sequence[Fields]) -> Fields:
    return {name: value for name, value in rows[0].items() if all(row.get(name) == value for row in rows)}


def _study_run(folder: Path, found: Findings, plots: Iterable[Plot], records: Sequence[Record]) -> TrackedRun:
    pictures = {path: path.read_bytes() for path in sorted(folder.glob("report/*.png"))}
    complete = {path: content for path, content in pictures.items() if b"IEND" in content[-12:]}
    fields, failed = ("replicate", "status", "reason", "text", "setting", "key"), ("failed", "skipped")
    failures = [
        {"case": label(record.case)} | {name: getattr(record, name) for name in fields}
        for record in found.records
        if record.status in failed
    ]
    tables = {"fastest": [_fastest_row(fastest) for fastest in found.fastest], "failures": failures}
    rows: defaultdict[int, Fields] = defaultdict(dict)
    for plot in plots:
        for base in plot.baselines:
            for devices in {x for line in plot.lines.values() for x in line if x >= base}:
                rows[devices] |= {"devices": devices, ideal_metric(base): devices / base}
    digests = [hashlib.sha256(content).hexdigest() for content in complete.values()]
    config = {"environments": " ".join(found.environments), "figures": digest_of(digests)}
    return _make_run(
        digest_of(found.name), found.name, found.name, STUDY, found.records, (), config, rows,
        tables={
            name: ([*rows[0]], [[_encode(value) for value in row.values()] for row in rows])
            for name, rows in tables.items() if rows
        }, lines=tuple(map(to_line, records)),
        images={f"figures/{path.stem}": str(path.relative_to(folder)) for path in complete},
    )  # fmt: skip


def _fastest_row(each: FastestMethod) -> Fields:
    case, (low, high) = each.first.case, each.first.interval or (None, None)
    ratio = each.ratio or (None, None, None)
    return {
        "problem": family_name(case), "size": size_name(case), "devices": case.devices,
        "fastest": method_of(case).name, "call": describe_call(case), "seconds": each.first.median,
        "low": low, "high": high, "next": method_of(each.second.case).name if each.second else None,
        "next takes": ratio[0], "next takes low": ratio[1], "next takes high": ratio[2],
        "sure": each.sure, "over by hand": each.by_hand, "honest": each.first.honest,
        "environment": each.first.environment,
    }  # fmt: skip


def _encode_fields(fields: Fields) -> Fields:
    plain = {_encode(str(name)): _encode(value) for name, value in fields.items()}
    return {name: value for name, value in plain.items() if value is not None}


def _encode(value: Any) -> Any:
    """Return a value in the form that W&B stores.

    Floats are rounded to six digits, NaN and infinity become None, and lists and dicts become JSON text.
    Invalid Unicode in strings becomes U+FFFD.
    """
    if isinstance(value, str):  # a surrogate without its partner becomes U+FFFD
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else json.dumps(value, sort_keys=True)


def digest_of(value: Any) -> str:
    """Return a hash of a JSON-serializable value as 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
