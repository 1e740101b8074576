"""Tests of user-defined workloads: pytrees of inputs and outputs, one-line errors for bad inputs, and huge sizes."""

import collections
import dataclasses
import itertools
import math
import re
import sys
import types

import pytest

from tests.support import devices  # isort: skip  # before JAX is used
import jax
import jax.numpy as jnp
import numpy as np

from scaling.core import compile_case, inputs, run_case, workload
from scaling.core.case import REDUCTIONS, Case, Refusal, TooLarge
from scaling.core.derivative import describe_derivative
from scaling.core.workload import InputSpec, Reference, Workload, normal, poisson, uniform
from scaling.options import host_offload
from scaling.results.store import load
from scaling.study import case_rules, user_workload
from tests.support.small_plan import plans, write

pytestmark = pytest.mark.thin(50, "thorough")


def sines(number, *sizes):
    """Return an input whose values do not depend on its name or a seed."""
    size = math.prod(sizes)

    def make(_, rows):
        return np.sin(number + 0.7 * rows[:, None] + 1.3 * np.arange(size)).reshape(len(rows), *sizes)

    return InputSpec(sizes, make)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
    kernel: object
    bias: object


Affine = collections.namedtuple("Affine", "scale shape")  # a field with the name of an attribute of arrays
W, B, S, T, X = sines(1, 4, 3), sines(2, 4), sines(3, 2, 4), sines(4), sines(5, 3)
PARAMS = {"second": Affine(S, T), "first": [Layer(W, B), None]}  # a pytree sorts its keys: first, second
LEAVES = ("params.first.0.kernel", "params.first.0.bias", "params.second.scale", "params.second.shape")
FLAT = dict(zip(("w", "b", "s", "t"), (W, B, S, T), strict=True))


def flat_function(w, b, s, t, x):
    y = jnp.tanh(w @ x + b)
    return jnp.concatenate([s @ y, t * jnp.sum(y, keepdims=True)])


def tree_function(params, x):
    first, second = params["first"][0], params["second"]
    y = flat_function(first.kernel, first.bias, second.scale, second.shape, x)
    return {"b": y[2], "a": (y[:2],)}  # sorted: a, b


def sum_of_squares(function):
    return lambda **arrays: jnp.sum(
        jnp.concatenate([a.reshape(-1) for a in jax.tree.leaves(function(**arrays))]) ** 2
    )


def jacobian_pytree(function, point_inputs, argument):
    """Return a function that computes the derivatives of a batch as the pytree that `jax.jacrev` returns."""

    def derivative(**arrays):
        axes = tuple(0 if name in point_inputs else None for name in arrays)

        def at_point(*args):
            return jax.jacrev(lambda z: function(**dict(zip(arrays, args, strict=True)) | {argument: z}))(
                dict(zip(arrays, args, strict=True))[argument]
            )

        return jax.vmap(at_point, axes)(*arrays.values())

    return derivative


def over_batch(function, shared):
    return lambda **arrays: jax.vmap(
        lambda x: function(x=x, **{name: arrays[name] for name in shared})
    )(arrays["x"])  # fmt: skip


@pytest.fixture
def define(monkeypatch):
    """Return a function that defines a workload as a module in memory."""

    def define_module(name, build, **constants):
        module = types.ModuleType(name)
        module.workload = build if callable(build) else lambda case: build
        for key, value in constants.items():
            setattr(module, key, value)
        monkeypatch.setitem(sys.modules, name, module)
        return name

    return define_module


@pytest.fixture
def tree_and_flat_workloads(define):
    """Define a workload of a pytree, one of its leaves, and a version of each with a scalar output."""
    tree = {"points": {"x": X}, "shared": {"params": PARAMS}}
    flat = {"points": {"x": X}, "shared": FLAT}
    analytic = jacobian_pytree(tree_function, {"x"}, "params")
    whole = {"whole": over_batch(tree_function, ["params"]), "whole_modes": {"analytic": analytic}}
    define("tree", Workload(tree_function, **tree, **whole))
    define("flat", Workload(flat_function, **flat, whole=over_batch(flat_function, [*FLAT])))
    define("scalar_tree", Workload(sum_of_squares(tree_function), **tree))
    define("scalar_flat", Workload(sum_of_squares(flat_function), **flat))


def complete_case(**fields):
    case = case_rules.complete(Case(**{"dtype": "float64", "points": 4} | fields))
    built = workload.build(case)
    return case_rules.without_trivial_blocks(describe_derivative(case, built)).case, built


def reason_to_skip(**fields):
    return devices.reason_to_skip(complete_case(**fields)[0])


def compute(**fields):
    """Return the derivative (points, outputs, inputs) that the program of a case computes."""
    case, built = complete_case(**fields)
    compiled = compile_case.compile_case(
        compile_case.describe_and_color(case, built, lambda compiled: None), jax.devices()[: case.devices]
    )
    call, collect = compile_case.make_runner(compiled)
    return np.array(collect(call()))


def measure(**fields):
    return devices.run_once(complete_case(**fields)[0])


def assert_same_result(fields, wrt="params", flat_wrt="w+b+s+t"):
    tree = compute(workload="tree", **fields, wrt=wrt)
    leaves = compute(workload="flat", **fields, wrt=flat_wrt)
    assert tree.shape == leaves.shape and np.any(tree)
    np.testing.assert_allclose(tree, leaves, rtol=1e-13, atol=1e-15)


LAYOUTS = {
    "jit": {"api": "jit"},
    "uncompiled": {"api": "jit", "jit": False},
    "points": {"devices": 2},
    "seeds": {"split": "both", "mesh": "1x4", "devices": 4, "api": "pmap"},
    "both": {"split": "both", "mesh": "2x2", "devices": 4, "points": 5},
    "data": {"split": "data", "devices": 2},
    "overlapped": {"split": "data", "devices": 2, "api": "pmap", "overlap": True},
    "chunks and blocks": {"api": "jit", "chunk": 2, "block": 3},
    "host storage": {"api": "jit", "storage": "host", "chunk": 4, "block": 3},
    "whole batch": {"api": "jit", "batch": "whole"},
    "colored": {"api": "jit", "seeds": "colored"},
}
FIRST_ORDER_MODES = ("jacfwd", "jacrev", "linearize", "finite_difference", "mixed", "grad_of_sum")
WRT = {  # wrt of the pytree and of its leaves
    "all": ("params", "w+b+s+t"),
    "an inner node": ("params.second", "s+t"),
    "a leaf and the point input": ("params.first.0.bias+x", "b+x"),
}


def is_applicable(fields, wrt):
    return reason_to_skip(workload="flat", **fields, wrt=wrt) is None


@pytest.mark.covering(1)
@pytest.mark.parametrize("mode", FIRST_ORDER_MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pytree_of_parameters_gives_the_result_of_its_separate_leaves(
    tree_and_flat_workloads, layout, mode
):
    fields = LAYOUTS[layout] | {"mode": mode}
    for wrt, flat_wrt in WRT.values():
        if not is_applicable(fields, flat_wrt):
            assert reason_to_skip(workload="tree", **fields, wrt=wrt)
    possible = [(wrt, flat_wrt) for wrt, flat_wrt in WRT.values() if is_applicable(fields, flat_wrt)]
    assert possible or mode in ("grad_of_sum", "mixed", "finite_difference"), "no wrt is applicable"
    if possible:  # one of them, a different one in each layout and mode
        assert_same_result(
            fields, *possible[([*LAYOUTS].index(layout) + FIRST_ORDER_MODES.index(mode)) % len(possible)]
        )


@pytest.mark.covering(1)
@pytest.mark.parametrize("mode", ["jacfwd", "jacrev", "mixed", "analytic"])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_every_reduction_of_a_pytree_equals_that_of_its_leaves(tree_and_flat_workloads, reduce, mode):
    fields = {"reduce": reduce, "api": "jit", "mode": mode}
    if mode == "analytic":
        if reduce == "points":
            return
        tree = compute(workload="tree", **fields, wrt="params")
        np.testing.assert_allclose(
            tree, compute(workload="flat", **fields | {"mode": "jacrev"}, wrt="w+b+s+t"), rtol=1e-12
        )
    elif is_applicable(fields, "w+b+s+t"):
        assert_same_result(fields)
    else:
        assert (mode, reduce) == ("mixed", "gram")


@pytest.mark.covering(1)
@pytest.mark.parametrize("mode", ["fwd_over_rev", "rev_over_fwd", "rev_over_rev", "fwd_over_fwd"])
@pytest.mark.parametrize("target", ["hessian", "hvp", "laplacian"])
def test_a_hessian_with_respect_to_a_pytree_equals_that_of_its_leaves(tree_and_flat_workloads, mode, target):
    for layout in ("jit", "seeds", "both"):
        fields = LAYOUTS[layout] | {"mode": mode, "target": target}
        tree = compute(workload="scalar_tree", **fields, wrt="params")
        leaves = compute(workload="scalar_flat", **fields, wrt="w+b+s+t")
        assert tree.shape[1:] == {"hessian": (25, 25), "hvp": (25, 1), "laplacian": (1, 1)}[target]
        np.testing.assert_allclose(tree, leaves, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mode", [*FIRST_ORDER_MODES, "analytic", "value"])
def test_the_derivative_with_respect_to_a_pytree_passes_the_check(tree_and_flat_workloads, mode):
    reduce = {"reduce": "outputs"} if mode == "grad_of_sum" else {}
    record = measure(
        workload="tree", wrt=None if mode == "value" else "params", mode=mode, api="jit", **reduce
    )
    assert record.status == "ok", record.text
    assert record.error <= record.tolerance
    assert record.case.wrt == (None if mode == "value" else "params")


def test_the_inputs_that_all_points_share_are_drawn_once_for_all_blocks_of_points():
    drawn = []

    def make(_, rows):
        drawn.append(len(rows))
        return np.ones((len(rows), 2))

    shared = {f"w{number}": InputSpec((2,), make) for number in range(9)}
    built = Workload(lambda x, **weights: x, points={"x": uniform()}, shared=shared)
    for point in range(3):
        inputs.exact_inputs(Case("mine", points=3), built, point, point + 1)
    assert len(drawn) == len(shared)


@pytest.mark.covering(1)
@pytest.mark.parametrize("layout", ["jit", "points", "data"])
@pytest.mark.parametrize("forward", ["w", "b", "t", "w+s"])
def test_mixed_mode_of_a_sum_over_points_keeps_the_order_of_the_inputs(
    tree_and_flat_workloads, forward, layout
):
    fields = {"mode": "mixed", "wrt": "w+b+s+t", "forward": forward, "reduce": "points"}
    record = measure(workload="flat", **LAYOUTS[layout] | fields)
    assert record.status == "ok", record.text


def test_mixed_mode_uses_forward_mode_for_all_leaves_of_a_named_pytree(tree_and_flat_workloads):
    case, built = complete_case(workload="tree", mode="mixed", wrt="x+params", forward="params", api="jit")
    parts = describe_derivative(case, built).parts
    assert [(part.mode, part.names) for part in parts] == [("jacfwd", LEAVES), ("jacrev", ("x",))]
    fields = {"mode": "mixed", "api": "jit"}
    tree = compute(workload="tree", wrt="x+params", forward="params", **fields)
    leaves = compute(workload="flat", wrt="x+w+b+s+t", forward="w+b+s+t", **fields)
    np.testing.assert_allclose(tree, leaves, rtol=1e-13)


def test_the_default_wrt_is_all_shared_inputs_for_split_data_else_the_first_input(define):
    shared = {"params": PARAMS, "c": sines(7), "counts": {"n": poisson(2.0)}}
    define(
        "several", Workload(lambda x, params, c, counts: c * tree_function(params, x)["b"], {"x": X}, shared)
    )
    case, built = complete_case(workload="several", mode="jacrev", split="data", devices=2)
    assert case.wrt == "params+c" and built.names == (*LEAVES, "c")
    assert complete_case(workload="several", mode="jacrev")[0].wrt == "x"


def test_integer_leaves_of_a_pytree_are_not_differentiated(define):
    params = {"w": sines(1, 3), "count": poisson(3.0)}
    define(
        "counted", Workload(lambda params: jnp.sum(params["w"] ** 2) * params["count"], {"params": params})
    )
    case, built = complete_case(workload="counted", mode="jacrev")
    assert case.wrt == "params" and built.names == ("params.w",)
    assert measure(workload="counted", mode="jacrev", api="jit").status == "ok"
    with pytest.raises(Refusal, match=r"'params.count': choose from params, params.w"):
        complete_case(workload="counted", wrt="params.count")


EMPTY = {"w": sines(6, 3), "none": InputSpec((0, 3), lambda rng, rows: np.zeros((len(rows), 0, 3)))}


@pytest.mark.parametrize("fields", [{}, {"reduce": "gram"}, {"wrt": "x+params.none"}], ids=str)
@pytest.mark.parametrize("mode", ["jacfwd", "jacrev", "mixed", "analytic"])
def test_a_leaf_without_elements_adds_no_columns_to_the_derivative(define, mode, fields):
    function = lambda params, x: jnp.tanh(2 * params["w"] * x) * (1 + jnp.sum(params["none"]))  # noqa: E731
    modes = {"analytic": jacobian_pytree(function, {"x"}, "params")}
    define("empty", Workload(function, {"x": X}, {"params": EMPTY}, "params", whole_modes=modes))
    if (mode == "analytic" and fields) or (mode == "mixed" and fields.get("reduce")):
        pytest.skip("there is no such derivative")
    record = measure(workload="empty", mode=mode, api="jit", dtype="float32", points=20, **fields)
    assert record.status == "ok", record.text
    assert compute(workload="empty", mode=mode, api="jit", **fields).shape[2] == 3


def test_a_reference_receives_pytrees_and_is_compared_with_the_result(define):
    params = {"w": sines(1, 2, 3), "b": [sines(2, 2)]}

    def function(params, x):
        return {"y": params["w"] @ x + params["b"][0], "s": jnp.sum(x)}

    def reference(factor):
        def evaluate(batch):
            assert batch["params"]["w"].shape == (2, 3) and batch["x"].shape[1:] == (3,)
            x = batch["x"]
            y = x @ batch["params"]["w"].T + batch["params"]["b"][0]
            J = np.zeros((len(x), 3, 8))  # sorted: s, y and b, w
            J[:, 1, 0] = J[:, 2, 1] = 1.0
            J[:, 1, 2:5] = J[:, 2, 5:8] = factor * x
            return Reference(np.concatenate([x.sum(axis=1, keepdims=True), y], axis=1), J)

        return evaluate

    for factor, status in ((1.0, "ok"), (1.1, "failed")):
        define(
            status, Workload(function, {"x": X}, {"params": params}, "params", reference=reference(factor))
        )
        record = measure(workload=status, mode="jacrev", api="jit")
        assert record.status == status and (record.reason or "wrong_answer") == "wrong_answer", record.text


def test_an_analytic_hessian_may_be_the_pytree_that_jax_returns(define):
    f = sum_of_squares(tree_function)
    second = lambda _: pytest.fail("not compared here")  # noqa: E731
    hessian = lambda params, x: jax.vmap(lambda z: jax.hessian(lambda p: f(params=p, x=z))(params))(x)  # noqa: E731
    define(
        "second",
        Workload(f, {"x": X}, {"params": PARAMS}, "params", whole_modes={"analytic": hessian}, second=second),
    )
    tree = compute(workload="second", mode="analytic", target="hessian", api="jit")
    assert tree.shape == (4, 25, 25)
    np.testing.assert_allclose(
        tree, compute(workload="second", mode="fwd_over_rev", target="hessian", api="jit"), rtol=1e-10
    )


def test_an_analytic_gradient_of_a_sum_over_points_may_be_a_pytree(define):
    f = sum_of_squares(tree_function)
    total = lambda params, x: jnp.sum(jax.vmap(lambda z: f(params=params, x=z))(x))  # noqa: E731
    whole_modes = {"vmap_grad": lambda params, x: jax.grad(total)(params, x)}
    define("loss", Workload(f, {"x": X}, {"params": PARAMS}, "params", "points", whole_modes=whole_modes))
    for layout in ("jit", "points", "data"):
        tree = compute(workload="loss", mode="vmap_grad", **LAYOUTS[layout])
        assert tree.shape == (2 if layout == "data" else 1, 1, 25)
        np.testing.assert_allclose(
            tree, compute(workload="loss", mode="jacrev", **LAYOUTS[layout]), rtol=1e-12
        )


OUTPUTS = {
    "a tuple": lambda x: (x[:2], x[2] * x),
    "a dict of matrices": lambda x: {"outer": jnp.outer(x, x), "sum": jnp.sum(x)},
    "nested containers": lambda x: [(jnp.sin(x),), {"y": [x[0], x[1:]]}, None],
    "a tuple of one": lambda x: (x**2,),
    "a named tuple": lambda x: Affine(x, jnp.prod(x)),
    "a constant": lambda x: (x * x, 2.0),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_leaves_of_a_pytree_output_are_concatenated(define, name):
    f = OUTPUTS[name]
    flat = lambda x: jnp.concatenate([jnp.ravel(a) for a in jax.tree.leaves(f(x))])  # noqa: E731
    define("tupled", Workload(lambda x: f(x), {"x": X}, whole=lambda x: jax.vmap(f)(x)))
    define("joined", Workload(flat, {"x": X}, whole=lambda x: jax.vmap(flat)(x)))
    for mode, layout in (("value", "jit"), ("jacfwd", "points"), ("jacrev", "both")):
        fields = LAYOUTS[layout] | {"mode": mode}
        np.testing.assert_array_equal(
            compute(workload="tupled", **fields), compute(workload="joined", **fields)
        )
    whole = {"mode": "value", "batch": "whole", "api": "jit"}
    np.testing.assert_array_equal(compute(workload="tupled", **whole), compute(workload="joined", **whole))
    assert measure(workload="tupled", mode="jacrev", api="jit").status == "ok"


def test_inputs_may_have_the_names_of_internal_arguments(define):
    function = lambda x, rows, columns, entries, start: x * rows * columns * entries + start  # noqa: E731
    shared = {name: sines(k, 3) for k, name in enumerate(("rows", "columns", "entries", "start"))}
    define("names", Workload(function, {"x": X}, shared, "x"))
    expected = compute(workload="names", mode="jacrev", api="jit")
    for mode in ("jacfwd", "jacrev"):
        colored = compute(workload="names", mode=mode, seeds="colored", devices=2, split="both", mesh="1x2")
        np.testing.assert_array_equal(colored[:, 0], np.diagonal(expected, axis1=1, axis2=2))
        stepped = compute(workload="names", mode=mode, storage="host", chunk=2, block=2, api="jit")
        np.testing.assert_array_equal(stepped, expected)


def workload_with(**fields):
    return lambda case: Workload(**{"function": lambda **arrays: 1.0, "points": {"x": X}} | fields)


REJECTED = {
    "a NumPy array": ({"points": {"x": np.zeros((2, 3))}}, r"input 'x' of 'mine' is an array of shape \(2, 3\)"),
    "a JAX array": ({"shared": {"c": jnp.ones(2)}}, r"input 'c' of 'mine' is an array of shape \(2,\).*: write an InputSpec"),
    "a number": ({"shared": {"c": 3.5}}, r"input 'c' of 'mine' is 3.5 \(float\): write an InputSpec, such as normal\(3\)"),
    "a boolean": ({"shared": {"c": True}}, "input 'c' of 'mine' is True"),
    "None": ({"points": {"x": None}}, "input 'x' of 'mine' is None"),
    "a string": ({"points": {"x": "normal"}}, "input 'x' of 'mine' is 'normal'"),
    "a function": ({"points": {"x": normal}}, r"is <function nor.* \(function\): write an InputSpec"),
    "a shape": ({"points": {"x": (3, 4)}}, "input 'x.0' of 'mine' is 3 "),
    "an empty dict": ({"shared": {"params": {}}}, "input 'params' of 'mine' is {} "),
    "a leaf that is an array": ({"shared": {"p": {"a": [X, np.ones(2)]}}}, "input 'p.a.1' of 'mine' is an array"),
    "an unregistered dataclass": (
        {"shared": {"p": dataclasses.make_dataclass("Loose", ["w"])(X)}},
        r"input 'p' of 'mine' is .*\(Loose\).*register_dataclass",
    ),
    "a dataclass with the name of a type of Python": (
        {"shared": {"p": dataclasses.make_dataclass("array", ["w"])(X)}}, r"input 'p' of 'mine' is .*\(array\): write"
    ),
    "a number without a text": ({"shared": {"c": 10**5000}}, r"input 'c' of 'mine' is .*\(int\): write an InputSpec"),
    "not a mapping": ({"points": X}, "points of 'mine' must be a mapping from input names.*not InputSpec"),
    "a list": ({"points": [X]}, "points of 'mine' must be a mapping"),
    "no shared inputs": ({"shared": None}, "shared of 'mine' must be a mapping.*not None"),
    "a name with a space": ({"points": {"a b": X}}, "input 'a b' of 'mine' must have a name such as"),
    "a name that is a number": ({"points": {1: X}}, "input 1 of 'mine' must have a name"),
    "a name with a plus": ({"shared": {"p": {"a+b": X}}}, r"input 'p.a\+b' of 'mine' has '\+' in its name.*: rename the key"),
    "a path twice": ({"shared": {"p": {"a": {"b": X}, "a.b": X}}}, "input 'p.a.b' of 'mine' has .* the path of another leaf: rename"),
    "per point and shared": ({"points": {"p": {"a": X}}, "shared": {"p": X}}, "both per point and shared: p"),
    "not a function": ({"function": 3}, "function of 'mine' must be a function, not 3 "),
    "a reference that is not a function": ({"reference": np.zeros(2)}, "reference of 'mine' must be a function, not an array"),
    "unknown mode": ({"whole_modes": {"analytical": len}}, "unknown mode in whole_modes of 'mine' 'analytical'"),
    "modes that are not a mapping": ({"whole_modes": len}, "whole_modes of 'mine' must be a mapping"),
    "no terms": ({"terms": 0}, "terms of 'mine' must be a positive integer, not 0 "),
    "half a term": ({"terms": 0.5}, "terms of 'mine' must be a positive integer, not 0.5 "),
    "wrt without elements": ({"shared": {"p": EMPTY["none"]}, "wrt": "p"}, "'mine' has nothing to differentiate: 0 inputs"),
    "wrt as a tuple": ({"wrt": ("x",)}, "wrt of 'mine' must be names joined by"),
    "wrt of an integer": (
        {"points": {"k": poisson(1.5), "x": X}, "wrt": "k"}, r"unknown floating-point .*\(wrt, joined by \+\) 'k': choose from x$"
    ),
    "direction as a tuple": ({"direction": ("x",)}, "direction of 'mine' must be names joined by"),
    "wrt twice": ({"shared": {"p": {"a": X}}, "wrt": "p.a+p"}, "names an input twice"),
    "wrt of no leaf": ({"shared": {"p": {"a": X}}, "wrt": "p.b"}, "'p.b': choose from x, p, p.a"),
    "an integer output": ({"function": lambda x: {"y": x, "n": jnp.arange(2)}}, "returns numbers of dtype int.*output 'n'"),
    "a string as output": ({"function": lambda x: (x, "y")}, "'mine' returns 'y' .* as output '1'"),
    "a complex output": ({"function": lambda x: (x, x * 1j)}, "returns numbers of dtype complex128 as output '1'"),
    "an input as a static argument": ({"function": jax.jit(lambda x: x, static_argnames="x")}, "static arguments.*was:$"),
    "no output": ({"function": lambda x: None}, "the function of 'mine' returns None .*: every output must be an array"),
    "an overflow": ({"function": lambda x: x * math.exp(1000)}, r"OverflowError: math range error \(test_own_functions.py"),
    "an integer": ({"function": lambda x: jnp.argmax(x)}, "must return an array of real numbers.*dtype int.*: convert it"),
}  # fmt: skip


@pytest.mark.parametrize("name", REJECTED)
def test_an_invalid_input_or_output_is_rejected_in_one_line_that_names_it(define, name):
    fields, message = REJECTED[name]
    define("mine", workload_with(**fields))
    with pytest.raises(Refusal, match=message) as error:
        complete_case(workload="mine", api="jit")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("fields", [{"target": "hvp", "mode": "fwd_over_rev"}, {"reduce": "vector"}], ids=str)
@pytest.mark.parametrize("direction", ["y", "v"])
def test_a_direction_that_does_not_match_wrt_is_rejected_where_it_is_used(define, direction, fields):
    function = lambda x, v: jnp.sum(x**2)  # noqa: E731
    define("mine", Workload(function, {"x": normal(3), "v": normal(4)}, wrt="x", direction=direction))
    complete_case(workload="mine", api="jit")
    with pytest.raises(Refusal, match=f"direction='{direction}' of 'mine' must name .*shapes of wrt='x'"):
        complete_case(workload="mine", api="jit", **fields)


def test_a_whole_batch_that_cannot_be_differentiated_by_an_input_is_skipped_with_the_fix(define):
    define("mine", Workload(lambda x: jnp.sin(x), {"x": X}, whole=lambda x: jnp.sin(x)))
    case, _ = complete_case(workload="mine", mode="jacrev", batch="whole", api="jit")
    text = "mine with batch=whole cannot be differentiated by wrt=x; use batch=vmap"
    assert devices.reason_to_skip(case) == ("not_offered", text)


def test_mixed_mode_of_one_leaf_that_is_not_empty_is_skipped_with_the_number_of_leaves(define):
    define("empty", Workload(lambda params, x: params["w"] * x, {"x": X}, {"params": EMPTY}, "params"))
    case, _ = complete_case(workload="empty", mode="mixed", api="jit")
    reason, text = devices.reason_to_skip(case)
    assert reason == "not_defined"
    assert "needs several inputs that are not empty" in text and "wrt=params has 1;" in text


def test_a_pattern_may_be_two_lists(define):
    modes = {"analytic": lambda x: jnp.cos(x)}
    rows = cols = [0, 1, 2]
    define("mine", Workload(lambda x: jnp.sin(x), {"x": X}, pattern=lambda: (rows, cols), whole_modes=modes))
    record = measure(workload="mine", mode="analytic", seeds="colored", api="jit")
    assert record.status == "ok", record.text


def test_a_whole_batch_or_derivative_of_the_wrong_structure_is_rejected(define):
    modes = {"analytic": lambda params, x: [jnp.ones((4, 5)), jnp.ones((4, 7))]}
    whole = lambda params, x: (jnp.sum(x), jnp.ones(4))  # noqa: E731
    fields = {"whole": whole, "whole_modes": modes}
    define("mine", Workload(tree_function, {"x": X}, {"params": PARAMS}, "params", **fields))
    with pytest.raises(
        Refusal, match=r"`whole` of 'mine' returns arrays of shapes \(\), \(4,\): the first axis of every"
    ):
        complete_case(workload="mine", mode="value", batch="whole")
    record = measure(workload="mine", mode="analytic", api="jit")
    assert record.status == "failed"
    assert "analytic of 'mine' returns (4, 5), (4, 7), which are not blocks" in record.text


def test_a_shape_may_be_passed_as_separate_sizes_or_as_one_tuple():
    for make in (normal, uniform):
        assert make((4, 3)).shape == make([4, 3]).shape == make(4, np.int64(3)).shape == (4, 3)
        assert make(()).shape == make().shape == () and make(0).shape == (0,)
        rows = inputs.draw_rows(make((4, 3)), 0, "x", 2, 7)
        np.testing.assert_array_equal(rows, inputs.draw_rows(make(4, 3), 0, "x", 2, 7))


@pytest.mark.parametrize("drawn", [(1, 3), (7, 1), (3,), ()], ids=str)
def test_an_input_that_draws_other_shapes_is_refused(drawn):
    spec = InputSpec((3,), lambda rng, rows: rng.normal(size=drawn))
    text = f"the InputSpec of 'x' draws an array of shape {drawn}, not (1365, 3)"
    with pytest.raises(Refusal, match=re.escape(text)):
        inputs.draw_rows(spec, 0, "x", 0, 7)


def draw_in(dtype, spec, points=200):
    mine = Workload(jnp.sin, {"x": spec}, wrt="x")
    return inputs.point_rows(Case("mine", points=points, dtype=dtype), mine, "x", 0, points)


@pytest.mark.parametrize("low, high", [(0.0, 1.0), (-1.0, 1.0), (1.001, 1.03), (-3.0, 0.0)])
def test_uniform_draws_in_bfloat16_lie_between_the_bounds(low, high):
    drawn = draw_in("bfloat16", uniform(1000, low=low, high=high)).astype(np.float64)
    assert low < drawn.min() and drawn.max() < high


def test_uniform_bounds_may_differ_between_the_elements_of_an_input():
    low = np.array([0.0, 10.0])
    drawn = draw_in("bfloat16", uniform(1000, 2, low=low, high=low + 1)).astype(np.float64)
    assert (drawn > low).all() and (drawn < low + 1).all()


def test_the_memory_of_a_node_is_shared_by_its_cpu_devices_alone(monkeypatch):
    case = case_rules.complete(Case("linear", points=64, devices=4, api="shard_map"))
    compiled = compile_case.without_program(describe_derivative(case, workload.build(case)))
    per_device = compiled.bytes_while_running + compiled.needs["output_bytes"]
    monkeypatch.setattr(compile_case, "available_bytes", lambda idle=False: 2 * per_device)

    def shortage(nodes):
        group = run_case.ProcessGroup(jax.devices()[:4], "cpu", nodes=nodes)
        return run_case.describe_memory_shortage(group, compiled)

    assert shortage(nodes=2) is None and shortage(nodes=1).startswith("needs ")


def test_a_shared_input_is_drawn_again_for_other_bounds_and_is_freed_with_the_cache():
    make = lambda rng, rows: np.full((len(rows), 2), 1.5)  # noqa: E731

    def draw(high):
        shared = {"k": InputSpec((2,), make, bounds=(0.0, high))}
        mine = Workload(lambda x, k: x * k, {"x": uniform(2)}, shared, wrt="x")
        return inputs.shared_input(Case("mine", dtype="bfloat16"), mine, "k")

    first = draw(2.0)
    assert (first == 1.5).all() and (draw(1.0) < 1).all()
    first = draw(2.0)
    assert np.shares_memory(draw(2.0), first)
    workload.clear_cache()
    assert not np.shares_memory(draw(2.0), first)


def test_the_shared_inputs_of_earlier_cases_are_not_kept_in_memory():
    for seed in range(5):
        shared = {"k": uniform(2), "w": uniform(3)}
        mine = Workload(lambda x, k, w: x * k, {"x": uniform(2)}, shared, wrt="x")
        inputs.exact_inputs(Case("mine", data_seed=seed), mine, 0, 1)
    assert len(workload._cached_values["shared input"]) == len(shared)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_draws_of_wider_dtypes_are_not_changed(dtype):
    spec = uniform(50, low=1.0, high=1.0 + 2.0**-23)
    np.testing.assert_array_equal(draw_in(dtype, spec), inputs.draw_rows(spec, 0, "x", 0, 200).astype(dtype))


BAD_DRAWS = {  # value, whether the input is an integer, dtype, message
    "imaginary": (1 + 2j, False, "float32", "draws complex128 numbers: draw real numbers"),
    "fraction": (
        2.5,
        True,
        "float32",
        "draws 2.5, which int32 cannot represent: draw integers under 2**31, or",
    ),
    "long": (2**40, True, "float64", "draws 1099511627776.0, which int32 cannot represent"),
    "not a number": (np.nan, True, "float32", "draws nan, which int32 cannot represent"),
    "large": (1e39, False, "float32", "draws 1e+39, which float32 cannot represent: draw smaller numbers"),
    "large in bfloat16": (3.4e38, False, "bfloat16", "draws 3.4e+38, which bfloat16 cannot represent"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", BAD_DRAWS)
def test_a_drawn_value_that_the_dtype_of_the_input_cannot_represent_is_refused(name):
    value, integer, dtype, message = BAD_DRAWS[name]
    spec = InputSpec((3,), lambda rng, rows: np.where(rows[:, None] == 5, value, np.ones(3)), integer)
    with pytest.raises(Refusal) as refusal:
        draw_in(dtype, spec)
    assert f"the InputSpec of 'x' {message}" in str(refusal.value)


@pytest.mark.parametrize("group", ["points", "shared"])
def test_a_value_of_the_first_row_that_cannot_be_represented_is_refused_before_the_study(group):
    halves = InputSpec((), lambda rng, rows: rows + 0.5, integer=True)
    built = Workload(jnp.sin, **{"points": {"x": uniform()}, group: {"k": halves}})
    with pytest.raises(Refusal, match=r"the InputSpec of 'k' draws 0\.5, which int32 cannot represent"):
        user_workload.check_inputs(Case("mine"), built)


def test_drawn_infinities_and_whole_numbers_in_floating_point_are_valid():
    infinite = InputSpec((2,), lambda rng, rows: np.full((len(rows), 2), -np.inf))
    assert np.isneginf(draw_in("float32", infinite)).all()
    whole = InputSpec((2,), lambda rng, rows: np.full((len(rows), 2), -7.0), integer=True)
    assert (draw_in("float32", whole) == -7).all() and draw_in("float32", whole).dtype == np.int32


SIZES = [(-1,), (2.5,), (True,), ("3",), (None,), ((2, -3),), ((2,), 3), (np.zeros(2),), (3, 4.0)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("sizes", SIZES, ids=repr)
@pytest.mark.parametrize("name", ["normal", "uniform", "InputSpec"])
def test_an_invalid_size_is_rejected_when_an_input_is_defined(name, sizes):
    spec = lambda *sizes: InputSpec(sizes, lambda rng, rows: rows)  # noqa: E731
    message = rf"the sizes of {name}\(...\) must be integers, zero or more, not "
    with pytest.raises(Refusal, match=message) as error:
        {"normal": normal, "uniform": uniform, "InputSpec": spec}[name](*sizes)
    assert "\n" not in str(error.value)


BAD_NUMBERS = {
    "low above high": (
        lambda: uniform(3, low=2.0),
        "low of uniform.* must be less than high, not low=2.0 and high=1.0",
    ),
    "a string": (lambda: uniform(3, high="two"), "high of uniform.* must be a finite number, not 'two'"),
    "infinite": (lambda: normal(3, mean=math.inf), "mean of normal.* must be a finite number, not inf"),
    "not a number": (lambda: normal(3, deviation=None), "deviation of normal.* must be a finite number"),
    "negative": (lambda: normal(3, deviation=-1.0), "deviation of normal.* must be zero or more, not -1.0"),
    "a negative rate": (lambda: poisson(-2.0), "rate of poisson.* must be one number, zero or more"),
    "a shape as a rate": (lambda: poisson((3, 4)), "rate of poisson.* must be one number"),
    "not a function": (lambda: InputSpec((3,), 4.0), r"second argument of InputSpec must be a function"),
}


@pytest.mark.parametrize("name", BAD_NUMBERS)
def test_an_invalid_parameter_is_rejected_when_an_input_is_defined(name):
    make, message = BAD_NUMBERS[name]
    with pytest.raises(Refusal, match=message):
        make()


@pytest.mark.parametrize(
    "path", ["arm7.py", "robots/arm7", "../arm7.py", "arm7:force", "arm-7", "robots\\arm7"]
)
def test_a_workload_is_named_by_its_import_path(path):
    with pytest.raises(
        Refusal, match=f"workload {re.escape(repr(path))} is not the import path of a module: wr"
    ):
        user_workload.find_module(path)


ARM = """\
import jax.numpy as jnp
from scaling.workload import Workload, normal, uniform

SIZES = {"k": 3}

def model(params, x):
    return jnp.sin(params["w"] @ x + params["b"]), jnp.sum(x)

def workload(case):
    k = case.sizes["k"]
    return Workload(model, points={"x": normal(k)}, shared={"params": {"w": normal((k + 1, k)), "b": SHIFT}}, wrt="params")
"""
RUN_ARGUMENTS = (
    "study=function",
    "workload=arm7",
    "api=jit",
    "devices=1",
    "points=4",
    "sampling.least=3",
    "sampling.most=3",
)


@pytest.mark.thorough
@pytest.mark.process
def test_the_command_accepts_pytrees_and_rejects_bad_inputs_in_one_line(scaling_command, tmp_path):
    (tmp_path / "arm7.py").write_text(ARM.replace("SHIFT", "normal(k + 1)"))
    process = scaling_command(["run", *RUN_ARGUMENTS, "mode=[jacfwd,jacrev]", "wrt=[null,params.w+x]"])
    assert process.returncode == 0, process.stderr
    records = load(tmp_path / "results" / "function").records
    assert {(record.case.mode, record.case.wrt) for record in records} == set(
        itertools.product(("jacfwd", "jacrev"), ("params", "params.w+x"))
    )
    assert {record.status for record in records} == {"ok"}
    for shift, module, message in (
        ("3.0", "arm7", "input 'params.b' of 'arm7' is 3.0 (float)"),
        ("normal(k - 9)", "arm7", "the sizes of normal(...) must be integers, zero or more, not -6"),
        ("normal(k + 1)", "./arm7.py", "workload './arm7.py' is not the import path of a module"),
    ):
        (tmp_path / "arm7.py").write_text(ARM.replace("SHIFT", shift))
        arguments = [word.replace("=arm7", f"={module}") for word in RUN_ARGUMENTS]
        process = scaling_command(["run", *arguments, "results=elsewhere"])
        assert process.returncode == 2 and len(process.stderr.splitlines()) == 1, process.stderr
        assert message in process.stderr and not (tmp_path / "elsewhere").exists()


N = 25_600_000_000
HUGE = {
    "seeds": {"mode": "jacfwd", "sizes": {"n": N}},
    "seeds in chunks": {"mode": "jacfwd", "sizes": {"n": N}, "chunk": 8},
    "seeds in automatic chunks": {"mode": "jacfwd", "sizes": {"n": N}, "chunk": "auto"},
    "seeds in host storage": {"mode": "jacfwd", "sizes": {"n": N}, "chunk": 8, "storage": "host"},
    "uncompiled seeds": {"mode": "jacfwd", "sizes": {"n": N}, "jit": False},
    "seeds of pmap": {"mode": "jacfwd", "sizes": {"n": N}, "api": "pmap", "devices": 2, "split": "seeds"},
    "a Hessian": {"mode": "fwd_over_rev", "sizes": {"n": N}},
    "a smaller Hessian": {"mode": "rev_over_rev", "sizes": {"n": 160_000}},
    "an uncompiled Hessian": {"mode": "fwd_over_rev", "sizes": {"n": 160_000}, "jit": False},
    "a pattern": {"mode": "jacfwd", "sizes": {"n": N}, "seeds": "colored"},
    "the largest size of a study": {"mode": "jacrev", "sizes": {"n": 10**15}},
    "points": {"mode": "jacrev", "sizes": {"n": 3}, "points": N},
    "host offload steps": {"mode": "jacrev", "sizes": {"n": 3}, "points": N, "storage": "host", "block": 1},
    "a function that cannot allocate": {"workload": "allocates", "mode": "jacfwd", "sizes": {"n": 10**8}},
    "an index beyond int32": {"workload": "indexes", "mode": "jacfwd", "sizes": {"n": N}},
}  # fmt: skip


@pytest.fixture
def huge(define):
    vector = lambda f: lambda case: Workload(lambda x: f(x, case.sizes["n"]), {"x": normal(case.sizes["n"])})  # noqa: E731
    pair = lambda f: lambda case: Workload(lambda x: f(x, case.sizes["n"]), {"x": normal(2)})  # noqa: E731
    define("huge", vector(lambda x, n: jnp.sum(jnp.sin(x) ** 2)), SIZES={"n": 3})
    define("indexes", vector(lambda x, n: x[jnp.arange(3)]), SIZES={"n": 3})
    define("allocates", pair(lambda x, n: x * np.ones((n, n), np.int8).sum()), SIZES={"n": 3})


@pytest.mark.parametrize("name", HUGE)
def test_a_case_beyond_memory_is_skipped_before_allocation(huge, name, monkeypatch):
    monkeypatch.setattr(run_case.layout, "place_inputs", lambda *_: pytest.fail("inputs were placed"))
    monkeypatch.setattr(run_case, "_dispatch_latency", lambda *_: 1e-6)
    fields = {"workload": "huge", "dtype": "float32"} | HUGE[name]
    fields = {"api": "jit"} | fields
    try:
        record = measure(**fields)
    except TooLarge as error:  # preflight skips such a case
        text = {
            "a function that cannot allocate": "Unable to allocate",
            "an index beyond int32": f"{N} out of bounds",
        }
        assert text[name] in str(error)
        return
    assert (record.status, record.reason) == ("skipped", "too_large"), record.text
    assert re.search(r"needs at least \S+ [GT]B, has", record.text) and record.argument_bytes, record.text


def test_host_offload_steps_cover_every_point_and_seed():
    for points, block, seeds, chunk in itertools.product((1, 5, 6), (1, 2, 5), (1, 4, 7), (1, 3, 4)):
        block, chunk = min(block, points), min(chunk, seeds)
        steps = list(host_offload.iterate_steps(points, block, seeds, chunk))
        covered = {(p + i, s + j) for p, s in steps for i in range(block) for j in range(chunk)}
        assert covered == set(itertools.product(range(points), range(seeds)))
        assert steps == sorted(set(steps)) and len(steps) == -(-points // block) * -(-seeds // chunk)


HUGE_MODULE = """\
import jax.numpy as jnp
import numpy as np
from scaling.workload import Workload, normal

SIZES = {"n": 3}

def workload(case):
    n = case.sizes["n"]
    if case.variant == "allocating":
        return Workload(lambda x: x * np.ones((n, n), np.int8).sum(), points={"x": normal(2)})
    return Workload(lambda x: jnp.sum(jnp.sin(x) ** 2), points={"x": normal(n)})

VARIANTS = ("plain", "allocating")
"""
HUGE_STUDY = """\
{devices: 1, api: jit, points: 2, grids: [
  {workload: vector, mode: [jacfwd, jacrev, fwd_over_rev], sizes: {n: [3, 25600000000]}},
  {workload: vector, variant: allocating, mode: jacfwd, sizes: {n: [3, 100000000]}},
]}
"""


@pytest.mark.process
def test_a_study_with_cases_that_are_too_large_runs_the_others(scaling_command, write_study, tmp_path):
    (tmp_path / "vector.py").write_text(HUGE_MODULE)
    process = scaling_command(write_study(HUGE_STUDY))
    assert process.returncode == 0, process.stderr + process.stdout
    records = load(tmp_path / "results" / "mine").records
    by_case = {(record.case.mode, record.case.variant, record.case.sizes["n"]): record for record in records}
    assert len(by_case) == 8
    for (_, _, n), record in by_case.items():
        expected = ("ok", None) if n == 3 else ("skipped", "too_large")
        assert (record.status, record.reason) == expected, record.text


@pytest.mark.process
def test_a_plan_with_cases_that_are_too_large_plans_the_others(scaling_command, tmp_path):
    arguments = write(tmp_path, HUGE_STUDY)
    (tmp_path / "vector.py").write_text(HUGE_MODULE)
    process = scaling_command(arguments)
    assert process.returncode == 0, process.stderr + process.stdout
    for record in plans(tmp_path):
        is_small = record.case.sizes["n"] == 3
        expected = ("planned", None) if is_small else ("skipped", "too_large")
        assert (record.status, record.reason) == expected, record.text
        assert is_small or re.search("needs .* a device has|Unable to allocate", record.text), record.text
    assert len(plans(tmp_path)) == 8


def test_a_derivative_that_jax_does_not_implement_is_skipped(define):
    define("mine", Workload(lambda x: jax.scipy.linalg.schur(x)[0], {"x": normal(3, 3)}, wrt="x"))
    record = measure(workload="mine", api="jit")
    assert (record.status, record.reason) == ("skipped", "not_offered"), record.text
    assert "NotImplementedError" in record.text and "'schur'" in record.text


def test_an_overflow_in_a_rule_of_the_user_is_not_called_a_lack_of_memory(define):
    sine = jax.custom_jvp(jnp.sin)
    sine.defjvp(lambda x, v: (jnp.sin(x[0]), v[0] * math.exp(1000)))
    define("mine", Workload(lambda x: sine(x), {"x": uniform(3)}, wrt="x"))
    record = measure(workload="mine", mode="jacfwd", api="jit")
    assert (record.status, record.reason) == ("failed", "error"), record.text
    assert record.text.startswith("OverflowError: math range error")


@pytest.mark.parametrize(("field", "coarse"), [("mode", "jacfwd"), ("precision", "default")])
def test_the_check_of_a_case_never_uses_the_reference_of_another_function(define, field, coarse):
    """The first case computes in bfloat16, so that its tolerance is above the error of the second case."""
    sine = jax.custom_vjp(jnp.sin)
    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, cotangent: (1.004 * jnp.cos(x) * cotangent,))
    rounded = lambda x: jnp.sin(x.astype(jnp.bfloat16)).astype(x.dtype)  # noqa: E731
    function = lambda case: rounded if getattr(case, field) == coarse else lambda x: sine(x)  # noqa: E731
    define("mine", lambda case: Workload(function(case), {"x": uniform(3)}, wrt="x"))
    fields = {"workload": "mine", "api": "jit", "mode": "jacrev"}
    assert measure(**fields | {field: coarse}).status == "ok"
    assert measure(**fields).reason == "wrong_answer"


def test_a_mode_for_which_a_function_has_no_rule_is_skipped(define):
    in_reverse = jax.custom_vjp(lambda x: jnp.sin(x))
    in_reverse.defvjp(lambda x: (jnp.sin(x), x), lambda x, cotangent: (jnp.cos(x) * cotangent,))
    loop = lambda x: jax.lax.while_loop(lambda y: jnp.sum(y) < 9, lambda y: 2 * y, x)  # noqa: E731
    moving_sum = lambda x: jax.lax.reduce_window(x, jnp.zeros(()), jax.lax.add, (2,), (1,), "VALID")  # noqa: E731
    forward = ("jacfwd", "jacrev")
    for function, modes in ((in_reverse, ("jacrev", "jacfwd")), (loop, forward), (moving_sum, forward)):
        define("mine", Workload(function, {"x": uniform(3, low=0.5)}, wrt="x"))
        with_rule, without_rule = (measure(workload="mine", mode=mode, api="jit") for mode in modes)
        assert with_rule.status == "ok", with_rule.text
        assert (without_rule.status, without_rule.reason) == ("skipped", "not_offered"), without_rule.text


def test_a_function_with_an_operation_unknown_to_taylor_mode_is_skipped(define):
    define("mine", Workload(lambda x: jnp.sum(jnp.sort(x) ** 2), {"x": uniform(3)}, wrt="x"))
    record = measure(workload="mine", mode="jet", target="laplacian", api="jit")
    assert (record.status, record.reason) == ("skipped", "not_offered"), record.text
    assert record.text.startswith("mode=jet: jax.experimental.jet cannot differentiate the operation sort")


def test_a_callback_without_a_derivative_rule_is_skipped(define):
    def sine(x):
        return jax.pure_callback(np.sin, jax.typeof(x), x, vmap_method="sequential")

    define("mine", Workload(sine, {"x": uniform(3)}, wrt="x"))
    for mode in ("jacfwd", "jacrev"):
        record = measure(workload="mine", mode=mode, api="jit")
        assert (record.status, record.reason) == ("skipped", "not_offered"), record.text


def test_a_rule_for_forward_mode_by_a_callback_is_skipped_in_reverse_mode(define):
    double = lambda v: jax.pure_callback(lambda a: 2 * a, jax.typeof(v), v, vmap_method="sequential")  # noqa: E731
    function = jax.custom_jvp(lambda x: 2 * x)
    function.defjvp(lambda x, v: (2 * x[0], double(v[0])))
    define("mine", Workload(lambda x: function(x), {"x": uniform(3)}, wrt="x"))
    record = measure(workload="mine", mode="jacrev", api="jit")
    assert (record.status, record.reason) == ("skipped", "not_offered"), record.text


def test_colored_seeds_that_take_minutes_to_color_are_skipped(define, monkeypatch):
    monkeypatch.setattr(pytest.importorskip("scaling.options.coloring"), "_MAX_CONFLICTS", 5)
    define("mine", Workload(lambda x: jnp.append(x**2, x[:3].sum()), {"x": uniform(6)}, wrt="x"))
    record = measure(workload="mine", seeds="colored", api="jit")
    assert (record.status, record.reason) == ("skipped", "not_offered"), record.text
    assert record.text.startswith("seeds=colored takes minutes to find 3 or more colors")


@pytest.mark.parametrize("function, message", [
    (lambda x: jnp.fft.rfft(x).real, "No handler for primitive 'fft'"), (lambda x: jnp.zeros(4), "does not depend"),
])  # fmt: skip
def test_colored_seeds_without_a_sparsity_pattern_are_skipped(define, function, message):
    pytest.importorskip("asdex")
    define("mine", Workload(function, {"x": uniform(6)}, wrt="x"))
    record = measure(workload="mine", seeds="colored", api="jit")
    assert (record.status, record.reason) == ("skipped", "not_offered") and message in record.text, (
        record.text
    )
