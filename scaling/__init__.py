"""ad-scaling: a scaling study of automatic differentiation in JAX.

It measures the cost of a Jacobian and how the cost changes with the number of devices.
"""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from scaling.advice.advisor import Advice

__version__ = "0.1.0"


def load(folder: str | PathLike[str], samples: bool = False) -> "pandas.DataFrame":
    """Return the results in a folder as a pandas DataFrame with one row per run of a case.

    If `samples` is true, it has one row per time sample instead. The columns are documented in
    docs/notebook.md. Raise ValueError if the folder contains no results.
    """
    from scaling.analysis import dataframe

    return dataframe.load(folder, samples)


def advise(
    function: Callable[..., Any],
    points: Mapping[str, Any],
    shared: Mapping[str, Any] | None = None,
    **options: Any,
) -> "Advice":
    """Find the fastest way to differentiate a function at each point of a batch. Return it as an `Advice`.

    Args:
        function: a JAX function of one point.
        points: a dict from the names of parameters to arrays with a leading axis of points.
        shared: a dict from the names of parameters to arrays that all points share.
        options: `wrt`, `target`, `budget`, `devices`, `hardware`, `note`; see `advice.advisor.advise`.
    """
    from scaling.advice import advisor

    return advisor.advise(function, points, shared, **options)
