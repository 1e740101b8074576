"""The verb `plan`: compile a composed study for other hardware, and record for each case what it would
take there.

Does not know how a case is compiled (compile_worker.py), nor how a time is predicted (time_model.py).
"""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.analysis import curves, forecast
from scaling.analysis.findings import Findings
from scaling.core import environment, memory, store
from scaling.core.case import FIELDS, Case, Refusal
from scaling.core.formatting import count_of, format_number
from scaling.core.record import Record
from scaling.plan import calibration, cost, time_model
from scaling.plan import hardware as machines
from scaling.plan.compile_pool import CompilePool, RecordFields
from scaling.plan.hardware import Hardware
from scaling.study import grid, preflight
from scaling.study.results_folder import create_results, parse_results
from scaling.workers import cores
from scaling.workers.examined import Examined
from scaling.workers.settings import RunSettings

_COMPILERS = {
    "tpu": ("libtpu",),
    "gpu": ("jax-cuda12-plugin", "jax-cuda13-plugin"),
    "cpu": ("jaxlib",),
}  # one of them
_ASSEMBLERS = (
    "nvidia-cuda-nvcc-cu12",
    "nvidia-cuda-nvcc",
)  # for GPUs, unless CUDA is where XLA looks for it:
_CUDA = Path("/usr/local/cuda")
_EXTRA = {"tpu": "plan-tpu", "gpu": "plan-gpu"}
_RUN_OPTIONS = {"dry_run": False, "versus": None, "wait": None, "oversubscribe": False}  # with their defaults
Listener = Callable[[dict[str, Any]], None]


HELP = """\
Compile a study for machines that are not here, and say what it would take there: nothing is run.

  scaling plan study=plan hardware=v5p                          every case, for TPU v5p
  scaling plan study=plan hardware=h100 'devices=[8,1024]'      on 8 and 1024; devices=all: every count there is
  scaling plan study=plan hardware=v5p 'devices=[64,8960,1000000]'   beyond the largest machine by formula alone
  scaling plan study=rbf hardware=h100 hardware.price=3.5       what it costs, at a price for each device and hour
  scaling plan study=plan hardware=h100 deadline=0.01           the cheapest number of devices within this time
  scaling plan study=linear hardware=cpu                        this CPU, from its measured ceilings
  scaling plan --config-dir my_conf study=mine hardware=mine    hardware of your own: my_conf/hardware/mine.yaml

Hardware: a100, b200, cpu, h100, h200, tpu7x, v4, v5e, v5p, v6e (conf/hardware). Studies and fields of a case are those of
`scaling run --help`. TPUs want the extra `plan-tpu`, GPUs `plan-gpu`; `scripts/plan` installs both. Records go to
results/<study> with the measured ones, as `planned`; the same command continues where it stopped. Exit status: as of
`scaling run`."""


@dataclass(frozen=True)
class PlanJob:
    """A study to plan for some hardware."""

    name: str
    title: str | None
    hardware: Hardware
    folder: Path
    cells: list[grid.GridCell]
    settings: RunSettings  # of a later measurement; case_seconds limits a compilation as well


@dataclass(frozen=True)
class PlanWork:
    """The cases of a job that are to be compiled, those that cannot be, and the number of those that were."""

    job: PlanJob
    cases: tuple[Examined, ...]
    compiled_as: Mapping[Case, Case]  # case beyond the largest machine -> case that is compiled instead
    environments: Mapping[tuple, dict[str, Any]]  # by `Examined.environment_key`
    refused: tuple[tuple[Examined, str, str], ...]  # with reason and text
    done: int
    keys: frozenset[str]  # of all cases of the job


def read_plan(config: dict[str, Any], name: str) -> PlanJob:
    """Return the study of a composed configuration and its hardware; bad input is a `Refusal`."""
    if not isinstance(config["study"], dict):
        raise Refusal(f"study={name} is no mapping of fields and grids; name one study, such as study=plan")
    if not isinstance(config.get("hardware"), dict):
        example = "name the hardware to plan for, such as hardware=v5p or hardware=h100"
        raise Refusal(f"{example}; `scaling plan --help` lists what there is")
    for option, default in _RUN_OPTIONS.items():
        if config[option] != default:
            words = f"{option}={config[option]} has no effect here: it is an option of `scaling run`"
            raise Refusal(f"{words}; leave it out")
    folder, settings, deadline = (
        parse_results(config["results"]),
        RunSettings.from_config(config),
        config["deadline"],
    )
    number = isinstance(deadline, int | float) and not isinstance(deadline, bool) and 0 < deadline < math.inf
    if deadline is not None and not number:
        raise Refusal(f"deadline must be a positive number of seconds, not {deadline!r}")
    hardware = machines.from_config(config["hardware"])
    store.check_schemas(folder)
    if hardware.platform == "cpu":
        hardware = _calibrate(hardware, Path(str(config["hardware"].get("ceilings") or folder)))
    cells = _expand(config, hardware, settings.max_cases)
    for count in sorted({cell.case.devices for cell in cells}):
        hardware.check_devices(count)
    return PlanJob(name, config["study"].get("title"), hardware, folder, cells, settings)


def _calibrate(hardware: Hardware, folder: Path) -> Hardware:
    """Return this CPU with the rates that were measured on it, and the part of a core of its free memory."""
    timings = curves.pool_processes(store.load(folder).records) if folder.is_dir() else []
    free = memory.available_bytes()
    share = None if free is None else free / len(cores.allowed())
    return dataclasses.replace(calibration.calibrated(hardware, timings), memory=share)


def _expand(config: Mapping[str, Any], hardware: Hardware, max_cases: int) -> list[grid.GridCell]:
    """Return the cells of the study; with devices=all, on each available count that divides the points
    evenly.
    """
    overrides = {field: config[field] for field in (*FIELDS, "scaling", "where")}
    study, fields = _fill_in_devices(config["study"], hardware), _fill_in_devices(overrides, hardware)
    cells = grid.expand_study(study, fields, max_cases)
    if (overrides["devices"] or config["study"].get("devices")) != grid.EVERY:
        return cells
    return [
        cell
        for cell in cells
        if cell.scaling == "weak" or cell.case.split == "both" or cell.case.points % cell.case.axes[0] == 0
    ]


def _fill_in_devices(value: Any, hardware: Hardware) -> Any:
    """Return a study or its overrides with the available numbers of devices instead of `all`."""
    if isinstance(value, list):
        return [_fill_in_devices(each, hardware) for each in value]
    if not isinstance(value, Mapping):
        return value
    filled = {name: _fill_in_devices(each, hardware) for name, each in value.items()}
    return filled | ({"devices": hardware.device_counts()} if filled.get("devices") == grid.EVERY else {})


def prepare_plan(job: PlanJob, note: preflight.Note = lambda done, total: None) -> PlanWork:
    """Return what is missing of a study and can be compiled. note: see `preflight.examine_cells`."""
    compiler = _find_compiler(job.hardware)
    answers = preflight.examine_cells(job.cells, job.settings.case_seconds, note)
    environments = {each.environment_key: _environment(job, compiler, each) for each in answers}
    plans = store.load(job.folder).plans if job.folder.is_dir() else []
    past = {(record.key, record.environment["digest"]) for record in plans if record.good}
    cases, refused, compiled_as = [], [], {}
    new = [
        each for each in answers if (each.case.key, environments[each.environment_key]["digest"]) not in past
    ]
    for answer in new:
        case, most = answer.case, job.hardware.most
        smaller = case if case.devices <= most else smaller_case(case, job.hardware)
        if why := _refusal(answer):
            refused.append((answer, *why))
        elif smaller is None:
            text = f"no program on {most} devices or fewer does what each of these would"
            refused.append((answer, "not_defined", text))
        else:
            cases.append(answer)
            compiled_as[case] = smaller
    keys = frozenset(each.case.key for each in answers)
    return PlanWork(
        job, tuple(cases), compiled_as, environments, tuple(refused), len(answers) - len(new), keys
    )


def _refusal(answer: Examined) -> tuple[str, str] | None:
    """Return why a case cannot be planned, as (reason, text)."""
    if found := answer.failure or answer.unfit:
        return found
    if answer.case.engine != "jax":
        return "not_offered", f"{answer.case.engine} is not compiled by XLA: a plan is of JAX"
    if not answer.case.jit:
        return "not_defined", "what runs uncompiled is no program to compile for another machine"
    return None


def smaller_case(case: Case, hardware: Hardware) -> Case | None:
    """Return a case that can be compiled and whose devices each do what those of a larger one do; None if
    there is none.

    It has fewer devices over points, and fewer points; as many devices share the seeds of a point.
    """
    over_points, over_seeds = case.axes
    if case.points % over_points and case.split != "both":
        return None
    for count in reversed(hardware.device_counts()):
        fewer, rest = divmod(count, over_seeds)
        if not rest and 0 < fewer < over_points and (fewer > 1 or case.split != "data"):
            mesh = f"{fewer}x{over_seeds}" if case.mesh else None
            points = math.ceil(case.points / over_points) * fewer
            return dataclasses.replace(case, devices=count, points=points, mesh=mesh)
    return None


def _find_compiler(hardware: Hardware) -> tuple[str, str]:
    """Return the package that compiles for some hardware, and its version."""
    found = _find_package(_COMPILERS[hardware.platform])
    assembler = (
        hardware.platform != "gpu" or _find_package(_ASSEMBLERS) or _CUDA.is_dir() or shutil.which("ptxas")
    )
    if found and assembler:
        return found
    missing = "CUDA's assembler, ptxas, which" if found else "a compiler that"
    raise Refusal(
        f"hardware={hardware.name} wants {missing} is not installed: "
        f"`scripts/plan` installs it, or pip install 'ad-scaling[{_EXTRA[hardware.platform]}]'"
    )


def _find_package(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the first of some packages that is installed, and its version."""
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return name, importlib.metadata.version(name)
    return None


def _environment(job: PlanJob, compiler: tuple[str, str], answer: Examined) -> dict[str, Any]:
    name, version = compiler
    hardware, digest = job.hardware, answer.workload_digest
    recorded = {"name": hardware.name, "digest": hardware.digest, name: version}
    flags = environment.variables(hardware.platform)
    return environment.describe(
        hardware.platform, hardware.device_kind, flags, digest, None, hardware=recorded
    )


def run(work: PlanWork, listener: Listener) -> None:
    """Compile what is missing, and record every case as it ends."""
    job, by_program = work.job, dict[Case, list[Examined]]()
    for answer in work.cases:
        by_program.setdefault(work.compiled_as[answer.case], []).append(answer)
    create_results(job.folder)
    with store.locked(job.folder, ".plan.lock"):
        writer = store.Writer(job.folder)

        def conclude(answer: Examined, fields: RecordFields) -> None:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            made_for = work.environments[answer.environment_key]
            record = Record(answer.case, environment=made_for, started_at=now, **fields)
            writer.append(record)
            seconds = [record.predicted["seconds"]] if record.predicted else []
            shown = {name: getattr(record, name) for name in ("key", "status", "reason", "text")}
            listener({"event": "end", "seconds": seconds} | shown)

        def report(compiled: Case, fields: RecordFields) -> None:
            for answer in by_program[compiled]:
                conclude(answer, predict(answer.case, compiled, job.hardware, fields))

        store.write_json(_manifest_file(job), _manifest(job))
        for answer, reason, text in work.refused:
            conclude(
                answer, {"status": "failed" if answer.failure else "skipped", "reason": reason, "text": text}
            )
        if by_program:
            pool = _compile_pool(job, by_program)
            pool.compile_all(
                by_program, report, lambda c: listener({"event": "begin", "key": by_program[c][0].case.key})
            )


def _compile_pool(job: PlanJob, cases: Mapping[Case, Any]) -> CompilePool:
    hardware, counts = job.hardware, sorted({case.devices for case in cases})
    header = {
        "platform": hardware.platform, "target": hardware.target, "per_host": hardware.per_host,
        "memory": hardware.memory, "most": counts[-1],
        "places": {str(count): list(hardware.slice_shape(count) or ()) for count in counts},
    }  # fmt: skip
    return CompilePool(header, min(len(cores.allowed()), len(cases)), job.settings.case_seconds)


def predict(case: Case, compiled: Case, hardware: Hardware, fields: RecordFields) -> RecordFields:
    """Return what was found of a case, or of the smaller one compiled for it, with the time that it would
    take.

    Beyond the largest machine each device does what those of the smaller case do, and all of them
    communicate.
    """
    if fields["status"] != "planned":
        return fields
    if beyond := case != compiled:
        larger = {compiled.devices: case.devices}
        messages = [m | {"group": larger.get(m["group"], m["group"])} for m in fields["messages"]]
        fields = {"compiled_as": compiled.key} | fields | {"messages": messages}
    if "host" in (compiled.storage, (fields.get("blocks") or {}).get("storage")):
        return fields | {
            "text": "not predicted: what goes between the host and its devices is not in the model"
        }
    time = time_model.estimate(case, hardware, fields["kernels"], fields["messages"])
    if isinstance(time, str):
        return fields | {"text": f"not predicted: {time}"}
    return fields | {"predicted": dataclasses.asdict(time) | {"by": "formula" if beyond else "program"}}


def _manifest_file(job: PlanJob) -> Path:
    return job.folder / f"plan-{job.hardware.name}.json"


def _manifest(job: PlanJob) -> dict[str, Any]:
    """Return the content of plan-NAME.json: the hardware, and the study as the user stated it."""
    scaling = {cell.scaling for cell in job.cells}
    before = store.read_json(_manifest_file(job))  # maybe of another study in the same folder
    if isinstance(before, dict) and isinstance(before.get("scaling"), list):
        scaling |= set(map(str, before["scaling"]))
    hardware = {**job.hardware.config, "digest": job.hardware.digest, "device_kind": job.hardware.device_kind}
    fields = {"study": job.name, "title": job.title, "scaling": sorted(scaling), "hardware": hardware}
    return store.stamp() | fields


def describe_work(work: PlanWork) -> str:
    """Return in a line what will be compiled."""
    failed = sum(answer.failure is not None for answer, *_ in work.refused)
    parts = [
        f"{len(work.cases)} cases to compile",
        f"{work.done} done before",
        f"{len(work.refused) - failed} skipped",
    ]
    parts += [f"{failed} failed before the start"] if failed else []
    return f"{work.job.name} for {work.job.hardware.title}: {', '.join(parts)}; results in {work.job.folder}"


def plan_lines(work: PlanWork, found: Findings, deadline: float | None) -> list[str]:
    """Return what the plan says of this study, in sentences."""
    whole = next((each for each in found.forecasts if each.hardware == work.job.hardware.name), None)
    if whole is None:
        return ["nothing could be planned"]
    mine, settings = forecast.keep_cases(whole, work.keys), work.job.settings
    low, high, unknown = cost.device_hours([r for r in mine.records if r.status == "planned"], settings)
    more = f" ({count_of(unknown, 'case')} without a prediction left out)" if unknown else ""
    price = f", {_format_span(low * mine.price, high * mine.price)} at the price given" if mine.price else ""
    how_often = "once" if settings.replicates == 1 else count_of(settings.replicates, "time")
    takes = f"Measuring all of it {how_often} takes {_format_span(low, high)} device-hours{more}{price}."
    return [*forecast.plan_answers(mine, deadline), takes]


def _format_span(low: float, high: float) -> str:
    """Return two numbers, or one where both read the same."""
    return " to ".join(dict.fromkeys(map(format_number, (low, high))))
