"""ad-scaling: a scaling study of automatic differentiation in JAX.

It measures the cost of a Jacobian and how the cost changes with the number of devices.
"""

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

__version__ = "0.1.0"


def load(folder: str | PathLike[str], samples: bool = False) -> "pandas.DataFrame":
    """Return the results in a folder as a pandas DataFrame with one row per run, or per timing if `samples`.

    The columns are documented in docs/notebook.md. Raise ValueError if the folder contains no results.
    """
    from scaling.analysis import dataframe

    return dataframe.load(folder, samples)
