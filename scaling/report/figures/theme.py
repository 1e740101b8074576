"""Define the style of figures: their colors, and the color, marker and dash pattern of each line."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from scaling.core.case import Case

INK, MUTED, GRID, GROUND = "#1c1e21", "#5b6068", "#dcdfe4", "#ffffff"

# Color-blind safe (after Okabe and Ito), with a contrast of at least 3:1 on a white ground.
BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#008a64", "#b5568f"
OCHRE, OLIVE, GREY, SKY = "#a87400", "#847a00", "#6e6e6e", "#2f7fa8"
_MODES = {  # mode -> color and shape; modes of the same derivative order differ in shape
    "jacfwd": (BLUE, "circle"), "jacrev": (VERMILION, "square"), "linearize": (GREEN, "up"),
    "finite_difference": (PURPLE, "diamond"), "vmap_grad": (OCHRE, "down"), "grad_of_sum": (OLIVE, "left"),
    "analytic": (INK, "plus"), "analytic_vmap": (INK, "cross"), "value": (GREY, "right"),
    "fwd_over_rev": (BLUE, "circle"), "rev_over_fwd": (VERMILION, "square"), "rev_over_rev": (GREEN, "up"),
    "fwd_over_fwd": (OCHRE, "down"), "mixed": (PURPLE, "star"), "jet": (PURPLE, "diamond"),
    "forward_laplacian": (OLIVE, "left"),
}  # fmt: skip
_ENGINE_COLORS = {  # of the AD libraries other than JAX
    "torch": "#882255", "autograd": "#117733", "numpy": "#77772a", "casadi": "#332288",
}  # fmt: skip
_DASHES = ((1, 0), (6, 3), (2, 3), (8, 3, 2, 3), (10, 2), (4, 2, 1, 2, 1, 2))  # for lines of one color
SHAPES = {  # SVG paths in the square from -1 to 1
    "circle": "M1,0A1,1,0,1,1,-1,0A1,1,0,1,1,1,0Z", "square": "M-.9,-.9H.9V.9H-.9Z",
    "up": "M0,-1L1,.8H-1Z", "down": "M0,1L-1,-.8H1Z", "left": "M-1,0L.8,-1V1Z", "right": "M1,0L-.8,-1V1Z",
    "diamond": "M0,-1.1L1.1,0L0,1.1L-1.1,0Z", "plus": "M-1,0H1M0,-1V1",
    "cross": "M-.8,-.8L.8,.8M.8,-.8L-.8,.8",
    "star": "M0,-1.1L.35,-.35L1.1,0L.35,.35L0,1.1L-.35,.35L-1.1,0L-.35,-.35Z",
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', 'DejaVu Sans', sans-serif",
    "background": None,
    "padding": {"left": 4, "top": 4, "bottom": 4, "right": 14},
    "view": {"stroke": None},
    "axis": {
        "domainColor": MUTED, "tickColor": MUTED, "gridColor": GRID, "labelColor": INK, "titleColor": INK,
        "titleFontWeight": "normal", "labelFontSize": 11, "titleFontSize": 12, "labelOverlap": "greedy",
    },
    "title": {"color": INK, "subtitleColor": INK, "anchor": "start", "fontSize": 12, "subtitleFontSize": 11},
    "legend": {"labelColor": INK, "labelLimit": 0, "title": None, "orient": "bottom", "labelFontSize": 12},
    "mark": {"invalid": "filter"},  # a value that is None has no mark
    "point": {"filled": False, "size": 55, "strokeWidth": 1.6},
    "text": {"color": INK, "fontSize": 11},
}  # fmt: skip


class LineStyle(NamedTuple):
    """The name, color, marker shape and dash pattern of a line. A filled area has only a name and a color."""

    name: str
    color: str
    shape: str | None = None
    dash: tuple[int, ...] | None = None


def line_styles(cases: Mapping[str, Case]) -> list[LineStyle]:
    """Return a style for each line of a figure, sorted by line name.

    `cases` maps the name of each line to one of its cases.
    """
    styles, used_styles = [], Counter[str]()
    for name, case in sorted(cases.items()):
        color, shape = _MODES.get(case.mode, (SKY, "cross"))
        if case.engine != "jax":
            color = _ENGINE_COLORS.get(case.engine, OLIVE)
        styles.append(LineStyle(name, color, shape, _DASHES[used_styles[color + shape] % len(_DASHES)]))
        used_styles[color + shape] += 1
    return styles
