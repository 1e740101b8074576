"""Read off a function's jaxpr what rounding can do to it: how many numbers it adds up, and in which dtype.

Does not know cases or results.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from scaling.options.program.jaxpr_flops import subjaxprs, trips

_ELEMENTWISE = 1 / 16  # of a term: the table allows sixteen roundings for each
_UNKNOWN_TRIPS = 100  # of a loop that ends when its own condition says so
_WEIGHTS = {  # terms of one evaluation, beyond those of an elementwise operation
    **dict.fromkeys(
        (
            "exp",
            "log",
            "sin",
            "cos",
            "tan",
            "tanh",
            "logistic",
            "pow",
            "exp2",
            "expm1",
            "log1p",
            "log2",
            "atan2",
        ),
        0.5,
    ),
    **dict.fromkeys(
        ("sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "cbrt"), 1.0
    ),
    **dict.fromkeys(
        ("lgamma", "digamma", "erf_inv", "igamma", "igammac", "igamma_grad_a", "polygamma", "zeta"), 64.0
    ),
    **dict.fromkeys(("bessel_i0e", "bessel_i1e", "regularized_incomplete_beta", "random_gamma_grad"), 64.0),
}
_FACTORISATIONS = (
    "cholesky",
    "lu",
    "qr",
    "geqrf",
    "householder_product",
    "eigh",
    "eig",
    "svd",
    "schur",
    "triangular_solve",
)
_EXACT = (
    "argmax", "argmin", "bitcast_convert_type", "broadcast_in_dim", "concatenate", "copy", "copy_p",
    "dynamic_slice", "dynamic_update_slice", "gather", "iota", "max", "min", "neg", "pad", "reduce_max",
    "reduce_min", "reshape", "rev", "select_n", "sort", "split", "squeeze", "stop_gradient",
    "transpose", "abs", "sign",
)  # fmt: skip


@dataclass(frozen=True)
class Rounded:
    """What rounding meets in a function.

    terms: how many numbers are added up on the longest way from an input to an output. bits: of the mantissa
    of the narrowest floating dtype that an intermediate result has. width: numbers of the largest
    intermediate result.
    """

    terms: int
    bits: int
    width: int


def rounded(function: Callable[..., Any], *arguments: Any) -> Rounded:
    """Return what rounding meets in `function(*arguments)`; the arguments may be abstract."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    depths = [0.0 for _ in jaxpr.invars]
    seen = _Seen()
    longest = max(_depths(jaxpr, depths, seen), default=0.0)
    return Rounded(max(1, math.ceil(longest)), seen.bits, seen.width)


class _Seen:
    """The narrowest mantissa and the largest array so far."""

    def __init__(self) -> None:
        self.bits, self.width = 53, 1


def _depths(jaxpr: Any, given: Sequence[float | None], seen: _Seen) -> list[float]:
    """Return the terms on the longest way to each output; None is given for what no input reaches."""
    depth: dict[Any, float | None] = dict(zip(jaxpr.invars, given, strict=True))

    def of(atom: Any) -> float | None:
        return None if isinstance(atom, Literal) else depth.get(atom)

    for equation in jaxpr.eqns:
        reached = [of(atom) for atom in equation.invars]
        if all(each is None for each in reached):
            continue
        found = _of_equation(equation, reached, seen)
        for variable, each in zip(equation.outvars, found, strict=True):
            depth[variable] = each
            aval = variable.aval
            seen.width = max(seen.width, int(getattr(aval, "size", 1)))
            if equation.primitive.name == "reduce_precision":
                seen.bits = min(seen.bits, int(equation.params["mantissa_bits"]) + 1)
            if jax.dtypes.issubdtype(getattr(aval, "dtype", np.int32), np.floating):
                seen.bits = min(seen.bits, int(jax.numpy.finfo(aval.dtype).nmant) + 1)
    return [of(atom) or 0.0 for atom in jaxpr.outvars]


def _of_equation(equation: Any, reached: list[float | None], seen: _Seen) -> list[float]:
    """Return the same of one equation."""
    name, p = equation.primitive.name, equation.params
    before = max(each for each in reached if each is not None)
    many = len(equation.outvars)
    if name == "cond":
        found = [_depths(branch.jaxpr, reached[1:], seen) for branch in p["branches"]]
        return [max(each) for each in zip(*found, strict=True)]
    if name in ("scan", "while"):
        body = p["jaxpr" if name == "scan" else "body_jaxpr"].jaxpr
        inside = max(_depths(body, [0.0] * len(body.invars), seen), default=0.0)
        return [before + inside * _trips(equation)] * many
    inner = [getattr(each, "jaxpr", each) for each in subjaxprs(equation)]
    if inner and len(inner[0].invars) == len(reached) and len(inner[0].outvars) == many:
        return _depths(inner[0], reached, seen)
    within = max(
        (max(_depths(each, [0.0] * len(each.invars), seen), default=0.0) for each in inner), default=0.0
    )
    return [before + within + _weight(equation)] * many


def _trips(equation: Any) -> int:
    if equation.primitive.name == "scan":
        return int(equation.params["length"])
    try:
        return trips(equation)
    except KeyError:
        return _UNKNOWN_TRIPS


def _weight(equation: Any) -> float:
    """Return the terms that one operation adds to the way through it."""
    name, p = equation.primitive.name, equation.params
    shapes = [tuple(getattr(atom.aval, "shape", ())) for atom in equation.invars]
    out = int(getattr(equation.outvars[0].aval, "size", 1)) if equation.outvars else 1
    size = math.prod(shapes[0]) if shapes else 1
    if name in _EXACT:
        return 0.0
    if name in ("reduce_sum", "reduce_prod", "reduce_window_sum"):
        return size / max(1, out)
    if name in ("cumsum", "cumprod", "cumlogsumexp"):
        return shapes[0][p["axis"]]
    if name == "dot_general":
        return math.prod(shapes[0][axis] for axis in p["dimension_numbers"][0][0])
    if name == "conv_general_dilated":
        return math.prod(shapes[1]) / shapes[1][p["dimension_numbers"].rhs_spec[0]]
    if name.startswith("scatter"):
        return math.prod(shapes[2]) if len(shapes) > 2 and name != "scatter" else 0.0
    if name == "polynomial":
        return _ELEMENTWISE * 2 * (len(shapes) - 2)
    if name in _FACTORISATIONS:
        return 4 * max(shapes[0], default=1)
    if name == "fft":
        return math.log2(max(2, size))
    return _ELEMENTWISE + _WEIGHTS.get(name, 0.0)
