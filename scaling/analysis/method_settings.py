"""Group the timings of each program that was measured with several settings (`compare_settings`)."""

from collections.abc import Iterable

from scaling.analysis.cases import MEMORY_FIELDS, with_fields
from scaling.analysis.timings import Timing
from scaling.core.case import defaults
from scaling.core.grouping import group_by

_SETTINGS = (*MEMORY_FIELDS, "seeds", "mesh", "forward", "overlap")  # fields of a case


def compare_settings(timings: Iterable[Timing]) -> list[list[Timing]]:
    """Return the timings of each program with several settings, sorted by time.

    The cases of a program differ only in settings such as `chunk`, `mesh` and `seeds`. Function values are
    omitted.
    """
    derivatives = (timing for timing in timings if not timing.case.ad_mode.is_value)
    groups = group_by(
        derivatives, lambda t: (t.environment, t.honest, with_fields(t.case, **defaults(_SETTINGS)))
    )
    return [sorted(group, key=lambda t: t.median) for group in groups.values() if len(group) > 1]
