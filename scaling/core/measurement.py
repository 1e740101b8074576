"""What the stages of a case find out, as frozen values: each field is the field of a record with the same
name.

A stage returns its value, or hands it over before the next one, which may fail; `Attempt` puts them together
once.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaling.core.pattern import Coloring
from scaling.core.sampling import Samples


@dataclass(frozen=True)
class Start:
    """When an attempt began: UTC, ISO 8601."""

    started_at: str


@dataclass(frozen=True)
class DispatchLatency:
    """Seconds of an empty call through the api of a case."""

    floor_seconds: float | None


@dataclass(frozen=True)
class DerivativeFacts:
    """What is known of a derivative before it is compiled."""

    passes: int | None
    padding: float | None


@dataclass(frozen=True)
class ColoringFacts:
    """What detecting and colouring a sparsity pattern took, and came to."""

    detect_seconds: float
    color_seconds: float
    colors: dict[str, int]
    nonzeros: int


@dataclass(frozen=True)
class BlockFacts:
    """The blocks that chunk=auto found, and the JVPs and VJPs of a Jacobian computed in them."""

    blocks: Mapping[str, Any]
    passes: int | None


@dataclass(frozen=True)
class ProgramFacts:
    """Seconds of the compilation stages, and bytes of each device."""

    trace_seconds: float | None = None
    lower_seconds: float | None = None
    compile_seconds: float | None = None
    argument_bytes: int | None = None
    temp_bytes: int | None = None
    output_bytes: int | None = None
    compulsory_bytes: int | None = None


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes of each device that a case needs which does not fit."""

    argument_bytes: int | None = None
    temp_bytes: int | None = None
    output_bytes: int | None = None


@dataclass(frozen=True)
class PeerFacts:
    """What a peer says of its program."""

    compile_seconds: float | None
    passes: int | None


@dataclass(frozen=True)
class FirstCall:
    """Seconds of the first call."""

    first_seconds: float


@dataclass(frozen=True)
class PeakMemory:
    """Bytes of each device that a case took at most, where it raised the peak."""

    peak_bytes: int | None


@dataclass(frozen=True)
class CheckFacts:
    """The result of the check, and its seconds."""

    error: float | None
    tolerance: float
    checked: dict[str, float] | None
    check_seconds: float


@dataclass(frozen=True)
class HostBefore:
    """What the host was doing when sampling began."""

    before: dict[str, Any] | None


@dataclass(frozen=True)
class HostAfter:
    """What the host was doing when sampling ended."""

    after: dict[str, Any] | None


@dataclass(frozen=True)
class Recompilations:
    """The further compilations: seconds of their stages, and how many samples each gave."""

    compilations: list[dict[str, Any]]


@dataclass(frozen=True)
class Measurement:
    """All samples of a case."""

    seconds: list[float] = field(default_factory=list)
    seconds_min: list[float] = field(default_factory=list)
    slowest_rank: int | None = None
    turns: list[int] = field(default_factory=list)
    marked: dict[str, list[int]] = field(default_factory=dict)
    calls_per_sample: int | None = None
    stop_reason: str | None = None

    def without_samples(self) -> "Measurement":
        """Return the measurement of a case that failed in the end."""
        return dataclasses.replace(self, seconds=[], seconds_min=[], turns=[], marked={})


@dataclass(frozen=True)
class SamplingTime:
    """Seconds of warming up and of all turns."""

    sampling_seconds: float


@dataclass(frozen=True)
class Ending:
    """Why a case ended without a time."""

    status: str
    reason: str
    text: str


Report = Callable[[Any], None]  # takes what a stage found out


def fields_of(part: Any) -> dict[str, Any]:
    """Return the fields of a part of a record by name."""
    return {each.name: getattr(part, each.name) for each in dataclasses.fields(part)}


def coloring_facts(coloring: Coloring) -> ColoringFacts:
    """Return what a record says of a colouring."""
    colors = {"columns": coloring.column_count, "rows": coloring.row_count}
    nonzeros = int(coloring.pattern.rows.size)
    return ColoringFacts(coloring.detect_seconds, coloring.color_seconds, colors, nonzeros)


def merge_samples(parts: Sequence[Samples]) -> Measurement:
    """Return the samples of one compilation after another."""
    marked: dict[str, list[int]] = {}
    before = 0
    for part in parts:
        for mark, places in part.marked.items():
            marked.setdefault(mark, []).extend(before + place for place in places)
        before += len(part.turns)
    slowest = Counter(rank for part in parts for rank in part.slowest)
    seconds = [second for part in parts for second in part.seconds]
    return Measurement(
        seconds=seconds,
        seconds_min=[second for part in parts for second in part.seconds_min] or seconds,
        slowest_rank=slowest.most_common(1)[0][0] if slowest else 0,
        turns=[count for part in parts for count in part.turns] or [len(seconds)],
        marked=marked,
        calls_per_sample=parts[0].calls_per_sample,
        stop_reason=parts[-1].stop_reason,
    )
