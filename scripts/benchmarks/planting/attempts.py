"""Errors in whole attempts: wrong derivative rules, and programs that are wrong on one device or in later calls."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from planting import families, trial
from planting.cases import LAYOUTS, WAYS
from scaling.core.case import Case


class PlantedAttempt(NamedTuple):
    """An error that is planted in a whole attempt at a case.

    Attributes:
        error: Context manager that makes the program wrong, or None if the function itself is wrong.
    """

    kind: str
    case: Case
    error: Callable[[Case], Any] | None = None  # of the program; None where the function itself is wrong

    def run(self) -> trial.Outcome:
        """Run the attempt and return its outcome."""
        case = trial.complete(self.case)
        if case is None:
            raise ValueError(f"{self.case} cannot run")
        return trial.run(case)[0] if self.error is None else trial.run_with_error(case, self.error)


def _case(
    variant: str, n: int, dtype: str, mode: str, layout: str = "plain", way: str = "all at once", **more: Any
) -> Case:
    """Return a case of a planted function in a layout and an evaluation variant."""
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


def _wrong_rules() -> list[PlantedAttempt]:
    """Return the attempts at functions with wrong derivative rules."""
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
                    PlantedAttempt(
                        name, _case(name, n, dtypes[k % 2], "jacrev", "data over 2", reduce="points")
                    )
                )
            found.append(PlantedAttempt(name, _case(name, n, dtypes[k % len(dtypes)], mode, way=way)))
    return list({each.case: each for each in found}.values())


def _wrong_programs() -> list[PlantedAttempt]:
    """Return the attempts with wrong programs: on the second device, in later calls, or with other inputs."""
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
        PlantedAttempt(
            "wrong on the second device only",
            _case(family, n, dtype, mode, layout),
            _second_device_error(1.01),
        )
        for layout, n, dtype, mode, family in second
    ]
    sums = [
        _case("by shared inputs", 64, dtype, "jacrev", "data over 2", reduce="points")
        for dtype in ("float32", "float64")
    ]
    found += [
        PlantedAttempt("wrong on the second device only", case, _second_device_error(1.01)) for case in sums
    ]
    reduced = _case("wide", 64, "float32", "jacfwd", "2 over seeds", reduce="inputs")
    found.append(PlantedAttempt("wrong on the second device only", reduced, _second_device_error(0.0)))
    later = [
        (_case("wide", 64, "float32", "jacrev"), 1.01), (_case("energy", 3, "float64", "jacfwd"), 0.0),
        (_case("dense", 64, "float32", "jacfwd", "2 over points"), -1.0),
        (_case("product", 1024, "float32", "jacrev"), float("nan")),
        (_case("wide", 8, "float64", "linearize", "pmap over points"), 1.01),
        (_case("wide", 64, "float32", "jacfwd", "2 over seeds"), 1.05), (_case("energy", 16384, "float32", "jacrev"), 1.01),
        (_case("tall", 64, "float32", "jacfwd", way="host"), 1.01),
    ]  # fmt: skip
    found += [
        PlantedAttempt("wrong after the first call only", case, _later_calls_error(factor))
        for case, factor in later
    ]
    other = [
        _case("wide", 64, "float32", "jacrev"), _case("energy", 3, "float64", "jacfwd"),
        _case("product", 16384, "float32", "jacrev", "2 over points"), _case("dense", 8, "float64", "linearize", "2 over seeds"),
        _case("by shared inputs", 8, "float32", "jacrev"), _case("energy", 2, "bfloat16", "jacrev"),
    ]  # fmt: skip
    return found + [PlantedAttempt("inputs of another seed", case, trial.use_other_inputs) for case in other]


def _second_device_error(factor: float) -> Callable[[Case], Any]:
    """Return an error that multiplies the result of the second device by a factor."""
    return functools.partial(trial.scale_second_device, factor=factor)


def _later_calls_error(factor: float) -> Callable[[Case], Any]:
    """Return an error that multiplies the results of later calls by a factor."""
    return functools.partial(trial.scale_later_calls, factor=factor)


def whole_attempts() -> list[PlantedAttempt]:
    """Return all errors that are planted in whole attempts."""
    return [*_wrong_rules(), *_wrong_programs()]
