"""Cost of measuring planned cases: predicted wall seconds per case, and device-hours of a study."""

from collections.abc import Sequence

from scaling.core.record import COMPILING_STAGES, Record
from scaling.workers.run_settings import RunSettings

_BUILD_SECONDS = 2.0  # to build and check a case, including its share of the start of JAX


def seconds(record: Record, settings: RunSettings, end: str = "high") -> float | None:
    """Return the predicted wall time in seconds to measure a case once, or None if it is not predicted.

    Sampling takes `sampling.seconds`, or longer if the minimum number of samples requires it. Each
    compilation is sampled separately. The compile time is the measured one of this host.

    Args:
        end: The end of the prediction interval of the call time to use, "low" or "high".
    """
    if record.predicted is None:
        return None
    sampling, call = settings.sampling, record.predicted[end]
    stages = sum(getattr(record, name) or 0.0 for name in COMPILING_STAGES)
    sampled = max(sampling.warm_up, call) + max(sampling.seconds, sampling.least * call)
    return _BUILD_SECONDS + call + (stages + sampled) * sampling.compilations


def device_hours(records: Sequence[Record], settings: RunSettings) -> tuple[float, float, int]:
    """Return bounds of the predicted device-hours to measure all cases in all replicates (repetitions).

    Returns:
        (lower bound, upper bound, number of cases without a prediction).
    """
    predicted_records = [record for record in records if record.predicted is not None]
    low, high = (
        sum((seconds(record, settings, end) or 0.0) * record.case.devices for record in predicted_records)
        * settings.replicates
        / 3600
        for end in ("low", "high")
    )
    return low, high, len(records) - len(predicted_records)
