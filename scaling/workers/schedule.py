"""The schedule: which cases of a study are missing, in what order they run, and which share a process.

Knows records and settings; not how a process is run (supervise.py). Does not import JAX.
"""

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.core import environment, store
from scaling.core.case import Case, problem, to_dict, user_modules
from scaling.core.record import Record
from scaling.workers import cores, jax_platform
from scaling.workers.examined import Examined
from scaling.workers.machine import Machine, ProcessShape
from scaling.workers.settings import RunSettings

NOT_BEGUN = "not_as_asked"  # a failure that does not count as an attempt
# Failures that another attempt may avoid.
PASSING = ("killed", "timeout", "preempted", "node_failed", "cancelled", NOT_BEGUN)
# Reasons of skips that depend on what is installed, or on what else is running.
_TEMPORARY_SKIPS = ("not_offered", "not_installed", "dominated")
Environment = dict[str, Any]  # of a record
Identity = tuple[str, str, int]  # key, digest of the environment, replicate


@dataclass(frozen=True)
class ScheduledCase:
    """A case to run in one replicate, with its position in the order and the number of this attempt."""

    answer: Examined
    order: int
    attempt: int
    replicate: int = 0

    @property
    def case(self) -> Case:
        """Return the case."""
        return self.answer.case

    @property
    def place(self) -> tuple[str, int]:
        """Return (key, replicate), which all attempts at it have in common."""
        return self.case.key, self.replicate

    @property
    def process(self) -> tuple:
        """Return what the cases of a process have in common.

        On a CPU the number of devices is that of the cores a process is bound to; x64 changes float32
        programs too; a peer may abort, and brings threads of its own; a user's module may leave anything
        behind.
        """
        case = self.case
        return self.replicate, case.engine, case.devices, case.dtype == "float64", *user_modules(case)


@dataclass(frozen=True)
class Schedule:
    """Plan of a run: items by process, skips to record, and numbers of cases that do not run."""

    jobs: tuple[tuple[ScheduledCase, ...], ...]
    skips: tuple[ScheduledCase, ...]
    done: int
    machine: Machine
    environments: dict[tuple, Environment]  # by `Examined.environment_key`
    queued: int = 0  # that another submission will run
    lost: int = 0  # that failed finally, or too often
    failures: tuple[ScheduledCase, ...] = ()  # cases that could not be examined, to be recorded

    @property
    def missing(self) -> int:
        """Return how many cases will run, each replicate counted."""
        return sum(len(job) for job in self.jobs)


def local_machine() -> Machine:
    """Return the machine that this process runs on."""
    platform = jax_platform.find_platform()
    if platform == "cpu":
        return Machine(platform, None, len(cores.allowed()))
    probed = jax_platform.find_devices()
    return Machine(platform, probed["device_kind"], probed["devices"])


def make_schedule(
    answers: Sequence[Examined], settings: RunSettings, machine: Machine, records: Sequence[Record],
    baseline: Sequence[Record] | None = None, queued: Collection[tuple[str, int]] = (), retry: bool = False,
) -> Schedule:  # fmt: skip
    """Return what is missing, by process; replicate after replicate, each in a shuffled order of its own.

    baseline: the records of another variant; only cases whose samples were interleaved with theirs are then
    done. queued: the cases that other submissions will run, as (key, replicate). retry: whether cases that
    failed for good run once more.
    """
    keys = {answer.environment_key for answer in answers}
    environments = {key: planned_environment(machine, settings, key) for key in keys}
    past = history(records, environments.values(), baseline)
    jobs: dict[tuple, list[ScheduledCase]] = {}
    skips, failures, count = [], list[ScheduledCase](), Counter[str]()
    for replicate in range(settings.replicates):
        shuffled = [on_platform(machine.platform, answer) for answer in answers]
        random.Random(settings.order_seed + replicate).shuffle(shuffled)
        for order, answer in enumerate(shuffled):
            identity = (answer.case.key, environments[answer.environment_key]["digest"], replicate)
            item = ScheduledCase(answer, order, past.attempts[identity] + 1, replicate)
            if (answer.unfit or answer.failure) and replicate:
                continue  # recorded once
            if answer.failure:
                failures.append(item)
            elif identity in past.good or (answer.unfit and identity in past.temporary_skips):
                count["done"] += 1
            elif answer.unfit:
                skips.append(item)
            elif item.place in queued:
                count["queued"] += 1
            elif past.is_exhausted(identity, settings) and not retry:
                count["lost"] += 1
            else:
                jobs.setdefault(item.process, []).append(item)
    return Schedule(
        tuple(map(tuple, jobs.values())), tuple(skips), count["done"], machine, environments,
        count["queued"], count["lost"], tuple(failures),
    )  # fmt: skip


def process_shape(case: Case, machine: Machine, settings: RunSettings) -> ProcessShape:
    """Return the shape of the processes of a case; a peer always runs in one process."""
    return machine.shape(case.devices, settings.processes if case.engine == "jax" else 1)


def group_by_problem(items: Iterable[ScheduledCase]) -> list[list[ScheduledCase]]:
    """Group items of the same problem, which are compared, in the order of the first item of each."""
    groups: dict[tuple, list[ScheduledCase]] = {}
    for item in items:
        groups.setdefault(problem(item.case), []).append(item)
    return list(groups.values())


def planned_environment(machine: Machine, settings: RunSettings, key: tuple) -> Environment:
    """Return the environment of cases with this `Examined.environment_key`.

    It contains what is known before the cases run.
    """
    platform, (workload_digest, engine) = machine.platform, key
    bound_to: list[int] | None = [] if settings.bind and platform == "cpu" else None
    described = environment.describe(
        platform, machine.device_kind, environment.variables(platform), workload_digest, bound_to,
        dict(engine), settings.processes,
    )  # fmt: skip
    if machine.remote:
        unknown = ("driver", *machine.untold, *(() if machine.device_kind else ("device_kind",)))
        described |= {"device_kind": machine.device_kind, "untold": unknown}
    return described


@dataclass(frozen=True)
class History:
    """What happened to each identity that is planned."""

    good: set[Identity]  # need not run again
    temporary_skips: set[Identity]  # could not run when last examined
    final: set[Identity]  # failed, and would fail again
    attempts: Counter[Identity]
    recorded: set[tuple[Identity, int]]  # attempts that have a record

    def is_exhausted(self, identity: Identity, settings: RunSettings) -> bool:
        """Return whether no attempt remains, where these are limited."""
        limit = settings.attempts
        return limit is not None and (identity in self.final or self.attempts[identity] >= limit)


def history(
    records: Iterable[Record], environments: Iterable[Environment], baseline: Sequence[Record] | None = None
) -> History:
    """Return what these records say of cases in these planned environments.

    baseline: records of another variant; only cases that were interleaved with a good one of these need not
    run again.
    """
    identities = _identity_matcher(environments)
    events = [(identity, record) for record in records for identity in identities(record)]
    begun = [(identity, record.attempt) for identity, record in events if record.reason != NOT_BEGUN]
    paired = {(r.key, r.replicate, r.block) for r in baseline or () if r.good}
    lasting = [(i, r) for i, r in events if r.good and r.reason not in _TEMPORARY_SKIPS]
    return History(
        good={i for i, r in lasting if baseline is None or (r.key, r.replicate, r.block) in paired},
        temporary_skips={i for i, r in events if r.reason in _TEMPORARY_SKIPS},
        final={i for i, r in events if r.status == "failed" and r.reason not in PASSING},
        attempts=Counter(identity for identity, _ in begun),
        recorded=set(begun),
    )


def comparable_settings(records: Iterable[Record], environments: Iterable[Environment]) -> frozenset[str]:
    """Return the settings of the records of these planned environments.

    Records with equal settings are comparable.
    """
    identities = _identity_matcher(environments)
    return frozenset(record.setting for record in records if identities(record))


def _identity_matcher(environments: Iterable[Environment]) -> Callable[[Record], list[Identity]]:
    """Return a function from a record to the identities, in those environments, that it is a record of."""
    planned, known = list(environments), dict[str, list[str]]()

    def identities(record: Record) -> list[Identity]:
        found = record.environment
        digest = found["digest"]
        if digest not in known:
            known[digest] = [
                plan["digest"] for plan in planned
                if digest == plan["digest"] or ("untold" in plan and environment.matches_planned(plan, found))
            ]  # fmt: skip
        return [(record.key, each, record.replicate) for each in known[digest]]

    return identities


def on_platform(platform: str, answer: Examined) -> Examined:
    """Return the answer for this platform: peers are compared on a CPU only."""
    if platform == "cpu" or answer.case.engine == "jax" or answer.unfit or answer.failure:
        return answer
    words = (
        f"{answer.case.engine} runs on a CPU here; JAX_PLATFORMS=cpu runs JAX there too, so that they compare"
    )
    return dataclasses.replace(answer, unfit=("not_offered", words))


def study_manifest(
    name: str, title: str | None, scaling: Sequence[str], cases: Sequence[Case], settings: RunSettings,
    once: Collection[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return the content of study.json: the study that the folder was last used for, with all of its cases.

    once: the keys of cases that are recorded without being run, in one replicate only.
    """
    replicates = dict.fromkeys(once, 1)
    return store.stamp() | {
        "study": name,
        "title": title,
        "scaling": sorted(set(scaling)),
        "order_seed": settings.order_seed,
        "sampling": dataclasses.asdict(settings.sampling),
        "cases": [
            {
                "key": case.key,
                "replicates": replicates.get(case.key, settings.replicates),
                "case": to_dict(case),
            }
            for case in cases
        ],
    }
