"""Memory: time against the memory of a device, for the fullest problem of each family, with the front of what nothing beats."""

from collections.abc import Iterable, Sequence
from functools import partial

from matplotlib.axes import Axes

from scaling.analysis.curves import Timing, family, problem, size_name, volume
from scaling.analysis.footprint import MemoryPoint, front, memory
from scaling.analysis.methods import Method, method_of
from scaling.report.drawing import lines
from scaling.report.drawing.palette import colour, shape
from scaling.report.drawing.sheet import Drawing, compose

MOST_PANELS = 6


def draw(timings: Iterable[Timing], several: bool) -> Drawing | None:
    """A panel for each family in which several ways were taken."""
    panels = _panels(timings)
    if not panels:
        return None
    told = "Memory of one device: the peak of the program where the compiler or the device tells it, else inputs, results and"
    told += " temporaries. Each mark is a mode, under one setting of memory, on so many devices; the more devices, the larger the"
    told += " mark. Of each workload the problem with the most modes is drawn; of several the one on the most numbers of devices,"
    told += " then the largest. The dotted front: nothing else is both faster and smaller."
    if len(panels) > MOST_PANELS:
        told += f" {MOST_PANELS} of {len(panels)} are drawn."
    painters = [partial(_draw, places=places, several=several) for places in panels[:MOST_PANELS]]
    return compose("memory", "Time against memory", told, painters)


def _panels(timings: Iterable[Timing]) -> list[list[MemoryPoint]]:
    families: dict[tuple, dict[tuple, list[MemoryPoint]]] = {}
    for timing in timings:
        held = memory(timing)
        if held and timing.honest and timing.case.kind == "case" and not timing.case.ad_mode.is_value:
            problems = families.setdefault((timing.environment, *family(timing.case)), {})
            problems.setdefault(problem(timing.case), []).append(MemoryPoint(held, timing.median, timing))
    made = [max(problems.values(), key=_fullness) for problems in families.values()]
    return [places for places in made if len({method_of(timing.case).plain for *_, timing in places}) > 1]


def _fullness(places: Sequence[MemoryPoint]) -> tuple[int, int, int]:
    """The more ways, then numbers of devices, then work, the sooner a problem is drawn: of one way there is nothing to choose."""
    cases = [timing.case for *_, timing in places]
    return len({method_of(case).plain for case in cases}), len({case.devices for case in cases}), volume(cases[0])


def _draw(axis: Axes, places: Sequence[MemoryPoint], several: bool) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    ways: dict[Method, list[MemoryPoint]] = {}
    for place in sorted(places, key=lambda place: place.timing.case.devices):
        ways.setdefault(method_of(place.timing.case).plain, []).append(place)
    counts = sorted({timing.case.devices for *_, timing in places})
    for way, some in ways.items():
        for held, seconds, timing in some:
            size = 4 + 5 * counts.index(timing.case.devices) / max(1, len(counts) - 1)
            first = timing is some[0].timing
            axis.plot(
                held, seconds, label=way.name if first else "_", color=colour(way), marker=shape(way), markersize=size,
                markerfacecolor="none", linestyle="none",
            )  # fmt: skip
    best = front(places)
    axis.step([place.memory for place in best], [place.seconds for place in best], where="post", zorder=1, **lines.GUIDE)
    lines.logarithmic(axis.xaxis, "B", [place.memory for place in places])
    lines.logarithmic(axis.yaxis, "s", [place.seconds for place in places])
    axis.set_xlabel("memory of a device")
    axis.set_ylabel("time")
    axis.grid(True)
    last = places[0].timing
    how = f"{counts[0]} to {counts[-1]} devices" if len(counts) > 1 else f"devices: {counts[0]}"
    lines.title(axis, last.case, f"{size_name(last.case)}, {how}", last.environment if several else "")
