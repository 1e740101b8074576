"""Crossover: sizes by devices, the colour that of the fastest mode, pale where it is not distinguished, a line where it flips."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from scaling.analysis.crossover import FastestModeMap
from scaling.analysis.curves import family
from scaling.analysis.methods import Method, method_of
from scaling.core.formatting import format_duration
from scaling.report.drawing import lines
from scaling.report.drawing.palette import GRID, INK, colour
from scaling.report.drawing.sheet import Drawing, compose

MOST_PANELS = 6
_SURE, _PALE = 0.42, 0.13


def draw(maps: Sequence[FastestModeMap], several: bool) -> Drawing | None:
    """A panel for each map, the fullest of each family first."""
    ranked = _varied([each for each in maps if each.cells])
    if not ranked:
        return None
    shown = ranked[:MOST_PANELS]
    told = "The fastest mode for each size and number of devices, with its time. Pale, with a question mark: not distinguished"
    told += " from the next. A thick line stands where the fastest mode changes, between sizes at which both modes were measured"
    told += " and are distinguished; dashed where that is not sure."
    if len(ranked) > len(shown):
        told += f" {len(shown)} of {len(ranked)} maps are drawn; the others stand in the table of the fastest modes."
    height = max(1.2 + 0.34 * len(each.sizes) for each in shown)
    marks = _marks({method_of(cell.first.case) for each in shown for cell in each.cells.values()})
    painters = [partial(_draw, of=each, marks=marks, several=several) for each in shown]
    return compose("crossover", "Crossover: which mode for which size and how many devices", told, painters, height=height)


def _varied(maps: Sequence[FastestModeMap]) -> list[FastestModeMap]:
    """In turn from each family, the fullest of each first."""
    turn: dict[tuple, int] = {}
    ranked = []
    for each in sorted(maps, key=lambda m: -len(m.cells)):
        of = (each.environment, each.honest, *family(each.case))
        turn[of] = turn.get(of, -1) + 1
        ranked.append((turn[of], each))
    return [each for _, each in sorted(ranked, key=lambda pair: pair[0])]


def _draw(axis: Axes, of: FastestModeMap, marks: Mapping[Method, str], several: bool) -> None:
    row, column = ({value: index for index, value in enumerate(values)} for values in (of.sizes, of.devices))
    named: set[str] = set()
    for (size, devices), cell in of.cells.items():
        way, at = method_of(cell.first.case), (column[devices], row[size])
        label = "_" if way.name in named else way.name
        named.add(way.name)
        sure = cell.distinguished or (cell.second is None and not cell.empty)
        axis.add_patch(Rectangle((at[0] - 0.5, at[1] - 0.5), 1, 1, facecolor=colour(way), alpha=_SURE if sure else _PALE))
        if label != "_":
            axis.add_patch(Rectangle((-9, -9), 0, 0, facecolor=colour(way), label=label))  # for the legend, in full colour
        text = format_duration(cell.first.median) + ("" if sure else " ?") + (f"\n{marks[way]}" if marks[way] else "")
        axis.text(*at, text, ha="center", va="center", fontsize=8, linespacing=1.1, color=INK)
    for flip in of.flips:
        between = (row[flip.below] + row[flip.above]) / 2
        at_devices = column[flip.devices]
        dashes = "-" if flip.sure else (0, (2, 1.5))
        axis.plot([at_devices - 0.5, at_devices + 0.5], [between] * 2, color=INK, linewidth=2, linestyle=dashes)
    axis.set_xlim(-0.5, len(of.devices) - 0.5)
    axis.set_ylim(-0.5, len(of.sizes) - 0.5)
    axis.set_xticks(range(len(of.devices)), [str(count) for count in of.devices])
    axis.set_yticks(range(len(of.sizes)), [lines.whole(size) for size in of.sizes])
    axis.set_xlabel("devices")
    axis.set_ylabel(of.swept)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_color(GRID)
    how = ", ".join(word for word in (of.held, "" if of.honest else "oversubscribed") if word)
    lines.title(axis, of.case, how, of.environment if several else "")


def _marks(ways: Collection[Method]) -> dict[Method, str]:
    """What stands in a cell of each way, to tell those of one colour from each other."""
    alike: dict[str, list[Method]] = {}
    for way in ways:
        alike.setdefault(colour(way), []).append(way)
    made = {}
    for some in alike.values():
        for way in some:
            words = [
                way.batch if len({other.batch for other in some}) > 1 else None,
                way.formulation,
                None if way.jit else "eager",
            ]
            words += [way.mode] if len({other.mode for other in some}) > 1 else []
            words += [way.seeds] if len({other.seeds for other in some}) > 1 else []
            words += [way.brief]
            made[way] = " ".join(word for word in words if word) if len(some) > 1 else ""
    return made
