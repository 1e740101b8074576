"""Cost: what measuring a planned case would take, in seconds on its devices, before anything is submitted.

Knows how a case is measured: built and compiled, run once and checked, warmed up and sampled; not how long any of it took.
"""

from scaling.launch import Settings
from scaling.record import Record

_BUILT = 2.0  # seconds to build a case and check it, and for JAX's own start shared out over cases
_STAGES = ("trace_seconds", "lower_seconds", "compile_seconds")


def seconds(record: Record, settings: Settings) -> float | None:
    """How long a case would take in one replicate, by the upper end of its predicted time; None if it was not predicted.

    Sampling ends at its cap unless its least number of samples takes longer; each of the compilations is sampled by itself. The
    stages of compiling are those of this host.
    """
    if record.predicted is None:
        return None
    sampling, call = settings.sampling, record.predicted["high"]
    stages = sum(getattr(record, name) or 0.0 for name in _STAGES)
    sampled = max(sampling.warm_up, call) + max(sampling.seconds, sampling.least * call)
    return _BUILT + call + (stages + sampled) * sampling.compilations


def device_hours(records: list[Record], settings: Settings) -> tuple[float, int]:
    """What measuring all of these would take in all replicates, and how many of them are not known."""
    known = [(record, took) for record in records if (took := seconds(record, settings)) is not None]
    hours = sum(took * record.case.devices for record, took in known) * settings.replicates / 3600
    return hours, len(records) - len(known)
