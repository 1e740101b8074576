"""Make the `Schedule` of a run: the cases without a result, in random order, grouped by worker process.

A case is not executed again if it has a result: a record in the planned environment with the status "ok", or
with the status "skipped" and a reason that still applies.
"""

import dataclasses
import datetime
import random
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from scaling.core import environment
from scaling.core.case import Case, problem, to_dict, user_modules
from scaling.core.record import Record
from scaling.results import store
from scaling.workers.machine import Machine, ProcessShape
from scaling.workers.run_settings import RunSettings

# Reason of a failure if the code, nodes, or devices differ from the request. It does not count as an attempt.
REQUEST_NOT_MET = "not_as_asked"
# Reasons of failures that another attempt may avoid.
TRANSIENT_FAILURES = ("killed", "timeout", "preempted", "node_failed", "cancelled", REQUEST_NOT_MET)
# Reasons of skips that depend on installed packages or on the other cases of the run.
_TEMPORARY_SKIPS = ("not_offered", "not_installed", "dominated")
Environment = dict[str, Any]  # the field `environment` of a record
Identity = tuple[str, str, int]  # case key, digest of the environment, replicate
T = TypeVar("T")


@dataclass(frozen=True)
class PreflightResult:
    """Whether a case can run, and if not, why: the result of the checks before any measurement."""

    case: Case  # the case with all defaults filled in, or as written in the study if the check itself failed
    inapplicable: tuple[str, str] | None  # (reason, text) of the skip if the case cannot run, or None
    workload_digest: str | None  # hash of the source code of the differentiated function, or None if unknown
    engine: tuple[tuple[str, str | None], ...] = ()  # (name, version) of each package of a peer
    failure: tuple[str, str] | None = None  # (reason, text) if the check itself failed

    @property
    def environment_key(self) -> tuple:
        """Return (workload digest, peer versions). Cases with equal keys have equal environments."""
        return self.workload_digest, self.engine


@dataclass(frozen=True)
class ScheduledCase:
    """A benchmark case that is scheduled to run in one replicate (one repetition of the study)."""

    preflight: PreflightResult  # the case, with the result of its preflight check
    order: int  # position of the case in the shuffled order of its replicate
    attempt: int  # starting with 1
    replicate: int = 0  # starting with 0

    @property
    def case(self) -> Case:
        """Return the benchmark case."""
        return self.preflight.case

    @property
    def replicate_key(self) -> tuple[str, int]:
        """Return (case key, replicate number). Repeated attempts after a failure have the same key."""
        return self.case.key, self.replicate

    @property
    def session_key(self) -> tuple:
        """Return a key that is equal for cases that may run in the same worker process.

        The key contains the replicate, because each replicate uses new processes; the engine, because a peer
        may abort the process or start threads; the number of devices, because a process on CPUs is bound to
        one core per device; whether the dtype is float64, because the x64 mode of JAX also changes float32
        programs; and the user's modules, because the side effects of an import remain.
        """
        case = self.case
        return self.replicate, case.engine, case.devices, case.dtype == "float64", *user_modules(case)

    def identity(self, environments: Mapping[tuple, Environment]) -> Identity:
        """Return (case key, environment digest, replicate). `environments` are the planned environments."""
        return self.case.key, environments[self.preflight.environment_key]["digest"], self.replicate

    def record_without_result(
        self, environment: Environment, settings: RunSettings, status: str, reason: str, text: str
    ) -> Record:
        """Return a "failed" or "skipped" record without measurements. `reason` is a key of `REASONS`."""
        return Record(
            self.case, status, environment, order=self.order, order_seed=settings.order_seed,
            attempt=self.attempt, replicate=self.replicate, reason=reason, text=text,
            started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        )  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """The cases that a run executes or only records, and the numbers of cases that need no execution."""

    sessions: tuple[tuple[ScheduledCase, ...], ...]  # cases to execute, grouped by worker process
    skips: tuple[ScheduledCase, ...]  # inapplicable cases, to be recorded as skipped
    done: int  # number of cases that have a result, as defined at the top of this module
    machine: Machine  # nodes and devices on which the cases run
    environments: dict[tuple, Environment]  # `PreflightResult.environment_key` -> planned environment
    queued: int = 0  # number of cases that another submission will run
    lost: int = 0  # number of failed cases that have no attempts left
    failures: tuple[ScheduledCase, ...] = ()  # cases whose preflight check failed, to be recorded as failed

    @property
    def missing(self) -> int:
        """Return the number of cases to execute. A case counts once for each of its replicates."""
        return sum(len(session) for session in self.sessions)


def make_schedule(
    results: Sequence[PreflightResult],
    settings: RunSettings,
    machine: Machine,
    records: Sequence[Record],
    baseline: Sequence[Record] | None = None,
    queued: Collection[tuple[str, int]] = (),
    retry: bool = False,
) -> Schedule:
    """Return the schedule of a study. Its replicates run one after another, each in its own random order.

    `records` and `baseline` have the same meaning as in `build_history`. `queued` contains the
    `replicate_key` of each case that another submission will run. If `retry`, a case that has no attempts
    left runs once more.
    """
    keys = {preflight.environment_key for preflight in results}
    environments = {key: planned_environment(machine, settings, key) for key in keys}
    history = build_history(records, environments.values(), baseline)
    groups: dict[str, list[ScheduledCase]] = {
        name: [] for name in ("to_run", "skips", "failures", "done", "queued", "lost")
    }
    for item, identity in _shuffled_cases(results, settings, environments, history):
        preflight, is_skipped = item.preflight, item.preflight.inapplicable
        if preflight.failure:
            group = "failures"
        elif identity in history.good or (is_skipped and identity in history.temporary_skips):
            group = "done"
        elif is_skipped:
            group = "skips"
        elif item.replicate_key in queued:
            group = "queued"
        else:
            group = "lost" if history.is_exhausted(identity, settings) and not retry else "to_run"
        groups[group].append(item)
    done, waiting, lost = (len(groups[name]) for name in ("done", "queued", "lost"))
    return Schedule(
        group_by_process(groups["to_run"]), tuple(groups["skips"]), done, machine, environments, waiting,
        lost, tuple(groups["failures"]),
    )  # fmt: skip


def _shuffled_cases(
    results: Sequence[PreflightResult],
    settings: RunSettings,
    environments: Mapping[tuple, Environment],
    history: "History",
) -> Iterator[tuple[ScheduledCase, Identity]]:
    """Yield each case with its next attempt, once for each replicate or, if it cannot run, only once."""
    for replicate in range(settings.replicates):
        shuffled = list(results)
        random.Random(settings.order_seed + replicate).shuffle(shuffled)
        for order, preflight in enumerate(shuffled):
            if replicate == 0 or not (preflight.inapplicable or preflight.failure):
                item = ScheduledCase(preflight, order, 1, replicate)
                identity = item.identity(environments)
                yield dataclasses.replace(item, attempt=history.attempts[identity] + 1), identity


def process_shape(case: Case, machine: Machine, settings: RunSettings) -> ProcessShape:
    """Return the numbers of devices, nodes, and processes of a case. A peer always runs in one process."""
    return machine.shape(case.devices, settings.processes if case.engine == "jax" else 1)


def group_by(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Return lists of items with equal keys, in the order of their first items."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def group_by_problem(items: Iterable[ScheduledCase]) -> list[list[ScheduledCase]]:
    """Group the cases that compute the same derivative of the same function at the same inputs."""
    return group_by(items, lambda item: problem(item.case))


def group_by_process(items: Iterable[ScheduledCase]) -> tuple[tuple[ScheduledCase, ...], ...]:
    """Group cases that may share a worker process. Groups and cases are in the order in which they run."""
    ordered = sorted(items, key=lambda item: (item.replicate, item.order))
    return tuple(map(tuple, group_by(ordered, lambda item: item.session_key)))


def planned_environment(machine: Machine, settings: RunSettings, key: tuple) -> Environment:
    """Return the expected environment of a record. `key` is the `environment_key` of its case.

    For a remote machine, the entry "untold" lists the names of the entries that only a process on the nodes
    can determine.
    """
    platform, (workload_digest, engine) = machine.platform, key
    bound_to: list[int] | None = [] if settings.bind and platform == "cpu" else None
    description = environment.describe(
        platform, machine.device_kind, environment.variables(platform), workload_digest, bound_to,
        dict(engine), settings.processes,
    )  # fmt: skip
    if machine.remote:
        unknown = ("driver", *machine.untold, *(() if machine.device_kind else ("device_kind",)))
        description |= {"device_kind": machine.device_kind, "untold": unknown}
    return description


@dataclass(frozen=True)
class History:
    """The outcomes and the numbers of previous attempts to run cases."""

    good: set[Identity]  # identities with an "ok" record, or a skip for a reason that still applies
    temporary_skips: set[Identity]  # identities that were skipped for a reason that may no longer apply
    final: set[Identity]  # identities with a failure that another attempt would repeat
    attempts: Counter[Identity]  # number of attempts, without failures for the reason `REQUEST_NOT_MET`
    recorded: set[tuple[Identity, int]]  # (identity, attempt number) of each attempt that has a record

    def is_exhausted(self, identity: Identity, settings: RunSettings) -> bool:
        """Return whether a case is not tried again, because no attempt is left or it would fail again.

        If `settings.attempts` is None, every failed case is tried again.
        """
        limit = settings.attempts
        return limit is not None and (identity in self.final or self.attempts[identity] >= limit)


def build_history(
    records: Iterable[Record], environments: Iterable[Environment], baseline: Sequence[Record] | None = None
) -> History:
    """Return the `History` of all records whose environment matches a planned environment.

    If two programs are compared, `baseline` contains the records of the other program. A record then counts
    as a result only if the baseline has a record of the same case and `block` that did not fail.
    """
    planned = list(environments)
    events = [(identity, record) for record in records for identity in _identities(record, planned)]
    attempts = [(identity, record.attempt) for identity, record in events if record.reason != REQUEST_NOT_MET]
    paired = {(r.key, r.replicate, r.block) for r in baseline or () if r.status != "failed"}
    permanent = [(i, r) for i, r in events if r.status != "failed" and r.reason not in _TEMPORARY_SKIPS]
    return History(
        good={i for i, r in permanent if baseline is None or (r.key, r.replicate, r.block) in paired},
        temporary_skips={i for i, r in events if r.reason in _TEMPORARY_SKIPS},
        final={i for i, r in events if r.status == "failed" and r.reason not in TRANSIENT_FAILURES},
        attempts=Counter(identity for identity, _ in attempts),
        recorded=set(attempts),
    )


def comparable_settings(records: Iterable[Record], environments: Iterable[Environment]) -> frozenset[str]:
    """Return the environment hashes (`Record.setting`) of all records that match a planned environment."""
    planned = list(environments)
    return frozenset(record.setting for record in records if _identities(record, planned))


def _identities(record: Record, environments: Iterable[Environment]) -> list[Identity]:
    """Return an `Identity` for each planned environment that matches the environment of a record."""
    actual = record.environment
    return [
        (record.key, planned["digest"], record.replicate) for planned in environments
        if planned["digest"] == actual["digest"]
        or ("untold" in planned and environment.matches_planned(planned, actual))
    ]  # fmt: skip


def skip_peers_off_cpu(platform: str, preflight: PreflightResult) -> PreflightResult:
    """Return `preflight`, marked as inapplicable if a peer (not JAX) would run on a GPU or TPU."""
    if platform == "cpu" or preflight.case.engine == "jax" or preflight.inapplicable or preflight.failure:
        return preflight
    text = f"{preflight.case.engine} is measured on a CPU only; JAX_PLATFORMS=cpu runs JAX on the CPU too"
    return dataclasses.replace(preflight, inapplicable=("not_offered", text))


def study_manifest(
    name: str,
    title: str | None,
    scaling: Sequence[str],
    cases: Sequence[Case],
    settings: RunSettings,
    recorded_once: Collection[str] = (),
) -> dict[str, Any]:
    """Return the content of study.json, which describes the last study in the results folder.

    `scaling` lists the kinds of scaling curves ("strong", "weak"). `recorded_once` contains the keys of the
    cases that are recorded in a single replicate, because they cannot run.
    """
    replicates = dict.fromkeys((case.key for case in cases), settings.replicates)
    replicates |= dict.fromkeys(recorded_once, 1)
    return store.schema_and_version() | {
        "study": name, "title": title, "scaling": sorted(set(scaling)), "order_seed": settings.order_seed,
        "sampling": dataclasses.asdict(settings.sampling),
        "cases": [
            {"key": case.key, "replicates": replicates[case.key], "case": to_dict(case)} for case in cases
        ],
    }  # fmt: skip
