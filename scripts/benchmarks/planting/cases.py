"""The cases in whose results errors are planted: pairs of functions, sizes, dtypes, layouts, and modes."""

import itertools
import random
from collections.abc import Callable
from typing import Any

from planting import families, trial
from planting.families import FAMILIES
from scaling.core.case import Case
from scaling.core.modes import COTANGENT, MODES

NUMBERS = 2**22  # maximum number of entries of a result
PASSES = 1024  # maximum number of seeds
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {"api": "jit"},
    "eager": {"api": "jit", "jit": False},
    "one device": {"api": "shard_map"},
    "2 over points": {"api": "shard_map", "devices": 2},
    "4 over points": {"api": "shard_map", "devices": 4},
    "2 over seeds": {"api": "shard_map", "devices": 2, "split": "seeds"},
    "4 over seeds": {"api": "shard_map", "devices": 4, "split": "seeds"},
    "2 x 2": {"api": "shard_map", "devices": 4, "split": "both", "mesh": "2x2"},
    "pmap over points": {"api": "pmap", "devices": 2},
    "pmap over seeds": {"api": "pmap", "devices": 2, "split": "seeds"},
    "data over 2": {"api": "shard_map", "devices": 2, "split": "data"},
    "data over 4": {"api": "shard_map", "devices": 4, "split": "data"},
}
WAYS: dict[str, dict[str, Any]] = {
    "all at once": {},
    "batch=whole": {"batch": "whole"},
    "chunk": {"chunk": 3},
    "block": {"block": 2},
    "host": {"storage": "host", "block": 1},
    "colored": {"seeds": "colored"},
    "hessian": {"target": "hessian"},
    "hvp": {"target": "hvp"},
}
AXES: dict[str, list[Any]] = {
    "family": list(FAMILIES),
    "n": [1, 2, 3, 64, 256, 1024, 4096, 16384],
    "dtype": ["float32", "float64", "bfloat16"],
    "layout": list(LAYOUTS),
    "way": list(WAYS),
    "mode": [
        "jacfwd",
        "linearize",
        "finite_difference",
        "jacrev",
        "grad_of_sum",
        "mixed",
        "fwd_over_rev",
        "rev_over_rev",
    ],
    "reduce": [None, "outputs", "inputs", "vector", "norm", "gram", "points"],
    "points": [1, 4, 8, 64],
}
NEW_PAIRS = 5  # minimum number of new pairs of values per combination
DIGITS = 8  # maximum number of inputs in bfloat16, because a longer sum has no significant digits
Row = tuple


def _is_feasible(row: Row) -> bool:
    """Return whether a combination of values can be computed quickly and has significant digits."""
    of = dict(zip(AXES, row, strict=True))
    outputs, inputs = (
        FAMILIES[of["family"]](2).shape(of["n"]) if of["family"] != "layer" else (of["n"], of["n"])
    )
    seeds = outputs if MODES[of["mode"]].seed == COTANGENT else inputs
    numbers = of["points"] * outputs * inputs
    twice = MODES[of["mode"]].order == 2
    rules = (
        of["n"] > DIGITS and of["dtype"] == "bfloat16",
        of["family"] == "layer" and of["n"] > 256,
        numbers > NUMBERS or (seeds > PASSES and numbers > 2**18) or seeds > 4 * PASSES,
        of["reduce"] == "gram" and (inputs > 64 or outputs == 1),
        of["reduce"] in ("norm", "vector") and numbers > 2**17,
        of["mode"] == "finite_difference"
        and (of["dtype"] == "bfloat16" or of["n"] > (2 if of["dtype"] == "float32" else 256)),
        of["mode"] == "finite_difference" and of["family"].startswith(("offset", "a row", "scale")),
        twice != (of["way"] in ("hessian", "hvp")),
        twice and (of["family"] != "product" or of["n"] > 64 or of["reduce"] is not None),
        (of["way"] == "colored") != (of["family"] == "chain"),
        of["way"] == "colored" and of["n"] < 4,
        (of["reduce"] == "points")
        != (of["layout"].startswith("data") and of["family"] == "by shared inputs"),
        of["family"].startswith("scale") and of["reduce"] in ("norm", "gram"),
        of["family"].startswith("offset") and of["dtype"] == "bfloat16",
        of["layout"] == "eager" and of["n"] > 64,
    )
    return not any(rules)


def case_of(row: Row) -> Case:
    """Return the case of a combination of values, which are in the order of `AXES`."""
    of = dict(zip(AXES, row, strict=True))
    fields = LAYOUTS[of["layout"]] | WAYS[of["way"]]
    plain = {name: of[name] for name in ("dtype", "mode", "reduce", "points")}
    return Case(families.__name__, variant=of["family"], sizes={"n": of["n"]}, **{**plain, **fields})


def cover_pairs(accept: Callable[[Row], Case | None], draws: int = 60_000) -> dict[Row, Case]:
    """Return a dict from combination of values to case, which covers the pairs of values of all axes.

    Random combinations are drawn. One is kept if it contains at least `NEW_PAIRS` pairs of values that no
    kept combination contains, and if `accept` returns its case rather than None.
    """
    generator = random.Random(7)
    covered: set[tuple] = set()
    cases: dict[Row, Case] = {}
    names = list(AXES)
    for _ in range(draws):
        row = tuple(generator.choice(AXES[name]) for name in names)
        pairs = {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(row)), 2)}
        if len(pairs - covered) < NEW_PAIRS or not _is_feasible(row):
            continue
        if (case := accept(row)) is not None:
            covered |= pairs
            cases[row] = case
    return cases


def _hard_case(
    family: str,
    n: int,
    points: int,
    dtype: str,
    mode: str = "jacrev",
    layout: str = "2 over points",
    **more: Any,
) -> Case:
    """Return a case of a function in families.py, by default in reverse mode on two devices."""
    return Case(
        families.__name__,
        variant=family,
        sizes={"n": n},
        points=points,
        dtype=dtype,
        mode=mode,
        **LAYOUTS[layout] | more,
    )


# Cases in which errors are hard to detect: sums of many terms, small outputs, large values, few digits.
HARD = [
    *(_hard_case("energy", 16384, points, dtype) for points in (2, 64) for dtype in ("float32", "float64")),
    *(_hard_case("product", 1024, 2, "float32", mode) for mode in ("jacrev", "grad_of_sum")),
    _hard_case("product", 4096, 64, "float32"),
    _hard_case("product", 16384, 4, "float32", layout="pmap over points"),
    *(_hard_case("wide", n, 4, "float32") for n in (256, 1024, 4096, 16384)),
    *(_hard_case("tall", n, 4, "float32", "jacfwd") for n in (256, 4096, 16384)),
    *(_hard_case("dense", n, 2, "float32", mode, "2 over seeds") for n in (64, 256) for mode in ("jacfwd", "jacrev")),
    _hard_case("dense", 1024, 8, "float32", "linearize", "4 over points"),
    _hard_case("dense", 2048, 1, "float32", "jacfwd", "one device"),
    *(_hard_case(f"a row {size} as large", n, 4, "float32") for size in ("1e-5", "1e-8") for n in (8, 1024)),
    *(_hard_case("energy", n, 4, "bfloat16", mode) for n in (1, 2, 3) for mode in ("jacrev", "jacfwd")),
    *(_hard_case(f"offset {size}", n, 4, dtype) for size in ("1e8", "1e11") for n in (3, 1024) for dtype in ("float32", "float64")),
    *(_hard_case(family, 1024, 4, "float32", reduce="outputs") for family in ("wide", "dense")),
    _hard_case("by shared inputs", 4096, 64, "float32", layout="data over 4"),
]  # fmt: skip


def built_in_cases() -> list[Case]:
    """Return cases of the built-in workloads with a closed form."""
    problems: list[dict[str, Any]] = [
        {"workload": "rbf", "points": 64},
        {"workload": "rbf", "points": 8, "variant": "squared", "sizes": {"d": 3, "m": 20}},
        {"workload": "linear", "points": 8, "sizes": {"p": 64, "o": 4}},
        {"workload": "linear", "points": 4, "sizes": {"p": 512, "o": 8}, "reduce": "whole"},
        {"workload": "linear", "points": 8, "sizes": {"p": 6, "o": 4}, "wrt": "W+X"},
        {"workload": "residual", "points": 64},
        {"workload": "residual", "points": 8, "wrt": "d+m"},
        {"workload": "residual", "points": 8, "wrt": "d", "reduce": "gram"},
        {"workload": "poisson", "points": 1024},
        {"workload": "stencil", "points": 2, "sizes": {"side": 16}},
        {"workload": "stencil", "points": 4, "sizes": {"side": 32}, "seeds": "colored"},
        {"workload": "arrowhead", "points": 4, "sizes": {"n": 256}},
        {"workload": "arrowhead", "points": 4, "sizes": {"n": 1024}, "seeds": "colored"},
    ]
    layouts = [
        {"api": "jit"},
        {"api": "shard_map", "devices": 2},
        {"api": "pmap", "devices": 2},
        {"api": "shard_map", "devices": 4},
    ]
    modes, dtypes = ("jacfwd", "jacrev", "linearize"), ("float32", "float64", "bfloat16")
    rows = enumerate(itertools.product(problems, dtypes))
    cases = [
        Case(**problem | layouts[k % len(layouts)], dtype=dtype, mode=modes[k // 2 % len(modes)])
        for k, (problem, dtype) in rows
    ]
    return [case for case in map(trial.complete, cases) if case is not None]


def planted_cases() -> list[Case]:
    """Return the cases in whose results errors are planted: the hard ones, and a covering set of others."""

    def accept(row: Row) -> Case | None:
        try:
            return trial.complete(case_of(row))
        except ValueError:  # a `Refusal`
            return None

    hard = [case for case in map(trial.complete, HARD) if case is not None]
    return list(dict.fromkeys([*hard, *cover_pairs(accept).values()]))
