"""The seconds that measuring a planned case would take on its devices, before anything is submitted."""

from collections.abc import Sequence

from scaling.core.record import COMPILING_STAGES, Record
from scaling.workers.settings import RunSettings

_BUILD = 2.0  # seconds to build and check a case, with its part of JAX's own start


def seconds(record: Record, settings: RunSettings, end: str = "high") -> float | None:
    """Return the time of one replicate of a case, by one end of its predicted time; None if it was not
    predicted.

    Sampling ends at its cap unless its least number of samples takes longer; each compilation is sampled
    separately. The seconds of compiling are those of this host.
    """
    if record.predicted is None:
        return None
    sampling, call = settings.sampling, record.predicted[end]
    stages = sum(getattr(record, name) or 0.0 for name in COMPILING_STAGES)
    sampled = max(sampling.warm_up, call) + max(sampling.seconds, sampling.least * call)
    return _BUILD + call + (stages + sampled) * sampling.compilations


def device_hours(records: Sequence[Record], settings: RunSettings) -> tuple[float, float, int]:
    """Return the device-hours of all replicates, by both ends of the predictions, and how many cases have
    none.
    """
    known = [record for record in records if record.predicted is not None]
    low, high = (
        sum((seconds(record, settings, end) or 0.0) * record.case.devices for record in known)
        * settings.replicates
        / 3600
        for end in ("low", "high")
    )
    return low, high, len(records) - len(known)
