"""Predict the cost of measuring a study: the wall time of each case, and the device-hours of all cases."""

from collections.abc import Sequence

from scaling.core.record import COMPILING_STAGES, Record
from scaling.workers.run_settings import RunSettings

_BUILD_SECONDS = 2.0  # to build and check a case, including a part of the start-up time of JAX


def measurement_seconds(record: Record, settings: RunSettings, end: str = "high") -> float | None:
    """Return the predicted wall time to measure a case once, in seconds.

    The result is None if the record contains no predicted call time.

    Sampling takes `sampling.seconds`, or longer if the minimum number of samples requires it. If a case is
    compiled several times, the samples are taken for each compilation. The compile time is the one that was
    measured on this host.

    Args:
        record: The record of a planned case, with the predicted time of a call.
        end: Which limit of the 95 % interval of the predicted call time is used, "low" or "high".
    """
    if record.predicted is None:
        return None
    sampling, call = settings.sampling, record.predicted[end]
    stages = sum(getattr(record, name) or 0.0 for name in COMPILING_STAGES)
    sampled = max(sampling.warm_up, call) + max(sampling.seconds, sampling.least * call)
    return _BUILD_SECONDS + call + (stages + sampled) * sampling.compilations


def device_hours(records: Sequence[Record], settings: RunSettings) -> tuple[float, float, int]:
    """Return lower and upper bounds of the device-hours to measure all cases in all replicates.

    Args:
        records: The records of the planned cases, with predicted times.
    Returns:
        (lower bound, upper bound, number of cases that are omitted because they have no prediction).
    """
    predicted_records = [record for record in records if record.predicted is not None]
    low, high = (
        sum(
            (measurement_seconds(record, settings, end) or 0.0) * record.case.devices
            for record in predicted_records
        )
        * settings.replicates
        / 3600
        for end in ("low", "high")
    )
    return low, high, len(records) - len(predicted_records)
