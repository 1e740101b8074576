"""The axes of the contract and the problems that it differentiates."""

import itertools

from scaling.core import workload
from scaling.core.case import APIS, BATCHES, SECOND, Case
from scaling.core.derivative import describe_derivative
from scaling.core.modes import MODES
from scaling.study import case_rules

PROBLEMS = {
    "rbf": {"workload": "rbf", "points": 12},
    "rbf with 8 support points": {"workload": "rbf", "points": 12, "sizes": {"m": 8}},
    "rbf rowwise": {"workload": "rbf", "points": 8, "formulation": "rowwise"},
    "rbf squared": {"workload": "rbf", "points": 12, "variant": "squared"},
    "rbf squared with product": {"workload": "rbf", "points": 12, "variant": "squared", "formulation": "product"},
    "rbf in three dimensions": {"workload": "rbf", "points": 8, "variant": "squared", "sizes": {"d": 3, "m": 20}},
    "rbf grad": {"workload": "rbf", "target": "grad", "sizes": {"m": 16}},
    "linear by W": {"workload": "linear", "points": 4, "sizes": {"p": 6, "o": 8}},
    "linear by X": {"workload": "linear", "points": 8, "sizes": {"p": 4, "o": 2}, "wrt": "X"},
    "linear by both": {"workload": "linear", "points": 4, "sizes": {"p": 2, "o": 4}, "wrt": "W+X"},
    "residual by m": {"workload": "residual", "points": 400},
    "residual by d": {"workload": "residual", "points": 8, "wrt": "d"},
    "residual by both": {"workload": "residual", "points": 4, "wrt": "d+m"},
    "residual with dot": {"workload": "residual", "points": 12, "formulation": "dot"},
    "residual scalar": {"workload": "residual", "points": 1024, "wrt": "d+m", "variant": "scalar"},
    "poisson": {"workload": "poisson", "points": 1200},
    "poisson Hessian": {"workload": "poisson", "points": 8, "target": "hessian"},
    "residual Hessian": {"workload": "residual", "points": 12, "wrt": "d+m", "variant": "scalar", "target": "hessian"},
    "residual Hessian-vector product": {"workload": "residual", "points": 8, "wrt": "m+d", "variant": "scalar", "target": "hvp"},
    "residual Laplacian": {"workload": "residual", "points": 8, "wrt": "d+m", "variant": "scalar", "target": "laplacian"},
}  # fmt: skip
AXES = {
    "problem": list(PROBLEMS), "mode": list(MODES), "batch": list(BATCHES), "split": ["points", "seeds", "data"],
    "api": list(APIS), "devices": [1, 2, 4], "dtype": ["float64", "float32", "bfloat16"], "jit": [True, False],
}  # fmt: skip


def has_second_derivatives(problem: str) -> bool:
    """Return whether the target of a problem has second derivatives."""
    return PROBLEMS[problem].get("target") in SECOND


def case_of(row: tuple) -> Case:
    """Return the completed case of a row, which has a value of each axis."""
    fields = dict(zip(AXES, row, strict=True))
    return case_rules.complete(Case(**PROBLEMS[fields.pop("problem")] | fields))


def can_run(row: tuple) -> bool:
    """Return whether the case of a row is defined and divides evenly."""
    problem, mode = row[:2]
    if MODES[mode].has_seeds and (MODES[mode].order == 2) != has_second_derivatives(problem):
        return False  # `why_inapplicable` agrees but takes a hundred times as long
    case = case_of(row)
    built = workload.build(case)
    remainder = case.points % case.mesh_shape[0]
    if remainder:
        return False
    return case_rules.why_inapplicable(describe_derivative(case, built)) is None


def find_rows() -> list[tuple]:
    """Return every row of the product of the axes that can run."""
    rows = (row for row in itertools.product(*AXES.values()) if row[-1] or row[4] == "jit")
    return [row for row in rows if can_run(row)]
