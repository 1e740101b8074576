"""Loss of a multilayer perceptron that classifies a mini-batch of images, by all parameters.

Layers, rectifiers, cross-entropy and batch are those of the benchmark of curvlinops ("synthetic MNIST MLP"):
784, 1024, 512, 256, 128, 64 and 10 units, and 512 images of uniform noise. A point is a whole mini-batch, so
that target=hvp is the product of the Hessian of the loss, a mean over the batch, and the parameters.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import InputSpec, Reference, Workload, uniform

SIZES = {"rows": 512, "pixels": 784, "width": 1024}
CLASSES = 10


def widths(pixels, width):
    """Return the numbers of units of the seven layers."""
    return pixels, width, width // 2, width // 4, width // 8, width // 16, CLASSES


def logits(params, images):
    """Return the logits of the classes: (rows, pixels) -> (rows, classes)."""
    *hidden, last = params
    for layer in hidden:
        images = jax.nn.relu(images @ layer["w"] + layer["b"])
    return images @ last["w"] + last["b"]


def cross_entropy(scores, labels):
    """Return the mean cross-entropy of logits (rows, classes) and labels (rows,), a number."""
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1))


def loss(images, labels, params):
    """Return the mean cross-entropy of a mini-batch, a number."""
    return cross_entropy(logits(params, images), labels)


def reference(inputs):
    """Return the loss (points, 1) and its gradient (points, 1, parameters) in NumPy and float64.

    The gradient is computed by backpropagation, written by hand.
    """
    layers, values, gradients = inputs["params"], [], []
    for x, labels in zip(inputs["images"], inputs["labels"].astype(int), strict=True):
        outputs = [x]  # of each layer, before the rectifier; the images are positive
        for layer in layers:
            outputs.append(np.maximum(outputs[-1], 0) @ layer["w"] + layer["b"])
        scores = outputs[-1] - outputs.pop().max(axis=1, keepdims=True)
        log_probabilities = scores - np.log(np.sum(np.exp(scores), axis=1, keepdims=True))
        values.append(-np.mean(log_probabilities[np.arange(len(x)), labels]))
        delta, parts = (np.exp(log_probabilities) - np.eye(CLASSES)[labels]) / len(x), []
        for layer, output in zip(reversed(layers), reversed(outputs), strict=True):
            parts += [(np.maximum(output, 0).T @ delta).ravel(), delta.sum(axis=0)]
            delta = (delta @ layer["w"].T) * (output > 0)
        gradients.append(np.concatenate(parts[::-1]))
    return Reference(np.array(values)[:, None], np.array(gradients)[:, None])


def layer_spec(inputs, outputs):
    """Return the input specs of the weights and biases of a layer: uniform, as PyTorch initializes them."""
    bound = inputs**-0.5
    return {
        "w": uniform(inputs, outputs, low=-bound, high=bound),
        "b": uniform(outputs, low=-bound, high=bound),
    }


def workload(case):
    rows, pixels = case.sizes["rows"], case.sizes["pixels"]
    units = widths(pixels, case.sizes["width"])
    labels = InputSpec((rows,), lambda rng, points: rng.integers(CLASSES, size=(len(points), rows)), True)
    params = [layer_spec(*pair) for pair in itertools.pairwise(units)]
    points = {"images": uniform(rows, pixels), "labels": labels}
    return Workload(loss, points, {"params": params}, wrt="params", reference=reference, terms=rows)
