"""Class PreflightResult: whether a case can run, checked before the study starts, and if not, why."""

from dataclasses import dataclass

from scaling.core.case import Case


@dataclass(frozen=True)
class PreflightResult:
    """Result of checking, before any measurement, whether a benchmark case can run.

    Attributes:
        case: The case with all defaults filled in, or as written in the study if the check failed.
        inapplicable: (reason, text) for a "skipped" record if the case is undefined or not offered, or None.
        workload_digest: Digest of the source code of the differentiated function.
        engine: (name, version) of each package that runs the case instead of JAX. Empty for JAX.
        failure: (reason, text) for a "failed" record if the check itself failed, or None.
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
