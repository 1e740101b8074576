"""Cost: what measuring a planned case would take, in seconds on its devices, before anything is submitted.

Knows how a case is measured: built and compiled, run once and checked, warmed up and sampled; not how long any of it took.
"""

from scaling.core.record import Record
from scaling.workers.settings import RunSettings

_BUILT = 2.0  # seconds to build a case and check it, and for JAX's own start shared out over cases
_STAGES = ("trace_seconds", "lower_seconds", "compile_seconds")


def seconds(record: Record, settings: RunSettings, end: str = "high") -> float | None:
    """How long a case would take in one replicate, by one end of its predicted time; None if it was not predicted.

    Sampling ends at its cap unless its least number of samples takes longer; each of the compilations is sampled by itself. The
    stages of compiling are those of this host.
    """
    if record.predicted is None:
        return None
    sampling, call = settings.sampling, record.predicted[end]
    stages = sum(getattr(record, name) or 0.0 for name in _STAGES)
    sampled = max(sampling.warm_up, call) + max(sampling.seconds, sampling.least * call)
    return _BUILT + call + (stages + sampled) * sampling.compilations


def device_hours(records: list[Record], settings: RunSettings) -> tuple[float, float, int]:
    """What measuring all of these would take in all replicates, by both ends of the predictions, and how many are not known."""
    known = [record for record in records if record.predicted is not None]
    ends = (
        sum((seconds(r, settings, end) or 0.0) * r.case.devices for r in known) for end in ("low", "high")
    )
    low, high = (total * settings.replicates / 3600 for total in ends)
    return low, high, len(records) - len(known)
