"""Errors that are no function of one result: wrong rules, programs that are wrong on a device, later, or for other inputs."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from planting import families, trial
from planting.cases import LAYOUTS, WAYS
from scaling.core.case import Case


class Whole(NamedTuple):
    """An error that is planted in a whole attempt at a case."""

    kind: str
    case: Case
    error: Callable[[Case], Any] | None = None  # of the program; None where the function itself is wrong

    def run(self) -> trial.Outcome:
        """Run the attempt."""
        case = trial.complete(self.case)
        if case is None:
            raise ValueError(f"{self.case} cannot run")
        return trial.run(case)[0] if self.error is None else trial.run_with(case, self.error)


def _case(
    variant: str, n: int, dtype: str, mode: str, layout: str = "plain", way: str = "all at once", **more: Any
) -> Case:
    fields = {
        "sizes": {"n": n},
        "points": 4,
        "dtype": dtype,
        "mode": mode,
        **LAYOUTS[layout],
        **WAYS[way],
        **more,
    }
    return Case(families.__name__, variant=variant, **fields)


def _rules() -> list[Whole]:
    found = []
    for name in families.WRONG_RULES:
        modes = ("jacrev",) if name.startswith("reverse") else ("jacfwd", "jacrev")
        sizes = (3, 256) if name == "reverse rule transposed" else (8, 1024, 16384)
        dtypes = ("float32",) if "float32" in name else ("float32", "float64")
        way = "hessian" if name == "second derivative lost" else "all at once"
        for k, n in enumerate(sizes):
            mode = modes[k % len(modes)] if n < 4096 else "jacrev"
            if way == "hessian":
                mode, n = "fwd_over_rev", min(n, 64)
            if name == "rule of a shared input 1 % off":
                found.append(
                    Whole(name, _case(name, n, dtypes[k % 2], "jacrev", "data over 2", reduce="points"))
                )
            found.append(Whole(name, _case(name, n, dtypes[k % len(dtypes)], mode, way=way)))
    return list({each.case: each for each in found}.values())


def _of_the_program() -> list[Whole]:
    second = [
        (layout, n, dtype, mode, family)
        for layout, n, dtype, mode, family in (
            ("2 over points", 64, "float32", "jacrev", "wide"), ("4 over points", 3, "float64", "jacfwd", "wide"),
            ("2 over seeds", 64, "float32", "jacfwd", "dense"), ("4 over seeds", 256, "float64", "jacrev", "wide"),
            ("2 x 2", 64, "float32", "jacrev", "dense"), ("pmap over points", 1024, "float32", "jacrev", "product"),
            ("pmap over seeds", 8, "float64", "linearize", "tall"), ("2 over points", 16384, "float32", "jacrev", "energy"),
        )
    ]  # fmt: skip
    found = [
        Whole("wrong on the second device only", _case(family, n, dtype, mode, layout), _second(1.01))
        for layout, n, dtype, mode, family in second
    ]
    sums = [
        _case("by shared inputs", 64, dtype, "jacrev", "data over 2", reduce="points")
        for dtype in ("float32", "float64")
    ]
    found += [Whole("wrong on the second device only", case, _second(1.01)) for case in sums]
    reduced = _case("wide", 64, "float32", "jacfwd", "2 over seeds", reduce="inputs")
    found.append(Whole("wrong on the second device only", reduced, _second(0.0)))
    later = [
        (_case("wide", 64, "float32", "jacrev"), 1.01), (_case("energy", 3, "float64", "jacfwd"), 0.0),
        (_case("dense", 64, "float32", "jacfwd", "2 over points"), -1.0),
        (_case("product", 1024, "float32", "jacrev"), float("nan")),
        (_case("wide", 8, "float64", "linearize", "pmap over points"), 1.01),
        (_case("wide", 64, "float32", "jacfwd", "2 over seeds"), 1.05), (_case("energy", 16384, "float32", "jacrev"), 1.01),
        (_case("tall", 64, "float32", "jacfwd", way="host"), 1.01),
    ]  # fmt: skip
    found += [Whole("wrong after the first call only", case, _later(factor)) for case, factor in later]
    other = [
        _case("wide", 64, "float32", "jacrev"), _case("energy", 3, "float64", "jacfwd"),
        _case("product", 16384, "float32", "jacrev", "2 over points"), _case("dense", 8, "float64", "linearize", "2 over seeds"),
        _case("by shared inputs", 8, "float32", "jacrev"), _case("energy", 2, "bfloat16", "jacrev"),
    ]  # fmt: skip
    return found + [Whole("inputs of another seed", case, trial.inputs_of_another_seed) for case in other]


def _second(factor: float) -> Callable[[Case], Any]:
    return functools.partial(trial.second_device_off, factor=factor)


def _later(factor: float) -> Callable[[Case], Any]:
    return functools.partial(trial.later_calls_off, factor=factor)


def whole_attempts() -> list[Whole]:
    """Return the errors that are planted in whole attempts."""
    return [*_rules(), *_of_the_program()]
