"""Palette: which colour, dash and marker stands for which way to differentiate, on light ground and on dark.

Knows colours and ways; not matplotlib, not pages.
"""

import re
from collections.abc import Callable

from scaling.analysis.methods import Method
from scaling.core.case import Case

INK, QUIET, GRID = "#1c1e21", "#5b6068", "#dcdfe4"  # text, what stands back, lines to read along
GROUND, ON = "#ffffff", "#fffffe"  # the paper, and what is written on a filled patch

# Colours that stay apart for the colour-blind (after Okabe and Ito), at least 3:1 against the ground, light and dark.
BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#008a64", "#b5568f"
OCHRE, OLIVE, GREY, SKY = "#a87400", "#847a00", "#6e6e6e", "#2f7fa8"
_MODES = {
    "jacfwd": BLUE, "jacrev": VERMILION, "linearize": GREEN, "finite_difference": PURPLE, "vmap_grad": OCHRE,
    "grad_of_sum": OLIVE, "analytic": INK, "analytic_vmap": INK, "value": GREY, "fwd_over_rev": BLUE,
    "rev_over_fwd": VERMILION, "rev_over_rev": GREEN, "fwd_over_fwd": OCHRE, "mixed": PURPLE,
}  # fmt: skip
_ENGINES = {
    "torch": "#882255", "autograd": "#117733", "numpy": "#77772a", "casadi": "#332288", "enzyme": "#661100", "julia": "#8e3391",
}  # fmt: skip
_DARK = {
    INK: "#e6e8eb", ON: "#101216", QUIET: "#a2a8b1", GRID: "#363a42",
    BLUE: "#56a8de", VERMILION: "#ff8a3d", GREEN: "#2cc59a", PURPLE: "#e39cc6", OCHRE: "#f0b429", OLIVE: "#e6dc4a",
    GREY: "#a9adb3", SKY: "#7cc4e8", "#882255": "#d4709c", "#117733": "#4fbf75", "#77772a": "#c6c65a", "#332288": "#9c8cf0",
    "#661100": "#e08268", "#8e3391": "#dd8be0",
}  # fmt: skip
_DASHES = {"vmap": "-", "whole": "--"}
_SHAPES = {
    "jacfwd": "o", "jacrev": "s", "linearize": "^", "finite_difference": "D", "vmap_grad": "v", "analytic": "P",
    "analytic_vmap": "X", "fwd_over_rev": "o", "rev_over_fwd": "s", "rev_over_rev": "^", "fwd_over_fwd": "D", "value": "x",
    "mixed": "*",
}  # fmt: skip
_FEW = {"jacfwd": "<", "jacrev": ">", "mixed": "*", "analytic": "P", "analytic_vmap": "X"}  # of coloured seeds
_CUTS = {
    ("shard_map", "points"): "o", ("shard_map", "seeds"): "s", ("shard_map", "both"): "v", ("shard_map", "data"): "P",
    ("pmap", "points"): "^", ("pmap", "seeds"): "D", ("pmap", "both"): "<", ("pmap", "data"): ">",
}  # fmt: skip


def colour(way: Method) -> str:
    """That of the mode; that of the engine for all modes of a peer."""
    return _MODES.get(way.mode, SKY) if way.engine == "jax" else _ENGINES.get(way.engine.split("/")[0], OLIVE)


def dashes(way: Method) -> str:
    """A line for each batch, another for another formulation or few seeds, a compiled peer, and what runs eagerly."""
    if way.formulation or way.seeds != "identity" or (way.engine != "jax" and way.jit):
        return "-."
    return ":" if way.engine == "jax" and not way.jit else _DASHES[way.batch]


def shape(way: Method) -> str:
    """The marker of a mode, where lines differ in modes."""
    return _FEW.get(way.mode, "d") if way.seeds != "identity" else _SHAPES.get(way.mode, "x")


def cut(case: Case) -> str:
    """The marker of how a mode is called and cut, where lines differ in that too."""
    return "X" if case.overlap else _CUTS.get((case.api, case.split), "x")


def themed(text: str) -> str:
    """The same drawing in the page's colours: each of ours becomes a variable of the style sheet."""
    known = re.compile("|".join(_DARK))
    return known.sub(lambda found: f"var({_variable(found[0])})", text)


def sheet(dark: bool) -> str:
    """The style sheet's variables, on light ground or on dark."""
    of: Callable[[str], str] = _DARK.__getitem__ if dark else str
    return " ".join(f"{_variable(each)}: {of(each)};" for each in _DARK)


def _variable(light: str) -> str:
    return f"--x{light[1:]}"
