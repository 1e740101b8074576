"""Public API for user-defined workloads: export `Workload`, `Reference`, `uniform`, `normal` and `poisson`.

See docs/adding_a_workload.md.
"""

from scaling.core.workload import InputSpec, Reference, Workload, normal, poisson, uniform

Draw = InputSpec  # the name of `InputSpec` in earlier versions

__all__ = ["Draw", "InputSpec", "Reference", "Workload", "normal", "poisson", "uniform"]
