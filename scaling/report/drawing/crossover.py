"""Crossover: sizes by devices, coloured by the fastest mode, pale where it is not distinguished, a line
at a crossover.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from scaling.analysis.crossover import FastestModeMap
from scaling.analysis.curves import family_key
from scaling.analysis.methods import Method, method_of
from scaling.core.formatting import format_duration
from scaling.report.drawing import lines
from scaling.report.drawing.palette import GRID, INK, method_colour
from scaling.report.drawing.sheet import Drawing, compose

MOST_PANELS = 6
_SURE, _PALE = 0.42, 0.13


def draw(maps: Sequence[FastestModeMap], show_environment: bool) -> Drawing | None:
    """Return a panel for each map, the fullest of each family first."""
    ranked = _varied([each for each in maps if each.cells])
    if not ranked:
        return None
    shown = ranked[:MOST_PANELS]
    caption = "The fastest mode for each size and number of devices, with its time. Pale, with a question mark: not distinguished"
    caption += " from the next. A thick line stands where the fastest mode changes, between sizes at which both modes were measured"
    caption += " and are distinguished; dashed where that is not sure."
    if len(ranked) > len(shown):
        caption += f" {len(shown)} of {len(ranked)} maps are drawn; the others stand in the table of the fastest modes."
    height = max(1.2 + 0.34 * len(each.sizes) for each in shown)
    describe_environment = _marks(
        {method_of(cell.first.case) for each in shown for cell in each.cells.values()}
    )
    painters = [
        partial(_draw, of=each, describe_environment=describe_environment, show_environment=show_environment)
        for each in shown
    ]
    return compose(
        "crossover",
        "Crossover: which mode for which size and how many devices",
        caption,
        painters,
        height=height,
    )


def _varied(maps: Sequence[FastestModeMap]) -> list[FastestModeMap]:
    """In turn from each family, the fullest of each first."""
    turn: dict[tuple, int] = {}
    ranked = []
    for each in sorted(maps, key=lambda m: -len(m.cells)):
        of = (each.environment, each.honest, *family_key(each.case))
        turn[of] = turn.get(of, -1) + 1
        ranked.append((turn[of], each))
    return [each for _, each in sorted(ranked, key=lambda pair: pair[0])]


def _draw(
    axis: Axes, of: FastestModeMap, describe_environment: Mapping[Method, str], show_environment: bool
) -> None:
    row, column = ({value: index for index, value in enumerate(values)} for values in (of.sizes, of.devices))
    name_with_blocks: set[str] = set()
    for (size, devices), cell in of.cells.items():
        method, at = method_of(cell.first.case), (column[devices], row[size])
        label = "_" if method.name in name_with_blocks else method.name
        name_with_blocks.add(method.name)
        sure = cell.distinguished or (cell.second is None and not cell.empty)
        axis.add_patch(
            Rectangle(
                (at[0] - 0.5, at[1] - 0.5),
                1,
                1,
                facecolor=method_colour(method),
                alpha=_SURE if sure else _PALE,
            )
        )
        if label != "_":
            axis.add_patch(
                Rectangle((-9, -9), 0, 0, facecolor=method_colour(method), label=label)
            )  # for the legend, in full colour
        text = (
            format_duration(cell.first.median)
            + ("" if sure else " ?")
            + (f"\n{describe_environment[method]}" if describe_environment[method] else "")
        )
        axis.text(*at, text, ha="center", va="center", fontsize=8, linespacing=1.1, color=INK)
    for flip in of.crossovers:
        between = (row[flip.below] + row[flip.above]) / 2
        at_devices = column[flip.devices]
        line_style = "-" if flip.sure else (0, (2, 1.5))
        axis.plot(
            [at_devices - 0.5, at_devices + 0.5], [between] * 2, color=INK, linewidth=2, linestyle=line_style
        )
    axis.set_xlim(-0.5, len(of.devices) - 0.5)
    axis.set_ylim(-0.5, len(of.sizes) - 0.5)
    axis.set_xticks(range(len(of.devices)), [str(count) for count in of.devices])
    axis.set_yticks(range(len(of.sizes)), [lines.format_size(size) for size in of.sizes])
    axis.set_xlabel("devices")
    axis.set_ylabel(of.swept)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_color(GRID)
    how = ", ".join(word for word in (of.held, "" if of.honest else "oversubscribed") if word)
    lines.set_panel_title(axis, of.case, how, of.environment if show_environment else "")


def _marks(methods: Collection[Method]) -> dict[Method, str]:
    """Return the text that tells methods of one colour apart in their cells."""
    alike: dict[str, list[Method]] = {}
    for method in methods:
        alike.setdefault(method_colour(method), []).append(method)
    made = {}
    for group in alike.values():
        for method in group:
            words = [
                method.batch if len({other.batch for other in group}) > 1 else None,
                method.formulation,
                None if method.jit else "eager",
            ]
            words += [method.mode] if len({other.mode for other in group}) > 1 else []
            words += [method.seeds] if len({other.seeds for other in group}) > 1 else []
            words += [method.short_memory_setting]
            made[method] = " ".join(word for word in words if word) if len(group) > 1 else ""
    return made
