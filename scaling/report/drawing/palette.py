"""Palette: the colour, line style and marker of each method, for light and dark pages."""

import re
from collections.abc import Callable

from scaling.analysis.methods import Method
from scaling.core.case import Case

INK, MUTED, GRID = "#1c1e21", "#5b6068", "#dcdfe4"  # text, secondary text, grid lines
GROUND, ON_COLOUR = "#ffffff", "#fffffe"  # the background, and text on a filled patch

# Colours for the colour-blind (after Okabe and Ito), with a contrast of at least 3:1 on light and dark pages.
BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#008a64", "#b5568f"
OCHRE, OLIVE, GREY, SKY = "#a87400", "#847a00", "#6e6e6e", "#2f7fa8"
_MODES = {
    "jacfwd": BLUE, "jacrev": VERMILION, "linearize": GREEN, "finite_difference": PURPLE, "vmap_grad": OCHRE,
    "grad_of_sum": OLIVE, "analytic": INK, "analytic_vmap": INK, "value": GREY, "fwd_over_rev": BLUE,
    "rev_over_fwd": VERMILION, "rev_over_rev": GREEN, "fwd_over_fwd": OCHRE, "mixed": PURPLE,
}  # fmt: skip
_ENGINES = {
    "torch": "#882255", "autograd": "#117733", "numpy": "#77772a", "casadi": "#332288", "enzyme": "#661100",
    "julia": "#8e3391",
}  # fmt: skip
_DARK = {
    INK: "#e6e8eb", ON_COLOUR: "#101216", MUTED: "#a2a8b1", GRID: "#363a42", BLUE: "#56a8de",
    VERMILION: "#ff8a3d", GREEN: "#2cc59a", PURPLE: "#e39cc6", OCHRE: "#f0b429", OLIVE: "#e6dc4a",
    GREY: "#a9adb3", SKY: "#7cc4e8", "#882255": "#d4709c", "#117733": "#4fbf75", "#77772a": "#c6c65a",
    "#332288": "#9c8cf0", "#661100": "#e08268", "#8e3391": "#dd8be0",
}  # fmt: skip
_DASHES = {"vmap": "-", "whole": "--"}
_MODE_SHAPES = {
    "jacfwd": "o", "jacrev": "s", "linearize": "^", "finite_difference": "D", "vmap_grad": "v",
    "analytic": "P", "analytic_vmap": "X", "fwd_over_rev": "o", "rev_over_fwd": "s", "rev_over_rev": "^",
    "fwd_over_fwd": "D", "value": "x", "mixed": "*",
}  # fmt: skip
_COLORED_SHAPES = {
    "jacfwd": "<",
    "jacrev": ">",
    "mixed": "*",
    "analytic": "P",
    "analytic_vmap": "X",
}  # with colored seeds
_LAYOUT_SHAPES = {
    ("shard_map", "points"): "o", ("shard_map", "seeds"): "s", ("shard_map", "both"): "v",
    ("shard_map", "data"): "P", ("pmap", "points"): "^", ("pmap", "seeds"): "D", ("pmap", "both"): "<",
    ("pmap", "data"): ">",
}  # fmt: skip


def method_colour(method: Method) -> str:
    """Return the colour of the mode; a peer has one colour for all modes."""
    return (
        _MODES.get(method.mode, SKY)
        if method.engine == "jax"
        else _ENGINES.get(method.engine.split("/")[0], OLIVE)
    )


def line_style(method: Method) -> str:
    """Return the line style of the batch, formulation, seeds and jit of a method."""
    if method.formulation or method.seeds != "identity" or (method.engine != "jax" and method.jit):
        return "-."
    return ":" if method.engine == "jax" and not method.jit else _DASHES[method.batch]


def mode_marker(method: Method) -> str:
    """Return the marker of a mode, where lines differ in modes."""
    return (
        _COLORED_SHAPES.get(method.mode, "d")
        if method.seeds != "identity"
        else _MODE_SHAPES.get(method.mode, "x")
    )


def layout_marker(case: Case) -> str:
    """Return the marker of a call and split, where lines differ in these too."""
    return "X" if case.overlap else _LAYOUT_SHAPES.get((case.api, case.split), "x")


def to_css_variables(text: str) -> str:
    """Return markup with our colours replaced by variables of the style sheet."""
    known = re.compile("|".join(_DARK))
    return known.sub(lambda found: f"var({_variable(found[0])})", text)


def style_sheet(dark: bool) -> str:
    """Return the variables of the style sheet, for a light or a dark page."""
    to_shade: Callable[[str], str] = _DARK.__getitem__ if dark else str
    return " ".join(f"{_variable(each)}: {to_shade(each)};" for each in _DARK)


def _variable(light: str) -> str:
    return f"--x{light[1:]}"
