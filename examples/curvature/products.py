"""Curvature products of a classifier: plain JAX functions, and the same products derived by hand in NumPy.

Each product is a function (params, images, labels, direction) of the classifier of examples/classifier.py.
The direction is a pytree like the parameters, and so is the result. With logits z, their softmax p, the
Jacobian J of the logits by the parameters and n images:

    gradient                 J^T (p - y) / n
    Hessian-vector product   H v, with H the Hessian of the mean cross-entropy
    Gauss-Newton             J^T S J v, with S = (diag(p) - p p^T) / n for each image
    Monte-Carlo Fisher       J^T s s^T J v / n, with s = p - a one-hot label that is drawn from p
    empirical Fisher         the same with the label of the image
"""

import jax
import jax.numpy as jnp
import numpy as np

from examples.classifier import CLASSES, cross_entropy, logits, loss

KEY = 0  # of the drawn labels


def draw_labels(scores):
    """Draw a label of each image from the softmax of its logits: (rows, classes) -> (rows,)."""
    return jax.random.categorical(jax.random.key(KEY), scores)


def gradient(params, images, labels, direction):
    """Return the gradient of the loss; the direction is not used."""
    return jax.grad(loss, argnums=2)(images, labels, params)


def hessian(params, images, labels, direction):
    """Return the Hessian times the direction, forward over reverse."""
    return jax.jvp(lambda p: gradient(p, images, labels, None), (params,), (direction,))[1]


def hessian_reverse(params, images, labels, direction):
    """Return the Hessian times the direction, reverse over reverse."""
    return jax.vjp(lambda p: gradient(p, images, labels, None), params)[1](direction)[0]


def _through_logits(params, images, direction, middle):
    """Return J^T middle(z, J v), with the logits z, their Jacobian J by `params`, and v = `direction`."""
    scores, tangents = jax.jvp(lambda p: logits(p, images), (params,), (direction,))
    return jax.vjp(lambda p: logits(p, images), params)[1](middle(scores, tangents))[0]


def gauss_newton(params, images, labels, direction):
    """Return the generalized Gauss-Newton matrix times the direction."""

    def middle(scores, tangents):
        return jax.jvp(jax.grad(lambda z: cross_entropy(z, labels)), (scores,), (tangents,))[1]

    return _through_logits(params, images, direction, middle)


def _fisher(params, images, direction, label):
    def middle(scores, tangents):
        s = jax.nn.softmax(scores) - jax.nn.one_hot(label(scores), CLASSES, dtype=scores.dtype)
        return s * jnp.sum(s * tangents, axis=1, keepdims=True) / len(images)

    return _through_logits(params, images, direction, middle)


def monte_carlo_fisher(params, images, labels, direction):
    """Return the Fisher matrix, estimated with one drawn label for each image, times the direction."""
    return _fisher(params, images, direction, draw_labels)


def empirical_fisher(params, images, labels, direction):
    """Return the Fisher matrix, estimated with the labels of the images, times the direction."""
    return _fisher(params, images, direction, lambda scores: labels)


PRODUCTS = {
    "gradient": gradient,
    "hessian": hessian,
    "hessian, reverse over reverse": hessian_reverse,
    "gauss-newton": gauss_newton,
    "monte-carlo fisher": monte_carlo_fisher,
    "empirical fisher": empirical_fisher,
}


def by_hand(params, images, labels, direction, drawn):
    """Return all products in NumPy and float64: a dict from the names of `PRODUCTS` to a raveled product.

    `drawn` are the labels (rows,) of the Monte-Carlo Fisher. The Hessian is Pearlmutter's R-operator applied
    to backpropagation (B. A. Pearlmutter, "Fast exact multiplication by the Hessian", 1994).
    """
    layers = [{k: np.asarray(a, np.float64) for k, a in layer.items()} for layer in params]
    moves = [{k: np.asarray(a, np.float64) for k, a in layer.items()} for layer in direction]
    activation, tangent, states = np.asarray(images, np.float64), np.zeros(np.shape(images)), []
    for layer, move in zip(layers, moves, strict=True):
        states.append((activation, tangent))
        tangent = tangent @ layer["w"] + activation @ move["w"] + move["b"]
        output = activation @ layer["w"] + layer["b"]
        activation, tangent = np.maximum(output, 0), tangent * (output > 0 if layer is not layers[-1] else 1)
    p = np.exp(output - output.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    count, one_hot = len(p), np.eye(CLASSES)
    curved = (p * tangent - p * np.sum(p * tangent, axis=1, keepdims=True)) / count

    def backward(delta, moved=None):
        """Return J^T delta, or its tangent in the direction, given the tangent of delta."""
        parts = []
        for layer, move, (state, state_tangent) in zip(layers[::-1], moves[::-1], states[::-1], strict=True):
            active = state > 0
            if moved is None:
                parts += [(state.T @ delta).ravel(), delta.sum(axis=0)]
            else:
                parts += [(state.T @ moved + state_tangent.T @ delta).ravel(), moved.sum(axis=0)]
                moved = (moved @ layer["w"].T + delta @ move["w"].T) * active
            delta = (delta @ layer["w"].T) * active
        return np.concatenate(parts[::-1])

    def fisher(label):
        s = p - one_hot[np.asarray(label)]
        return backward(s * np.sum(s * tangent, axis=1, keepdims=True) / count)

    error = (p - one_hot[np.asarray(labels)]) / count
    second = backward(error, curved)
    return {
        "gradient": backward(error),
        "hessian": second,
        "hessian, reverse over reverse": second,
        "gauss-newton": backward(curved),
        "monte-carlo fisher": fisher(drawn),
        "empirical fisher": fisher(labels),
    }
