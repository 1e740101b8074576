"""The results of a folder as runs of W&B, in plain values: one run for each curve and one for the study.

Does not know wandb, nor where the runs go.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling.analysis.curves import Curve, CurvePoint, FastestMethod, method_of, scaling_curves, size_name
from scaling.analysis.findings import Findings
from scaling.analysis.scaling_fits import ScalingFit, fit_laws
from scaling.core import store
from scaling.core.case import VIEWS, Case, from_dict, non_default_fields, to_dict
from scaling.core.record import STATUSES, Record, to_line
from scaling.wandb.tracked_run import CURVE, STUDY, RunTable, TrackedRun, storable_row

_ENVIRONMENT = ("platform", "device_kind", "versions", "xla_flags", "commit", "dirty")
_COMMON_COLUMNS = ("devices", "points")  # of the rows of strong and of weak curves
_DIGITS = 6  # of a number, in a digest: the last bits on another machine make no other run


def tracked_runs(folder: Path, findings: Findings, records: Sequence[Record]) -> list[TrackedRun]:
    """Return a run for each curve of a folder and one for the study. OSError where a figure cannot be
    read.
    """
    fits = {id(curve): laws for curve, laws in findings.scaling_fits}
    environments = {record.setting: record.environment for record in findings.records}
    runs = []
    for curve in findings.curves:
        run = _curve_run(findings.name, curve, environments.get(curve.environment, {}))
        runs.append(_with_fits(run, fits.get(id(curve), ())))
    return [*runs, _study_run(folder, findings, environments, records)]


def finished_curves(folder: Path, replicates: int, sent: Collection[str], most: int) -> list[TrackedRun]:
    """Return the runs of curves that a running study will not change any more, except those with an id in
    `sent`.
    """
    records = [record for record in store.latest(store.load(folder).records) if record.case.kind == "case"]
    study = store.read_json(folder / "study.json")
    if not isinstance(study, dict) or not records:
        return []
    unfinished = _unfinished_problems(study, records, replicates)
    finished = [record for record in records if _problem(record.case) not in unfinished]
    environments = {record.setting: record.environment for record in records}

    def new_runs() -> Iterator[TrackedRun]:
        for curve in scaling_curves(finished, study.get("scaling") or ("strong",)):
            run = _curve_run(str(study.get("study")), curve, environments[curve.environment])
            if run.id not in sent:
                yield _with_fits(run, fit_laws(curve))

    return list(itertools.islice(new_runs(), most))


def _unfinished_problems(study: Mapping[str, Any], records: Iterable[Record], replicates: int) -> set[str]:
    """Return the problems that have missing cases: the rows of a curve also depend on other methods for its
    problem.
    """
    skipped = {record.key for record in records if record.status == "skipped"}
    done = Counter(key for key, _ in {(record.key, record.replicate) for record in records})
    return {
        _problem(from_dict(cell["case"]))
        for cell in study["cases"]
        if cell["key"] not in skipped and done[cell["key"]] < replicates
    }


def _problem(case: Case) -> str:
    """Return the digest of what is computed, without the number of points, which grows along a weak curve."""
    fields = to_dict(case)
    return _digest([value for name, value in fields.items() if name in VIEWS["problem"] and name != "points"])


def study_series(study: str) -> str:
    """Return the digest that identifies a study, whatever characters its name has."""
    return _digest([study, STUDY])


def _curve_run(study: str, curve: Curve, environment: Mapping[str, Any]) -> TrackedRun:
    case = curve.case
    config = {name: value for name, value in to_dict(case).items() if name != "devices"}
    if curve.kind == "weak":  # the number of points differs between the rows
        del config["points"]
        config["points_per_device"] = case.points // case.devices
    rows = [_row(point, curve.kind) for point in sorted(curve.points, key=lambda point: point.devices)]
    fields = {name: value for name, value in non_default_fields(case).items() if name in config}
    series = _digest([study, fields, curve.kind, curve.environment])
    config |= {f"size_{name}": size for name, size in case.sizes.items()} | _shown(environment)
    config |= {
        "way": method_of(case).name, "size": size_name(case), "study": study,
        "study_digest": study_series(study), "kind": curve.kind, "baseline_devices": curve.baseline_devices,
        "environment": curve.environment, "series": series, "rows": _digest(rows),
    }  # fmt: skip
    return TrackedRun(_digest([series, rows]), series, curve.name, study, CURVE, config, rows, {})


def _shown(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an environment by which runs can be filtered."""
    fields = {name: environment.get(name) for name in _ENVIRONMENT}
    return fields | {"host": ", ".join(map(str, environment.get("hosts") or ())) or None}


def _row(point: CurvePoint, kind: str) -> dict[str, Any]:
    """Return what is drawn over devices.

    W&B draws columns of one name into one panel, so the columns of weak curves have names of their own.
    """
    row = storable_row(dataclasses.asdict(point) | {"ideal": point.ideal, "ideal_efficiency": 1.0})
    if kind == "strong":
        return row
    return {name if name in _COMMON_COLUMNS else f"{kind}/{name}": value for name, value in row.items()}


def _with_fits(run: TrackedRun, fits: Iterable[ScalingFit]) -> TrackedRun:
    """Return a run with the parameters of its fitted laws and their intervals in its summary."""
    summary: dict[str, Any] = {}
    for fit in fits:
        stem = f"law/{fit.name.replace(' ', '_')}"
        for part, (value, low, high) in fit.parts.items():
            summary |= {f"{stem}/{part}": value, f"{stem}/{part}_low": low, f"{stem}/{part}_high": high}
        summary |= {f"{stem}/limit": fit.limit, f"{stem}/spread": fit.spread}
        if fit.best:
            summary["law/best"] = fit.name
    return dataclasses.replace(run, summary=summary)


def _study_run(
    folder: Path, findings: Findings, environments: Mapping[str, Mapping[str, Any]], records: Sequence[Record]
) -> TrackedRun:
    pictures = {path: path.read_bytes() for path in sorted(folder.glob("report/*.png"))}
    images = {
        str(path.relative_to(folder)): hashlib.sha256(picture).hexdigest()
        for path, picture in pictures.items()
        if b"IEND" in picture[-12:]  # a torn file has no end
    }
    tables = {"records": _records_table(records)}
    if findings.fastest:
        tables["fastest"] = _fastest_table(findings.fastest)
    series, shown = study_series(findings.name), _digest([tables, images])
    config = {
        "study": findings.name, "study_digest": series, "kind": STUDY, "series": series, "rows": shown,
        "environment": sorted(environments),
    }  # fmt: skip
    filters = [_shown(environment) for environment in environments.values()]
    for name in filters[0]:
        different = list({json.dumps(each[name], sort_keys=True): each[name] for each in filters}.values())
        config[name] = different[0] if len(different) == 1 else different
    counts = Counter(store.states(findings.records).values())
    return TrackedRun(
        _digest([series, shown]), series, findings.name, findings.name, STUDY, config, rows=[],
        summary={"cases": counts.total()} | {status: counts[status] for status in STATUSES},
        tables=tables, images=images, lines=tuple(map(to_line, records)),
    )  # fmt: skip


def _records_table(records: Sequence[Record]) -> RunTable:
    """Return one row for each record; instead of samples, their number and median."""
    rows = []
    for record in records:
        row = to_dict(record.case)
        row["case.block"] = row.pop("block")  # a record has a field `block` too
        row |= {"key": record.key, "environment": record.environment["digest"]}
        row |= {name: record.environment.get(name) for name in ("platform", "device_kind")}
        for each in dataclasses.fields(record):
            if each.name not in ("case", "environment", "seconds", "seconds_min"):
                row[each.name] = getattr(record, each.name)
        row["samples"] = len(record.seconds)
        row["seconds_median"] = statistics.median(record.seconds) if record.seconds else None
        rows.append(row)
    return _table(rows)


def _fastest_table(fastest: Sequence[FastestMethod]) -> RunTable:
    """Return the fastest mode of each problem on each number of devices, and the best of the other modes."""
    rows = []
    for each in fastest:
        first, second = each.first, each.second
        low, high = first.interval or (None, None)
        fields = to_dict(first.case)
        row = {name: fields[name] for name in (*VIEWS["problem"], "devices")} | {
            "environment": first.environment, "honest": first.honest, "fastest": method_of(first.case).name,
            "seconds": first.median, "low": low, "high": high,
            "next": method_of(second.case).name if second else None, "next_takes": each.ratio,
            "next_takes_low": each.ratio_low, "next_takes_high": each.ratio_high,
            "sure": each.sure, "by_hand": each.by_hand,
        }  # fmt: skip
        rows.append(row)
    return _table(rows)


def _table(rows: Sequence[Mapping[str, Any]]) -> RunTable:
    return {"columns": list(rows[0]), "data": [[_scalar(value) for value in row.values()] for row in rows]}


def _scalar(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return (
        value
        if value is None or isinstance(value, bool | int | float | str)
        else json.dumps(value, sort_keys=True)
    )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(_rounded(value), sort_keys=True).encode()).hexdigest()[:16]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
