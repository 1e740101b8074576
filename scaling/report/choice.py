"""Choice: which curves stand for a study where there is room for a few: those of the largest problem of each family."""

from collections.abc import Iterable, Sequence

from scaling.analysis.curves import Curve, family, volume
from scaling.core.case import problem

FULL = 3  # numbers of devices: a problem that was tried on fewer is drawn only where there is no other


def drawable(curves: Iterable[Curve]) -> list[Curve]:
    """Return the curves on several numbers of devices."""
    return [curve for curve in curves if len(curve.points) > 1]


def rows(curves: Iterable[Curve]) -> list[list[Curve]]:
    """Return the curves of the largest problem of each kind, environment, baseline and family; values alone come last.

    The largest is that of the problems measured on three numbers of devices or more, if there is one.
    """
    families: dict[tuple, dict[tuple, list[Curve]]] = {}
    for curve in drawable(curves):
        of = (curve.kind, curve.environment, curve.baseline_devices, *family(curve.case))
        families.setdefault(of, {}).setdefault(problem(curve.case), []).append(curve)
    chosen = [max(problems.values(), key=_rank) for problems in families.values()]
    return sorted(chosen, key=lambda same: same[0].case.ad_mode.is_value)


def largest(curves: Iterable[Curve]) -> list[list[Curve]]:
    """Return the same without values alone, the fastest on the most devices first."""
    chosen = rows(curve for curve in curves if not curve.case.ad_mode.is_value)
    return [sorted(same, key=lambda curve: (-curve.points[-1].devices, curve.points[-1].seconds)) for same in chosen]


def _rank(same: Sequence[Curve]) -> tuple[bool, int]:
    return max(len(curve.points) for curve in same) >= FULL, volume(same[0].case)
