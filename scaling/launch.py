"""The launcher: which cases of a study are missing, in what order they run, and which share a process.

Knows records and settings; not how a process is run (supervise.py). Does not import JAX.
"""

import dataclasses
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaling import environment
from scaling.case import Case, Refusal, to_dict
from scaling.preflight import Answer
from scaling.record import Record
from scaling.sampling import Sampling

_AS_OF_NOW = ("not_offered", "not_installed", "dominated")  # may end with what is installed, or with what else is running


@dataclass(frozen=True)
class Settings:
    """How a study is run, apart from what it is."""

    sampling: Sampling = field(default_factory=Sampling)
    bind: bool = True
    oversubscribe: bool = False
    case_seconds: float = 600.0
    order_seed: int = 0
    replicates: int = 1
    processes: int = 1


@dataclass(frozen=True)
class Item:
    """A case to run in one replicate, with its place in the order and the number of this attempt."""

    answer: Answer
    order: int
    attempt: int
    replicate: int = 0

    @property
    def case(self) -> Case:
        """The case."""
        return self.answer.case


@dataclass(frozen=True)
class Plan:
    """What a run will do: items by process, the skips to put on record, and how many have a good record already."""

    jobs: tuple[tuple[Item, ...], ...]
    skips: tuple[Item, ...]
    done: int
    platform: str
    environments: dict[tuple, dict[str, Any]]  # by what of it is a case's own: a user's workload, a peer's versions

    @property
    def missing(self) -> int:
        """How many cases will run, each replicate counted."""
        return sum(len(job) for job in self.jobs)


def plan(
    answers: Sequence[Answer], settings: Settings, records: Sequence[Record], beside: Sequence[Record] | None = None
) -> Plan:
    """What is missing, in shuffled order, by process; replicate after replicate, each in an order of its own.

    beside: the records of another side; then only those are done whose samples were taken in turns with theirs.
    """
    platform = environment.platform()
    kind = None if platform == "cpu" else environment.probe()["device_kind"]
    variables = environment.variables(platform)
    bound_to: list[int] | None = [] if settings.bind and platform == "cpu" else None
    environments = {
        around: environment.describe(platform, kind, variables, around[0], bound_to, dict(around[1]), settings.processes)
        for around in {answer.around for answer in answers}
    }
    good = {record.identity for record in _lasting(records, beside) if record.reason not in _AS_OF_NOW}
    told = {record.identity for record in records if record.reason in _AS_OF_NOW}
    attempts = Counter(record.identity for record in records)
    jobs: dict[tuple[int, str, int, bool], list[Item]] = {}
    skips, done = [], 0
    for replicate in range(settings.replicates):
        shuffled = [_on(platform, answer) for answer in answers]
        random.Random(settings.order_seed + replicate).shuffle(shuffled)
        for order, answer in enumerate(shuffled):
            identity = (answer.case.key, environments[answer.around]["digest"], replicate)
            item = Item(answer, order, attempts[identity] + 1, replicate)
            if answer.unfit and replicate:
                continue  # said once
            if identity in good or (answer.unfit and identity in told):
                done += 1
            elif answer.unfit:
                skips.append(item)
            else:
                # On a CPU the number of devices is that of the cores a process is bound to; x64 changes float32 programs too;
                # a peer may abort, and brings threads of its own.
                where = (replicate, answer.case.engine, answer.case.devices, answer.case.dtype == "float64")
                jobs.setdefault(where, []).append(item)
    return Plan(tuple(tuple(job) for job in jobs.values()), tuple(skips), done, platform, environments)


def _lasting(records: Sequence[Record], beside: Sequence[Record] | None) -> list[Record]:
    """Records of cases that need not run again: beside another side only those that took turns with a good one there."""
    paired = {(r.key, r.replicate, r.block) for r in beside or () if r.good}
    return [r for r in records if r.good and (beside is None or (r.key, r.replicate, r.block) in paired)]


def _on(platform: str, answer: Answer) -> Answer:
    """The same answer, for this platform: other systems are compared on a CPU only."""
    if platform == "cpu" or answer.case.engine == "jax" or answer.unfit:
        return answer
    words = f"{answer.case.engine} runs on a CPU here, and so does JAX beside it with JAX_PLATFORMS=cpu"
    return dataclasses.replace(answer, unfit=("not_offered", words))


def enough(devices: Iterable[int], settings: Settings) -> None:
    """Refuse more devices than there are, before anything starts."""
    counts, platform = sorted(set(devices)), environment.platform()
    for count in counts:
        if count % min(settings.processes, count):
            raise Refusal(f"devices={count} do not share out over processes={settings.processes}: take a divisor of every count")
    has = len(environment.cores()) if platform == "cpu" else environment.probe()["devices"]
    if counts[-1] <= has or (platform == "cpu" and settings.oversubscribe):
        return
    here = f"{has} core{'s' * (has != 1)}" if platform == "cpu" else f"{has} {platform} device{'s' * (has != 1)}"
    take = ",".join(str(count) for count in counts if count <= has) or "1"
    more = "; oversubscribe=true checks more without drawing them as scaling" if platform == "cpu" else ""
    raise Refusal(f"devices={counts[-1]} are more than the {here} here: take devices=[{take}]{more}")


def manifest(name: str, title: str | None, scaling: Sequence[str], cases: Sequence[Case], settings: Settings) -> dict[str, Any]:
    """What study.json says: the study that the folder was last asked for, so that what is missing can be told."""
    return {
        "study": name,
        "title": title,
        "scaling": sorted(set(scaling)),
        "order_seed": settings.order_seed,
        "sampling": dataclasses.asdict(settings.sampling),
        "cases": [{"key": case.key, "case": to_dict(case)} for case in cases],
    }
