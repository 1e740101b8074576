"""Define the public API: `load` returns results as a DataFrame, `advise` finds the fastest derivative.

The package (ad-scaling) measures the cost of automatic differentiation in JAX: the time and memory of a
Jacobian, and how they change with the number of devices.
"""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from scaling.advice.advice import Advice

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
    """Return an `Advice` that names the fastest way to differentiate a JAX function at all points of a batch.

    `function` takes the inputs of one point as positional arguments. `points` is a dict from parameter name
    to an array with a leading axis of points. `shared` is a dict from parameter name to an array that all
    points use. Raise ValueError if an argument is invalid.

    Common options are `wrt`, `target`, `budget` in seconds, `devices` and `note`. advice/advisor.py documents
    all options.
    """
    from scaling.advice import advisor

    return advisor.advise(function, points, shared, **options)
