"""Convert records, curves and size sweeps to the content of W&B runs (`study_runs`) and plots (`make_plots`).

Floats are rounded to six significant digits, because the results of machines differ in the last bits. wandb
is not imported.
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

from scaling.analysis.cases import Method, method_of
from scaling.analysis.curves import Curve
from scaling.analysis.findings import Findings
from scaling.analysis.size_series import SizeSweep
from scaling.core.case import to_dict
from scaling.core.formatting import format_count
from scaling.core.grouping import group_by
from scaling.core.record import Record
from scaling.results.store import newest_by_replicate
from scaling.wandb.job import Fields, Line, Plot, TrackedRun, ideal_metric

# Fixed values for the fields that identify a method or a mesh, so that all cases of one plot become equal.
_NO_METHOD = Method("jacfwd", "vmap")._asdict() | {"mesh": None}
_MAX_NAME = 128  # characters of the name and the group of a run; the server of W&B rejects longer ones
_ENVIRONMENT_FIELDS = ("platform", "device_kind", "xla_flags", "commit", "dirty")


def make_plots(findings: Findings) -> list[Plot]:
    """Return the W&B line plots of a study, those with the most lines first. Each has its own W&B metric."""
    metric_counts, plots = Counter[str](), []
    for plot in (*_plots_over_devices(findings.curves), *_plots_against_size(findings.size_sweeps)):
        metric = f"{plot.metric}/{re.sub('[^A-Za-z0-9]+', '_', plot.title).strip('_')}"
        metric_counts[metric] += 1
        suffix = f"_{metric_counts[metric]}" if metric_counts[metric] > 1 else ""
        plots.append(replace(plot, metric=metric + suffix))
    return sorted(plots, key=lambda plot: (-len(plot.lines), -plot.x_count))


def _plots_over_devices(curves: Iterable[Curve]) -> Iterator[Plot]:
    groups = group_by(curves, lambda c: (c.kind, replace(c.program[1], **_NO_METHOD)))
    for (kind, _), plot_curves in groups.items():
        title = f"{plot_curves[0].family} {plot_curves[0].size}, {plot_curves[0].call}"
        by_line = {Line(c.environment, c.case.workload, c.method): c.points for c in plot_curves}
        times = {line: {p.devices: p.timing.estimate for p in points} for line, points in by_line.items()}
        yield Plot(kind, "time", title, "devices", "devices", "seconds", times)
        speedups = {line: {p.devices: p.speedup for p in points} for line, points in by_line.items()}
        baselines = tuple(sorted({curve.baseline_devices for curve in plot_curves}))
        bases = " or ".join(format_count(base, "device") for base in baselines)
        y_title = f"{'scaled ' if kind == 'weak' else ''}speed-up over {bases}"
        yield Plot(kind, "speedup", title, "devices", "devices", y_title, speedups, baselines)


def _plots_against_size(sweeps: Iterable[SizeSweep]) -> Iterator[Plot]:
    groups = group_by(
        sweeps,
        lambda s: (replace(s.case, **_NO_METHOD, points=1, sizes={}), s.swept, s.fixed_sizes, s.honest),
    )
    for (case, swept, fixed_sizes, honest), group in groups.items():
        title_parts = (f"{group[0].family} {fixed_sizes}".strip(), group[0].devices_text, group[0].call)
        title = ", ".join(title_parts) + ("" if honest else ", unbound or oversubscribed")
        lines = {
            Line(sweep.environment, case.workload, method): {size: timing.estimate for size, timing in row}
            for sweep in group
            for method, row in sweep.lines.items()
        }
        yield Plot("size", "time_by_size", title, "size", swept, "seconds", lines)


def study_runs(findings: Findings, plots: Sequence[Plot], folder: Path) -> list[TrackedRun]:
    """Return a W&B run for each environment, workload and AD method, and one for the whole study.

    The name of `folder` distinguishes several results folders of one study.
    """
    records_by_line = group_by(
        (record for record in findings.records if record.case.kind == "case"),
        lambda record: Line(record.setting, record.case.workload, method_of(record.case)),
    )
    environments = Counter(workload for _, workload in {line[:2] for line in records_by_line})
    study, name = findings.name, folder.resolve().name
    identity = study if name == study else [study, name]
    method_runs = [
        _method_run(study[:_MAX_NAME], identity, line, line_records, plots, environments[line.workload] > 1)
        for line, line_records in records_by_line.items()
    ]
    return [*method_runs, _study_run(findings, identity, plots)]


def _method_run(
    study: str, identity: Any, line: Line, records: Sequence[Record], plots: Iterable[Plot], is_mixed: bool
) -> TrackedRun:
    suffix = f" [environment {line.environment}]" if is_mixed else ""
    name = f"{line.workload} {line.method.name}"[: _MAX_NAME - len(suffix)] + suffix
    rows: defaultdict[tuple[str, int], Fields] = defaultdict(dict)
    for plot in plots:
        for x, (value, low, high) in plot.lines.get(line, {}).items():
            bounds = {f"{plot.metric}_low": low, f"{plot.metric}_high": high}
            rows[plot.x, x] |= {plot.x: x, plot.metric: value} | bounds
    config = {"method": line.method.name, "environment": line.environment, "kind": "method", "study": study}
    config |= {"study_digest": digest_of(identity), "series": digest_of([identity, line])}
    tags = (line.workload, line.method.mode, *sorted({record.case.api for record in records}))
    return _make_run(name, records, tags, config, rows)


def _study_run(findings: Findings, identity: Any, plots: Iterable[Plot]) -> TrackedRun:
    rows: defaultdict[int, Fields] = defaultdict(dict)
    for plot in plots:
        for baseline in plot.baselines:
            for devices in {x for line in plot.lines.values() for x in line if x >= baseline}:
                rows[devices] |= {"devices": devices, ideal_metric(baseline): devices / baseline}
    name = findings.name[:_MAX_NAME]
    config = {"environments": " ".join(findings.environments), "kind": "study", "study": name}
    config |= dict.fromkeys(("study_digest", "series"), digest_of(identity))
    return _make_run(name, findings.records, (), config, rows)


def _make_run(
    name: str, records: Sequence[Record], tags: Iterable[str], config: Fields, rows: Mapping[Any, Fields]
) -> TrackedRun:
    """Return a W&B run whose history contains the values of `rows`, sorted by key.

    Fields that are equal in all records are added to `config`.
    """
    newest_records = newest_by_replicate(records).values()
    status_counts = Counter(record.status for record in newest_records)
    first, *others = [_config_fields(record) for record in records]
    common = {name: value for name, value in first.items() if all(row.get(name) == value for row in others)}
    config = _encode_fields(common | config)
    history = [_encode_fields(rows[key]) for key in sorted(rows)]
    summary = {"cases": len(newest_records), **status_counts}
    all_tags = tuple(tag[:64] for tag in (config["kind"], *tags, *["failures"][: status_counts["failed"]]))
    config["digest"] = digest = digest_of((name, all_tags, config, history, summary))
    return TrackedRun(digest, config["series"], _encode(name), all_tags, config, history, summary)


def _config_fields(record: Record) -> Fields:
    """Return the W&B config fields of a record, from its case and a part of its environment."""
    case, environment = to_dict(record.case), record.environment
    sizes = {f"size_{name}": size for name, size in case.pop("sizes").items()}
    fields = {name: environment.get(name) for name in _ENVIRONMENT_FIELDS}
    fields |= {f"version_{name}": text for name, text in (environment.get("versions") or {}).items()}
    return case | sizes | fields | {"host": ", ".join(environment.get("hosts") or ())}


def _encode_fields(fields: Fields) -> Fields:
    encoded = {_encode(str(name)): _encode(value) for name, value in fields.items()}
    return {name: value for name, value in encoded.items() if value is not None}


def _encode(value: Any) -> Any:
    """Convert a value to a type that W&B stores: a list or dict to JSON text, NaN and infinity to None."""
    if isinstance(value, str):  # a surrogate without its partner becomes U+FFFD
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None  # equal digests on all machines
    return value if value is None or isinstance(value, bool | int) else json.dumps(value, sort_keys=True)


def digest_of(value: Any) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 digest of a JSON-compatible value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
