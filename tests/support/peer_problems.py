"""Problems that every engine with its own formulas differentiates. Few sizes are equal, so that no axis is confused."""

RBF = {"workload": "rbf", "points": 7, "sizes": {"m": 5}}
CUBE = {"workload": "rbf", "variant": "squared", "points": 7, "sizes": {"m": 5, "d": 3}}
LINEAR = {"workload": "linear", "points": 5, "sizes": {"p": 4, "o": 3}}
RESIDUAL = {"workload": "residual", "points": 4}
PROBLEMS = {
    "rbf": RBF,
    "rbf rowwise": RBF | {"formulation": "rowwise"},
    "rbf in three dimensions": CUBE,
    "rbf in three dimensions by a product": CUBE | {"formulation": "product"},
    "rbf grad": {"workload": "rbf", "target": "grad", "sizes": {"m": 6}},
    "linear by W": LINEAR,
    "linear by both": LINEAR | {"wrt": "W+X"},
    "residual by m": RESIDUAL,
    "residual by d": RESIDUAL | {"wrt": "d", "formulation": "dot"},
    "residual by both": RESIDUAL | {"wrt": "m+d"},
    "residual scalar": RESIDUAL | {"wrt": "d+m", "variant": "scalar"},
    "poisson": {"workload": "poisson", "points": 9},
}
