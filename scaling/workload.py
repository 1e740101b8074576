"""Public API for user-defined workloads: export `Workload`, `Reference`, `uniform`, `normal` and `poisson`.

See docs/adding_a_workload.md.
"""

from scaling.core.inputs import InputSpec, normal, poisson, uniform
from scaling.core.workload import Reference, Workload

Draw = InputSpec  # the name of `InputSpec` in earlier versions

__all__ = ["Draw", "InputSpec", "Reference", "Workload", "normal", "poisson", "uniform"]
