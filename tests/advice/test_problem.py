"""A plain function becomes a workload: trees of inputs, the data as they are, and one clear line for what is wrong."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scaling
from scaling.advice import candidates
from scaling.advice.problem import make_problem, registered
from scaling.cli.advise import import_function
from scaling.core import inputs, workload
from scaling.core.case import Case, Refusal
from scaling.core.modes import MODES
from scaling.study import case_rules
from tests.support.devices import run_once

X, K = np.ones((6, 3), np.float32), np.arange(2, dtype=np.float32)


def force(x, k, scale=1.0):
    return scale * k * (x[1:] - x[:-1])


async def force_later(x, k):
    return force(x, k)


class OtherArray:
    """An array of a library with dtypes of its own, such as pandas or PyTorch."""

    dtype = "a dtype that JAX does not know"

    def __array__(self, dtype=None, copy=None):
        return X if dtype is None else X.astype(dtype)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, {"x": X}), ["is 3 (int)", "give a function"]),
        ((force, [X]), ["points must be a dict", "{'x': x}"]),
        ((force, X, K), ["points must be a dict", "an array"]),
        ((force, {"x": X}, K), ["shared must be a dict"]),
        (
            (force, {"x": X}, {"k": jax.random.key(0)}),
            ["input 'k' cannot be converted to an array of NumPy", "jax.random.key_data"],
        ),
        ((force, {"x": X}, {"k": K}, 0), ["wrt must be names", "such as x+k", "not 0 (int)"]),
        ((force, {"x": X}, {"k": K}, "x,k"), ["wrt must be names joined by '+', such as x+k", "'x,k'"]),
        ((force, {}), ["one at least in points"]),
        ((force, {"x": X}, {"x": K}), ["in both: x"]),
        ((force_later, {"x": X}, {"k": K}), ["defined by `async def`", "use `def`"]),
        ((force, {"x": X}), ["takes (x, k, scale=1.0), but the inputs are x:", "in points or in shared"]),
        ((force, {"x": X}, {"stifness": K}), ["takes (x, k, scale=1.0), but the inputs are x, stifness"]),
        ((force, {"x": X}, {"k": "soft"}), ["'k' is 'soft' (str)", "arrays of real numbers"]),
        (
            (force, {"x": X}, {"k": dataclasses.make_dataclass("Loose", ["k"])(K)}),
            ["(Loose)", "register_dataclass"],
        ),
        ((force, {"x": X}, {"k": {}}), ["'k' is {} (dict)"]),
        ((force, {"x": 1j * X}, {"k": K}), ["'x' is an array of shape (6, 3) and dtype complex"]),
        (
            (force, {"x": X > 0, "k": X}),
            ["wrt=x contains bool", "no derivative: convert it to floating point"],
        ),
        ((force, {"x": {"a": X, "n": X > 0}, "k": X}), ["wrt=x contains bool", "give it in another input"]),
        ((lambda x, *, k: k * x, {"x": X}), ["takes (x, *, k), but the inputs are x:", "functools.partial"]),
        (
            (lambda x, *, k=1: k * x, {"x": X}, {"k": K}),
            ["takes (x, *, k=1), but the inputs are x, k", "a lambda"],
        ),
        (
            (lambda x, k=1, *, q=2: q * x, {"x": X, "q": X}),
            ["takes (x, k=1, *, q=2), but the inputs are x, q"],
        ),
        (
            (lambda x, k, scale=1.0: k * x, {"x": X}, {"scale": K}),
            ["takes (x, k, scale=1.0), but the inputs are x, scale: give"],
        ),
        ((lambda: 1.0, {"x": X}), ["takes (), but the inputs are x:"]),
        ((lambda *args: args[0], {"x": X}), ["takes (*args), but the inputs are x"]),
        ((lambda x, *, k=1: k * x, {"y": X}), ["takes (x, *, k=1), but the inputs are y"]),
        ((force, {"x": X, "k": K}), ["x has 6", "k has 2", "belongs in shared"]),
        ((force, {"x": X[0, 0]}, {"k": K}), ["x has 0"]),
        (
            (force, {"x": np.ones((99, 9)).tolist()}),
            ["x.0.3 has 0 and 887 more; an input", "use np.array(list)"],
        ),
        (
            (force, {"x": X}, {"k": np.array([2**31, 0])}),
            ["'k' has integers from 0 to 2147483648", "32 bits"],
        ),
        ((force, {"x": X}, {"k": K}, "y"), ["(wrt) 'y'", "x, k"]),
        ((force, {"x": X}, {"k": K}, ""), ["(wrt) ''", "x, k"]),
        ((force, {"x": X}, {"k": {"a": K}}, "k.a"), ["(wrt) 'k.a'", "x, k"]),
        ((force, {"x": X}, {"k": np.arange(2)}, "k"), ["wrt=k contains int"]),
        ((force, {"x": X}, {"k": K.astype(np.float64)}), ["float32, float64", "use one of"]),
        ((force, {"x": np.ma.masked_less(X, 1)}, {"k": K}), ["'x' is a MaskedArray", "x.filled(0)"]),
        (
            (force, {"x": {"a": X, 1: X}}, {"k": K}),
            ["points contains no pytree of JAX", "sorting", "strings as"],
        ),
        ((np, {"x": X}), ["(module): give a function"]),
        ((force, {"x": X}, {"k": K}, "x", "hesian"), ["unknown target 'hesian'", "did you mean 'hessian'"]),
        (
            (force, {"x": X}, {"k": K}, "x", "jacobian", None),
            ["import_line must be a line of code, such as 'from my_model import f', not None"],
        ),
    ],
)
def test_a_bad_input_is_explained_in_one_line(arguments, words):
    with pytest.raises(Refusal) as refusal:
        make_problem(*arguments)
    assert "\n" not in str(refusal.value) and all(each in str(refusal.value) for each in words)


def test_a_traced_input_is_refused():
    with pytest.raises(Refusal, match=r"'x' is a Tracer: call scaling.advise outside"):
        jax.jit(lambda x: make_problem(force, {"x": x}, {"k": K}))(X)


def test_an_array_that_numpy_cannot_read_is_refused(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("call detach() first")

    monkeypatch.setattr(OtherArray, "__array__", fail)
    with pytest.raises(Refusal, match=r"input 'x' cannot be converted to an array of NumPy \(call detach"):
        make_problem(jnp.sin, {"x": OtherArray()})


def test_an_array_of_another_library_is_converted():
    assert np.array_equal(make_problem(jnp.sin, {"x": OtherArray()}).points["x"], X)


def test_arguments_are_in_the_order_of_the_parameters():
    assert make_problem(force, {"x": X}, {"scale": np.float32(2), "k": K}).arguments == ("x", "k", "scale")
    assert make_problem(lambda k, x: k * x[0], {"x": X}, {"k": K}).arguments == ("k", "x")
    assert make_problem(functools.partial(force, scale=2.0), {"x": X}, {"k": K}).arguments == ("x", "k")


def test_the_workload_computes_the_function_at_the_given_data_and_goes_away():
    data = {"a": np.linspace(0, 1, 12, dtype=np.float32).reshape(6, 2), "n": np.arange(6)}
    problem = make_problem(lambda p, k: p["a"] * k[p["n"] % 2], {"p": data}, {"k": K}, "k")
    with registered(problem) as case:
        built = workload.build(case)
        arrays = inputs.input_arrays(case, built)
        assert case.points == 6 and built.names == ("k",)
        np.testing.assert_array_equal(arrays["p.a"], data["a"])
        np.testing.assert_array_equal(arrays["p.n"], data["n"])
        at_point = {name: a[4] if name in built.points else a for name, a in arrays.items()}
        np.testing.assert_allclose(built.function(**at_point), data["a"][4] * K[0])
    with pytest.raises(Refusal, match="unknown workload"):
        workload.import_workload(case.workload)


def test_integers_and_booleans_keep_their_dtype_and_value():
    data = {
        "key": jax.random.PRNGKey(2**32 - 1), "image": np.full(3, 200, np.uint8), "is_on": np.array([True, False, True])
    }  # fmt: skip
    found = []

    def function(x, data):
        found.append({name: a.dtype for name, a in data.items()})
        noise = jax.random.normal(data["key"], (3,)) + (data["image"] + data["image"])
        return jnp.where(data["is_on"], x * noise, ~data["is_on"])

    problem = make_problem(function, {"x": X}, {"data": data})
    with registered(problem) as case:
        built = workload.build(case)
        value = built.function(
            **{n: a[0] if n == "x" else a for n, a in inputs.input_arrays(case, built).items()}
        )
    assert found[-1] == {"key": np.uint32, "image": np.uint8, "is_on": np.bool_}
    np.testing.assert_array_equal(value, function(X[0], data))


@pytest.mark.parametrize(
    "function", [lambda x: None, lambda x: jnp.argsort(x), lambda x: x[:0], lambda x: 1 / 0]
)
def test_a_message_on_a_function_has_its_name(function):
    function.__name__ = "shrink"
    problem = make_problem(function, {"x": X})
    with (
        pytest.raises(Refusal, match=r"^the function 'shrink' (returns|must|has|fails)"),
        registered(problem) as case,
    ):
        candidates.list_candidates(case)


def test_a_shape_error_has_no_hint_to_bind_a_size():
    with pytest.raises(Refusal, match="fails on abstract inputs") as refusal:
        scaling.advise(lambda x, k: k * x, {"x": X}, {"k": np.ones(5, np.float32)}, budget=0)
    assert "functools" not in str(refusal.value)


def test_a_size_given_as_an_input_is_refused_with_the_way_to_bind_it():
    with pytest.raises(
        Refusal, match=r"fails on abstract inputs .* bind a size, an axis or a flag by functools.partial$"
    ):
        scaling.advise(lambda x, k, rows: k * x[:rows], {"x": X}, {"k": K, "rows": 2}, budget=0)


def test_a_reason_for_leaving_out_a_candidate_has_the_name_of_the_function():
    advice = scaling.advise(force, {"x": X}, {"k": K}, target="hvp", budget=0)
    assert set(advice.table["left_out"]) == {
        "target=hvp needs a function with one output; the function 'force' has 2"
    }


def test_the_code_calls_the_function_by_the_name_that_it_imports():
    line = "from springs import fast"
    for function in (jax.jit(force), functools.partial(force), lambda x, k: k * x[1:]):
        assert make_problem(function, {"x": X}, {"k": K}, import_line=line).name == "fast"
    assert make_problem(jax.jit(force), {"x": X}, {"k": K}).name == "force"
    unnamed = functools.wraps(force)(lambda x, k: k * x[1:])
    unnamed.__name__ = "lambda"  # a name that code cannot use
    assert make_problem(unnamed, {"x": X}, {"k": K}).name == "f"


def test_a_message_on_an_input_has_the_name_of_the_function():
    problem = make_problem(force, {"x": {"a+b": X}}, {"k": K})
    with (
        pytest.raises(Refusal, match=r"'x.a\+b' of the function 'force' has '\+'"),
        registered(problem) as case,
    ):
        candidates.list_candidates(case)


def test_a_shape_draws_points_that_differ_and_integers_that_index():
    struct = jax.ShapeDtypeStruct
    problem = make_problem(
        lambda x, i: x[i] + jnp.sum(x), {"x": struct((5, 3), jnp.float32), "i": struct((5,), jnp.int32)}
    )
    with registered(problem) as case:
        arrays = inputs.input_arrays(case, workload.build(case))
    assert len(np.unique(arrays["x"])) == 15 and set(arrays["i"]) == {0} and arrays["i"].dtype == np.int32


def test_a_function_is_imported_from_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "springs_of_advice.py").write_text("def force(x):\n    return x\n")
    (tmp_path / "broken_of_advice.py").write_text("1 / 0\n")
    function, line = import_function("springs_of_advice.py:force")
    assert function(3) == 3 and line == "from springs_of_advice import force"
    (tmp_path / "moving_of_advice.py").write_text("import os\nos.chdir('/')\nforce = abs\n")
    assert import_function("moving_of_advice.py:force") == (abs, "from moving_of_advice import force")
    monkeypatch.chdir(tmp_path)
    for text, words in [
        ("springs_of_advice.py", "write FILE.py:NAME"),
        ("nowhere.py:force", "not name a function in an existing file"),
        # A file name may not be as long.
        (f"{'a' * 300}.py:force", "not name a function in an existing file"),
        ("springs_of_advice.py:forse", "did you mean 'force'"),
        ("broken_of_advice.py:force", "ZeroDivisionError"),
    ]:
        with pytest.raises(Refusal, match=words):
            import_function(text)


@pytest.mark.parametrize(
    ("target", "mode", "points"),
    [("hvp", "fwd_over_rev", np.zeros), ("gauss_newton", "jacfwd", lambda shape: np.eye(*shape))],
)
def test_a_wrong_product_is_detected_whatever_the_points_are(target, mode, points, monkeypatch):
    right, last = MODES[mode].linear_map, np.eye(3, dtype=np.float32)[2]
    wrong = lambda f, x: lambda v: right(f, x)(jax.tree.map(lambda a: a * (1 + last), v))  # noqa: E731
    monkeypatch.setitem(MODES, mode, dataclasses.replace(MODES[mode], linear_map=wrong))
    function = lambda x: jnp.exp(x) * x[::-1] + x  # noqa: E731
    f = function if target == "gauss_newton" else lambda x: jnp.sum(function(x))
    problem = make_problem(f, {"x": points((2, 3)).astype(np.float32)}, target=target)
    with registered(problem) as case:
        record = run_once(case_rules.complete(dataclasses.replace(case, mode=mode)))
    assert record.reason == "wrong_answer", record.text


def test_a_workload_with_fewer_points_than_devices_has_its_seeds_partitioned():
    for points, layout in ((1, ("both", "1x2")), (4, ("points", None))):
        base = Case("linear", sizes={"p": 6, "o": 4}, points=points, api="jit", split="points")
        records, _ = candidates.list_candidates(base, devices=[2])
        layouts = {(record.case.split, record.case.mesh) for record in records if record.status == "planned"}
        assert layouts == {layout}, (points, records)
