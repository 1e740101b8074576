"""Choice: which curves stand for a study where there is room for a few: those of the largest problem of each family."""

from collections.abc import Iterable

from scaling.case import problem
from scaling.reading.curves import Curve, family, volume


def largest(curves: Iterable[Curve]) -> list[list[Curve]]:
    """For each kind, environment and family the curves of its largest problem, the fastest on the most devices first.

    Only curves with a speed-up on several numbers of devices, and none of a value alone.
    """
    families: dict[tuple, dict[tuple, list[Curve]]] = {}
    for curve in curves:
        if curve.case.mode != "value" and sum(point.speedup is not None for point in curve.points) > 1:
            problems = families.setdefault((curve.kind, curve.environment, *family(curve.case)), {})
            problems.setdefault(problem(curve.case), []).append(curve)
    chosen = [max(problems.values(), key=lambda same: volume(same[0].case)) for problems in families.values()]
    return [sorted(same, key=lambda curve: (-curve.points[-1].devices, curve.points[-1].seconds)) for same in chosen]
