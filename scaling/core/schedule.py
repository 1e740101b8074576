"""The launcher: which cases of a study are missing, in what order they run, and which share a process.

Knows records and settings; not how a process is run (supervise.py). Does not import JAX.
"""

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.core import cores, environment, store
from scaling.core.case import Case, problem, to_dict
from scaling.core.machine import Machine, ProcessShape
from scaling.core.record import Record
from scaling.core.settings import RunSettings
from scaling.study.preflight import Examined, user_modules

_AS_OF_NOW = ("not_offered", "not_installed", "dominated")  # may end with what is installed, or with what else is running
NOT_BEGUN = "not_as_asked"  # a failure that is no attempt
PASSING = ("killed", "timeout", "preempted", "node_failed", "cancelled", NOT_BEGUN)  # that another attempt may not meet with


@dataclass(frozen=True)
class ScheduledCase:
    """A case to run in one replicate, with its place in the order and the number of this attempt."""

    answer: Examined
    order: int
    attempt: int
    replicate: int = 0

    @property
    def case(self) -> Case:
        """The case."""
        return self.answer.case

    @property
    def place(self) -> tuple[str, int]:
        """What an attempt is one at: (key, replicate)."""
        return self.case.key, self.replicate

    @property
    def process(self) -> tuple:
        """What cases of one process have in common.

        On a CPU the number of devices is that of the cores a process is bound to; x64 changes float32 programs too; a peer may
        abort, and brings threads of its own; a user's module may leave anything behind.
        """
        case = self.case
        return self.replicate, case.engine, case.devices, case.dtype == "float64", *user_modules(case)


@dataclass(frozen=True)
class Schedule:
    """What a run will do: items by process, the skips to put on record, and how many need not or must not run."""

    jobs: tuple[tuple[ScheduledCase, ...], ...]
    skips: tuple[ScheduledCase, ...]
    done: int
    machine: Machine
    environments: dict[tuple, dict[str, Any]]  # by what of it is a case's own: a user's workload, a peer's versions
    queued: int = 0  # that another submission will run
    lost: int = 0  # that failed for good, or too often
    failures: tuple[ScheduledCase, ...] = ()  # cases that could not be examined, to put on record

    @property
    def missing(self) -> int:
        """How many cases will run, each replicate counted."""
        return sum(len(job) for job in self.jobs)


def local_machine() -> Machine:
    """The machine that this process runs on."""
    platform = environment.platform()
    if platform == "cpu":
        return Machine(platform, None, len(cores.allowed()))
    found = environment.probe()
    return Machine(platform, found["device_kind"], found["devices"])


def make_schedule(
    answers: Sequence[Examined],
    settings: RunSettings,
    machine: Machine,
    records: Sequence[Record],
    beside: Sequence[Record] | None = None,
    queued: Collection[tuple[str, int]] = (),
    retry: bool = False,
) -> Schedule:
    """What is missing, in shuffled order, by process; replicate after replicate, each in an order of its own.

    beside: the records of another side; then only those are done whose samples were taken in turns with theirs. queued: what
    others are to run, as (key, replicate). retry: whether what failed for good, or too often, runs once more.
    """
    environments = {around: planned_environment(machine, settings, around) for around in {answer.around for answer in answers}}
    past = history(records, environments.values(), beside)
    jobs: dict[tuple, list[ScheduledCase]] = {}
    skips, failures, count = [], list[ScheduledCase](), Counter[str]()
    for replicate in range(settings.replicates):
        shuffled = [on_platform(machine.platform, answer) for answer in answers]
        random.Random(settings.order_seed + replicate).shuffle(shuffled)
        for order, answer in enumerate(shuffled):
            identity = (answer.case.key, environments[answer.around]["digest"], replicate)
            item = ScheduledCase(answer, order, past.attempts[identity] + 1, replicate)
            if (answer.unfit or answer.failure) and replicate:
                continue  # said once
            if answer.failure:
                failures.append(item)
            elif identity in past.good or (answer.unfit and identity in past.as_of_now):
                count["done"] += 1
            elif answer.unfit:
                skips.append(item)
            elif item.place in queued:
                count["queued"] += 1
            elif past.over(identity, settings) and not retry:
                count["lost"] += 1
            else:
                jobs.setdefault(item.process, []).append(item)
    return Schedule(
        tuple(tuple(job) for job in jobs.values()), tuple(skips), count["done"], machine, environments,
        count["queued"], count["lost"], tuple(failures),
    )  # fmt: skip


def process_shape(case: Case, machine: Machine, settings: RunSettings) -> ProcessShape:
    """What a case takes; a peer is one process, whatever else shares a case."""
    return machine.shape(case.devices, settings.processes if case.engine == "jax" else 1)


def group_by_problem(items: Iterable[ScheduledCase]) -> list[list[ScheduledCase]]:
    """Items of the same problem together, in the order of the first of each: these are compared."""
    groups: dict[tuple, list[ScheduledCase]] = {}
    for item in items:
        groups.setdefault(problem(item.case), []).append(item)
    return list(groups.values())


def planned_environment(machine: Machine, settings: RunSettings, around: tuple) -> dict[str, Any]:
    """The environment of cases that share `Answer.around`, as far as it can be told before they run."""
    variables = environment.variables(machine.platform)
    bound_to: list[int] | None = [] if settings.bind and machine.platform == "cpu" else None
    told = environment.describe(
        machine.platform, machine.device_kind, variables, around[0], bound_to, dict(around[1]), settings.processes
    )
    if machine.remote:
        unknown = ("driver", *machine.untold, *(() if machine.device_kind else ("device_kind",)))
        told |= {"device_kind": machine.device_kind, "untold": unknown}
    return told


@dataclass(frozen=True)
class History:
    """What records say of each identity that is planned."""

    good: frozenset  # need not run again
    as_of_now: frozenset  # could not run, when it was last asked
    final: frozenset  # failed, and would again
    attempts: Counter

    def over(self, identity: tuple, settings: RunSettings) -> bool:
        """Whether no attempt is left, where these are counted."""
        return settings.attempts is not None and (identity in self.final or self.attempts[identity] >= settings.attempts)


def history(
    records: Sequence[Record], environments: Iterable[Mapping[str, Any]], beside: Sequence[Record] | None = None
) -> History:
    """What these records say of cases in these environments, as planned. beside: see `plan`."""
    of = _identity_matcher(environments)
    lasting = (record for record in _finished_records(records, beside) if record.reason not in _AS_OF_NOW)
    failed = (record for record in records if record.status == "failed" and record.reason not in PASSING)
    passing = (record for record in records if record.reason in _AS_OF_NOW)
    good, final, as_of_now = (frozenset(i for record in some for i in of(record)) for some in (lasting, failed, passing))
    tried = Counter(identity for record in records if record.reason != NOT_BEGUN for identity in of(record))
    return History(good, as_of_now, final, tried)


def recorded_attempts(records: Iterable[Record], environments: Iterable[Mapping[str, Any]]) -> set[tuple[str, str, int, int]]:
    """Which attempts at cases in these environments have a record: (*identity, attempt)."""
    of = _identity_matcher(environments)
    return {(*identity, record.attempt) for record in records if record.reason != NOT_BEGUN for identity in of(record)}


def _identity_matcher(environments: Iterable[Mapping[str, Any]]) -> Callable[[Record], list[tuple[str, str, int]]]:
    """A function from a record to the identities, of those environments, that it stands for."""
    planned, digests = list(environments), dict[str, list[str]]()

    def identities(record: Record) -> list[tuple[str, str, int]]:
        own = record.environment["digest"]
        if own not in digests:
            digests[own] = [each["digest"] for each in planned if own == each["digest"] or _matches_plan(each, record)]
        return [(record.key, digest, record.replicate) for digest in digests[own]]

    return identities


def comparable_settings(records: Iterable[Record], environments: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Within what the records of these environments, as planned, may be compared."""
    of = _identity_matcher(environments)
    return frozenset(record.setting for record in records if of(record))


def _matches_plan(planned: Mapping[str, Any], record: Record) -> bool:
    return "untold" in planned and environment.alike(planned, record.environment)


def _finished_records(records: Sequence[Record], beside: Sequence[Record] | None) -> list[Record]:
    """Records of cases that need not run again: beside another side only those that took turns with a good one there."""
    paired = {(r.key, r.replicate, r.block) for r in beside or () if r.good}
    return [r for r in records if r.good and (beside is None or (r.key, r.replicate, r.block) in paired)]


def on_platform(platform: str, answer: Examined) -> Examined:
    """The same answer, for this platform: other systems are compared on a CPU only."""
    if platform == "cpu" or answer.case.engine == "jax" or answer.unfit or answer.failure:
        return answer
    words = f"{answer.case.engine} runs on a CPU here, and so does JAX beside it with JAX_PLATFORMS=cpu"
    return dataclasses.replace(answer, unfit=("not_offered", words))


def study_manifest(
    name: str, title: str | None, scaling: Sequence[str], cases: Sequence[Case], settings: RunSettings, once: Collection[str] = ()
) -> dict[str, Any]:
    """What study.json says: the study that the folder was last asked for, so that what is missing can be told.

    once: the keys of cases that are put on record without being run, in one replicate only.
    """
    replicates = dict.fromkeys(once, 1)
    return store.stamp() | {
        "study": name,
        "title": title,
        "scaling": sorted(set(scaling)),
        "order_seed": settings.order_seed,
        "sampling": dataclasses.asdict(settings.sampling),
        "cases": [
            {"key": case.key, "replicates": replicates.get(case.key, settings.replicates), "case": to_dict(case)}
            for case in cases
        ],
    }
