"""Figures: every drawing that a results folder can fill, in the order in which a page shows them.

Knows which there are; each is drawn in a file of its own, in drawing/.
"""

from scaling.analysis.efficiency_breakdown import refused
from scaling.analysis.findings import Findings
from scaling.analysis.roofline import rooflines
from scaling.report.drawing import compiling, crossover, efficiency, front, memory, mesh, plans, roofline, scaling, scores, sizes
from scaling.report.drawing.sheet import Drawing
from scaling.report.labels import stems

ENDINGS = ("svg", "png", "pdf")
NAMES = (  # all that may be
    "scaling-strong", "scaling-weak", "mesh", "crossover", "size", "losses", "roofline", "memory", "front", "compile",
)  # fmt: skip
FOR_HARDWARE = ("plan-", "score-")  # how the names of further ones begin, which end as the hardware is called


def draw(found: Findings) -> list[Drawing]:
    """Every figure that the findings can fill."""
    several = found.mixed
    timings = [timing for timing in found.timings if timing.case.kind == "case"]
    planned, scored = stems(each.hardware for each in found.forecasts), stems(each.hardware for each in found.scores)
    drawings = [
        *(plans.draw(each, planned[each.hardware], found.curves) for each in found.forecasts),
        *(scores.draw(each, scored[each.hardware]) for each in found.scores),
        scaling.draw("strong", found.curves, found.laws, several),
        scaling.draw("weak", found.curves, found.laws, several),
        mesh.draw(found.meshes, several),
        crossover.draw(found.maps, several),
        sizes.draw(found.panels, found.growths, several),
        efficiency.draw(found.losses, several, sum(map(refused, found.curves))),
        roofline.draw(rooflines(found.timings), several),
        memory.draw(timings, several),
        front.draw(found.fronts, several),
        compiling.draw(timings, several),
    ]
    return [drawing for drawing in drawings if drawing]
