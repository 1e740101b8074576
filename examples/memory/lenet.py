"""The derivative of the gradient of a network by the pixels of a training image.

Thread: pytorch/functorch#636, https://github.com/pytorch/functorch/issues/636 (2022): LeNet-5, whose 61,706
gradient entries are differentiated by an image of 32 x 32 pixels with jacrev. Out of memory on a GPU.

It has tanh and means here, as the first LeNet-5, in place of ReLU and maxima, whose kinks no finite
difference confirms. There are sixty times as many outputs as inputs: forward mode, some pixels at a time.
"""

import math

import jax
import jax.flatten_util
import jax.numpy as jnp

from scaling.workload import InputSpec, Workload, normal, uniform

SIZES = {"c1": 1, "c3": 1, "c5": 2, "f6": 2, "labels": 2}
THREAD = {"c1": 6, "c3": 16, "c5": 120, "f6": 84, "labels": 10}
REPORT = {
    "thread": "pytorch/functorch#636", "asked": "Jacobian, 61,706 x 1,024", "needed": "out of memory",
    "machine": "GPU, not stated",
}  # fmt: skip


def shapes(sizes):
    """Return the shapes of weights and biases: three convolutions (5, 5, in, out), two layers (in, out)."""
    c1, c3, c5, f6, labels = (sizes[name] for name in ("c1", "c3", "c5", "f6", "labels"))
    weights = [(5, 5, 1, c1), (5, 5, c1, c3), (5, 5, c3, c5), (c5, f6), (f6, labels)]
    return [(weight, weight[-1:]) for weight in weights]


def convolve(x, weight, bias):
    """Return the convolution of x (1, h, w, in) and weight (5, 5, in, out) without padding, plus the bias."""
    y = jax.lax.conv_general_dilated(x, weight, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return y + bias


def pool(x):
    """Return the mean of each 2 x 2 block: (1, h, w, channels) -> (1, h / 2, w / 2, channels)."""
    _, height, width, channels = x.shape
    return x.reshape(1, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))


def loss(parameters, image, label):
    """Return minus the log-probability of the label of an image (32, 32), a scalar."""
    first, second, third, fourth, fifth = parameters
    x = pool(jnp.tanh(convolve(image[None, :, :, None], *first)))
    x = pool(jnp.tanh(convolve(x, *second)))
    x = jnp.tanh(convolve(x, *third)).reshape(-1)
    x = jnp.tanh(x @ fourth[0] + fourth[1])
    return -jax.nn.log_softmax(x @ fifth[0] + fifth[1])[label]


def gradient(image, label, parameters):
    """Return the gradient of the loss by all parameters, as one array (parameters,)."""
    return jax.flatten_util.ravel_pytree(jax.grad(loss)(parameters, image, label))[0]


def reported_call(sizes):
    """Return (function, JAX transformation, dict from input to shape) of the call in the GitHub thread."""
    by_image = lambda image, parameters: gradient(image, 0, parameters)  # noqa: E731
    return by_image, jax.jacrev, {"image": (32, 32), "parameters": shapes(sizes)}


def workload(case):
    spread = lambda shape: normal(shape, deviation=math.sqrt(1 / math.prod(shape[:-1])))  # noqa: E731
    parameters = [(spread(weight), normal(bias, deviation=0.1)) for weight, bias in shapes(case.sizes)]
    label = InputSpec((), lambda generator, rows: 0 * rows, integer=True)
    return Workload(
        gradient, points={"image": uniform(32, 32), "label": label}, shared={"parameters": parameters},
        wrt="image", terms=100,
    )  # fmt: skip
