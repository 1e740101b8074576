"""The projection of a results folder onto W&B: one run a curve, one for the study. The JSON lines stay the truth.

Knows curves, records and what wandb was handed (handover.py); not whether the server kept it, which the client does not tell.
"""

import configparser
import contextlib
import dataclasses
import hashlib
import json
import math
import netrc
import os
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scaling import store
from scaling.case import Refusal, to_dict, unknown
from scaling.reading.curves import Curve, Point, curves
from scaling.record import STATUSES, Record
from scaling.tracking import handover

MODES = ("auto", "online", "offline")
LEDGER = "wandb.json"  # which run went where, beside the records
_WANDB_MODES = {
    "online": "online", "run": "online", "shared": "online", "offline": "offline", "dryrun": "offline", "disabled": "disabled",
}  # fmt: skip
_ENVIRONMENT = ("platform", "device_kind", "versions", "xla_flags", "commit", "dirty")


@dataclass(frozen=True)
class Settings:
    """Where runs go. There is no field for an API key: it comes from WANDB_API_KEY or netrc."""

    project: str = "ad-scaling"
    entity: str | None = None  # None: the default entity of the key
    mode: str = "auto"
    timeout: float = 20.0  # seconds
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown("tracking.mode", self.mode, MODES)
        if not isinstance(self.project, str) or not re.fullmatch(r"[^/\\#?%:]{1,128}", self.project):
            raise Refusal(f"tracking.project must be 1 to 128 characters without / \\ # ? % :, not {self.project!r}")
        if self.entity is not None and not (isinstance(self.entity, str) and self.entity):
            raise Refusal(f"tracking.entity must be a name or null, not {self.entity!r}")
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float) or not 0 < self.timeout < math.inf:
            raise Refusal(f"tracking.timeout must be a positive number of seconds, not {self.timeout!r}")
        if isinstance(self.tags, str) or not all(isinstance(tag, str) and 1 <= len(tag) <= 64 for tag in self.tags):
            raise Refusal(f"tracking.tags must be a list of words of at most 64 characters, not {self.tags!r}")
        object.__setattr__(self, "tags", tuple(self.tags))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Settings":
        """The settings of a `tracking` config; an unknown key or a bad value is a `Refusal`."""
        known = [f.name for f in dataclasses.fields(cls)]
        told = {str(name): value for name, value in config.items() if name != "name"}
        for name in told:
            if name not in known:
                if re.search("key|token|secret|passw", name, re.IGNORECASE):
                    raise Refusal(f"tracking.{name}: keys come from WANDB_API_KEY in the environment, never from a config")
                raise unknown("key of tracking", name, known)
        return cls(**told)


@dataclass(frozen=True)
class Published:
    """What a publish did, in numbers and in lines to show. `reason` says why wandb could not do all of it."""

    mode: str  # what was tried: online, offline or disabled
    sent: int = 0  # handed over to a server, not read back
    kept: int = 0  # written offline
    skipped: int = 0  # were there before
    failed: int = 0
    reason: str | None = None
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """One W&B run as plain values. `id` carries the digest of what it shows, `series` does not."""

    id: str
    series: str
    name: str
    group: str
    job_type: str
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    table: dict[str, list[Any]] | None = None
    images: tuple[str, ...] = ()  # relative to the results folder


@dataclass(frozen=True)
class _Outcome:
    """What one process of wandb did: the run directory of each run it finished, and why it did not finish the others."""

    done: dict[str, str]
    reason: str | None = None


def publish(folder: Path, settings: Settings) -> Published:
    """Show the results of a folder in W&B. Never raises for what wandb does, and adds nothing that is there already."""
    try:
        mode, note = _mode(settings)
        if mode == "disabled":
            return Published(mode, lines=("W&B: nothing was sent, WANDB_MODE is disabled",))
        published = _publish(folder, settings, mode)
        return dataclasses.replace(published, lines=(*note, *published.lines))
    except Exception as error:  # tracking never costs a study
        reason = handover.reason_of(error)
        line = f"W&B: nothing was sent ({reason}); the records in {folder} are whole"
        return Published(settings.mode, reason=reason, lines=(line,))


def plan(folder: Path) -> list[Run]:
    """The runs that a folder makes: one a curve, and one for the study. Raises OSError where the folder cannot be read."""
    study = store.read_json(folder / "study.json")
    study = study if isinstance(study, dict) else {}
    name = str(study.get("study") or folder.resolve().name)
    everything = store.load(folder).records
    if not everything:
        return []
    records = store.latest(everything)
    told = {record.setting: record.environment for record in records}
    cases = [record for record in records if record.case.kind == "case"]
    drawn = curves(cases, scaling=tuple(study.get("scaling") or ("strong",)))
    runs = [_curve_run(name, curve, told.get(curve.environment, {})) for curve in drawn]
    return [*runs, _study_run(name, folder, everything, records)]


def _curve_run(study: str, curve: Curve, environment: Mapping[str, Any]) -> Run:
    rows = [_row(point) for point in sorted(curve.points, key=lambda p: p.devices)]
    fields = {k: v for k, v in to_dict(curve.case).items() if k != "devices"}
    if curve.kind == "weak":  # points grow along the curve: the rows hold them, the config what stays
        del fields["points"]
        fields["points_per_device"] = curve.case.points // curve.case.devices
    series = _digest([study, fields, curve.kind, curve.environment])
    rows_digest = _digest(rows)
    config = fields | {"study": study, "kind": curve.kind, "environment": curve.environment, "rows": rows_digest}
    config |= {key: environment.get(key) for key in _ENVIRONMENT}
    return Run(_digest([series, rows_digest]), series, curve.name, study, "curve", config, rows, {})


def _row(point: Point) -> dict[str, Any]:
    """What is drawn over devices. The ideal speed-up is the number of devices, of strong and weak curves alike."""
    row = dataclasses.asdict(point) | {"ideal": point.devices, "ideal_efficiency": 1.0}
    return {k: v for k, v in row.items() if v is not None and not (isinstance(v, float) and not math.isfinite(v))}


def _study_run(study: str, folder: Path, everything: Sequence[Record], records: Sequence[Record]) -> Run:
    pictures = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("report/*.png"))}
    whole = {name: hashlib.sha256(picture).hexdigest() for name, picture in pictures.items() if b"IEND" in picture[-12:]}
    table = _table(everything)
    series = _digest([study, "study"])
    shown = _digest([table, whole])
    environments = {record.setting: record.environment for record in records}
    config = {"study": study, "kind": "study", "rows": shown, "environment": sorted(environments)}
    config |= {key: _each(environment.get(key) for environment in environments.values()) for key in _ENVIRONMENT}
    counts = Counter(record.status for record in records)
    summary = {"cases": len(records)} | {status: counts[status] for status in STATUSES}
    return Run(_digest([series, shown]), series, study, study, "study", config, [], summary, table, tuple(whole))


def _each(values: Iterable[Any]) -> Any:
    """One value where all agree, otherwise the list of those there are."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found[0] if len(found) == 1 else found


def _table(records: Sequence[Record]) -> dict[str, list[Any]]:
    """Every record as one row of scalars; samples stand as their number and median, a mapping as its JSON."""
    rows = []
    for record in records:
        row = to_dict(record.case) | {"key": record.key, "environment": record.environment["digest"]}
        row |= {key: record.environment.get(key) for key in ("platform", "device_kind")}
        for field in dataclasses.fields(record):
            if field.name not in ("case", "environment", "seconds", "seconds_min"):
                row[field.name] = getattr(record, field.name)
        row |= {"samples": len(record.seconds), "seconds_median": statistics.median(record.seconds) if record.seconds else None}
        rows.append({name: _scalar(value) for name, value in row.items()})
    return {"columns": list(rows[0]), "data": [list(row.values()) for row in rows]}


def _scalar(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value, sort_keys=True)


def _publish(folder: Path, settings: Settings, mode: str) -> Published:
    runs = plan(folder)
    if not runs:
        return Published(mode, lines=(f"W&B: there are no records in {folder}",))
    ledger = _read_ledger(folder)
    there = [run for run in runs if _is_there(folder, ledger, run, _place(settings, mode))]
    todo = [run for run in runs if run not in there]
    sent = _send(folder, ledger, todo, settings, mode)
    if mode == "offline" or sent.reason is None:
        return _told(folder, settings, mode, sent, _Outcome({}), len(there), len(todo))
    # what was not sent is kept: on disk it costs nothing, and a later publish sends it from the records
    left = [run for run in todo if run.id not in sent.done]
    before = [run for run in left if _is_there(folder, ledger, run, _place(settings, "offline"))]
    kept = _send(folder, ledger, [run for run in left if run not in before], settings, "offline")
    kept = dataclasses.replace(kept, done=kept.done | {run.id: "" for run in before})
    return _told(folder, settings, mode, sent, kept, len(there), len(todo))


def _told(folder: Path, settings: Settings, mode: str, first: _Outcome, second: _Outcome, there: int, todo: int) -> Published:
    """The outcome in honest words: what was handed over is never called published."""
    sent, kept = (len(first.done), len(second.done)) if mode == "online" else (0, len(first.done))
    failed = todo - sent - kept
    again, disk = f"`scaling publish {folder}`", folder / "wandb"
    lines = []
    if mode == "online" and sent:
        lines.append(f"W&B: sent {_runs(sent)} to {_address(settings)} (not read back)")
    if mode == "online" and first.reason and kept:
        trouble = "did not take all" if sent else "could not be reached"
        lines.append(f"W&B {trouble} ({first.reason}); kept {_runs(kept)} offline in {disk}; {again} sends them again")
    elif mode == "offline" and kept:
        lines.append(f"W&B: kept {_runs(kept)} offline in {disk}; {again} sends them once there is a key")
    if failed:
        reason = second.reason or first.reason
        lines.append(f"W&B: {_runs(failed)} could not be kept ({reason}); the records are whole, {again} tries again")
    if there and not todo:
        where = _address(settings) if mode == "online" else disk
        lines.append(f"W&B: nothing new; all {_runs(there)} went to {where} before")
    return Published(mode, sent, kept, there, failed, first.reason or second.reason, tuple(lines))


def _runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"


def _mode(settings: Settings) -> tuple[str, tuple[str, ...]]:
    """online, offline or disabled; WANDB_MODE in the environment wins over the settings."""
    asked = os.environ.get("WANDB_MODE", "").strip().lower()
    if asked in _WANDB_MODES:
        return _WANDB_MODES[asked], ()
    if asked:
        return "offline", (f"W&B: unknown WANDB_MODE {asked!r}, so offline: choose from {', '.join(_WANDB_MODES)}",)
    if settings.mode != "auto":
        return settings.mode, ()
    return ("online" if _has_key() else "offline"), ()


def _has_key() -> bool:
    """Whether there is a key for the server, in the environment or in netrc. The key itself is left to wandb."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        found = netrc.netrc(os.path.expanduser(os.environ.get("NETRC") or "~/.netrc"))
        return found.authenticators(urlsplit(_base_url()).netloc) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _base_url() -> str:
    """The server: WANDB_BASE_URL, or what `wandb login --host` wrote, or W&B's own."""
    told = os.environ.get("WANDB_BASE_URL")
    if not told:
        written = configparser.ConfigParser(interpolation=None)
        with contextlib.suppress(OSError, configparser.Error, UnicodeError):
            written.read(os.path.join(os.path.expanduser(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb"), "settings"))
        told = written.get("default", "base_url", fallback=None) or "https://api.wandb.ai"
    parts = urlsplit(told.rstrip("/"))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # a password in the address stays out of the ledger


def _entity(settings: Settings) -> str | None:
    return settings.entity or os.environ.get("WANDB_ENTITY") or None


def _address(settings: Settings) -> str:
    base = _base_url().replace("//api.wandb.ai", "//wandb.ai")
    return "/".join(part for part in (base, _entity(settings), settings.project) if part)


def _place(settings: Settings, mode: str) -> dict[str, Any]:
    base_url = _base_url() if mode == "online" else None
    return {"mode": mode, "entity": _entity(settings), "project": settings.project, "base_url": base_url}


# The ledger: {"runs": {id: {"series": ..., "name": ..., "places": [{mode, entity, project, base_url, directory}]}}}.


def _read_ledger(folder: Path) -> dict[str, Any]:
    """The ledger, or an empty one where it is damaged: ids and steps are set, so sending again adds nothing."""
    ledger = store.read_json(folder / LEDGER)
    runs = ledger.get("runs") if isinstance(ledger, dict) else None
    whole = {}
    for name, run in runs.items() if isinstance(runs, dict) else ():
        places = run.get("places") if isinstance(run, dict) else None
        if isinstance(places, list) and all(isinstance(place, dict) for place in places):
            whole[name] = run
    return whole


def _is_there(folder: Path, ledger: Mapping[str, Any], run: Run, place: Mapping[str, Any]) -> bool:
    """Whether a run went to a place; an offline copy must still lie there."""
    for known in ledger.get(run.id, {}).get("places", ()):
        if {name: known.get(name) for name in place} == place:
            return place["mode"] == "online" or (folder / "wandb" / str(known.get("directory"))).is_dir()
    return False


def _remember(folder: Path, ledger: dict[str, Any], runs: Iterable[Run], place: dict[str, Any], done: Mapping[str, str]) -> None:
    for run in runs:
        if run.id in done:
            entry = ledger.setdefault(run.id, {"series": run.series, "name": run.name, "job_type": run.job_type, "places": []})
            others = [known for known in entry["places"] if {name: known.get(name) for name in place} != place]
            entry["places"] = [*others, {**place, "directory": done[run.id]}]
    store.write_json(folder / LEDGER, {"runs": ledger})


# The other process.


def _send(folder: Path, ledger: dict[str, Any], runs: Sequence[Run], settings: Settings, mode: str) -> _Outcome:
    """Hand runs to wandb in a process of its own, and write down those that it finished, whatever ends it."""
    if not runs:
        return _Outcome({})
    done: dict[str, str] = {}
    reason = None
    before = set((folder / "wandb").glob("*"))
    try:
        (folder / "wandb").mkdir(exist_ok=True)
        for event in handover.events(folder, _job(ledger, runs, settings, mode), settings.timeout):
            reason = reason or event.get("lost") or event.get("reason")
            if "id" in event:
                done[event["id"]] = event["directory"]
    except (OSError, ValueError) as error:
        reason = handover.reason_of(error)
    finally:
        with contextlib.suppress(OSError):
            _tidy(set((folder / "wandb").glob("*run-*-*")) - before, set(done.values()))
        try:
            _remember(folder, ledger, runs, _place(settings, mode), done)
        except OSError as error:
            reason = reason or f"{LEDGER} could not be written: {error.strerror}"
    return _Outcome(done, reason)


def _job(ledger: Mapping[str, Any], runs: Sequence[Run], settings: Settings, mode: str) -> dict[str, Any]:
    """What the other process needs to know, as JSON."""
    told = []
    for run in runs:
        older = sorted(name for name, known in ledger.items() if known.get("series") == run.series and name != run.id)
        told.append(dataclasses.asdict(run) | {"config": run.config | {"supersedes": older}})
    where = _place(settings, mode) | {"base_url": _base_url(), "tags": settings.tags}
    return where | {"timeout": settings.timeout, "runs": told}


def _tidy(fresh: Iterable[Path], done: set[str]) -> None:
    """Take away wandb's debug logs, which hold absolute paths, and what it left of runs that it did not finish."""
    for path in fresh:
        for extra in [path / "logs", path / "tmp"] if path.name in done else [path]:
            shutil.rmtree(extra, ignore_errors=True)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
