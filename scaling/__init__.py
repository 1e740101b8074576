"""Public API of the package: `load` a results folder as a DataFrame, `advise` on how to differentiate.

The package (ad-scaling) measures the cost of automatic differentiation in JAX: the time and memory of a
Jacobian, and how they change with the number of devices.
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

    If `samples` is true, the DataFrame has one row per timing sample instead. docs/notebook.md documents the
    columns. Raise ValueError if the folder contains no results.
    """
    from scaling.analysis import dataframe

    return dataframe.load(folder, samples)


def advise(
    function: Callable[..., Any],
    points: Mapping[str, Any],
    shared: Mapping[str, Any] | None = None,
    **options: Any,
) -> "Advice":
    """Return the fastest way to differentiate a function at every point of a batch, as an `Advice`.

    Args:
        function: a JAX function of one point. It is called with positional arguments.
        points: a dict from parameter name to an array whose leading axis is the points of the batch.
        shared: a dict from parameter name to an array that all points share.
        options: `wrt`, `target`, `budget`, `devices`, `hardware`, `note`; see `advice.advisor.advise`.
    """
    from scaling.advice import advisor

    return advisor.advise(function, points, shared, **options)
