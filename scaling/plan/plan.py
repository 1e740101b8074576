"""The verb `plan`: a composed study compiled for some hardware, and a record of each case with what it would take there.

Knows the configuration and in what order things happen; what is compiled planner.py knows, what a time is made of model.py.
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
from scaling.plan.compile_pool import CompilePool, Found
from scaling.plan.hardware import Hardware
from scaling.study import grid, preflight
from scaling.workers import cores
from scaling.workers.examined import Examined
from scaling.workers.settings import RunSettings

_COMPILERS = {
    "tpu": ("libtpu",),
    "gpu": ("jax-cuda12-plugin", "jax-cuda13-plugin"),
    "cpu": ("jaxlib",),
}  # any of them will do
_ASSEMBLERS = (
    "nvidia-cuda-nvcc-cu12",
    "nvidia-cuda-nvcc",
)  # for GPUs, or an installation of CUDA, where XLA looks for one
_CUDA = Path("/usr/local/cuda")
_EXTRA = {"tpu": "plan-tpu", "gpu": "plan-gpu"}
Listener = Callable[[dict[str, Any]], None]


HELP = """\
Compile a study for machines that are not here, and say what it would take there: nothing is run.

  scaling plan study=plan hardware=v5p                          every case, for TPU v5p
  scaling plan study=plan hardware=h100 'devices=[8,1024]'      on so many devices; devices=all: every count there is
  scaling plan study=plan hardware=v5p 'devices=[64,8960,1000000]'   beyond the largest machine by formula alone
  scaling plan study=rbf hardware=h100 hardware.price=3.5       what it costs, at a price for each device and hour
  scaling plan study=plan hardware=h100 deadline=0.01           which number of devices is the cheapest within so many seconds
  scaling plan study=linear hardware=cpu                        this CPU, from its measured ceilings
  scaling plan --config-dir my_conf study=mine hardware=mine    hardware of your own: my_conf/hardware/mine.yaml

Hardware: a100, b200, cpu, h100, h200, tpu7x, v4, v5e, v5p, v6e (conf/hardware). Studies and fields of a case are those of
`scaling run --help`. TPUs want the extra `plan-tpu`, GPUs `plan-gpu`; `scripts/plan` installs both. Records go to
results/<study> beside measured ones, with status `planned`; the same command goes on where it stopped. Exit status: as of
`scaling run`."""


@dataclass(frozen=True)
class PlanJob:
    """A study as it is to be planned, and checked."""

    name: str
    title: str | None
    hardware: Hardware
    folder: Path
    cells: list[grid.GridCell]
    settings: RunSettings  # of measuring it, one day; case_seconds limits a compilation as well


@dataclass(frozen=True)
class PlanResult:
    """What is to be compiled, with the case that stands in for each that is beyond the largest machine, and what is not."""

    job: PlanJob
    answers: tuple[Examined, ...]
    stand_ins: Mapping[Case, Case]
    environments: Mapping[tuple, dict[str, Any]]
    unfit: tuple[tuple[Examined, str, str], ...]
    done: int
    asked: tuple[Examined, ...]


def read_plan(config: dict[str, Any], name: str) -> PlanJob:
    """The study of a composed configuration and the hardware to plan it for; bad input is a `Refusal`."""
    if not isinstance(config["study"], dict):
        raise Refusal(f"study={name} is no mapping of fields and grids; name one study, such as study=plan")
    if not isinstance(config.get("hardware"), dict):
        raise Refusal(
            "name the hardware to plan for, such as hardware=v5p or hardware=h100; `scaling plan --help` lists what there is"
        )
    defaults = {"dry_run": False, "versus": None, "wait": None, "oversubscribe": False}
    for option, value in defaults.items():
        if config[option] != value:
            raise Refusal(
                f"{option}={config[option]} has no effect here: it is an option of `scaling run`; leave it out"
            )
    folder = store.results_folder(config["results"])
    settings, deadline = RunSettings.from_config(config), config["deadline"]
    a_number = (
        isinstance(deadline, int | float) and not isinstance(deadline, bool) and 0 < deadline < math.inf
    )
    if deadline is not None and not a_number:
        raise Refusal(f"deadline must be a positive number of seconds, not {deadline!r}")
    hardware = machines.from_config(config["hardware"])
    store.check_schemas(folder)
    if hardware.platform == "cpu":
        hardware = calibration.calibrated(
            hardware, _ceilings(Path(str(config["hardware"].get("ceilings") or folder)))
        )
        hardware = dataclasses.replace(hardware, memory=_of_this_host())
    cells = _cells(config, hardware)
    for count in sorted({cell.case.devices for cell in cells}):
        hardware.enough(count)
    return PlanJob(name, config["study"].get("title"), hardware, folder, cells, settings)


def _cells(config: Mapping[str, Any], hardware: Hardware) -> list[grid.GridCell]:
    """The cells of the study; with devices=all, on every count that the hardware comes in and the points share out over."""
    overrides = {field: config[field] for field in (*FIELDS, "scaling", "where")}
    most = RunSettings.from_config(config).max_cases
    asked = grid.expand_study(_on_all(config["study"], hardware), _on_all(overrides, hardware), most)
    every = (overrides["devices"] or config["study"].get("devices")) == grid.EVERY
    return [cell for cell in asked if not every or _shares_out(cell)]


def _shares_out(cell: grid.GridCell) -> bool:
    return cell.scaling == "weak" or cell.case.split == "both" or cell.case.points % cell.case.axes[0] == 0


def _on_all(told: Any, hardware: Hardware) -> Any:
    """A study or its overrides with the numbers of devices in the place of `all`."""
    if isinstance(told, Mapping):
        each = {name: _on_all(value, hardware) for name, value in told.items()}
        return each | ({"devices": hardware.counts()} if each.get("devices") == grid.EVERY else {})
    return [_on_all(value, hardware) for value in told] if isinstance(told, list) else told


def _ceilings(folder: Path) -> list[curves.Timing]:
    return curves.pool_processes(store.load(folder).records) if folder.is_dir() else []


def _of_this_host() -> float | None:
    """What a core may have of the memory of this host, if all are at work."""
    free = memory.available_bytes()
    return None if free is None else free / len(cores.allowed())


def prepare_plan(job: PlanJob, note: preflight.Note = lambda done, total: None) -> PlanResult:
    """What of a study is missing, and can be compiled. note: see `preflight.examine_cells`."""
    hardware = job.hardware
    compiler = _compiler(hardware)
    answers = preflight.examine_cells(job.cells, job.settings.case_seconds, note)
    around = {
        answer.environment_key: _environment(job, compiler, answer.environment_key) for answer in answers
    }
    past = (
        {(r.key, r.environment["digest"]) for r in store.load(job.folder).plans if r.good}
        if job.folder.is_dir()
        else set()
    )
    todo, unfit, stand_ins, done = [], [], dict[Case, Case](), 0
    for answer in answers:
        if (answer.case.key, around[answer.environment_key]["digest"]) in past:
            done += 1
        elif why := _why_not(answer):
            unfit.append((answer, *why))
        elif answer.case.devices <= hardware.most:
            todo.append(answer)
        elif (twin := stand_in(answer.case, hardware)) is None:
            unfit.append(
                (
                    answer,
                    "not_defined",
                    f"no program on {hardware.most} devices or fewer does what each of these would",
                )
            )
        else:
            stand_ins[answer.case] = twin
            todo.append(answer)
    return PlanResult(job, tuple(todo), stand_ins, around, tuple(unfit), done, tuple(answers))


def _why_not(answer: Examined) -> tuple[str, str] | None:
    """Why a case cannot be planned, as (reason, words)."""
    if found := answer.failure or answer.unfit:
        return found
    if answer.case.engine != "jax":
        return "not_offered", f"{answer.case.engine} is not compiled by XLA: a plan is of JAX"
    if not answer.case.jit:
        return "not_defined", "what runs uncompiled is no program to compile for another machine"
    return None


def stand_in(case: Case, hardware: Hardware) -> Case | None:
    """A case whose devices do each what those of a larger one do, on as many as can be compiled; None where there is none.

    Devices over points are fewer, and so are the points; how many share the seeds of a point stays.
    """
    over_points, over_seeds = case.axes
    share, rest = divmod(case.points, over_points)
    if rest and case.split != "both":
        return None
    share = math.ceil(case.points / over_points)
    for count in reversed(hardware.counts()):
        fewer, left = divmod(count, over_seeds)
        if not left and 0 < fewer < over_points and (fewer > 1 or case.split != "data"):
            mesh = f"{fewer}x{over_seeds}" if case.mesh else None
            return dataclasses.replace(case, devices=count, points=share * fewer, mesh=mesh)
    return None


def _compiler(hardware: Hardware) -> tuple[str, str]:
    """What compiles for it, and its version."""
    found = _installed(_COMPILERS[hardware.platform])
    whole = hardware.platform != "gpu" or _installed(_ASSEMBLERS) or _CUDA.is_dir() or shutil.which("ptxas")
    if found and whole:
        return found
    missing = "CUDA's assembler, ptxas, which" if found else "a compiler that"
    raise Refusal(
        f"hardware={hardware.name} wants {missing} is not installed: "
        f"`scripts/plan` installs it, or pip install 'ad-scaling[{_EXTRA[hardware.platform]}]'"
    )


def _installed(names: Sequence[str]) -> tuple[str, str] | None:
    """The first of some packages that is here, and its version."""
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return name, importlib.metadata.version(name)
    return None


def _environment(job: PlanJob, compiler: tuple[str, str], around: tuple) -> dict[str, Any]:
    hardware = job.hardware
    told = {"name": hardware.name, "digest": hardware.digest, compiler[0]: compiler[1]}
    flags = environment.variables(hardware.platform)
    return environment.describe(
        hardware.platform, hardware.device_kind, flags, around[0], None, hardware=told
    )


def run(made: PlanResult, listener: Listener, workers: int | None = None) -> None:
    """Compile what is missing, and put every case on record as it ends."""
    job = made.job
    store.prepare(job.folder)
    with store.locked(job.folder, ".plan.lock"):
        writer = store.Writer(job.folder)
        store.write_json(_file(job), _manifest(made))
        for answer, reason, text in made.unfit:
            status = "failed" if answer.failure else "skipped"
            _conclude(made, writer, listener, answer, {"status": status, "reason": reason, "text": text})
        by_case: dict[Case, list[Examined]] = {}
        for answer in made.answers:
            by_case.setdefault(made.stand_ins.get(answer.case, answer.case), []).append(answer)

        def tell(case: Case, found: Found) -> None:
            for answer in by_case[case]:
                _conclude(made, writer, listener, answer, predicted(answer.case, case, job.hardware, found))

        def begin(case: Case) -> None:
            listener({"event": "begin", "key": by_case[case][0].case.key})

        if by_case:
            _crew(job, by_case, workers).plan(by_case, tell, begin)


def _crew(job: PlanJob, cases: Mapping[Case, Any], workers: int | None) -> CompilePool:
    hardware, counts = job.hardware, sorted({case.devices for case in cases})
    header = {
        "platform": hardware.platform, "target": hardware.target, "per_host": hardware.per_host, "memory": hardware.memory,
        "places": {str(count): list(hardware.shape(count) or ()) for count in counts}, "most": counts[-1],
    }  # fmt: skip
    size = min(workers or len(cores.allowed()), len(cases))
    return CompilePool(header, size, job.settings.case_seconds)


def predicted(case: Case, compiled: Case, hardware: Hardware, found: Found) -> Found:
    """What was found of a case, or of what stands in for it, with what it would take on that hardware.

    Beyond the largest machine each device does what the stand-in's do, and what they send goes to all of them.
    """
    if found["status"] != "planned":
        return found
    beyond = case != compiled
    messages = (
        [m | ({"group": case.devices} if m["group"] == compiled.devices else {}) for m in found["messages"]]
        if beyond
        else None
    )
    own = found | ({"messages": messages, "compiled_as": compiled.key} if beyond else {})
    if "host" in (compiled.storage, (found.get("blocks") or {}).get("storage")):
        return own | {"text": "not predicted: what goes between the host and its devices is not in the model"}
    time = time_model.estimate(case, hardware, own["kernels"], own["messages"])
    if isinstance(time, str):
        return own | {"text": f"not predicted: {time}"}
    return own | {"predicted": dataclasses.asdict(time) | {"by": "formula" if beyond else "program"}}


def _conclude(
    made: PlanResult, writer: store.Writer, listener: Listener, answer: Examined, found: Found
) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    record = Record(answer.case, found["status"], made.environments[answer.environment_key], started_at=now)
    record = dataclasses.replace(record, **found)
    writer.append(record)
    seconds = [record.predicted["seconds"]] if record.predicted else []
    told = {name: getattr(record, name) for name in ("key", "status", "reason", "text")}
    listener({"event": "end", "seconds": seconds} | told)


def _file(job: PlanJob) -> Path:
    return job.folder / f"plan-{job.hardware.name}.json"


def _manifest(made: PlanResult) -> dict[str, Any]:
    """What plan-NAME.json says: the hardware as it was planned for, and the study as it was asked for."""
    job = made.job
    scaling = {cell.scaling for cell in job.cells}
    before = store.read_json(
        _file(job)
    )  # of another study in the same folder, perhaps, whose curves are of another kind
    if isinstance(before, dict) and isinstance(before.get("scaling"), list):
        scaling |= set(map(str, before["scaling"]))
    hardware = dict(job.hardware.told) | {
        "digest": job.hardware.digest,
        "device_kind": job.hardware.device_kind,
    }
    return store.stamp() | {
        "study": job.name,
        "title": job.title,
        "scaling": sorted(scaling),
        "hardware": hardware,
    }


def describe_estimate(made: PlanResult) -> str:
    """What will be done, in a line."""
    failed = sum(answer.failure is not None for answer, *_ in made.unfit)
    skipped = len(made.unfit) - failed
    job, words = (
        made.job,
        [f"{len(made.answers)} cases to compile", f"{made.done} done before", f"{skipped} skipped"],
    )
    words += [f"{failed} failed before the start"] if failed else []
    return f"{job.name} for {job.hardware.title}: {', '.join(words)}; results in {job.folder}"


def plan_lines(made: PlanResult, found: Findings, deadline: float | None) -> list[str]:
    """What the plan says of the study that was asked for, in sentences."""
    keys = {answer.case.key for answer in made.asked}
    whole = next((each for each in found.forecasts if each.hardware == made.job.hardware.name), None)
    if whole is None:
        return ["nothing could be planned"]
    mine = forecast.keep_cases(whole, keys)
    settings = made.job.settings
    low, high, unknown = cost.device_hours([r for r in mine.records if r.status == "planned"], settings)
    more = f" ({count_of(unknown, 'case')} without a prediction left out)" if unknown else ""
    price = f", {_span(low * mine.price, high * mine.price)} at the price given" if mine.price else ""
    how_often = "once" if settings.replicates == 1 else count_of(settings.replicates, "time")
    takes = f"Measuring all of it {how_often} takes {_span(low, high)} device-hours{more}{price}."
    return [*forecast.plan_answers(mine, deadline), takes]


def _span(low: float, high: float) -> str:
    """Two numbers, or the one that both are to as many digits as are said."""
    return " to ".join(dict.fromkeys(map(format_number, (low, high))))
