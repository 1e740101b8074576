"""A function of one's own: pytrees of inputs and of outputs, one clear line for what is no input, and sizes beyond counting."""

import collections
import dataclasses
import itertools
import math
import os
import re
import sys
import types

import pytest

from scaling.core import environment

os.environ["XLA_FLAGS"] = environment.variables("cpu")["XLA_FLAGS"]
import jax
import jax.numpy as jnp
import numpy as np

from scaling.core import compile_case, inputs, run_case, shape, workload
from scaling.core.case import REDUCTIONS, Case, Refusal
from scaling.core.record import Record
from scaling.core.store import load
from scaling.core.timing import Sampling
from scaling.core.workload import InputSpec, Reference, Workload, normal, poisson, uniform
from scaling.options import host_offload
from scaling.study import applicability, completion, user_workload
from tests.support.small_plan import plans, write

pytestmark = pytest.mark.thin(50, "contract")

jax.config.update("jax_num_cpu_devices", 8)  # as test_contract.py wants it too
jax.config.update("jax_enable_x64", True)

ONCE = Sampling(least=1, most=1, warm_up=0.0)
HERE = {"digest": "test", "platform": "cpu"}


def fixed(number, *sizes):
    """The same numbers whatever the name of the input."""
    size = math.prod(sizes)

    def make(_, rows):
        return np.sin(number + 0.7 * rows[:, None] + 1.3 * np.arange(size)).reshape(len(rows), *sizes)

    return InputSpec(sizes, make)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
    kernel: object
    bias: object


Affine = collections.namedtuple("Affine", "scale shift")
W, B, S, T, X = fixed(1, 4, 3), fixed(2, 4), fixed(3, 2, 4), fixed(4), fixed(5, 3)
PARAMS = {"second": Affine(S, T), "first": [Layer(W, B), None]}  # first comes first in the order of the tree
LEAVES = ("params.first.0.kernel", "params.first.0.bias", "params.second.scale", "params.second.shift")
PLAIN = dict(zip(("w", "b", "s", "t"), (W, B, S, T), strict=True))


def plain(w, b, s, t, x):
    y = jnp.tanh(w @ x + b)
    return jnp.concatenate([s @ y, t * jnp.sum(y, keepdims=True)])


def of_tree(params, x):
    first, second = params["first"][0], params["second"]
    y = plain(first.kernel, first.bias, second.scale, second.shift, x)
    return {"b": y[2], "a": (y[:2],)}  # a comes first


def scalar(function):
    return lambda **named: jnp.sum(
        jnp.concatenate([a.reshape(-1) for a in jax.tree.leaves(function(**named))]) ** 2
    )


def by_hand(function, inputs, argument):
    """A derivative of the batch as jax.jacrev returns it: a pytree where the function and its argument are."""

    def derivative(**named):
        axes = tuple(0 if name in inputs else None for name in named)

        def one(*args):
            return jax.jacrev(lambda z: function(**dict(zip(named, args, strict=True)) | {argument: z}))(
                dict(zip(named, args, strict=True))[argument]
            )

        return jax.vmap(one, axes)(*named.values())

    return derivative


def batched(function, shared):
    return lambda **named: jax.vmap(
        lambda x: function(x=x, **{name: named[name] for name in shared})
    )(named["x"])  # fmt: skip


@pytest.fixture
def define(monkeypatch):
    """A workload that is a module in memory."""

    def made(name, build, **constants):
        module = types.ModuleType(name)
        module.workload = build if callable(build) else lambda case: build
        for key, value in constants.items():
            setattr(module, key, value)
        monkeypatch.setitem(sys.modules, name, module)
        return name

    return made


@pytest.fixture
def twins(define):
    """The same function of a pytree and of its leaves: the names of both workloads, and of one number of each."""
    tree = {"points": {"x": X}, "shared": {"params": PARAMS}}
    flat = {"points": {"x": X}, "shared": PLAIN}
    analytic = by_hand(of_tree, {"x"}, "params")
    whole = {"whole": batched(of_tree, ["params"]), "whole_modes": {"analytic": analytic}}
    define("of_tree", Workload(of_tree, **tree, **whole))
    define("plain", Workload(plain, **flat, whole=batched(plain, [*PLAIN])))
    define("number_of_tree", Workload(scalar(of_tree), **tree))
    define("number", Workload(scalar(plain), **flat))


def completed(**fields):
    case = completion.complete(Case(**{"dtype": "float64", "points": 4} | fields))
    built = workload.build(case)
    return completion.without_trivial_blocks(case, shape.derivative_shape(case, built)), built


def why_not(**fields):
    case, built = completed(**fields)
    return applicability.why_inapplicable(case, built, shape.derivative_shape(case, built))


def result(**fields):
    """A derivative, (points, outputs, inputs), as the program of a case gives it."""
    case, built = completed(**fields)
    one = compile_case.compile_case(
        case, built, jax.devices()[: case.devices], compile_case.CompileSettings()
    )
    ask, collect = compile_case.make_runner(one)
    return np.array(collect(ask()))


def record(**fields):
    case, _ = completed(**fields)
    return run_case.run_case(Record(case, "failed", HERE), jax.devices()[: case.devices], "cpu", ONCE)


def same(fields, wrt="params", twin="w+b+s+t"):
    tree = result(workload="of_tree", **fields, wrt=wrt)
    leaves = result(workload="plain", **fields, wrt=twin)
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
    "on the host": {"api": "jit", "storage": "host", "chunk": 4, "block": 3},
    "a batch at once": {"api": "jit", "batch": "whole"},
    "colored": {"api": "jit", "seeds": "colored"},
}
FIRST = ("jacfwd", "jacrev", "linearize", "finite_difference", "mixed", "grad_of_sum")
NAMES = {  # wrt of the pytree, and of its leaves
    "all": ("params", "w+b+s+t"),
    "a node": ("params.second", "s+t"),
    "a leaf and the point": ("params.first.0.bias+x", "b+x"),
}


def fits(fields, wrt):
    return why_not(workload="plain", **fields, wrt=wrt) is None


@pytest.mark.parametrize("mode", FIRST)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pytree_of_parameters_gives_what_its_leaves_give_by_name(twins, layout, mode):
    fields = LAYOUTS[layout] | {"mode": mode}
    for wrt, twin in NAMES.values():
        if not fits(fields, twin):
            assert why_not(workload="of_tree", **fields, wrt=wrt)
    possible = [(wrt, twin) for wrt, twin in NAMES.values() if fits(fields, twin)]
    assert possible or mode in ("grad_of_sum", "mixed", "finite_difference"), "nothing was compared"
    if possible:  # one of them: over all layouts and modes, each of the three in turn
        same(fields, *possible[([*LAYOUTS].index(layout) + FIRST.index(mode)) % len(possible)])


@pytest.mark.parametrize("mode", ["jacfwd", "jacrev", "mixed", "analytic"])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_every_reduction_of_a_pytree_is_that_of_its_leaves(twins, reduce, mode):
    fields = {"reduce": reduce, "api": "jit", "mode": mode}
    if mode == "analytic":
        if reduce == "points":
            return
        tree = result(workload="of_tree", **fields, wrt="params")
        np.testing.assert_allclose(
            tree, result(workload="plain", **fields | {"mode": "jacrev"}, wrt="w+b+s+t"), rtol=1e-12
        )
    elif fits(fields, "w+b+s+t"):
        same(fields)
    else:
        assert (mode, reduce) == ("mixed", "gram")


@pytest.mark.parametrize("mode", ["fwd_over_rev", "rev_over_fwd", "rev_over_rev", "fwd_over_fwd"])
@pytest.mark.parametrize("target", ["hessian", "hvp"])
def test_a_hessian_by_a_pytree_is_that_by_its_leaves(twins, mode, target):
    for layout in ("jit", "seeds", "both"):
        fields = LAYOUTS[layout] | {"mode": mode, "target": target}
        tree = result(workload="number_of_tree", **fields, wrt="params")
        leaves = result(workload="number", **fields, wrt="w+b+s+t")
        assert tree.shape[1:] == ((25, 25) if target == "hessian" else (25, 1))
        np.testing.assert_allclose(tree, leaves, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mode", [*FIRST, "analytic", "value"])
def test_the_derivative_by_a_pytree_is_checked_and_right(twins, mode):
    reduce = {"reduce": "outputs"} if mode == "grad_of_sum" else {}
    made = record(
        workload="of_tree", wrt=None if mode == "value" else "params", mode=mode, api="jit", **reduce
    )
    assert made.status == "ok", made.text
    assert made.error <= made.tolerance
    assert made.case.wrt == (None if mode == "value" else "params")


def test_mixed_mode_takes_all_leaves_of_a_named_pytree_forward(twins):
    case, built = completed(workload="of_tree", mode="mixed", wrt="x+params", forward="params", api="jit")
    parts = shape.derivative_shape(case, built).parts
    assert [(part.mode, part.names) for part in parts] == [("jacfwd", LEAVES), ("jacrev", ("x",))]
    fields = {"mode": "mixed", "api": "jit"}
    tree = result(workload="of_tree", wrt="x+params", forward="params", **fields)
    leaves = result(workload="plain", wrt="x+w+b+s+t", forward="w+b+s+t", **fields)
    np.testing.assert_allclose(tree, leaves, rtol=1e-13)


def test_without_wrt_a_sum_over_points_is_by_every_shared_input_and_the_rest_by_the_first(define):
    shared = {"params": PARAMS, "c": fixed(7), "counts": {"n": poisson(2.0)}}
    define("several", Workload(lambda x, params, c, counts: c * of_tree(params, x)["b"], {"x": X}, shared))
    case, built = completed(workload="several", mode="jacrev", split="data", devices=2)
    assert case.wrt == "params+c" and built.names == (*LEAVES, "c")
    assert completed(workload="several", mode="jacrev")[0].wrt == "x"


def test_leaves_that_are_integers_are_no_part_of_a_derivative_by_their_pytree(define):
    params = {"w": fixed(1, 3), "count": poisson(3.0)}
    define(
        "counted", Workload(lambda params: jnp.sum(params["w"] ** 2) * params["count"], {"params": params})
    )
    case, built = completed(workload="counted", mode="jacrev")
    assert case.wrt == "params" and built.names == ("params.w",)
    assert record(workload="counted", mode="jacrev", api="jit").status == "ok"
    with pytest.raises(Refusal, match=r"'params.count': choose from params, params.w"):
        completed(workload="counted", wrt="params.count")


def test_a_reference_takes_pytrees_and_is_what_a_result_is_compared_with(define):
    params = {"w": fixed(1, 2, 3), "b": [fixed(2, 2)]}

    def function(params, x):
        return {"y": params["w"] @ x + params["b"][0], "s": jnp.sum(x)}

    def reference(factor):
        def of(inputs):
            assert inputs["params"]["w"].shape == (2, 3) and inputs["x"].shape[1:] == (3,)
            x = inputs["x"]
            y = x @ inputs["params"]["w"].T + inputs["params"]["b"][0]
            J = np.zeros((len(x), 3, 8))  # s before y; b before w
            J[:, 1, 0] = J[:, 2, 1] = 1.0
            J[:, 1, 2:5] = J[:, 2, 5:8] = factor * x
            return Reference(np.concatenate([x.sum(axis=1, keepdims=True), y], axis=1), J)

        return of

    for factor, status in ((1.0, "ok"), (1.1, "failed")):
        define(
            status, Workload(function, {"x": X}, {"params": params}, "params", reference=reference(factor))
        )
        made = record(workload=status, mode="jacrev", api="jit")
        assert made.status == status and (made.reason or "wrong_answer") == "wrong_answer", made.text


def test_a_hessian_written_by_hand_may_be_the_pytree_that_jax_returns(define):
    f = scalar(of_tree)
    second = lambda _: pytest.fail("not compared here")  # noqa: E731
    hessian = lambda params, x: jax.vmap(lambda z: jax.hessian(lambda p: f(params=p, x=z))(params))(x)  # noqa: E731
    define(
        "second",
        Workload(f, {"x": X}, {"params": PARAMS}, "params", whole_modes={"analytic": hessian}, second=second),
    )
    tree = result(workload="second", mode="analytic", target="hessian", api="jit")
    assert tree.shape == (4, 25, 25)
    np.testing.assert_allclose(
        tree, result(workload="second", mode="fwd_over_rev", target="hessian", api="jit"), rtol=1e-10
    )


def test_a_gradient_of_a_sum_over_points_written_by_hand_may_be_a_pytree(define):
    total = lambda params, x: jnp.sum(jax.vmap(lambda z: scalar(of_tree)(params=params, x=z))(x))  # noqa: E731
    by_hand = {"vmap_grad": lambda params, x: jax.grad(total)(params, x)}
    define(
        "loss",
        Workload(scalar(of_tree), {"x": X}, {"params": PARAMS}, "params", "points", whole_modes=by_hand),
    )
    for layout in ("jit", "points", "data"):
        tree = result(workload="loss", mode="vmap_grad", **LAYOUTS[layout])
        assert tree.shape == (2 if layout == "data" else 1, 1, 25)
        np.testing.assert_allclose(
            tree, result(workload="loss", mode="jacrev", **LAYOUTS[layout]), rtol=1e-12
        )


OUTPUTS = {
    "a tuple": lambda x: (x[:2], x[2] * x),
    "a dict of matrices": lambda x: {"outer": jnp.outer(x, x), "sum": jnp.sum(x)},
    "a nest": lambda x: [(jnp.sin(x),), {"y": [x[0], x[1:]]}, None],
    "a tuple of one": lambda x: (x**2,),
    "a named tuple": lambda x: Affine(x, jnp.prod(x)),
    "a number that is always the same": lambda x: (x * x, 2.0),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_function_may_return_a_pytree_whose_leaves_follow_each_other(define, name):
    f = OUTPUTS[name]
    flat = lambda x: jnp.concatenate([jnp.ravel(a) for a in jax.tree.leaves(f(x))])  # noqa: E731
    define("tupled", Workload(lambda x: f(x), {"x": X}, whole=lambda x: jax.vmap(f)(x)))
    define("joined", Workload(flat, {"x": X}, whole=lambda x: jax.vmap(flat)(x)))
    for mode, layout in itertools.product(("value", "jacfwd", "jacrev"), ("jit", "points", "both")):
        if mode == "value" and layout == "both":  # it has no seeds to cut
            continue
        fields = LAYOUTS[layout] | {"mode": mode}
        np.testing.assert_array_equal(
            result(workload="tupled", **fields), result(workload="joined", **fields)
        )
    whole = {"mode": "value", "batch": "whole", "api": "jit"}
    np.testing.assert_array_equal(result(workload="tupled", **whole), result(workload="joined", **whole))
    assert record(workload="tupled", mode="jacrev", api="jit").status == "ok"


def test_inputs_may_have_the_names_that_colors_and_steps_have(define):
    function = lambda x, rows, columns, entries, start: x * rows * columns * entries + start  # noqa: E731
    shared = {name: fixed(k, 3) for k, name in enumerate(("rows", "columns", "entries", "start"))}
    define("names", Workload(function, {"x": X}, shared, "x"))
    expected = result(workload="names", mode="jacrev", api="jit")
    for mode in ("jacfwd", "jacrev"):
        colored = result(workload="names", mode=mode, seeds="colored", devices=2, split="both", mesh="1x2")
        np.testing.assert_array_equal(colored[:, 0], np.diagonal(expected, axis1=1, axis2=2))
        stepped = result(workload="names", mode=mode, storage="host", chunk=2, block=2, api="jit")
        np.testing.assert_array_equal(stepped, expected)


def a_workload(**fields):
    return lambda case: Workload(**{"function": lambda **named: 1.0, "points": {"x": X}} | fields)


LINES = {
    "an array": (
        {"points": {"x": np.zeros((2, 3))}},
        r"input 'x' of 'mine' is a NumPy array of shape \(2, 3\)",
    ),
    "an array of JAX": (
        {"shared": {"c": jnp.ones(2)}},
        r"input 'c' of 'mine' is an array of shape \(2,\).*: write a Draw",
    ),
    "a number": (
        {"shared": {"c": 3.5}},
        r"input 'c' of 'mine' is the number 3.5: write a Draw, such as normal\(3\)",
    ),
    "a truth value": ({"shared": {"c": True}}, "input 'c' of 'mine' is True"),
    "None": ({"points": {"x": None}}, "input 'x' of 'mine' is None"),
    "a text": ({"points": {"x": "normal"}}, "input 'x' of 'mine' is the text 'normal'"),
    "a function": (
        {"points": {"x": normal}},
        r"is the function normal: write a Draw.*; call it with the shape",
    ),
    "a shape": ({"points": {"x": (3, 4)}}, "input 'x.0' of 'mine' is the number 3"),
    "an empty dict": ({"shared": {"params": {}}}, "input 'params' of 'mine' is an empty dict"),
    "a leaf that is an array": (
        {"shared": {"p": {"a": [X, np.ones(2)]}}},
        "input 'p.a.1' of 'mine' is a NumPy array",
    ),
    "an unregistered dataclass": (
        {"shared": {"p": dataclasses.make_dataclass("Loose", ["w"])(X)}},
        "input 'p' of 'mine' is an instance of Loose.*register_dataclass",
    ),
    "no mapping": (
        {"points": X},
        "points of 'mine' must be a mapping from input names.*not an instance of InputSpec",
    ),
    "a list": ({"points": [X]}, "points of 'mine' must be a mapping"),
    "no shared inputs": ({"shared": None}, "shared of 'mine' must be a mapping.*not None"),
    "a name that is no keyword": ({"points": {"a b": X}}, "input 'a b' of 'mine' must have a name such as"),
    "a name that is a number": ({"points": {1: X}}, "input 1 of 'mine' must have a name"),
    "a joined name": ({"shared": {"p": {"a+b": X}}}, r"input 'p.a\+b' of 'mine' has '\+' in its name"),
    "a path twice": (
        {"shared": {"p": {"a": {"b": X}, "a.b": X}}},
        "two leaves of input 'p' of 'mine'.*'p.a.b'",
    ),
    "per point and shared": ({"points": {"p": {"a": X}}, "shared": {"p": X}}, "both per point and shared: p"),
    "no function": ({"function": 3}, "function of 'mine' must be a function, not the number 3"),
    "a reference that is none": (
        {"reference": np.zeros(2)},
        "reference of 'mine' must be a function, not a NumPy array",
    ),
    "no mode": ({"whole_modes": {"analytical": len}}, "unknown mode in whole_modes of 'mine' 'analytical'"),
    "modes that are none": ({"whole_modes": len}, "whole_modes of 'mine' must be a mapping"),
    "wrt as a tuple": ({"wrt": ("x",)}, "wrt of 'mine' must be names joined by"),
    "wrt twice": ({"shared": {"p": {"a": X}}, "wrt": "p.a+p"}, "names an input twice"),
    "wrt of no leaf": ({"shared": {"p": {"a": X}}, "wrt": "p.b"}, "'p.b': choose from x, p, p.a"),
    "an integer output": (
        {"function": lambda x: {"y": x, "n": jnp.arange(2)}},
        "returns numbers of dtype int.*output 'n'",
    ),
    "a text as output": ({"function": lambda x: (x, "y")}, "'mine' returns the text 'y' as output '1'"),
    "a complex output": (
        {"function": lambda x: (x, x * 1j)},
        "returns numbers of dtype complex128 as output '1'",
    ),
    "no output": (
        {"function": lambda x: None},
        "the function of 'mine' returns None: it must return an array",
    ),
    "an integer": (
        {"function": lambda x: jnp.argmax(x)},
        "must return an array of real numbers.*not numbers of dtype int",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_what_is_no_input_or_no_output_is_refused_in_one_line_that_names_it(define, name):
    fields, words = LINES[name]
    define("mine", a_workload(**fields))
    with pytest.raises(Refusal, match=words) as refusal:
        completed(workload="mine", api="jit")
    assert "\n" not in str(refusal.value)


def test_a_batch_or_a_derivative_of_the_wrong_form_is_refused_by_name(define):
    modes = {"analytic": lambda params, x: [jnp.ones((4, 5)), jnp.ones((4, 7))]}
    whole = lambda params, x: (jnp.sum(x), jnp.ones(4))  # noqa: E731
    define("mine", Workload(of_tree, {"x": X}, {"params": PARAMS}, "params", whole=whole, whole_modes=modes))
    with pytest.raises(
        Refusal, match=r"whole of 'mine' returns arrays of shapes \(\), \(4,\): all of them must lead"
    ):
        completed(workload="mine", mode="value", batch="whole")
    made = record(workload="mine", mode="analytic", api="jit")
    assert (
        made.status == "failed"
        and "analytic of 'mine' returns (4, 5), (4, 7), which are not blocks" in made.text
    )


def test_a_shape_is_given_as_sizes_or_as_one_tuple():
    for of in (normal, uniform):
        assert of((4, 3)).shape == of([4, 3]).shape == of(4, np.int64(3)).shape == (4, 3)
        assert of(()).shape == of().shape == () and of(0).shape == (0,)
        rows = inputs.draw_rows(of((4, 3)), 0, "x", 2, 7)
        np.testing.assert_array_equal(rows, inputs.draw_rows(of(4, 3), 0, "x", 2, 7))


SIZES = [(-1,), (2.5,), (True,), ("3",), (None,), ((2, -3),), ((2,), 3), (np.zeros(2),), (3, 4.0)]


@pytest.mark.parametrize("sizes", SIZES, ids=repr)
@pytest.mark.parametrize("name", ["normal", "uniform", "InputSpec"])
def test_a_size_that_is_none_is_refused_when_it_is_written(name, sizes):
    of = {
        "normal": normal,
        "uniform": uniform,
        "InputSpec": lambda *sizes: InputSpec(sizes, lambda rng, rows: rows),
    }[name]
    with pytest.raises(
        Refusal, match=rf"the sizes of {name}\(...\) must be integers, zero or more, not "
    ) as refusal:
        of(*sizes)
    assert "\n" not in str(refusal.value)


BAD_NUMBERS = {
    "low above high": (
        lambda: uniform(3, low=2.0),
        "low of uniform.* must be less than high, not low=2.0 and high=1.0",
    ),
    "a text": (lambda: uniform(3, high="two"), "high of uniform.* must be a finite number, not 'two'"),
    "infinite": (lambda: normal(3, mean=math.inf), "mean of normal.* must be a finite number, not inf"),
    "not a number": (lambda: normal(3, deviation=None), "deviation of normal.* must be a finite number"),
    "negative": (lambda: normal(3, deviation=-1.0), "deviation of normal.* must be zero or more, not -1.0"),
    "a negative rate": (lambda: poisson(-2.0), "rate of poisson.* must be one number, zero or more"),
    "a shape as a rate": (lambda: poisson((3, 4)), "rate of poisson.* must be one number"),
    "no function": (lambda: InputSpec((3,), 4.0), r"second argument of InputSpec must be a function"),
}


@pytest.mark.parametrize("name", BAD_NUMBERS)
def test_a_parameter_that_is_none_is_refused_when_it_is_written(name):
    make, words = BAD_NUMBERS[name]
    with pytest.raises(Refusal, match=words):
        make()


PATHS = {
    "./arm7.py": "write workload=arm7$",
    "arm7.py": "write workload=arm7$",
    "robots/arm7.py": r"write workload=robots\.arm7$",
    "./robots/arm7": r"write workload=robots\.arm7$",
    "../arm7.py": r"write workload=arm7, with PYTHONPATH=\.\. in front of the command$",
    "/home/me/arm7.py": "write workload=arm7, with PYTHONPATH=/home/me in front",
    "my-robots/arm7.py": "write workload=arm7, with PYTHONPATH=my-robots in front",
}


@pytest.mark.parametrize("path", PATHS)
def test_a_file_in_the_place_of_an_import_path_is_answered_with_the_import_path(path):
    with pytest.raises(Refusal, match=f"workload {re.escape(repr(path))} is a file.*{PATHS[path]}"):
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
ONE = (
    "study=function",
    "workload=arm7",
    "api=jit",
    "devices=1",
    "points=4",
    "sampling.least=3",
    "sampling.most=3",
)


@pytest.mark.process
def test_the_command_differentiates_by_a_pytree_and_refuses_what_is_none_in_one_line(
    scaling_command, tmp_path
):
    (tmp_path / "arm7.py").write_text(ARM.replace("SHIFT", "normal(k + 1)"))
    done = scaling_command(["run", *ONE, "mode=[jacfwd,jacrev]", "wrt=[null,params.w+x]"])
    assert done.returncode == 0, done.stderr
    records = load(tmp_path / "results" / "function").records
    assert {(made.case.mode, made.case.wrt) for made in records} == set(
        itertools.product(("jacfwd", "jacrev"), ("params", "params.w+x"))
    )
    assert {made.status for made in records} == {"ok"}
    for change, words, told in (
        ("3.0", [], "input 'params.b' of 'arm7' is the number 3.0"),
        ("normal(k - 9)", [], "the sizes of normal(...) must be integers, zero or more, not -6"),
        ("normal(k + 1)", ["workload=./arm7.py"], "workload './arm7.py' is a file"),
    ):
        (tmp_path / "arm7.py").write_text(ARM.replace("SHIFT", change))
        done = scaling_command(["run", *ONE, *words, "results=elsewhere"])
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
        assert told in done.stderr and not (tmp_path / "elsewhere").exists()


N = 25_600_000_000
HUGE = {
    "seeds": {"mode": "jacfwd", "sizes": {"n": N}},
    "seeds in chunks": {"mode": "jacfwd", "sizes": {"n": N}, "chunk": 8},
    "seeds in chunks that are found": {"mode": "jacfwd", "sizes": {"n": N}, "chunk": "auto"},
    "seeds of the host": {"mode": "jacfwd", "sizes": {"n": N}, "chunk": 8, "storage": "host"},
    "uncompiled seeds": {"mode": "jacfwd", "sizes": {"n": N}, "jit": False},
    "seeds of pmap": {"mode": "jacfwd", "sizes": {"n": N}, "api": "pmap", "devices": 2, "split": "seeds"},
    "a Hessian": {"mode": "fwd_over_rev", "sizes": {"n": N}},
    "a Hessian of fewer": {"mode": "rev_over_rev", "sizes": {"n": 160_000}},
    "an uncompiled Hessian": {"mode": "fwd_over_rev", "sizes": {"n": 160_000}, "jit": False},
    "a pattern": {"mode": "jacfwd", "sizes": {"n": N}, "seeds": "colored"},
    "as many as a study may ask for": {"mode": "jacrev", "sizes": {"n": 10**15}},
    "points": {"mode": "jacrev", "sizes": {"n": 3}, "points": N},
    "steps": {"mode": "jacrev", "sizes": {"n": 3}, "points": N, "storage": "host", "block": 1},
    "numbers on the way": {"workload": "square", "mode": "jacfwd", "sizes": {"n": 3_000_000}},
    "numbers on the way of pmap": {"workload": "square", "mode": "jacfwd", "sizes": {"n": 3_000_000}, "api": "pmap"},
    "numbers on the way, uncompiled": {"workload": "square", "mode": "jacfwd", "sizes": {"n": 3_000_000}, "jit": False},
    "seeds of which nothing is kept": {
        "mode": "jacrev", "workload": "many", "sizes": {"n": 3_000_000_000}, "reduce": "norm", "chunk": 1,
    },
    "seeds that a function refuses": {"workload": "allocates", "mode": "jacfwd", "sizes": {"n": 10**8}},
}  # fmt: skip


@pytest.fixture
def huge(define):
    of_size = lambda f: lambda case: Workload(lambda x: f(x, case.sizes["n"]), {"x": normal(case.sizes["n"])})  # noqa: E731
    small = lambda f: lambda case: Workload(lambda x: f(x, case.sizes["n"]), {"x": normal(2)})  # noqa: E731
    define("huge", of_size(lambda x, n: jnp.sum(jnp.sin(x) ** 2)), SIZES={"n": 3})
    define("square", of_size(lambda x, n: jnp.sum(x[:, None] * x)), SIZES={"n": 3})
    define("many", small(lambda x, n: jnp.broadcast_to(x[:1], (n,))), SIZES={"n": 3})
    define("allocates", small(lambda x, n: x * np.ones((n, n), np.int8).sum()), SIZES={"n": 3})


@pytest.mark.parametrize("name", HUGE)
def test_what_is_beyond_memory_or_counting_is_too_large_with_figures_before_anything_is_allocated(
    huge, name, monkeypatch
):
    monkeypatch.setattr(run_case.layout, "place_inputs", lambda *_: pytest.fail("something was placed"))
    monkeypatch.setattr(run_case, "_dispatch_latency", lambda *_: 1e-6)
    fields = {"workload": "huge", "dtype": "float32"} | HUGE[name]
    fields = {"api": "jit"} | fields
    try:
        made = record(**fields)
    except shape.TooLarge as error:  # as preflight makes a skipped case of
        assert name == "seeds that a function refuses" and "Unable to allocate" in str(error)
        return
    assert (made.status, made.reason) == ("skipped", "too_large"), made.text
    assert re.search(r"needs \S+ [GT]B, has|seeds: JAX counts|more than 2\*\*63 bytes", made.text), made.text
    assert "OverflowError" not in made.text


def test_steps_of_equal_length_take_every_point_with_every_seed():
    for points, block, seeds, chunk in itertools.product((1, 5, 6), (1, 2, 5), (1, 4, 7), (1, 3, 4)):
        block, chunk = min(block, points), min(chunk, seeds)
        steps = list(host_offload.iterate_steps(points, block, seeds, chunk))
        taken = {(p + i, s + j) for p, s in steps for i in range(block) for j in range(chunk)}
        assert taken == set(itertools.product(range(points), range(seeds)))
        assert steps == sorted(set(steps)) and len(steps) == -(-points // block) * -(-seeds // chunk)


VECTOR = """\
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
GRIDS = """\
{devices: 1, api: jit, points: 2, grids: [
  {workload: vector, mode: [jacfwd, jacrev, fwd_over_rev], sizes: {n: [3, 25600000000]}},
  {workload: vector, variant: allocating, mode: jacfwd, sizes: {n: [3, 100000000]}},
]}
"""


@pytest.mark.process
def test_a_study_with_cases_beyond_counting_runs_the_others(scaling_command, write_study, tmp_path):
    (tmp_path / "vector.py").write_text(VECTOR)
    done = scaling_command(write_study(GRIDS))
    assert done.returncode == 0, done.stderr + done.stdout
    records = load(tmp_path / "results" / "mine").records
    outcome = {(made.case.mode, made.case.variant, made.case.sizes["n"]): made for made in records}
    assert len(outcome) == 8
    for (_, _, n), made in outcome.items():
        assert (made.status, made.reason) == (("ok", None) if n == 3 else ("skipped", "too_large")), made.text


@pytest.mark.process
def test_a_plan_of_cases_beyond_counting_plans_the_others(scaling_command, tmp_path):
    words = write(tmp_path, GRIDS)
    (tmp_path / "vector.py").write_text(VECTOR)
    done = scaling_command(words)
    assert done.returncode == 0, done.stderr + done.stdout
    for made in plans(tmp_path):
        small = made.case.sizes["n"] == 3
        assert (made.status, made.reason) == (("planned", None) if small else ("skipped", "too_large")), (
            made.text
        )
        assert small or re.search("needs .* a device has|Unable to allocate", made.text), made.text
    assert len(plans(tmp_path)) == 8
