"""Select the scaling curves to show where space is limited: the curves of each function's largest problem."""

from collections.abc import Iterable, Sequence

from scaling.analysis.curves import Curve, family_key, problem_size
from scaling.analysis.grouping import group_by
from scaling.core.case import problem

ENOUGH_COUNTS = 3  # a problem measured on at least this many device counts is preferred


def multi_point_curves(curves: Iterable[Curve]) -> list[Curve]:
    """Return the scaling curves that contain measurements on at least two device counts."""
    return [curve for curve in curves if len(curve.points) > 1]


def curves_of_largest_problems(curves: Iterable[Curve]) -> list[list[Curve]]:
    """Return the scaling curves of each function's largest problem, as one list of curves per problem.

    Curves that differ in kind (strong or weak), environment or baseline are in different lists. A problem
    that was measured on fewer than three device counts is chosen only if there is no other problem of the
    function. Curves of function values, without derivatives, come last.
    """
    families = group_by(
        multi_point_curves(curves), lambda c: (c.kind, c.environment, c.baseline_devices, *family_key(c.case))
    )
    problems = (group_by(family, lambda curve: problem(curve.case)).values() for family in families.values())
    rows = [max(several, key=_problem_rank) for several in problems]
    return sorted(rows, key=lambda row: row[0].case.ad_mode.is_value)


def derivative_curves(curves: Iterable[Curve]) -> list[list[Curve]]:
    """Return the derivative curves of each function's largest problem, as one list of curves per problem.

    In each list, curves with more devices come first. Curves with equally many devices are sorted by their
    time on the most devices, the fastest first.
    """
    rows = curves_of_largest_problems(curve for curve in curves if not curve.case.ad_mode.is_value)
    return [
        sorted(curves, key=lambda curve: (-curve.points[-1].devices, curve.points[-1].seconds))
        for curves in rows
    ]


def _problem_rank(curves: Sequence[Curve]) -> tuple[bool, int]:
    return max(len(curve.points) for curve in curves) >= ENOUGH_COUNTS, problem_size(curves[0].case)
