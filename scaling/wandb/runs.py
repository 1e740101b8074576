"""The projection of what a folder says onto runs of W&B, as plain values: one run a curve, one for the study.

Knows findings; not wandb, nor where runs go. The JSON lines stay the truth.
"""

import dataclasses
import hashlib
import json
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.analysis import findings
from scaling.analysis.curves import Curve, CurvePoint, FastestMethod, method_of, scaling_curves, size_name
from scaling.analysis.findings import Findings
from scaling.analysis.scaling_fits import ScalingFit, fit_laws
from scaling.core import store
from scaling.core.case import VIEWS, Case, from_dict, non_default_fields, to_dict
from scaling.core.record import STATUSES, Record, to_line
from scaling.wandb.values import storable_config, storable_row, storable_text

CURVE, STUDY = "curve", "study"
_ENVIRONMENT = ("platform", "device_kind", "versions", "xla_flags", "commit", "dirty")
_SHARED = ("devices", "points")  # of the rows of all kinds
_DIGITS = 6  # of a number, in a digest: another machine's last bits make no other run
Table = dict[str, list[Any]]  # columns, data


@dataclass(frozen=True)
class TrackedRun:
    """One W&B run as plain values that W&B keeps. `id` carries the digest of what it shows, `series` does not."""

    id: str
    series: str
    name: str
    group: str
    job_type: str
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    tables: dict[str, Table] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)  # path relative to the results folder -> SHA-256
    lines: tuple[str, ...] = ()  # of the artifact of the records

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", storable_text(self.name))
        object.__setattr__(self, "group", storable_text(self.group))
        object.__setattr__(self, "config", storable_config(self.config))
        object.__setattr__(self, "rows", [storable_row(row) for row in self.rows])
        object.__setattr__(self, "summary", storable_row(self.summary))


def plan(folder: Path, found: Findings | None = None, loaded: store.Loaded | None = None) -> list[TrackedRun]:
    """The runs that a folder makes: one a curve, and one for the study. Raises OSError where the folder cannot be read."""
    loaded = loaded or store.load(folder)
    everything = loaded.records
    if not everything:
        return []
    found = found or findings.read(folder, loaded=loaded)
    laws = {id(curve): fitted for curve, fitted in found.scaling_fits}
    told = {record.setting: record.environment for record in found.records}
    made = [
        _curve_run(found.name, curve, told.get(curve.environment, {}), laws.get(id(curve), ()))
        for curve in found.curves
    ]
    return [*made, _study_run(found, folder, everything)]


def early(folder: Path, replicates: int, sent: Collection[str], most: int) -> list[TrackedRun]:
    """While a study runs: curves that it will not touch again, as they will be at its end. Not those sent; so many at most."""
    records = [record for record in store.latest(store.load(folder).records) if record.case.kind == "case"]
    study = store.read_json(folder / "study.json")
    if not isinstance(study, dict) or not records:
        return []
    told = {record.setting: record.environment for record in records}
    unfinished = _unfinished(study, records, replicates)
    done = [record for record in records if _problem(record.case) not in unfinished]
    made = []
    for curve in scaling_curves(done, study.get("scaling") or ("strong",)):
        run = _curve_run(str(study.get("study")), curve, told.get(curve.environment, {}), ())
        if run.id not in sent:
            made.append(dataclasses.replace(run, summary=_laws(fit_laws(curve))))
        if len(made) == most:
            break
    return made


def _unfinished(study: Mapping[str, Any], records: Iterable[Record], replicates: int) -> set[str]:
    """The problems that cases are missing of: a curve stands beside other programs for its problem, too."""
    skipped = {record.key for record in records if record.status == "skipped"}
    done = Counter(key for key, _ in {(record.key, record.replicate) for record in records})
    missing = (
        cell for cell in study["cases"] if cell["key"] not in skipped and done[cell["key"]] < replicates
    )
    return {_problem(from_dict(cell["case"])) for cell in missing}


def _problem(case: Case) -> str:
    """What is computed, whatever the number of points: these grow along a weak curve."""
    return _digest(
        [value for name, value in to_dict(case).items() if name in VIEWS["problem"] and name != "points"]
    )


def study_series(study: str) -> str:
    """The digest that stands for a study, whatever its name is made of."""
    return _digest([study, STUDY])


def _curve_run(
    study: str, curve: Curve, environment: Mapping[str, Any], laws: Iterable[ScalingFit]
) -> TrackedRun:
    rows = [_row(point, curve.kind) for point in sorted(curve.points, key=lambda p: p.devices)]
    fields = {k: v for k, v in to_dict(curve.case).items() if k != "devices"}
    if curve.kind == "weak":  # points grow along the curve: the rows hold them, the config what stays
        del fields["points"]
        fields["points_per_device"] = curve.case.points // curve.case.devices
    series = _digest(
        [
            study,
            {k: v for k, v in non_default_fields(curve.case).items() if k in fields},
            curve.kind,
            curve.environment,
        ]
    )
    config = fields | {f"size_{name}": size for name, size in curve.case.sizes.items()}
    config |= {"way": method_of(curve.case).name, "size": size_name(curve.case)}
    config |= {
        "study": study,
        "study_digest": study_series(study),
        "kind": curve.kind,
        "baseline_devices": curve.baseline_devices,
        "environment": curve.environment,
        "series": series,
        "rows": _digest(rows),
    }
    config |= _told(environment)
    return TrackedRun(_digest([series, rows]), series, curve.name, study, CURVE, config, rows, _laws(laws))


def _told(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What of an environment to filter by."""
    hosts = environment.get("hosts")
    return {key: environment.get(key) for key in _ENVIRONMENT} | {
        "host": ", ".join(map(str, hosts)) if hosts else None
    }


def _row(point: CurvePoint, kind: str) -> dict[str, Any]:
    """What is drawn over devices. The ideal speed-up is devices / baseline_devices, of strong and weak curves alike.

    The names of weak ones say so: W&B draws what has one name into one panel, and the two kinds are never to be mixed.
    """
    row = storable_row(dataclasses.asdict(point) | {"ideal": point.ideal, "ideal_efficiency": 1.0})
    return (
        row
        if kind == "strong"
        else {name if name in _SHARED else f"{kind}/{name}": value for name, value in row.items()}
    )


def _laws(laws: Iterable[ScalingFit]) -> dict[str, Any]:
    """The parts of the fitted laws, each with its interval, and which law fits best."""
    told: dict[str, Any] = {}
    for law in laws:
        stem = f"law/{law.name.replace(' ', '_')}"
        for part, (value, low, high) in law.parts.items():
            told |= {f"{stem}/{part}": value, f"{stem}/{part}_low": low, f"{stem}/{part}_high": high}
        told |= {f"{stem}/limit": law.limit, f"{stem}/spread": law.spread}
        told |= {"law/best": law.name} if law.best else {}
    return storable_row(told)


def _study_run(found: Findings, folder: Path, everything: Sequence[Record]) -> TrackedRun:
    pictures = {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("report/*.png"))
    }
    whole = {
        name: hashlib.sha256(picture).hexdigest()
        for name, picture in pictures.items()
        if b"IEND" in picture[-12:]
    }
    tables = {"records": _records(everything)} | (
        {"fastest": _fastest(found.fastest)} if found.fastest else {}
    )
    series = study_series(found.name)
    shown = _digest([tables, whole])
    environments = {record.setting: record.environment for record in found.records}
    config = {
        "study": found.name,
        "study_digest": series,
        "kind": STUDY,
        "series": series,
        "rows": shown,
        "environment": sorted(environments),
    }
    told = [_told(environment) for environment in environments.values()]
    config |= {key: _each(each[key] for each in told) for key in told[0]}
    counts = Counter(store.states(found.records).values())
    summary = {"cases": counts.total()} | {status: counts[status] for status in STATUSES}
    lines = tuple(to_line(record) for record in everything)
    return TrackedRun(
        _digest([series, shown]),
        series,
        found.name,
        found.name,
        STUDY,
        config,
        [],
        summary,
        tables,
        whole,
        lines,
    )


def _each(values: Iterable[Any]) -> Any:
    """One value where all agree, otherwise the list of those there are."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found[0] if len(found) == 1 else found


def _records(records: Sequence[Record]) -> Table:
    """Every record as one row of scalars; samples stand as their number and median, a mapping as its JSON."""
    rows = []
    for record in records:
        row = to_dict(record.case)
        row["case.block"] = row.pop("block")  # the record's own is who alternated with it
        row |= {"key": record.key, "environment": record.environment["digest"]}
        row |= {key: record.environment.get(key) for key in ("platform", "device_kind")}
        for each in dataclasses.fields(record):
            if each.name not in ("case", "environment", "seconds", "seconds_min"):
                row[each.name] = getattr(record, each.name)
        row |= {
            "samples": len(record.seconds),
            "seconds_median": statistics.median(record.seconds) if record.seconds else None,
        }
        rows.append(row)
    return _table(rows)


def _fastest(found: Sequence[FastestMethod]) -> Table:
    """The fastest mode of each problem on each number of devices, beside the best of the others."""
    rows = []
    for each in found:
        first, second = each.first, each.second
        low, high = first.interval or (None, None)
        case = to_dict(first.case)
        row = {name: case[name] for name in (*VIEWS["problem"], "devices")}
        row |= {"environment": first.environment, "honest": first.honest}
        row |= {"fastest": method_of(first.case).name, "seconds": first.median, "low": low, "high": high}
        row |= {"next": method_of(second.case).name if second else None, "next_takes": each.ratio}
        row |= {
            "next_takes_low": each.ratio_low,
            "next_takes_high": each.ratio_high,
            "sure": each.sure,
            "by_hand": each.by_hand,
        }
        rows.append(row)
    return _table(rows)


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
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
