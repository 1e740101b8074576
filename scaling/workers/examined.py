"""The result of examining a case before a study starts.

Does not know how a case is examined (study/preflight.py). Does not import JAX.
"""

from dataclasses import dataclass

from scaling.core.case import Case


@dataclass(frozen=True)
class Examined:
    """A completed case, with the reason why it cannot run, if there is one.

    case: completed; as the study states it where it could not be examined. unfit: why it cannot run by its
    nature. failure: why it could not be examined. Both are (reason, text). engine: what a peer runs on, as
    (name, version).
    """

    case: Case
    unfit: tuple[str, str] | None
    workload_digest: str | None
    engine: tuple[tuple[str, str | None], ...] = ()
    failure: tuple[str, str] | None = None

    @property
    def environment_key(self) -> tuple:
        """Return the part of the environment that depends on the case, as a key.

        Cases with equal keys share an environment.
        """
        return self.workload_digest, self.engine
