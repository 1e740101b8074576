"""Class PreflightResult: outcome of the check, before a study starts, of whether a benchmark case can run."""

from dataclasses import dataclass

from scaling.core.case import Case


@dataclass(frozen=True)
class PreflightResult:
    """Result of checking, before any measurement, whether a benchmark case can run.

    Attributes:
        case: The case with all defaults filled in, or as written in the study if the check itself failed.
        inapplicable: (reason, text) of the "skipped" record to write if the case cannot run, for example
            because its combination of options is undefined. None if the case can run.
        workload_digest: Hash of the source code of the differentiated function, or None if unknown.
        engine: (name, version) of each package that runs the case instead of JAX. Empty for JAX.
        failure: (reason, text) of the "failed" record to write if the check itself failed. None otherwise.
    """

    case: Case
    inapplicable: tuple[str, str] | None
    workload_digest: str | None
    engine: tuple[tuple[str, str | None], ...] = ()
    failure: tuple[str, str] | None = None

    @property
    def environment_key(self) -> tuple:
        """Return (workload digest, package versions). Cases with equal keys have equal environments."""
        return self.workload_digest, self.engine
