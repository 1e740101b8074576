"""Figures: curves and panels as drawings, in SVG and PNG, the same bytes for the same values.

The only module that knows matplotlib. Does not know records, the disk, or HTML.
"""

import contextlib
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from scaling.case import Case
from scaling.reading.curves import Curve, Panel, Point, Way, family, family_name, problem, size_name, volume, way_of

MOST_ROWS = 6  # of scaling: two axes each
MOST_PANELS = 8  # of time against size
MOST_LINES = 8  # in one panel
NAMES = ("scaling-strong", "scaling-weak", "size")  # every figure that there may be
_KINDS = {"strong": "Strong scaling: the same problem on more devices", "weak": "Weak scaling: as many points for each device"}

# Colours that stay apart for the colour-blind (Okabe and Ito), one for each mode in every figure.
_COLOURS = {
    "jacfwd": "#0072B2",
    "jacrev": "#D55E00",
    "linearize": "#009E73",
    "finite_difference": "#CC79A7",
    "vmap_grad": "#E69F00",
    "grad_of_sum": "#F0E442",
    "analytic": "#000000",
    "analytic_vmap": "#000000",
    "value": "#7F7F7F",
    "fwd_over_rev": "#0072B2",
    "rev_over_fwd": "#D55E00",
    "rev_over_rev": "#009E73",
    "fwd_over_fwd": "#E69F00",
}
_ENGINES = {
    "torch": "#882255",
    "autograd": "#117733",
    "numpy": "#999933",
    "casadi": "#332288",
    "enzyme": "#661100",
    "julia": "#AA4499",
}
_DASHES = {"vmap": "-", "whole": "--"}
_SHAPES = {"jacfwd": "o", "jacrev": "s", "linearize": "^", "finite_difference": "D", "vmap_grad": "v", "analytic": "P"}
_SHAPES |= {"analytic_vmap": "X", "fwd_over_rev": "o", "rev_over_fwd": "s", "rev_over_rev": "^", "fwd_over_fwd": "D"}
_MARKERS = {("shard_map", "points"): "o", ("shard_map", "seeds"): "s", ("pmap", "points"): "^", ("pmap", "seeds"): "D"}
_IDEAL: dict[str, Any] = {"color": "#999999", "linewidth": 1, "linestyle": ":"}
# Names come from studies, so that a dollar sign is a dollar sign and no formula.
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class Drawing:
    """A figure: the stem of its file name, what it shows in words, and its two forms."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes


def draw(curves: Sequence[Curve], panels: Sequence[Panel]) -> list[Drawing]:
    """Every figure that these values can fill: strong scaling, weak scaling, time against size."""
    several = len({curve.environment for curve in curves} | {panel.environment for panel in panels}) > 1
    drawings = [_scaling(kind, [c for c in curves if c.kind == kind], several) for kind in _KINDS]
    return [drawing for drawing in (*drawings, _sizes(panels, several)) if drawing]


@contextlib.contextmanager
def _style(salt: str) -> Iterator[None]:
    """Ours and nobody's matplotlibrc; the salt makes an SVG's own names the same each time."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_STYLE, "svg.hashsalt": salt})
        yield


def _scaling(kind: str, curves: Sequence[Curve], several: bool) -> Drawing | None:
    """Speed-up and efficiency side by side, a row for the largest problem of each family."""
    drawable = [curve for curve in curves if len([p for p in curve.points if p.speedup is not None]) > 1]
    rows = _rows(drawable)
    if not rows:
        return None
    shown = rows[:MOST_ROWS]
    with _style(f"scaling-{kind}"):
        figure = Figure(figsize=(10, 3.3 * len(shown) + 0.7), layout="constrained")
        axes = figure.subplots(len(shown), 2, squeeze=False)
        for (left, right), row in zip(axes, shown, strict=True):
            lines = _fewer(row)
            for above, curve in enumerate(reversed(lines)):
                _draw_curve(left, right, curve, above)
            _finish_row(left, right, lines, _title(lines[0].case, lines[0].environment, several, kind))
        _legend(figure, axes.flat)
        caption = _scaling_caption(kind, curves, drawable, rows)
        return _drawing(figure, f"scaling-{kind}", _KINDS[kind], caption)


def _rows(curves: Iterable[Curve]) -> list[list[Curve]]:
    """The curves of the largest problem of each family in each environment; those of a value alone come last."""
    families: dict[tuple, dict[tuple, list[Curve]]] = {}
    for curve in curves:
        problems = families.setdefault((curve.environment, *family(curve.case)), {})
        problems.setdefault(problem(curve.case), []).append(curve)
    rows = [max(problems.values(), key=lambda same: volume(same[0].case)) for problems in families.values()]
    return sorted(rows, key=lambda row: row[0].case.mode == "value")


def _fewer(curves: Sequence[Curve]) -> list[Curve]:
    """All of them, or, when they are too many to tell apart, for each mode the one that is fastest on the most devices."""
    if len(curves) <= MOST_LINES:
        return list(curves)
    best: dict[Way, Curve] = {}
    for curve in sorted(curves, key=lambda c: (-c.points[-1].devices, c.points[-1].seconds)):
        best.setdefault(way_of(curve.case), curve)
    return list(best.values())


def _draw_curve(left: Axes, right: Axes, curve: Curve, above: int) -> None:
    case = curve.case
    name = f"{way_of(case).name}, {case.api}, {case.split} split"
    known = [p for p in curve.points if p.speedup is not None]
    devices = [p.devices for p in known]
    bars: list[tuple[Axes, Callable[[Point], Any]]] = [
        (left, lambda p: (p.speedup, p.speedup_low, p.speedup_high)),
        (right, lambda p: (p.efficiency, p.efficiency_low, p.efficiency_high)),
    ]
    for axis, of in bars:
        marker = _MARKERS.get((case.api, case.split), "x")
        _bars(axis, devices, [of(p) for p in known], name, way_of(case), marker, above)


def _bars(axis: Axes, at: Sequence[int], rows: Sequence[tuple], name: str, way: Way, marker: str, above: int) -> None:
    """A line through (middle, low, high), with a bar where the interval is known.

    A line under others (`above` counts them) is wider than they are, so that two that fall together are both seen.
    """
    middle = [row[0] for row in rows]
    below = [0.0 if row[1] is None else max(0.0, row[0] - row[1]) for row in rows]
    over = [0.0 if row[2] is None else max(0.0, row[2] - row[0]) for row in rows]
    axis.errorbar(
        at, middle, yerr=[below, over], label=name, color=_colour(way), linestyle=_dashes(way),
        marker=marker, markerfacecolor="none", markersize=min(9, 5 + above), linewidth=min(2.4, 1.2 + 0.2 * above),
        elinewidth=1, capsize=3, zorder=3 - 0.1 * above,
    )  # fmt: skip


def _colour(way: Way) -> str:
    """That of the mode; that of the engine for all modes of a peer."""
    return _COLOURS.get(way.mode, "#56B4E9") if way.engine == "jax" else _ENGINES.get(way.engine.split("/")[0], "#999933")


def _dashes(way: Way) -> str:
    if way.formulation or (way.engine != "jax" and way.jit):
        return "-."
    return ":" if way.engine == "jax" and not way.jit else _DASHES[way.batch]


def _finish_row(left: Axes, right: Axes, curves: Sequence[Curve], title: str) -> None:
    devices = sorted({p.devices for curve in curves for p in curve.points if p.speedup is not None})
    logarithmic = devices[-1] > 16
    left.plot(devices, devices, label="ideal", **_IDEAL)
    right.plot(devices, [1] * len(devices), label="ideal", **_IDEAL)
    left.set_title(title, loc="left", fontsize=10)
    left.set_ylabel("speed-up (scaled)" if curves[0].kind == "weak" else "speed-up")
    right.set_ylabel("efficiency")
    for axis in (left, right):
        if logarithmic:
            axis.set_xscale("log", base=2)
        _ticks(axis, devices, logarithmic)
        axis.set_xlabel("devices")
        axis.grid(True, color="#e5e5e5", linewidth=0.6)
    if logarithmic:
        left.set_yscale("log", base=2)
        left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        left.set_ylim(bottom=0)
    right.set_ylim(bottom=0, top=max(1.1, right.get_ylim()[1]))


def _scaling_caption(kind: str, curves: Sequence[Curve], drawable: Sequence[Curve], rows: Sequence[Sequence[Curve]]) -> str:
    of = "one device, as many points for each device" if kind == "weak" else "one device"
    told = [f"Against the same program on {of}; bars are 95 % intervals. The largest problem of each workload is drawn."]
    if any(len(row) > MOST_LINES for row in rows[:MOST_ROWS]):
        told.append("Where there are many ways to cut and call a mode, the one that is fastest on the most devices is drawn.")
    if left_out := rows[MOST_ROWS:]:
        told.append(f"Left out, but in the tables: {'; '.join(family_name(row[0].case) for row in left_out)}.")
    # A plain jit program has one device by nature: it is a baseline and no curve.
    if count := len([c for c in curves if c not in drawable and c.case.api != "jit"]):
        told.append(f"{count} {'curve is' if count == 1 else 'curves are'} not drawn: no second device count, or no baseline.")
    return " ".join(told)


def _sizes(panels: Sequence[Panel], several: bool) -> Drawing | None:
    """Time against size, a line for each mode."""
    if not panels:
        return None
    ranked = _varied(panels)
    shown = ranked[:MOST_PANELS]
    columns = min(2, len(shown))
    with _style("size"):
        rows = math.ceil(len(shown) / columns)
        figure = Figure(figsize=(10 if columns > 1 else 6.5, 3.5 * rows + 0.6), layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axis, panel in zip(axes, shown, strict=False):
            _draw_panel(axis, panel, several)
        for axis in axes[len(shown) :]:
            axis.set_axis_off()
        _legend(figure, axes[: len(shown)])
        told = "Median time of one call; bars are 95 % intervals; both axes are logarithmic."
        if len(panels) > len(shown):
            told += f" {len(shown)} of {len(panels)} panels are drawn, of each workload those with the most modes and sizes;"
            told += " the others stand in the tables."
        return _drawing(figure, "size", "Time against size", told)


def _varied(panels: Sequence[Panel]) -> list[Panel]:
    """The fullest panels first, in turn from each family, so that no workload crowds the others out.

    Two sizes make no curve: a panel of them is left out where its family has a panel of more.
    """
    counts = {id(panel): len({size for line in panel.lines.values() for size, _ in line}) for panel in panels}
    most: dict[tuple, int] = {}
    for panel in panels:
        of = (panel.environment, *family(panel.case))
        most[of] = max(most.get(of, 0), counts[id(panel)])
    panels = [p for p in panels if counts[id(p)] > 2 or most[(p.environment, *family(p.case))] <= 2]
    turn: dict[tuple, int] = {}
    ranked: list[tuple[bool, int, int, Panel]] = []
    for panel in sorted(panels, key=lambda p: (-len(p.lines), -sum(map(len, p.lines.values())), p.case.devices, -volume(p.case))):
        of = (panel.environment, *family(panel.case))
        turn[of] = turn.get(of, -1) + 1
        ranked.append((panel.case.mode == "value", turn[of], len(ranked), panel))
    return [panel for *_, panel in sorted(ranked, key=lambda row: row[:3])]


def _draw_panel(axis: Axes, panel: Panel, several: bool) -> None:
    sizes = sorted({size for line in panel.lines.values() for size, _ in line})
    axis.set_xscale("log")
    axis.set_yscale("log")
    for above, (way, line) in enumerate(panel.lines.items()):
        rows = [(timing.median, *(timing.interval or (None, None))) for _, timing in line]
        _bars(axis, [size for size, _ in line], rows, way.name, way, _SHAPES.get(way.mode, "x"), above)
    _ticks(axis, sizes, logarithmic=True)
    times = [timing.median for line in panel.lines.values() for _, timing in line]
    narrow = max(times) / min(times) < 30
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=12))
    axis.yaxis.set_major_formatter(EngFormatter(unit="s", sep=" "))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel(panel.swept)
    axis.set_ylabel("time")
    axis.grid(True, color="#e5e5e5", linewidth=0.6)
    axis.set_title(_panel_title(panel, several), loc="left", fontsize=10)


def _panel_title(panel: Panel, several: bool) -> str:
    case = panel.case
    how = [panel.held, f"{case.devices} {'device' if case.devices == 1 else 'devices'}", case.api]
    how += [] if case.api == "jit" else [f"{case.split} split"]
    how += [] if panel.honest else ["oversubscribed"]
    return _heading(family_name(case), ", ".join(word for word in how if word), panel.environment if several else "")


def _title(case: Case, environment: str, several: bool, kind: str) -> str:
    size = size_name(case) + (" for each device" if kind == "weak" else "")
    return _heading(family_name(case), size, environment if several else "")


def _heading(what: str, how: str, environment: str) -> str:
    lines = [what, how, environment and f"environment {environment}"]
    return "\n".join(textwrap.fill(line, 56) for line in lines if line)


def _ticks(axis: Axes, values: Sequence[int], logarithmic: bool) -> None:
    """Ticks at the values themselves, less those that would write over their neighbours."""
    place = math.log if logarithmic else float
    room = (place(values[-1]) - place(values[0])) / 9
    kept = [values[-1]]
    for value in reversed(values[:-1]):
        if place(kept[-1]) - place(value) >= room:
            kept.append(value)
    axis.xaxis.set_major_locator(FixedLocator(sorted(kept)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _whole(value)))


def _whole(value: float) -> str:
    """A size in few letters: 8,192, 100 k, 10 M."""
    return f"{round(value):,}" if value < 1e5 else EngFormatter(sep=" ")(value)


def _legend(figure: Figure, axes: Iterable[Axes]) -> None:
    """One legend below all panels, each name once."""
    named: dict[str, Any] = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    order = sorted(named, key=lambda name: (name == "ideal", name))
    columns = 3 if any(len(name) > 24 for name in order) else 4
    figure.legend([named[name] for name in order], order, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def _drawing(figure: Figure, name: str, title: str, caption: str) -> Drawing:
    text, pixels = io.StringIO(), io.BytesIO()
    figure.savefig(text, format="svg")
    figure.savefig(pixels, format="png", dpi=150, metadata={"Software": None})
    return Drawing(name, title, caption, _inline(text.getvalue(), name, title), pixels.getvalue())


def _inline(svg: str, name: str, title: str) -> str:
    """The SVG element alone, to stand in a page beside others: no header, no metadata, names of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1).strip() + "\n"
