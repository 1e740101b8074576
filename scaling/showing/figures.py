"""Figures: every drawing that a results folder can fill, in the order in which a page shows them.

Knows which there are; each is drawn in a file of its own, in drawing/.
"""

from scaling.reading.findings import Findings
from scaling.reading.roofline import rooflines
from scaling.showing.drawing import compiling, crossover, front, losses, memory, mesh, roofline, scaling, sizes
from scaling.showing.drawing.sheet import Drawing

ENDINGS = ("svg", "png", "pdf")
NAMES = (  # all that may be
    "scaling-strong", "scaling-weak", "mesh", "crossover", "size", "losses", "roofline", "memory", "front", "compile",
)  # fmt: skip


def draw(found: Findings) -> list[Drawing]:
    """Every figure that the findings can fill."""
    several = found.mixed
    timings = [timing for timing in found.timings if timing.case.kind == "case"]
    drawings = [
        scaling.draw("strong", found.curves, found.laws, several),
        scaling.draw("weak", found.curves, found.laws, several),
        mesh.draw(found.meshes, several),
        crossover.draw(found.maps, several),
        sizes.draw(found.panels, found.growths, several),
        losses.draw(found.losses, several),
        roofline.draw(rooflines(found.timings), several),
        memory.draw(timings, several),
        front.draw(found.fronts, several),
        compiling.draw(timings, several),
    ]
    return [drawing for drawing in drawings if drawing]
