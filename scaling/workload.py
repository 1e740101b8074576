"""Names that a workload module imports: `Workload`, its inputs and its reference.

See docs/adding_a_workload.md.
"""

from scaling.core.inputs import InputSpec, normal, poisson, uniform
from scaling.core.workload import Reference, Workload

Draw = InputSpec  # its name in earlier versions

__all__ = ["Draw", "InputSpec", "Reference", "Workload", "normal", "poisson", "uniform"]
