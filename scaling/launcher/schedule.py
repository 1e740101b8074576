"""Find the cases without a result (`History`), group them by process, and order them (`Schedule`).

A result is a record whose environment matches the planned environment. Its status is "ok", or "skipped" with
a reason that still applies. A case that has a result is not executed again. The others run in random order.
"""

import dataclasses
import datetime
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.core import environment
from scaling.core.case import Case, problem_fields, to_dict, user_modules
from scaling.core.grouping import group_by
from scaling.core.record import Record
from scaling.launcher.machine import Machine, ProcessShape
from scaling.launcher.run_settings import RunSettings
from scaling.results import store

# Reason of a failure if the code, nodes, or devices differ from the request. The attempt is not counted.
REQUEST_NOT_MET = "not_as_asked"
# Reasons of failures that another attempt may avoid.
_TRANSIENT_FAILURES = (
    "killed", "timeout", "preempted", "node_failed", "cancelled", "out_of_memory", REQUEST_NOT_MET,
)  # fmt: skip
# Reasons of skips that depend on installed packages or on the other cases of the run.
_TEMPORARY_SKIPS = ("not_offered", "not_installed", "dominated")
Environment = dict[str, Any]  # the field `environment` of a record
Environments = Mapping[tuple, Environment]  # `PreflightResult.environment_key` -> planned environment
Identity = tuple[str, str, int]  # case key, digest of the environment, replicate


@dataclass(frozen=True)
class PreflightResult:
    """The result of the preflight check of a case: whether the case can run, and the reason if it cannot."""

    case: Case  # with all defaults filled in, or as written in the study if the check itself failed
    outcome: tuple[str, str, str] | None  # (status, reason, text) of the record if the case does not run
    workload_digest: str | None  # hash of the source code of the differentiated function, or None if unknown
    engine: tuple[tuple[str, str | None], ...] = ()  # (name, version) of each package of a peer

    @property
    def environment_key(self) -> tuple:
        """Return (hash of the workload's source code, package versions of the peer).

        A peer is an AD library other than JAX. Cases with equal keys run in equal environments.
        """
        return self.workload_digest, self.engine


@dataclass(frozen=True)
class ScheduledCase:
    """A case that is scheduled to run in one replicate (repetition) of the study."""

    preflight: PreflightResult  # the case, with the result of its preflight check
    order: int  # position of the case in the shuffled order of its replicate
    attempt: int  # starting with 1
    replicate: int = 0  # starting with 0

    @property
    def case(self) -> Case:
        """Return the case, with all defaults filled in."""
        return self.preflight.case

    @property
    def replicate_key(self) -> tuple[str, int]:
        """Return (case key, replicate number), which is the same for all attempts at a replicate."""
        return self.case.key, self.replicate

    @property
    def session_key(self) -> tuple:
        """Return a tuple that is equal for cases that may run in the same worker process."""
        # A CPU worker is bound to one core per device. The x64 mode also changes float32 programs. A peer may
        # abort its process or start threads. The import of a user's module may have side effects.
        case = self.case
        return self.replicate, case.engine, case.devices, case.dtype == "float64", *user_modules(case)

    def identity(self, environments: Environments) -> Identity:
        """Return (case key, hash of the planned environment, replicate number)."""
        return self.case.key, environments[self.preflight.environment_key]["digest"], self.replicate

    def record_without_result(
        self, environment: Environment, settings: RunSettings, status: str, reason: str, text: str
    ) -> Record:
        """Return a "failed" or "skipped" record of the case, without measurements.

        `reason` is a key of `scaling.core.record.REASONS`, and `text` explains it.
        """
        return Record(
            self.case, status, environment, order=self.order, order_seed=settings.order_seed,
            attempt=self.attempt, replicate=self.replicate, reason=reason, text=text,
            started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        )  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """The cases that a run executes, grouped by worker process, and the cases that it does not execute."""

    sessions: tuple[tuple[ScheduledCase, ...], ...]  # cases to execute
    skips: tuple[ScheduledCase, ...]  # inapplicable cases, to be recorded as skipped
    done: int  # number of cases that have a result
    machine: Machine  # nodes and devices on which the cases run
    environments: Environments
    queued: int = 0  # number of cases that another submission will run
    exhausted: int = 0  # number of failed cases that have no attempts left
    failures: tuple[ScheduledCase, ...] = ()  # cases whose preflight check failed, to be recorded as failed

    @property
    def missing(self) -> int:
        """Return the number of cases to execute. Each replicate of a case is counted."""
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
    """Return the `Schedule` of a study, with the cases of each replicate in random order.

    `results` are the preflight results of all cases, and `records` the records so far. In a comparison of two
    programs, `baseline` contains the records of the other program, otherwise it is None. `queued` contains
    the `replicate_key` of each case that another submission will run. If `retry` is true, failed cases run
    once more, even without remaining attempts.
    """
    keys = {preflight.environment_key for preflight in results}
    environments = {key: planned_environment(machine, settings, key) for key in keys}
    history = build_history(records, environments, baseline)
    by_outcome: dict[str, list[ScheduledCase]] = defaultdict(list)
    for scheduled in _shuffled_cases(results, settings):
        identity = scheduled.identity(environments)
        scheduled = dataclasses.replace(scheduled, attempt=history.attempts[identity] + 1)
        status = scheduled.preflight.outcome and scheduled.preflight.outcome[0]
        is_skipped = status == "skipped"
        was_skipped = is_skipped and identity in history.temporary_skips
        rules = [  # (whether the rule applies, what becomes of the case). The first rule that applies counts.
            (status == "failed", "failures"),
            (identity in history.with_result or was_skipped, "done"),
            (is_skipped, "skips"),
            (scheduled.replicate_key in queued, "queued"),
            (history.is_exhausted(identity, settings) and not retry, "exhausted"),
            (True, "to_run"),
        ]
        by_outcome[next(outcome for applies, outcome in rules if applies)].append(scheduled)
    return Schedule(
        group_by_process(by_outcome["to_run"]), tuple(by_outcome["skips"]), len(by_outcome["done"]), machine,
        environments, len(by_outcome["queued"]), len(by_outcome["exhausted"]), tuple(by_outcome["failures"]),
    )  # fmt: skip


def _shuffled_cases(results: Sequence[PreflightResult], settings: RunSettings) -> Iterator[ScheduledCase]:
    """Yield the cases of all replicates, one replicate after another, each in random order.

    A case that the preflight check excludes is yielded only in replicate 0.
    """
    for replicate in range(settings.replicates):
        shuffled = list(results)
        random.Random(settings.order_seed + replicate).shuffle(shuffled)
        for order, preflight in enumerate(shuffled):
            if replicate == 0 or not preflight.outcome:
                yield ScheduledCase(preflight, order, 1, replicate)


@dataclass(frozen=True)
class History:
    """The number of recorded attempts of each case, and how the attempts ended."""

    with_result: set[Identity]  # cases with a result, as defined at the top of this file
    temporary_skips: set[Identity]  # cases that were skipped for a reason that may no longer apply
    permanent_failures: set[Identity]  # cases with a failure that another attempt would repeat
    attempts: Counter[Identity]  # number of attempts, without failures for the reason `REQUEST_NOT_MET`
    recorded: set[tuple[Identity, int]]  # (identity, attempt number) of each of these attempts

    def is_exhausted(self, identity: Identity, settings: RunSettings) -> bool:
        """Return whether a case must not run again, because a failure is permanent or no attempts are left.

        The result is always false if `settings.attempts` is None.
        """
        if settings.attempts is None:
            return False
        return identity in self.permanent_failures or self.attempts[identity] >= settings.attempts


def build_history(
    records: Iterable[Record], environments: Environments, baseline: Sequence[Record] | None = None
) -> History:
    """Return the `History` of a study, which summarizes the attempts at each case in `records`.

    Records from environments that are not in `environments` are ignored. In a comparison, `baseline` contains
    the records of the other program. Then a record counts as a result only if `baseline` has a matching
    record that did not fail. Two records match if they have the same case, replicate and `block`. The `block`
    identifies the group of cases that were sampled in turns.
    """
    matching = [(i, record) for record in records for i in find_identities(record, environments)]
    # A set counts an attempt once, even if the user has copied a file of records.
    attempts = {(i, r.attempt, r.started_at) for i, r in matching if r.reason != REQUEST_NOT_MET}
    paired = {(r.key, r.replicate, r.block) for r in baseline or () if r.status != "failed"}
    results = [(i, r) for i, r in matching if r.status != "failed" and r.reason not in _TEMPORARY_SKIPS]
    failures = [(i, r) for i, r in matching if r.status == "failed"]
    return History(
        with_result={i for i, r in results if baseline is None or (r.key, r.replicate, r.block) in paired},
        temporary_skips={i for i, r in matching if r.reason in _TEMPORARY_SKIPS},
        permanent_failures={i for i, r in failures if r.reason not in _TRANSIENT_FAILURES},
        attempts=Counter(identity for identity, _, _ in attempts),
        recorded={(identity, attempt) for identity, attempt, _ in attempts},
    )


def find_identities(record: Record, environments: Environments) -> list[Identity]:
    """Return an `Identity` of a record for each planned environment that matches the record's environment.

    A planned environment matches if it has the same digest. If some of its fields are unknown before the run,
    it also matches if all known fields are equal.
    """
    actual, identities = record.environment, list[Identity]()
    for planned in environments.values():
        known_fields = set(environment.DIGEST_FIELDS) - set(planned.get("untold") or ())
        agrees = "untold" in planned and all(planned.get(name) == actual.get(name) for name in known_fields)
        if agrees or planned["digest"] == actual["digest"]:
            identities.append((record.key, planned["digest"], record.replicate))
    return identities


def planned_environment(machine: Machine, settings: RunSettings, key: tuple) -> Environment:
    """Return the environment that the record of a case will have if the case runs on `machine`.

    `key` is the `environment_key` of the case. For a remote machine, the entry "untold" lists the fields that
    are unknown before the run.
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


def process_shape(case: Case, machine: Machine, settings: RunSettings) -> ProcessShape:
    """Return the numbers of devices, nodes, and worker processes that run a case on `machine`."""
    return machine.shape(case.devices, settings.processes if case.engine == "jax" else 1)


def group_by_problem(items: Iterable[ScheduledCase]) -> list[list[ScheduledCase]]:
    """Group cases that compute the same derivative of the same function at the same inputs."""
    return list(group_by(items, lambda scheduled: problem_fields(scheduled.case)).values())


def group_by_process(items: Iterable[ScheduledCase]) -> tuple[tuple[ScheduledCase, ...], ...]:
    """Group cases that may share a worker process. The groups, and the cases in a group, are in run order."""
    ordered = sorted(items, key=lambda scheduled: (scheduled.replicate, scheduled.order))
    return tuple(map(tuple, group_by(ordered, lambda scheduled: scheduled.session_key).values()))


def replicate_counts(results: Iterable[PreflightResult], settings: RunSettings) -> dict[str, int]:
    """Return the number of replicates to run for each case key.

    The number is 1 for a case that cannot run according to its preflight check.
    """
    return {result.case.key: 1 if result.outcome else settings.replicates for result in results}


def study_manifest(
    name: str,
    title: str | None,
    scaling: Sequence[str],
    results: Sequence[PreflightResult],
    settings: RunSettings,
) -> dict[str, Any]:
    """Return the content of study.json, the file that describes the last study of a results folder.

    `name` and `title` come from the YAML file of the study. `scaling` lists its types of scaling, "strong"
    or "weak". The content includes each case with its number of replicates.
    """
    counts = replicate_counts(results, settings)
    return store.schema_and_version() | {
        "study": name, "title": title, "scaling": sorted(set(scaling)), "order_seed": settings.order_seed,
        "sampling": dataclasses.asdict(settings.sampling),
        "cases": [
            {"key": result.case.key, "replicates": counts[result.case.key], "case": to_dict(result.case)}
            for result in results
        ],
    }  # fmt: skip
