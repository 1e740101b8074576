"""Planted errors in programs: wrong derivative rules, and wrong results on one device or in later calls."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from planting import families, trial
from planting.cases import LAYOUTS, WAYS
from scaling.core.case import Case


class PlantedAttempt(NamedTuple):
    """A case whose program or function computes a wrong derivative.

    Attributes:
        kind: Name of the error.
        error: Context manager that makes the program wrong, or None if the function itself is wrong.
    """

    kind: str
    case: Case
    error: Callable[[Case], Any] | None = None

    def run(self) -> trial.Outcome:
        """Compile, check and sample the case with the error. Return the outcome of its check."""
        case = trial.complete(self.case)
        if case is None:
            raise ValueError(f"{self.case} cannot run")
        return trial.run(case)[0] if self.error is None else trial.run_with_error(case, self.error)


def _case(
    variant: str, n: int, dtype: str, mode: str, layout: str = "plain", way: str = "all at once", **more: Any
) -> Case:
    """Return a case of a function in families.py.

    Args:
        variant: the name of the function.
        n: the size of the function.
        layout, way: keys of `LAYOUTS` and `WAYS` in cases.py.
        more: further fields of the case.
    """
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
    """Return cases of the functions with wrong derivative rules, in several sizes, dtypes and modes."""
    attempts = []
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
                case = _case(name, n, dtypes[k % 2], "jacrev", "data over 2", reduce="points")
                attempts.append(PlantedAttempt(name, case))
            attempts.append(PlantedAttempt(name, _case(name, n, dtypes[k % len(dtypes)], mode, way=way)))
    return list({attempt.case: attempt for attempt in attempts}.values())


def _wrong_programs() -> list[PlantedAttempt]:
    """Return cases whose programs are wrong: on the second device, in later calls, or with other inputs."""
    second = [
        (_case("wide", 64, "float32", "jacrev", "2 over points"), 1.01),
        (_case("wide", 3, "float64", "jacfwd", "4 over points"), 1.01),
        (_case("dense", 64, "float32", "jacfwd", "2 over seeds"), 1.01),
        (_case("wide", 256, "float64", "jacrev", "4 over seeds"), 1.01),
        (_case("dense", 64, "float32", "jacrev", "2 x 2"), 1.01),
        (_case("product", 1024, "float32", "jacrev", "pmap over points"), 1.01),
        (_case("tall", 8, "float64", "linearize", "pmap over seeds"), 1.01),
        (_case("energy", 16384, "float32", "jacrev", "2 over points"), 1.01),
        (_case("by shared inputs", 64, "float32", "jacrev", "data over 2", reduce="points"), 1.01),
        (_case("by shared inputs", 64, "float64", "jacrev", "data over 2", reduce="points"), 1.01),
        (_case("wide", 64, "float32", "jacfwd", "2 over seeds", reduce="inputs"), 0.0),
    ]
    later = [
        (_case("wide", 64, "float32", "jacrev"), 1.01), (_case("energy", 3, "float64", "jacfwd"), 0.0),
        (_case("dense", 64, "float32", "jacfwd", "2 over points"), -1.0),
        (_case("product", 1024, "float32", "jacrev"), float("nan")),
        (_case("wide", 8, "float64", "linearize", "pmap over points"), 1.01),
        (_case("wide", 64, "float32", "jacfwd", "2 over seeds"), 1.05), (_case("energy", 16384, "float32", "jacrev"), 1.01),
        (_case("tall", 64, "float32", "jacfwd", way="host"), 1.01),
    ]  # fmt: skip
    other = [
        _case("wide", 64, "float32", "jacrev"), _case("energy", 3, "float64", "jacfwd"),
        _case("product", 16384, "float32", "jacrev", "2 over points"), _case("dense", 8, "float64", "linearize", "2 over seeds"),
        _case("by shared inputs", 8, "float32", "jacrev"), _case("energy", 2, "bfloat16", "jacrev"),
    ]  # fmt: skip
    scale_second, scale_later = trial.scale_second_device, trial.scale_later_calls
    return [
        *(PlantedAttempt("wrong on the second device only", case, partial(scale_second, factor=factor))
          for case, factor in second),
        *(PlantedAttempt("wrong after the first call only", case, partial(scale_later, factor=factor))
          for case, factor in later),
        *(PlantedAttempt("inputs of another seed", case, trial.use_other_inputs) for case in other),
    ]  # fmt: skip


def whole_attempts() -> list[PlantedAttempt]:
    """Return all cases with an error in the derivative rule of the function or in the program."""
    return [*_wrong_rules(), *_wrong_programs()]
