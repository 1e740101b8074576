"""ceiling: what the machine can do at most, measured the way everything else is: how fast memory is copied.

One point is a number. `copy` reads each and writes it with its sign changed, so that nothing can be left out. Take many more
points than fit into the caches.
"""

from scaling.case import Case
from scaling.workload import Inputs, Reference, Workload, uniform

TARGETS = ("copy",)
VALUE = "copy"


def _reference(inputs: Inputs) -> Reference:
    x = inputs["x"]
    return Reference(-x[:, None], -1 + 0 * x[:, None, None])


def workload(case: Case) -> Workload:
    """The copy of so many numbers."""
    return Workload(function=lambda x: -x, points={"x": uniform()}, wrt="x", reference=_reference)
