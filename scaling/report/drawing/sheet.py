"""Sheet: panels side by side as one figure with one legend, in SVG, PNG and PDF: the same bytes for the
same values.

Each panel is also returned as an SVG of its own, so that a page can place panels below each other.
"""

import contextlib
import html
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from scaling.report.drawing.palette import GRID, GROUND, INK, MUTED, to_css_variables
from scaling.report.labels import clean_text

Painter = Callable[[Axes], None]
_COLUMNS, _WIDTH, _LEAST_WIDTH = 2, 4.9, 7.5  # inches
_LEFT, _RIGHT, _BOTTOM = 0.85, 0.35, 0.5  # margins of a panel
_TAG, _NAME = (
    re.compile(r"<[^>]*>"),
    re.compile(r'(\bid="|url\(#|href="#)'),
)  # text is escaped: no < or > in it
# Names come from studies: a dollar sign is not a formula.
_STYLE: Any = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.axisbelow": True,
    "axes.titley": 1.0,  # else every drawing searches for overlaps with the title
}


class LegendEntry(NamedTuple):
    """A line of the legend: a name, and how it is drawn."""

    name: str
    colour: str
    dashes: str | None  # None for a patch
    marker: str | None


@dataclass(frozen=True)
class Drawing:
    """A figure: the stem of its file names, title and caption, three file formats, and its panels for a
    page.
    """

    name: str
    title: str
    caption: str
    panels: tuple[str, ...]  # an SVG each, in the colours of the page
    legend: tuple[LegendEntry, ...]
    svg: str
    png: bytes
    pdf: bytes


def compose(name: str, title: str, caption: str, painters: Sequence[Painter], height: float = 3.2) -> Drawing:
    """Draw the panels, two side by side, each of this height in inches below its title."""
    columns = min(_COLUMNS, len(painters))
    rows = math.ceil(len(painters) / columns)
    with _figure_style(name):
        figure = Figure()
        axes = [figure.add_axes((0, 0, 1, 1), label=str(number)) for number in range(len(painters))]
        for axis, paint in zip(axes, painters, strict=True):
            paint(axis)
        handles = _legend_handles(axes)
        longest = max(map(len, handles), default=0)
        wide = 2 if longest > 40 else 3 if longest > 24 else 4
        heading = 0.1 + 0.165 * max(axis.get_title(loc="left").count("\n") + 1 for axis in axes)
        legend_height = 0.1 + 0.22 * math.ceil(len(handles) / wide) if handles else 0.0
        boxes = _place_panels(figure, axes, columns, (rows, heading + height, legend_height), heading)
        if handles:
            figure.legend(
                handles.values(), handles.keys(), loc="lower center", ncols=wide, frameon=False, fontsize=9
            )
        for text in figure.findobj(Text):
            text.set_text(clean_text(text.get_text()))
        svg = _save(figure, "svg").decode()
        svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
        whole = _with_background(svg, title)
        png = _save(figure, "png", dpi=150, facecolor=GROUND, metadata={"Software": None})
        pdf = _save(figure, "pdf", facecolor=GROUND, metadata={"CreationDate": None})
        panels = _panel_svgs(figure, axes, boxes, name, title)  # last: it takes the figure apart
    legend = tuple(_legend_entry(label, handle) for label, handle in handles.items())
    return Drawing(name, title, caption, panels, legend, whole, png, pdf)


def panel_size(panels: int) -> tuple[float, float]:
    """Return the width of a panel's axes and the size of small letters in points, for this number of panels.

    A single panel is wider, so that a phone shows it smaller.
    """
    columns = min(_COLUMNS, panels)
    width = max(_LEAST_WIDTH, _WIDTH * columns) / columns
    return 72 * (width - _LEFT - _RIGHT), 7.5 if columns > 1 else 10.0


def _place_panels(
    figure: Figure, axes: Sequence[Axes], columns: int, heights: tuple[int, float, float], heading: float
) -> list[tuple[float, float, float, float]]:
    """Place the panels with the same margins, and return where each is in inches: left, top, width, height.

    By arithmetic: matplotlib's own layouts draw everything several times.
    """
    rows, height, legend_height = heights
    width, tall = max(_LEAST_WIDTH, _WIDTH * columns), rows * height + legend_height
    figure.set_size_inches(width, tall)
    boxes = []
    for number, axis in enumerate(axes):
        left, top = (number % columns) * width / columns, (number // columns) * height
        size = (width / columns - _LEFT - _RIGHT) / width, (height - heading - _BOTTOM) / tall
        axis.set_position(((left + _LEFT) / width, 1 - (top + height - _BOTTOM) / tall, *size))
        boxes.append((left, top, width / columns, height))
    return boxes


@contextlib.contextmanager
def _figure_style(salt: str) -> Iterator[None]:
    """Set our style instead of the user's matplotlibrc; the salt makes the names in an SVG reproducible."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing from font"
        )  # characters that our font lacks: boxes in PNG
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_STYLE, "svg.hashsalt": salt})
        yield


def _save(figure: Figure, form: str, **options: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format=form, **options)
    return content.getvalue()


def _legend_handles(axes: Sequence[Axes]) -> dict[str, Any]:
    """Return what has a name in any panel, each name once; guides such as the ideal come last."""
    named: dict[str, Any] = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    return dict(sorted(named.items(), key=lambda pair: (_legend_entry(*pair).colour == MUTED, pair[0])))


def _legend_entry(name: str, handle: Any) -> LegendEntry:
    line = (
        handle[0] if isinstance(handle, Container) else handle
    )  # of an error bar the line, of bars the first
    if not hasattr(line, "get_linestyle") or not hasattr(line, "get_marker"):
        return LegendEntry(name, to_hex(line.get_facecolor()), None, None)
    marker = line.get_marker()
    return LegendEntry(
        name,
        to_hex(line.get_color()),
        line.get_linestyle(),
        None if marker in ("None", "", None) else str(marker),
    )


def _with_background(svg: str, title: str) -> str:
    """Return the whole figure with a background, readable wherever it is opened."""
    head, body = svg.split(">", 1)
    role = f'<svg role="img" aria-label="{html.escape(title)}"'
    return (
        head.replace("<svg", role, 1)
        + f'>\n <rect width="100%" height="100%" fill="{GROUND}"/>'
        + body.strip()
        + "\n"
    )


def _panel_svgs(
    figure: Figure,
    axes: Sequence[Axes],
    boxes: Sequence[tuple[float, float, float, float]],
    name: str,
    title: str,
) -> tuple[str, ...]:
    """Return each panel as an SVG element for a page: in the page's colours, with names of its own."""
    figure.legends.clear()
    height, panels = figure.get_figheight(), []
    for number, (axis, (left, top, width, tall)) in enumerate(zip(axes, boxes, strict=True), 1):
        for other in axes:
            other.set_visible(other is axis)
        area = Bbox.from_bounds(left, height - top - tall, width, tall)
        svg = _save(figure, "svg", bbox_inches=area).decode()
        body = re.sub(
            r"<metadata>.*?</metadata>\s*", "", svg[svg.index(">", svg.index("<svg")) + 1 :], flags=re.DOTALL
        )
        head = f'<svg viewBox="0 0 {72 * width:g} {72 * tall:g}" role="img" aria-label="{html.escape(title)}, panel {number}">'
        panels.append(head + _TAG.sub(partial(_adapt_tag, prefix=f"{name}-{number}-"), body.strip()))
    return tuple(panels)


def _adapt_tag(tag: re.Match[str], prefix: str) -> str:
    """Return a tag with a prefix before its names, in the page's colours."""
    return to_css_variables(_NAME.sub(rf"\g<1>{prefix}", tag[0]))
