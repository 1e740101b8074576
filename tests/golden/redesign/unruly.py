"""A workload of one's own for the golden data: it works, raises, gives a wrong answer, or does not end."""

import os
import sys
import time

import jax.numpy as jnp
import numpy as np

from scaling.core.workload import Reference, Workload, uniform

VARIANTS = ("plain", "raises", "wrong", "endless")
_MEASURED = "worker" in os.path.basename(sys.argv[0])  # not while the study is examined


def _reference(inputs):
    x = np.asarray(inputs["x"], np.float64)
    return Reference(np.sin(x), 2 * np.cos(x)[:, :, None] * np.eye(x.shape[1]))


def workload(case):
    """Return the workload of a case."""

    def function(x):
        if _MEASURED and case.variant == "raises":
            raise RuntimeError("raised on purpose")
        if _MEASURED and case.variant == "endless":
            time.sleep(600)
        return jnp.sin(x)

    wrong = _reference if case.variant == "wrong" else None
    return Workload(function, points={"x": uniform(3, low=0.5)}, wrt="x", reference=wrong)
