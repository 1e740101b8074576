"""Sheet: panels side by side as one figure, with one legend, in SVG, PNG and PDF: the same bytes for the same values.

Each panel comes apart as well, so that a page can put them below each other where it is narrow. Does not know what is drawn.
"""

import contextlib
import copy
import html
import io
import math
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.text import Text

from scaling.report.drawing.palette import GRID, GROUND, INK, QUIET, themed
from scaling.report.labels import legible

Painter = Callable[[Axes], None]
_COLUMNS, _WIDTH, _LEAST_WIDTH = 2, 4.9, 7.5  # inches
_LEFT, _RIGHT, _BOTTOM = 0.85, 0.35, 0.5  # room around a panel for what is written there
_TARGET = re.compile(r"(?:^|url\()#([^)]+)\)?")  # of a reference: what an attribute points to
# Names come from studies, so that a dollar sign is a dollar sign and no formula.
_STYLE: Any = {
    "svg.fonttype": "none", "pdf.fonttype": 42, "text.parse_math": False, "font.size": 10, "axes.spines.top": False,
    "axes.spines.right": False, "text.color": INK, "axes.edgecolor": QUIET, "axes.labelcolor": INK, "xtick.color": QUIET,
    "ytick.color": QUIET, "xtick.labelcolor": INK, "ytick.labelcolor": INK, "grid.color": GRID, "grid.linewidth": 0.6,
    "axes.facecolor": "none", "figure.facecolor": "none", "axes.axisbelow": True,
    "axes.titley": 1.0,  # else every drawing looks for what might be in the title's way
}  # fmt: skip


class LegendEntry(NamedTuple):
    """A line of the legend: a name, and how what bears it is drawn."""

    name: str
    colour: str
    dashes: str | None  # None for a patch
    marker: str | None


@dataclass(frozen=True)
class Drawing:
    """A figure: the stem of its file names, what it shows in words, as a whole in three forms, and its panels for a page."""

    name: str
    title: str
    caption: str
    panels: tuple[str, ...]  # an SVG each, in the colours of the page
    legend: tuple[LegendEntry, ...]
    svg: str
    png: bytes
    pdf: bytes


def compose(name: str, title: str, caption: str, painters: Sequence[Painter], height: float = 3.2) -> Drawing:
    """Draw the panels, two beside each other, each of this height in inches below its heading."""
    columns = min(_COLUMNS, len(painters))
    rows = math.ceil(len(painters) / columns)
    with _style(name):
        figure = Figure()
        axes = [figure.add_axes((0, 0, 1, 1), label=str(number)) for number in range(len(painters))]
        for axis, paint in zip(axes, painters, strict=True):
            paint(axis)
        handles = _handles(axes)
        longest = max(map(len, handles), default=0)
        wide = 2 if longest > 40 else 3 if longest > 24 else 4
        heading = 0.1 + 0.165 * max(axis.get_title(loc="left").count("\n") + 1 for axis in axes)
        below = 0.1 + 0.22 * math.ceil(len(handles) / wide) if handles else 0.0
        boxes = _place(figure, axes, columns, (rows, heading + height, below), heading)
        if handles:
            figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=wide, frameon=False, fontsize=9)
        for text in figure.findobj(Text):
            text.set_text(legible(text.get_text()))
        svg = _saved(figure, "svg").decode()
        svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
        return Drawing(
            name, title, caption, _apart(svg, boxes, name, title), tuple(map(_entry, handles, handles.values())),
            _grounded(svg, title), _saved(figure, "png", dpi=150, facecolor=GROUND, metadata={"Software": None}),
            _saved(figure, "pdf", facecolor=GROUND, metadata={"CreationDate": None}),
        )  # fmt: skip


def room(panels: int) -> tuple[float, float]:
    """How wide a panel is within its axes where there are so many, and how large small letters are in it, in points.

    For what must know before it is laid out. One alone is wider, so that a phone shows it smaller.
    """
    columns = min(_COLUMNS, panels)
    width = max(_LEAST_WIDTH, _WIDTH * columns) / columns
    return 72 * (width - _LEFT - _RIGHT), 7.5 if columns > 1 else 10.0


def _place(
    figure: Figure, axes: Sequence[Axes], columns: int, heights: tuple[int, float, float], heading: float
) -> list[tuple[float, float, float, float]]:
    """Lay the panels out, in inches, with the same room around each, and say where each lies: left, top, width, height.

    By arithmetic: matplotlib's own layouts draw everything several times to find the same.
    """
    rows, height, below = heights
    width, tall = max(_LEAST_WIDTH, _WIDTH * columns), rows * height + below
    figure.set_size_inches(width, tall)
    boxes = []
    for number, axis in enumerate(axes):
        left, top = (number % columns) * width / columns, (number // columns) * height
        size = (width / columns - _LEFT - _RIGHT) / width, (height - heading - _BOTTOM) / tall
        axis.set_position(((left + _LEFT) / width, 1 - (top + height - _BOTTOM) / tall, *size))
        boxes.append((left, top, width / columns, height))
    return boxes


@contextlib.contextmanager
def _style(salt: str) -> Iterator[None]:
    """Ours and nobody's matplotlibrc; the salt makes an SVG's own names the same each time."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a name in signs that our font has not: boxes in PNG
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_STYLE, "svg.hashsalt": salt})
        yield


def _saved(figure: Figure, form: str, **options: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format=form, **options)
    return content.getvalue()


def _handles(axes: Sequence[Axes]) -> dict[str, Any]:
    """What bears a name in any panel, each name once, the ideal and other guides last."""
    named: dict[str, Any] = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    return dict(sorted(named.items(), key=lambda pair: (_entry(*pair).colour == QUIET, pair[0])))


def _entry(name: str, handle: Any) -> LegendEntry:
    line = handle[0] if isinstance(handle, Container) else handle  # of an error bar the line, of bars the first
    if not hasattr(line, "get_linestyle") or not hasattr(line, "get_marker"):
        return LegendEntry(name, to_hex(line.get_facecolor()), None, None)
    marker = line.get_marker()
    return LegendEntry(
        name, to_hex(line.get_color()), line.get_linestyle(), None if marker in ("None", "", None) else str(marker)
    )


def _grounded(svg: str, title: str) -> str:
    """The whole figure on a ground of its own, legible wherever it is opened."""
    head, body = svg.split(">", 1)
    role = f'<svg role="img" aria-label="{html.escape(title)}"'
    return head.replace("<svg", role, 1) + f'>\n <rect width="100%" height="100%" fill="{GROUND}"/>' + body.strip() + "\n"


def _apart(svg: str, boxes: Sequence[tuple[float, float, float, float]], name: str, title: str) -> tuple[str, ...]:
    """Each panel as an SVG element of its own, to stand in a page beside others: no header, names of its own."""
    groups: dict[str | None, ET.Element] = {}
    shared: dict[str | None, ET.Element] = {}
    for element in ET.fromstring(svg).iter():
        (groups if element.tag.endswith("}g") else shared)[element.get("id")] = element
    made = []
    for number, box in enumerate(boxes, 1):
        view = " ".join(f"{72 * each:.2f}" for each in box)  # an SVG counts in points
        panel = ET.Element("svg", {"viewBox": view, "role": "img", "aria-label": f"{title}, panel {number}"})
        group = groups[f"axes_{number}"]
        own, used = {each.get("id") for each in group.iter()}, dict[str, None]()
        for element in group.iter():
            used |= dict.fromkeys(target for value in element.attrib.values() for target in _TARGET.findall(value))
        defs = ET.SubElement(panel, "defs")  # markers stand where they were drawn first, which may be in another panel
        defs.extend(_renamed(shared[each], f"{name}-{number}-") for each in used if each not in own)
        panel.append(_renamed(group, f"{name}-{number}-"))
        made.append(ET.tostring(panel, encoding="unicode"))
    return tuple(made)


def _renamed(element: ET.Element, prefix: str) -> ET.Element:
    """The same with a prefix before its names and in the page's colours: in attributes, which are ours, never in text."""
    fresh = copy.deepcopy(element)
    for each in fresh.iter():
        each.tag = each.tag.split("}")[-1]
        for name, value in list(each.attrib.items()):
            del each.attrib[name]
            pointed = _TARGET.sub(lambda found: found[0].replace("#", f"#{prefix}"), value)
            each.set(name.split("}")[-1], prefix + value if name == "id" else themed(pointed))
    return fresh
