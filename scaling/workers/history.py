"""Find the cases that have a result in the records of a study, and count the attempts at each (`History`).

A case is not executed again if it has a result. A result is a record whose environment matches the planned
environment. Its status is "ok", or "skipped" with a reason that still applies.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.core import environment
from scaling.core.record import Record
from scaling.workers.run_settings import RunSettings

# Reason of a failure if the code, nodes, or devices differ from the request. The attempt is not counted.
REQUEST_NOT_MET = "not_as_asked"
# Reasons of failures that another attempt may avoid.
_TRANSIENT_FAILURES = ("killed", "timeout", "preempted", "node_failed", "cancelled", REQUEST_NOT_MET)
# Reasons of skips that depend on installed packages or on the other cases of the run.
_TEMPORARY_SKIPS = ("not_offered", "not_installed", "dominated")
Environment = dict[str, Any]  # the field `environment` of a record
Environments = Mapping[tuple, Environment]  # `PreflightResult.environment_key` -> planned environment
Identity = tuple[str, str, int]  # case key, digest of the environment, replicate


@dataclass(frozen=True)
class History:
    """The number of recorded attempts of each case, and how the attempts ended."""

    with_result: set[Identity]  # cases with a result, as defined at the top of this module
    temporary_skips: set[Identity]  # cases that were skipped for a reason that may no longer apply
    permanent_failures: set[Identity]  # cases with a failure that another attempt would repeat
    attempts: Counter[Identity]  # number of attempts, without failures for the reason `REQUEST_NOT_MET`
    recorded: set[tuple[Identity, int]]  # (identity, attempt number) of each of these attempts

    def is_exhausted(self, identity: Identity, settings: RunSettings) -> bool:
        """Return whether a failed case must not run again.

        The result is true if a failure is permanent, or if no attempts are left. It is always false if
        `settings.attempts` is None.
        """
        if settings.attempts is None:
            return False
        return identity in self.permanent_failures or self.attempts[identity] >= settings.attempts


def build_history(
    records: Iterable[Record], environments: Environments, baseline: Sequence[Record] | None = None
) -> History:
    """Return the `History` of a study, which summarizes the attempts at each case in `records`.

    Records from environments that are not in `environments` are ignored. In a comparison, `baseline` contains
    the records of the other program. A record then counts as a result only if `baseline` has a record of the
    same case, replicate and `block` that did not fail. Records with the same `block` were sampled in turns.
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
    """Return [(case key, digest, replicate), ...] for the environments that a record matches.

    A record matches if its environment has the same digest, or the same values of all fields that are known
    before the run.
    """
    actual = record.environment
    return [
        (record.key, planned["digest"], record.replicate) for planned in environments.values()
        if planned["digest"] == actual["digest"]
        or ("untold" in planned and _agree_where_known(planned, actual))
    ]  # fmt: skip


def _agree_where_known(planned: Mapping[str, Any], actual: Mapping[str, Any]) -> bool:
    """Return whether two environments agree in all hashed fields that are known before the run.

    `planned["untold"]` lists the unknown fields.
    """
    known_fields = set(environment.DIGEST_FIELDS) - set(planned["untold"] or ())
    return all(planned.get(name) == actual.get(name) for name in known_fields)
