"""Plan a study for other hardware (`PlannedStudy`): check its cases, write records, estimate device-hours.

compile_pool.py compiles the cases for this hardware. time_model.py predicts their run times.
"""

import dataclasses
import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.analysis.answers import plan_answers
from scaling.analysis.findings import Findings
from scaling.analysis.forecast import keep_cases
from scaling.analysis.timings import pool_processes
from scaling.core import environment
from scaling.core.case import AUTO, FIELDS, Refusal
from scaling.core.formatting import format_count, format_number
from scaling.core.record import COMPILING_STAGES, Record, RecordFields, Writer, outcome_fields
from scaling.core.timing import Sampling
from scaling.launcher import cores
from scaling.launcher.run_settings import RunSettings
from scaling.launcher.schedule import PreflightResult
from scaling.plan import time_model
from scaling.plan.compile_pool import compile_cases
from scaling.plan.hardware import Hardware, find_compiler, from_config
from scaling.results import store
from scaling.study import grid, preflight

_RUN_OPTIONS = {  # option of `scaling run` that has no effect on a plan -> default value
    "dry_run": False, "versus": None, "wait": None, "oversubscribe": False, "retry": False, "nested": False,
    "cluster": "none", "tracking": "none", "bind": True, "processes": None, "order_seed": 0,
    "sampling.width": Sampling.width,
}  # fmt: skip
_BUILD_SECONDS = 2.0  # seconds to build and check a case, including a part of the start-up time of JAX


@dataclass(frozen=True)
class PlannedStudy:
    """A study to plan for other hardware: its cases that are not yet planned, and the hardware."""

    name: str
    title: str | None
    hardware: Hardware
    folder: Path  # the results folder to which the records are written
    scaling: frozenset[str]  # the kinds of scaling of the cases, such as "weak"
    settings: RunSettings  # for a later measurement; `case_seconds` also limits each compilation
    # The cases without an `outcome` are compiled. The others are only recorded, as skipped or failed.
    cases: tuple[PreflightResult, ...]
    done: int  # the number of cases that are already planned
    keys: frozenset[str]  # the keys of all cases of the study
    # `PreflightResult.environment_key` -> the environment (hardware and software) in the record of a case
    environments: Mapping[tuple, dict[str, Any]]


def prepare_plan(config: dict[str, Any], name: str, note: preflight.ProgressCallback) -> PlannedStudy:
    """Check the configuration of a plan, and return the cases to plan as a `PlannedStudy`.

    `config` is a Hydra configuration, and `name` the name of its study. `note` is called with the number of
    checked cases and the number of all cases. Raise `Refusal` if a value is invalid.
    """
    hardware, folder, settings = _read_options(config)
    cells = _expand_cases(config, name, hardware, settings.max_cases)
    for count in sorted({cell.case.devices for cell in cells}):
        hardware.check_devices(count)
    compiler, version = find_compiler(hardware)
    answers = preflight.check_cells(cells, settings.case_seconds, note)
    checked_cases = list(map(_skip_unplannable, preflight.results_from_answers(cells, answers)))
    recorded = {"name": hardware.name, "digest": hardware.digest, compiler: version}
    platform, flags = hardware.platform, environment.variables(hardware.platform)
    environments = {
        checked.environment_key: environment.describe(
            platform, hardware.device_kind, flags, checked.workload_digest, None, hardware=recorded
        )
        for checked in checked_cases
    }
    cases = _find_unplanned(folder, checked_cases, environments)
    return PlannedStudy(
        name, config["study"].get("title"), hardware, folder, frozenset(cell.scaling for cell in cells),
        settings, cases, len(checked_cases) - len(cases),
        frozenset(checked.case.key for checked in checked_cases), environments,
    )  # fmt: skip


def _find_unplanned(
    folder: Path, cases: Sequence[PreflightResult], environments: Mapping[tuple, dict[str, Any]]
) -> tuple[PreflightResult, ...]:
    """Return the cases without a plan in `folder` for the same environment. Failed plans do not count."""
    plans = (plan for plan in store.load(folder).plans if plan.status != "failed")
    planned = {(plan.key, plan.environment["digest"]) for plan in plans}
    return tuple(x for x in cases if (x.case.key, environments[x.environment_key]["digest"]) not in planned)


def _read_options(config: dict[str, Any]) -> tuple[Hardware, Path, RunSettings]:
    """Return the hardware, the results folder and the run settings of a plan.

    Raise `Refusal` if a value is invalid, or if an option has no effect on a plan.
    """
    if not isinstance(config.get("hardware"), dict):
        raise Refusal(
            "specify the hardware to plan for, such as hardware=v5p or hardware=h100; "
            "`scaling plan --help` lists all hardware"
        )
    folder, settings = store.parse_results_folder(config["results"]), RunSettings.from_config(config)
    options = config | {"sampling.width": settings.sampling.width}
    for option, default in _RUN_OPTIONS.items():
        value = options[option].get("name") if isinstance(options[option], Mapping) else options[option]
        if value != default:
            given = grid.format_setting(option, value)
            raise Refusal(f"{given} has no effect on a plan, which only compiles; remove it")
    hardware = from_config(config["hardware"])
    store.refuse_newer_schema(folder)
    if hardware.platform == "cpu":
        ceilings = config["hardware"].get("ceilings")
        measured = folder if ceilings is None else store.require_results_folder(str(ceilings))
        hardware = _calibrate_cpu(hardware, measured)
    return hardware, folder, settings


def _calibrate_cpu(hardware: Hardware, folder: Path) -> Hardware:
    """Return a copy of a CPU model with the peak rates that were measured in a results folder.

    If the model does not state the memory of a device, the copy has the free memory of this machine per core.
    """
    calibrated = time_model.calibrate(hardware, pool_processes(store.load(folder).records))
    free = environment.available_bytes()  # used if the model does not state the memory of a device
    per_core = None if free is None else free / len(cores.usable_cores())
    return dataclasses.replace(calibrated, memory=hardware.memory or per_core)


def _expand_cases(
    config: Mapping[str, Any], name: str, hardware: Hardware, max_cases: int
) -> list[grid.GridCell]:
    """Return the cases of a study. Raise `Refusal` if there are more than `max_cases`.

    With devices=all, cases with strong scaling whose points do not divide evenly over the devices are
    omitted, unless split=both.
    """
    overrides = {field: config[field] for field in (*FIELDS, "scaling", "where")}
    cells = grid.expand_study(config["study"], overrides, max_cases, hardware.device_counts(), name)
    if (overrides["devices"] or config["study"].get("devices")) != grid.EVERY:
        return cells
    divides_evenly = lambda case: case.split == "both" or case.points % case.mesh_shape[0] == 0  # noqa: E731
    return [cell for cell in cells if cell.scaling == "weak" or divides_evenly(cell.case)]


def _skip_unplannable(checked: PreflightResult) -> PreflightResult:
    """Return the preflight result of a case, with the outcome "skipped" if the case cannot be planned.

    Cases with engine other than jax, mode=auto or jit=false cannot be planned. An existing outcome is kept.
    """
    case = checked.case
    if checked.outcome or (case.engine == "jax" and case.mode != AUTO and case.jit):
        return checked
    reason = "not_defined" if case.engine == "jax" else "not_offered"
    found = f"engine={case.engine}, mode={case.mode}, jit={str(case.jit).lower()}"
    text = f"only programs of engine=jax with jit=true and a stated mode can be planned, not {found}"
    return dataclasses.replace(checked, outcome=("skipped", reason, text))


def run_plan(study: PlannedStudy, listener: Callable[[dict[str, Any]], None]) -> None:
    """Compile the cases of a study, predict their run times, and write one record per case.

    `listener` is called with an event, a dict, when a case begins or ends.
    """
    store.create_results(study.folder)
    with store.lock_folder(study.folder, ".plan.lock"):
        writer = Writer(study.folder)
        _write_manifest(study)
        # Another plan may have recorded some of the cases since they were checked.
        unplanned = _find_unplanned(study.folder, study.cases, study.environments)
        for checked, fields in _compile(dataclasses.replace(study, cases=unplanned)):
            if fields is None:  # the compilation of a case begins
                listener({"event": "begin", "key": checked.case.key})
                continue
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            planned_environment = study.environments[checked.environment_key]
            record = Record(checked.case, environment=planned_environment, started_at=now, **fields)
            writer.append(record)
            seconds = {"seconds": [record.predicted["seconds"]]} if record.predicted else {}
            listener({"event": "end", "key": record.key} | outcome_fields(record) | seconds)


def _compile(study: PlannedStudy) -> Iterator[tuple[PreflightResult, RecordFields | None]]:
    """Compile the cases of a study, and yield each case with its record fields and predicted time.

    Cases that the preflight check excludes come first. They are not compiled. Each other case is yielded
    twice: with None when its compilation begins, and with its fields at the end.
    """
    for checked in study.cases:
        if checked.outcome:
            yield checked, dict(zip(("status", "reason", "text"), checked.outcome, strict=True))
    hardware, checked_cases = study.hardware, {each.case: each for each in study.cases if not each.outcome}
    header = {
        "platform": hardware.platform, "hardware": dataclasses.asdict(hardware),
        "most": max((case.devices for case in checked_cases), default=0),
    }  # fmt: skip
    worker_count, timeout = min(len(cores.usable_cores()), len(checked_cases)), study.settings.case_seconds
    for case, fields in compile_cases(header, checked_cases, worker_count, timeout):
        yield checked_cases[case], fields and time_model.predict(case, hardware, fields)


def _write_manifest(study: PlannedStudy) -> None:
    """Write a description of the study and its hardware to plan-HARDWARE.json in the results folder."""
    hardware, path = study.hardware, study.folder / f"plan-{study.hardware.name}.json"
    existing = store.read_json(path)  # may describe another study in the same folder
    earlier = existing.get("scaling") if isinstance(existing, dict) else None
    scaling = {*study.scaling, *map(str, earlier if isinstance(earlier, list) else ())}
    hardware_fields = {**hardware.config, "digest": hardware.digest, "device_kind": hardware.device_kind}
    fields = {"study": study.name, "title": study.title, "scaling": sorted(scaling)}
    store.write_json(path, store.schema_and_version() | fields | {"hardware": hardware_fields})


def describe_work(study: PlannedStudy) -> str:
    """Return a sentence that counts the cases to compile, already planned, skipped and failed."""
    numbers = Counter(checked.outcome[0] if checked.outcome else "planned" for checked in study.cases)
    to_compile = format_count(numbers["planned"], "case")
    counts = f"{to_compile} to compile, {study.done} already done, {numbers['skipped']} skipped"
    counts += f", {numbers['failed']} failed before the start" if numbers["failed"] else ""
    return f"{study.name} for {study.hardware.title}: {counts}; results in {study.folder}"


def plan_lines(study: PlannedStudy, findings: Findings) -> list[str]:
    """Return sentences about the predicted times of a study, and the device-hours needed to measure it.

    `findings` is the analysis of the results folder.
    """
    folder_forecast = next((f for f in findings.forecasts if f.hardware == study.hardware.name), None)
    if folder_forecast is None:
        return ["no case could be planned"]
    study_forecast = keep_cases(folder_forecast, study.keys)
    answers = plan_answers(study_forecast)
    planned = [record for record in study_forecast.records if record.status == "planned"]
    if not any(record.predicted for record in planned):
        return [*answers, "The device-hours to measure the study are unknown: no case has a predicted time."]
    low, high = (device_hours(planned, study.settings, limit) for limit in ("low", "high"))
    replicates = study.settings.replicates
    repetitions = "once" if replicates == 1 else format_count(replicates, "time")
    hours = " to ".join(dict.fromkeys(map(format_number, (low, high))))  # "2" instead of "2 to 2"
    cost = f"Measuring the whole study {repetitions} takes {hours} device-hours"
    if unknown := sum(record.predicted is None for record in planned):
        cost += f" ({format_count(unknown, 'case')} without a prediction omitted)"
    return [*answers, f"{cost}."]


def device_hours(records: Sequence[Record], settings: RunSettings, limit: str) -> float:
    """Return the predicted device-hours that are needed to measure all replicates of the given cases.

    `limit` selects the "low" or "high" limit of the 95 % interval of each predicted time. Cases without a
    predicted time are omitted.
    """
    seconds, sampling = 0.0, settings.sampling
    for record in records:
        if record.predicted is not None:
            call = record.predicted[limit]
            stages = sum(getattr(record, name) or 0.0 for name in COMPILING_STAGES)
            least_seconds = max(sampling.seconds, max(sampling.least, sampling.turns) * call)
            sampling_seconds = max(sampling.warm_up, call) + min(least_seconds, sampling.most * call)
            seconds += (_BUILD_SECONDS + call + stages + sampling_seconds) * record.case.devices
    return seconds * settings.replicates / 3600
