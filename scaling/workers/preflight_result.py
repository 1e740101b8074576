"""Result of the preflight check of a case: whether it can run, and the digest of its workload.

The checks themselves are in study/preflight.py. This module does not import JAX.
"""

from dataclasses import dataclass

from scaling.core.case import Case


@dataclass(frozen=True)
class PreflightResult:
    """Result of the preflight check of a case.

    Attributes:
        case: The case with all defaults filled in, or as written in the study if the check failed.
        inapplicable: If the case cannot run by its nature, the (reason, text) of the skipped record.
        workload_digest: Digest of the source of the workload.
        engine: For a peer, the (name, version) of each package that it uses.
        failure: If the check itself failed, the (reason, text) of the failed record.
    """

    case: Case
    inapplicable: tuple[str, str] | None
    workload_digest: str | None
    engine: tuple[tuple[str, str | None], ...] = ()
    failure: tuple[str, str] | None = None

    @property
    def environment_key(self) -> tuple:
        """Return a key of the case-dependent part of the environment.

        Cases with equal keys share an environment.
        """
        return self.workload_digest, self.engine
