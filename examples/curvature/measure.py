"""Measure the cost of curvature products in gradients, and compare it with published numbers.

    python -m examples.curvature.measure          measures into docs/data/curvature.jsonl (4 minutes)
    python -m examples.curvature.measure small    the same at small sizes; prints the table
    python -m examples.curvature.measure table    writes the table of docs/curvature.md and docs/curvature.png

Run it from the root of the repository. Every product of the classifier is compared with the formulas that
products.py derives by hand before its first time is kept.
"""

import itertools
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

from examples import classifier, pages, regression, side_by_side
from examples.curvature import products

NAME = "curvature"
CELLS = Path(__file__).with_name("published.yaml")
FULL, SMALL = (512, 784, 1024), (8, 12, 32)  # images, pixels, units of the first hidden layer
ADVISED = 64  # images of the advice, whose check differentiates in float64
MOST_ERROR = 1e-3  # of a product in float32, relative to its 2-norm
Calls = Mapping[str, Callable[[], Any]]


def make_classifier(rows: int, pixels: int, width: int) -> tuple[Any, ...]:
    """Return random (parameters, images, labels, direction) of the classifier, in float32 and int32."""
    rng, pairs = np.random.default_rng(0), list(itertools.pairwise(classifier.widths(pixels, width)))

    def draw(inputs: int, *shape: int) -> np.ndarray:
        return rng.uniform(-(inputs**-0.5), inputs**-0.5, shape).astype(np.float32)

    params, direction = ([{"b": draw(m, n), "w": draw(m, m, n)} for m, n in pairs] for _ in range(2))
    images = rng.random((rows, pixels)).astype(np.float32)
    labels = rng.integers(classifier.CLASSES, size=rows).astype(np.int32)
    return jax.tree.map(jnp.asarray, (params, images, labels, direction))


def compile_products(inputs: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    """Return a dict from the name of each curvature product to its compiled function without arguments."""
    return {name: partial(jax.jit(function), *inputs) for name, function in products.PRODUCTS.items()}


def check_products(calls: Calls, inputs: tuple[Any, ...]) -> dict[str, float]:
    """Return a dict from the name of each product to its error, relative to the 2-norm of the product.

    Raise `ValueError` if an error exceeds `MOST_ERROR`.
    """
    params, images, *_ = inputs
    drawn_labels = jax.jit(lambda p, x: products.draw_labels(classifier.logits(p, x)))(params, images)
    expected, errors = products.by_hand(*inputs, drawn_labels), {}
    for name, call in calls.items():
        product = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(call())])
        errors[name] = float(np.linalg.norm(product - expected[name]) / np.linalg.norm(expected[name]))
        if not errors[name] < MOST_ERROR:
            raise ValueError(f"{name} has the relative error {errors[name]:.1e}")
    return errors


def nestings(function: Callable[..., Any], x: tuple[Any, ...]) -> dict[str, Callable[..., Any]]:
    """Return a dict from name to derivative of a scalar function of several arrays.

    Each derivative is a function of the arrays x and of a direction v, two tuples of arrays of the same
    shapes. Products and Hessians are computed in several nestings of forward and reverse mode.
    """
    argnums = tuple(range(len(x)))
    gradient = jax.grad(function, argnums)

    def row_by_row(x: tuple[Any, ...], v: tuple[Any, ...]) -> Any:
        flat, restore = jax.flatten_util.ravel_pytree(x)
        pullback = jax.vjp(lambda z: jax.flatten_util.ravel_pytree(gradient(*restore(z)))[0], flat)[1]
        return jax.lax.map(lambda unit: pullback(unit)[0], jnp.eye(flat.size, dtype=flat.dtype))

    return {
        "gradient": lambda x, v: gradient(*x),
        "jvp": lambda x, v: jax.jvp(function, x, v)[1],
        "jacfwd": lambda x, v: jax.jacfwd(function, argnums)(*x),
        "forward over reverse": lambda x, v: jax.jvp(gradient, x, v)[1],
        "reverse over forward": lambda x, v: jax.grad(lambda *z: jax.jvp(function, z, v)[1], argnums)(*x),
        "reverse over reverse": lambda x, v: jax.vjp(gradient, *x)[1](v),
        "hessian row by row": row_by_row,
        "hessian forward over reverse": lambda x, v: jax.jacfwd(gradient, argnums)(*x),
        "hessian reverse over reverse": lambda x, v: jax.jacrev(gradient, argnums)(*x),
    }


def check_nestings(calls: Calls, v: tuple[Any, ...]) -> None:
    """Raise `AssertionError` unless all products agree with the Hessian, and the JVP with the gradient.

    `calls` are compiled derivatives of `nestings` without arguments, and `v` is their direction.
    """
    flat = lambda tree: np.concatenate([np.ravel(a) for a in jax.tree.leaves(tree)])  # noqa: E731
    hessian, direction = np.asarray(calls["hessian row by row"]()), flat(v)
    for name in calls:
        if " over " in name and "hessian" not in name:
            product = flat(calls[name]())
            atol = 1e-3 * np.abs(product).max()
            np.testing.assert_allclose(product, hessian @ direction, rtol=1e-3, atol=atol)
    np.testing.assert_allclose(calls["jvp"](), flat(calls["gradient"]()) @ direction, rtol=1e-3, atol=1e-3)


def regression_calls(variant: str) -> tuple[Calls, tuple[Any, ...]]:
    """Return (compiled derivatives of a log-density of examples/regression.py, direction of the products).

    `variant` is "simple" or "robust". The derivatives are a dict from name to function without arguments.
    """
    rng, n, k = np.random.default_rng(0), 10, 11
    draw = lambda *shape: jnp.asarray(rng.uniform(0.1, 1, shape), jnp.float32)  # noqa: E731
    x, v, data = (draw(k),), (draw(k),), (draw(n, k), draw(n))
    if variant == "robust":
        x, v = (1 + draw(), draw(n), draw(k)), (draw(), draw(n), draw(k))
        data += (draw(), draw(), draw(n), draw(k), draw(k))
    function = lambda *x: getattr(regression, variant)(*x, *data)  # noqa: E731
    return {name: partial(jax.jit(f), x, v) for name, f in nestings(function, x).items()}, v


def tanh_calls() -> dict[str, Callable[[], Any]]:
    """Return a dict from name to Hessian-vector product of JAX's autodiff cookbook, not compiled."""
    rng = np.random.default_rng(0)
    x, v = ((jnp.asarray(rng.standard_normal((30, 40)), jnp.float32),) for _ in range(2))
    function = lambda x: jnp.sum(jnp.tanh(x) ** 2)  # noqa: E731
    derivatives = nestings(function, x)
    names = ("forward over reverse", "reverse over forward", "reverse over reverse")
    calls = {name: partial(derivatives[name], x, v) for name in names}
    return calls | {"hessian": lambda: jnp.tensordot(jax.hessian(function)(*x), v[0], 2)}


def advise_examples(inputs: tuple[Any, ...], budget: float) -> list[pages.Row]:
    """Return lines of the result file: the advice for the classifier and for the robust log-density.

    `budget` is the time in seconds to measure the candidates of each advice.
    """
    params, images, labels, _ = inputs
    images, labels = images[:ADVISED], labels[:ADVISED]
    arguments = classifier.loss, {"images": images[None], "labels": labels[None]}, {"params": params}
    name = f"classifier, {len(images)} images, {{}}"
    rows = [
        side_by_side.advise(name.format(what), budget, *arguments, wrt="params", target=target)
        for what, target in (("gradient", "jacobian"), ("Hessian-vector product", "hvp"))
    ]
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.uniform(0.1, 1, shape).astype(np.float32)  # noqa: E731
    points = {"nu": 1 + draw(1000), "log_scale": draw(1000, 10), "beta": draw(1000, 11)}
    shared = {"x": draw(10, 11), "y": draw(10), "nu_shape": draw(), "nu_rate": draw()}
    shared |= {"scale_rate": draw(10), "mean": draw(11), "deviation": draw(11)}
    for what, target in (("gradient", "jacobian"), ("Hessian", "hessian")):
        name = f"robust regression, {what} at 1,000 points"
        wrt = "nu+log_scale+beta"
        rows.append(
            side_by_side.advise(name, budget, regression.robust, points, shared, wrt=wrt, target=target)
        )
    return rows


def measure(size: tuple[int, int, int], seconds: float, budget: float) -> list[pages.Row]:
    """Return the lines of the result file."""
    lines, inputs = [side_by_side.describe_machine()], make_classifier(*size)
    calls = compile_products(inputs)
    errors = check_products(calls, inputs)
    for line in side_by_side.sample_calls(calls, seconds):
        lines.append(line | {"name": f"mlp/{line['name']}", "error": errors[line["name"]]})
    for variant in regression.VARIANTS:
        calls, v = regression_calls(variant)
        check_nestings(calls, v)
        found = side_by_side.sample_calls(calls, seconds / 6)
        lines += [line | {"name": f"{variant}/{line['name']}"} for line in found]
    found = side_by_side.sample_calls(tanh_calls(), seconds / 6)
    lines += [line | {"name": f"tanh/{line['name']}"} for line in found]
    return lines + advise_examples(inputs, budget)


def main() -> None:
    """Measure into docs/data/curvature.jsonl, or with `table` write docs/curvature.md and its figure."""
    if sys.argv[1:] == ["table"]:
        side_by_side.publish(NAME, CELLS, "Cost of a derivative over a cheaper one", "times the base")
        return
    side_by_side.restart_on_one_core()
    if sys.argv[1:] == ["small"]:
        lines = measure(SMALL, 0.2, 1.0)
        print(side_by_side.make_table(CELLS, lines))
        return
    side_by_side.write_lines(pages.data_path(NAME), measure(FULL, 40.0, 60.0))


if __name__ == "__main__":
    main()
