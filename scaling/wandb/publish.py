"""Publish a results folder to W&B: make W&B runs and plots of its records, and start a process that uploads.

The W&B runs (`study_runs`) and line plots (`make_plots`) contain curves and size sweeps. Floats are rounded
to six significant digits, because the results of machines differ in the last bits.

The child process runs upload.py, because wandb could hang, print, or change signal handlers and environment
variables. It reads a pickled `PublishJob`, and sends events as lines of JSON. An event has the digest (`run`)
and the `state` of a W&B run, or the `reason` for a failure. An error of W&B never stops a study.
"""

import contextlib
import hashlib
import json
import math
import os
import pickle
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from scaling.analysis import answers, findings
from scaling.analysis.cases import Method, method_of
from scaling.analysis.curves import Curve
from scaling.analysis.findings import Findings
from scaling.analysis.sweeps import SizeSweep
from scaling.core.case import to_dict
from scaling.core.formatting import format_count, list_first
from scaling.core.grouping import group_by
from scaling.core.record import Record
from scaling.launcher.child_process import ChildProcess, Event
from scaling.results import store
from scaling.wandb.job import (
    FINISH_FACTOR,
    JOB_FILE,
    Fields,
    Line,
    Plot,
    PublishJob,
    TrackedRun,
    TrackingSettings,
    describe_wandb_error,
    ideal_metric,
)

_LOCK_SECONDS = 20.0  # timeout of the lock; a killed process releases it within seconds
_START_SECONDS = 60.0  # timeout of importing wandb, even from a slow network disk
_GRACE_SECONDS = 15.0  # added to the time limits of wandb, because wandb may exceed them
_CHILD_ENVIRONMENT = {  # environment variables of the child process
    "WANDB_ERROR_REPORTING": "false",  # nothing may be sent in offline mode
    "WANDB_SILENT": "true",
    "WANDB_DATA_DIR": "/proc/self/cwd/wandb/staging",  # keeps paths of this machine out of the log of a run
    "WANDB_CACHE_DIR": "/proc/self/cwd/wandb/cache",
}
# The variables WANDB_... that the child process keeps. wandb may send the values of other variables.
_PASSED = ("API_KEY", "BASE_URL", "ENTITY", "CONFIG_DIR", "HTTP_PROXY", "HTTPS_PROXY", "INSECURE_DISABLE_SSL")
# Fixed values for the fields that identify a method or a mesh, so that all cases of one plot become equal.
_NO_METHOD = Method("jacfwd", "vmap")._asdict() | {"mesh": None}
_MAX_NAME = 128  # characters of the name and the group of a run; the server of W&B rejects longer ones
_ENVIRONMENT_FIELDS = ("platform", "device_kind", "xla_flags", "commit", "dirty")


class Outcome(NamedTuple):
    """The result of a publication to W&B: the number of runs in each state, and text for the console."""

    states: Counter[str]  # number of runs: published, unchanged, kept, there before, differs
    succeeded: bool  # whether no failure was reported
    lines: tuple[str, ...]  # text for the console


def publish(folder: Path, settings: TrackingSettings, loaded: store.Loaded | None = None) -> Outcome:
    """Publish a results folder to W&B, or keep offline copies. The returned `Outcome` reports errors."""
    events: list[Event] = []
    try:
        events.extend(_publish(folder, settings, loaded))
    except Exception as error:
        events.append({"reason": describe_wandb_error(error)})
    states = Counter(event["state"] for event in events if "state" in event)
    reasons = list(dict.fromkeys(event["reason"] for event in events if "reason" in event))
    fields = {name: value for event in events for name, value in event.items()}
    lines = tuple(f"W&B: {line}" for line in _format_outcome(folder, settings.mode, states, reasons, fields))
    return Outcome(states, not reasons, lines)


def _publish(folder: Path, settings: TrackingSettings, loaded: store.Loaded | None) -> Iterator[Event]:
    loaded = loaded or store.load(folder)
    if settings.mode == "disabled" or not loaded.records:
        return
    results = findings.read(folder, loaded=loaded)
    plots = make_plots(results)
    runs = [replace(run, tags=(*settings.tags, *run.tags)) for run in study_runs(results, plots, folder)]
    destination = _digest_of((settings.project, settings.entity, settings.tags))[:6]
    sentences = tuple(answers.answer_sentences(results))
    job = PublishJob(settings, tuple(runs), tuple(plots), sentences, destination)
    with store.lock_folder(folder, ".wandb.lock", _LOCK_SECONDS) as lock:  # no two processes publish at once
        (folder / "wandb").mkdir(exist_ok=True)
        yield from _run_job(folder / "wandb", job, lock)


def _run_job(copies: Path, job: PublishJob, lock: int) -> Iterator[Event]:
    """Publish a job in a child process. Yield events such as {"run": digest, "state": "published"}.

    If the child process fails or sends nothing, the last event contains the error message as `reason`.
    `copies` is the folder for offline copies. `lock` is a file descriptor that the child process keeps open.
    """
    passed_variables = [name for name in os.environ if not name.startswith("WANDB_") or name[6:] in _PASSED]
    command = [sys.executable, "-P", "-m", "scaling.wandb.upload", str(copies.resolve()), str(os.getpid())]
    timeout = _START_SECONDS + _GRACE_SECONDS
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work_folder:  # wandb leaves files in it
        environ = {k: os.environ[k] for k in passed_variables} | _CHILD_ENVIRONMENT | {"TMPDIR": work_folder}
        Path(work_folder, JOB_FILE).write_bytes(pickle.dumps(job))
        child = ChildProcess(command, cwd=work_folder, env=environ, pass_fds=(lock,))
        with contextlib.closing(child):
            while (event := child.receive(timeout)) is not None:
                if event.get("event") == "exit":
                    if event["status"]:
                        _, text, last_line = child.explain_exit(event["status"])
                        yield {"reason": f"the process of wandb {text}: {last_line}".rstrip(" :")}
                    return
                yield event
                timeout = (1 + FINISH_FACTOR) * job.settings.timeout + _GRACE_SECONDS
            yield {"reason": f"wandb fell silent for {timeout:g} s"}


def _format_outcome(
    folder: Path, mode: str, counts: Counter[str], reasons: Sequence[str], fields: Mapping[str, Any]
) -> Iterator[str]:
    """Yield lines of text: how many W&B runs were published or kept offline, and why others failed.

    `counts` is the number of runs in each state. `fields` are other values of the events, such as a URL.
    """
    copies_folder, command = folder / "wandb", f"`{store.format_command('publish', folder)}`"
    arrived = counts["published"] + counts["unchanged"] > 0
    if arrived:
        superseded = fields.get("superseded", 0)
        totals = {"new": counts["published"], "as before": counts["unchanged"], "superseded": superseded}
        runs = ", ".join(f"{count} {state}" for state, count in totals.items() if count)
        yield f"published to {fields['page']}, read back and equal: runs {runs}"
    if counts["kept"]:
        kept_runs = format_count(counts["kept"], "run")
        yield f"kept {kept_runs} offline in {copies_folder}; {command} sends them, given a key"
    if counts["there before"]:
        yield f"{format_count(counts['there before'], 'run')} went to {copies_folder} before"
    if reasons:
        failure = "not all arrived" if arrived or counts["differs"] else "nothing was sent"
        failure += f" ({list_first(reasons, 3)})"
        yield f"{failure}; the records in {folder} are whole, {command} tries again"
    elif mode == "disabled":
        yield "nothing was sent, because the mode is disabled"
    elif not counts:
        yield f"nothing was sent, there are no records in {folder}"
    if "dashboard" in fields:
        yield fields["dashboard"]


def make_plots(findings: Findings) -> list[Plot]:
    """Return the W&B line plots of a study, sorted by the number of lines. Each has its own W&B metric."""
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
        y_title = f"{'scaled ' if kind == 'weak' else ''}speed-up relative to {bases}"
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
    history_rows: defaultdict[tuple[str, int], Fields] = defaultdict(dict)
    for plot in plots:
        for x, (value, low, high) in plot.lines.get(line, {}).items():
            bounds = {f"{plot.metric}_low": low, f"{plot.metric}_high": high}
            history_rows[plot.x, x] |= {plot.x: x, plot.metric: value} | bounds
    config = {"method": line.method.name, "environment": line.environment, "kind": "method", "study": study}
    config |= {"study_digest": _digest_of(identity), "series": _digest_of([identity, line])}
    tags = (line.workload, line.method.mode, *sorted({record.case.api for record in records}))
    return _make_run(name, records, tags, config, history_rows)


def _study_run(findings: Findings, identity: Any, plots: Iterable[Plot]) -> TrackedRun:
    history_rows: defaultdict[int, Fields] = defaultdict(dict)
    for plot in plots:
        for baseline in plot.baselines:
            for devices in {x for line in plot.lines.values() for x in line if x >= baseline}:
                history_rows[devices] |= {"devices": devices, ideal_metric(baseline): devices / baseline}
    name = findings.name[:_MAX_NAME]
    config = {"environments": " ".join(findings.environments), "kind": "study", "study": name}
    config |= dict.fromkeys(("study_digest", "series"), _digest_of(identity))
    return _make_run(name, findings.records, (), config, history_rows)


def _make_run(
    name: str, records: Sequence[Record], tags: Iterable[str], config: Fields, rows: Mapping[Any, Fields]
) -> TrackedRun:
    """Return a W&B run whose history contains the values of the dict `rows`, sorted by key.

    Case and environment fields that are equal in all `records` are added to `config`.
    """
    newest_records = store.newest_by_replicate(records).values()
    status_counts = Counter(record.status for record in newest_records)
    first, *others = [_config_fields(record) for record in records]
    common = {name: value for name, value in first.items() if all(row.get(name) == value for row in others)}
    config = _encode_fields(common | config)
    history = [_encode_fields(rows[key]) for key in sorted(rows)]
    summary = {"cases": len(newest_records), **status_counts}
    all_tags = tuple(tag[:64] for tag in (config["kind"], *tags, *["failures"][: status_counts["failed"]]))
    config["digest"] = _digest_of((name, all_tags, config, history, summary))
    return TrackedRun(_encode(name), all_tags, config, history, summary)


def _config_fields(record: Record) -> Fields:
    """Return the fields of a record that a W&B config contains: its case and a part of its environment."""
    case, environment = to_dict(record.case), record.environment
    sizes = {f"size_{name}": size for name, size in case.pop("sizes").items()}
    fields = {name: environment.get(name) for name in _ENVIRONMENT_FIELDS}
    fields |= {f"version_{name}": text for name, text in (environment.get("versions") or {}).items()}
    return case | sizes | fields | {"host": ", ".join(environment.get("hosts") or ())}


def _encode_fields(fields: Fields) -> Fields:
    encoded = {_encode(str(name)): _encode(value) for name, value in fields.items()}
    return {name: value for name, value in encoded.items() if value is not None}


def _encode(value: Any) -> Any:
    """Return a value in a type that W&B stores: a list or dict as JSON text, NaN and infinity as None."""
    if isinstance(value, str):  # a surrogate without its partner becomes U+FFFD
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None  # equal digests on all machines
    return value if value is None or isinstance(value, bool | int) else json.dumps(value, sort_keys=True)


def _digest_of(value: Any) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 digest of `value`, encoded as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
