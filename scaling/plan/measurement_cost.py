"""Predict the cost of measuring a study: the wall time of each case, and the device-hours of all cases."""

from collections.abc import Sequence

from scaling.core.record import COMPILING_STAGES, Record
from scaling.workers.run_settings import RunSettings

_BUILD_SECONDS = 2.0  # to build and check a case, including a part of the start-up time of JAX


def measurement_seconds(record: Record, settings: RunSettings, end: str = "high") -> float | None:
    """Return the predicted seconds to measure a case once, or None if its call time is not predicted.

    For each compilation, sampling takes `sampling.seconds`, or longer if the minimum number of samples
    requires it. The compile time was measured on this host. `end`, "low" or "high", selects the limit of the
    95 % interval of the predicted call time.
    """
    if record.predicted is None:
        return None
    sampling, call = settings.sampling, record.predicted[end]
    stages = sum(getattr(record, name) or 0.0 for name in COMPILING_STAGES)
    sampled = max(sampling.warm_up, call) + max(sampling.seconds, sampling.least * call)
    return _BUILD_SECONDS + call + (stages + sampled) * sampling.compilations


def device_hours(records: Sequence[Record], settings: RunSettings) -> tuple[float, float, int]:
    """Return a lower and an upper bound on the device-hours of a study, and the number of omitted cases.

    The device-hours are for all planned cases in all replicates. Cases without a prediction are omitted.
    """
    predicted = [record for record in records if record.predicted is not None]
    low, high = (
        sum((measurement_seconds(each, settings, end) or 0.0) * each.case.devices for each in predicted)
        for end in ("low", "high")
    )
    hours = [seconds * settings.replicates / 3600 for seconds in (low, high)]
    return hours[0], hours[1], len(records) - len(predicted)
