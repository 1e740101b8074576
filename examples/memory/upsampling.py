"""The Jacobian of an upsampled image by its pixels.

Thread: tensorflow/tensorflow#62426, https://github.com/tensorflow/tensorflow/issues/62426 (2023): an image of
8 x 8 pixels in float64, upsampled 224 times in both directions to 1792 x 1792. ResourceExhaustedError in
GradientTape.jacobian, which is reverse mode.

There are 50,176 times as many outputs as inputs: forward mode. Each output depends on one pixel, so that one
seed is enough: seeds=colored.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, uniform

SIZES = {"side": 2, "factor": 3}
THREAD = {"side": 8, "factor": 224}
REPORT = {
    "thread": "tensorflow/tensorflow#62426", "asked": "Jacobian, 3,211,264 x 64", "needed": "out of memory",
    "machine": "not stated",
}  # fmt: skip
DTYPE = "float64"


def upsample(image, factor):
    """Return an image (side, side) with each pixel repeated `factor` times in both directions."""
    return jnp.repeat(jnp.repeat(image, factor, axis=0), factor, axis=1)


def reported_call(sizes):
    """Return (function, JAX transformation, dict from input to shape) of the call in the GitHub thread."""
    factor = sizes["factor"]
    return lambda image: upsample(image, factor), jax.jacrev, {"image": (sizes["side"], sizes["side"])}


def pattern(side, factor):
    """Return the rows and columns of the nonzeros of the Jacobian, one in each row."""
    pixel = np.arange(side * side, dtype=np.int32).reshape(side, side)
    columns = pixel.repeat(factor, axis=0).repeat(factor, axis=1).reshape(-1)
    return np.arange(columns.size, dtype=np.int32), columns


def workload(case):
    side, factor = case.sizes["side"], case.sizes["factor"]

    def nonzeros(inputs):
        value = (
            inputs["image"].repeat(factor, axis=1).repeat(factor, axis=2).reshape(len(inputs["image"]), -1)
        )
        return Reference(value, np.ones((len(value), 1, value.shape[1])))

    return Workload(
        lambda image: upsample(image, factor), points={"image": uniform(side, side)}, wrt="image",
        pattern=lambda: pattern(side, factor), nonzeros=nonzeros,
    )  # fmt: skip
