"""Result of the check of a case before a study starts: whether the case can run, and if not, why."""

from dataclasses import dataclass

from scaling.core.case import Case


@dataclass(frozen=True)
class PreflightResult:
    """Result of checking, before any measurement, whether a benchmark case can run.

    Attributes:
        case: The case with all defaults filled in, or as written in the study if the check failed.
        inapplicable: If the case cannot run by its nature, (reason, text) for a record with status "skipped".
        workload_digest: Digest of the source code of the differentiated function.
        engine: If a package other than JAX runs the case, (name, version) of each package that it uses.
        failure: If the check itself failed, (reason, text) for a record with status "failed".
    """

    case: Case
    inapplicable: tuple[str, str] | None
    workload_digest: str | None
    engine: tuple[tuple[str, str | None], ...] = ()
    failure: tuple[str, str] | None = None

    @property
    def environment_key(self) -> tuple:
        """Return (workload digest, package versions), which is equal for cases with equal environments."""
        return self.workload_digest, self.engine
