"""Define the public API: `load` returns results as a DataFrame, `advise` finds the fastest derivative.

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
    """Return an `Advice` that names the fastest way to differentiate a JAX function at a batch of points.

    Raise ValueError if an argument is invalid. The parameters from `wrt` on are keyword-only.

    Args:
        function: a JAX function of one point that returns an array or a pytree of arrays. It takes its inputs
            as positional arguments.
        points: a dict that maps the names of parameters to arrays or pytrees of arrays, for the inputs that
            differ between points. The first axis of each array is the axis of points. A
            `jax.ShapeDtypeStruct` can replace an array.
        shared: a dict for the inputs that all points share, or None. Its arrays have no axis of points.
        wrt: the names of the differentiated parameters, joined by "+" (default: the first one in `points`).
        target: "jacobian" (default; for a scalar function, the gradient), "hessian", "hvp" (the product of
            the Hessian and a direction) or "gauss_newton" (the product of J^T J and a direction, where J is
            the Jacobian).
        budget: the time limit of all measurements in seconds (default: 30). If it is 0, candidates are only
            compiled.
        devices: the number of devices, or several numbers to compare (default: 1).
        hardware: the name of a machine in conf/hardware, for which times are predicted but not measured. None
            (default) or "cpu" selects this machine.
        note: a function that is called with each line of progress text, or None.
        import_line: a line of code that imports `function`, such as "from my_model import f".
    """
    from scaling.advice import advisor

    return advisor.advise(function, points, shared, **options)
