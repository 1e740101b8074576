"""The code to paste needs no part of this package, and returns what JAX's own transformations return."""

import dataclasses
import os
import subprocess
import sys

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from scaling.advice import candidates, plain_code
from scaling.advice.problem import make_problem, registered
from tests.support import devices  # noqa: F401

pytestmark = pytest.mark.thin(4, "thorough")

RNG = np.random.default_rng(0)
X, K = RNG.normal(size=(6, 5)), RNG.normal(size=4)
TREE = {"w": RNG.normal(size=(6, 2, 3)), "b": [RNG.normal(size=6)]}


def force(x, k):
    return k * jnp.sin(x[1:] - x[:-1])


def energy(x, k):
    return jnp.sum(k * jnp.cos(x[1:] - x[:-1])) + x[0] ** 3


def of_tree(z, v):
    """Its first parameter has the name of a variable of the code."""
    return {"y": jnp.tanh(z["w"] @ v) + z["b"][0], "norm": (jnp.sum(z["w"] ** 2), z["b"][0] * v[:2])}


PROBLEMS = {
    "arrays": (force, {"x": X}, {"k": K}, "x"),
    "both": (force, {"x": X}, {"k": K}, "x+k"),
    "trees": (of_tree, {"z": TREE}, {"v": RNG.normal(size=3)}, "v+z"),
}
METHODS = {
    "forward": {"mode": "jacfwd"}, "reverse": {"mode": "jacrev"}, "columns": {"mode": "jacfwd", "chunk": 2},
    "rows": {"mode": "jacrev", "chunk": 3}, "blocks": {"mode": "jacfwd", "block": 4},
    "devices": {"mode": "jacrev", "devices": 2}, "blocks on devices": {"mode": "jacrev", "block": 2, "devices": 3},
}  # fmt: skip
HESSIANS = {
    "forward over reverse": {"mode": "fwd_over_rev"}, "reverse over reverse": {"mode": "rev_over_rev"},
    "forward over forward": {"mode": "fwd_over_fwd"}, "columns": {"mode": "fwd_over_rev", "chunk": 2},
}  # fmt: skip


def run_plainly(problem, code):
    """Run the code where only the function is known."""
    assert "scaling" not in code
    namespace = {plain_code.name_in_code(problem): problem.function}
    exec(code, namespace)
    inputs = {**problem.points, **problem.shared}
    return namespace[problem.target](*(inputs[name] for name in problem.arguments))


def assert_equals(problem, code, transform):
    inputs = {**problem.points, **problem.shared}
    argnums = problem.argnums if len(problem.argnums) > 1 else problem.argnums[0]
    axes = tuple(0 if name in problem.points else None for name in problem.arguments)
    expected = jax.vmap(transform(problem.function, argnums), axes)(*(inputs[n] for n in problem.arguments))
    found = run_plainly(problem, code)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_method_returns_what_jacfwd_returns(name, method):
    problem = make_problem(*PROBLEMS[name])
    with registered(problem) as case:
        case = dataclasses.replace(case, **METHODS[method])
    assert_equals(problem, plain_code.write_code(problem, case), jax.jacfwd)


@pytest.mark.parametrize("name", ["derivative", "split", "g", "jnp", "jacobian", "column", "ravel_pytree"])
def test_a_function_may_have_a_name_that_the_code_uses(name):
    def function(x):
        return {"y": jnp.sin(x[1:]) * x[:-1]}

    function.__name__ = name
    problem = make_problem(function, {"x": X})
    with registered(problem) as case:
        code = plain_code.write_code(problem, dataclasses.replace(case, mode="jacfwd", chunk=2))
    assert_equals(problem, code, jax.jacfwd)


@pytest.mark.parametrize(
    "function", [lambda f: f**2, lambda jnp: jnp**2, lambda mesh: mesh**2, lambda function: function**2]
)
def test_a_parameter_may_have_a_name_that_the_code_uses(function):
    name = function.__code__.co_varnames[0]
    problem = make_problem(function, {name: X})
    with registered(problem) as case:
        case = dataclasses.replace(case, mode="jacrev", chunk=2, devices=2)
    assert_equals(problem, plain_code.write_code(problem, case), jax.jacfwd)


@pytest.mark.parametrize("forward", ["x", "k"])
def test_some_inputs_forward_and_others_in_reverse(forward):
    problem = make_problem(force, {"x": X}, {"k": K}, "x+k")
    with registered(problem) as case:
        case = dataclasses.replace(case, mode="mixed", forward=forward)
    assert_equals(problem, plain_code.write_code(problem, case), jax.jacfwd)


@pytest.mark.parametrize("method", HESSIANS)
@pytest.mark.parametrize("wrt", ["x", "x+k"])
def test_every_method_of_a_hessian_returns_what_hessian_returns(wrt, method):
    problem = make_problem(energy, {"x": X}, {"k": K}, wrt, "hessian")
    with registered(problem) as case:
        case = dataclasses.replace(case, **HESSIANS[method])
    assert_equals(problem, plain_code.write_code(problem, case), jax.hessian)


def test_columns_of_the_hessian_of_a_tree_with_one_number_form_the_tree_of_jax():
    problem = make_problem(lambda x: {"e": energy(x, K)}, {"x": X}, target="hessian")
    with registered(problem) as case:
        case = dataclasses.replace(case, **HESSIANS["columns"])
    assert_equals(problem, plain_code.write_code(problem, case), jax.hessian)


PRODUCTS = {
    "forward over reverse": {"mode": "fwd_over_rev"}, "reverse over forward": {"mode": "rev_over_fwd"},
    "reverse over reverse": {"mode": "rev_over_rev"}, "blocks": {"mode": "fwd_over_rev", "block": 4},
    "blocks on devices": {"mode": "rev_over_fwd", "block": 2, "devices": 3},
}  # fmt: skip


@pytest.mark.parametrize("method", PRODUCTS)
@pytest.mark.parametrize("wrt", ["x", "k+x"])
def test_every_method_of_a_product_returns_the_hessian_times_the_direction(wrt, method):
    problem = make_problem(energy, {"x": X}, {"k": K}, wrt, "hvp")
    with registered(problem) as case:
        case = dataclasses.replace(case, **PRODUCTS[method])
    directions = {"x": RNG.normal(size=X.shape), "k": RNG.normal(size=(6, 4))}
    names = wrt.split("+")
    H = jax.vmap(jax.hessian(energy, (0, 1)), (0, None))(X, K)
    order = {"x": 0, "k": 1}
    expected = [
        sum(jnp.einsum("pij,pj->pi", H[order[a]][order[b]], directions[b]) for b in names) for a in names
    ]
    namespace = {"energy": energy}
    exec(plain_code.write_code(problem, case), namespace)
    v = tuple(directions[name] for name in names)
    found = namespace["hvp"](X, K, v if len(v) > 1 else v[0])
    for one, other in zip(found if len(v) > 1 else [found], expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "method", [{"mode": "jacfwd"}, {"mode": "jacfwd", "block": 4, "devices": 3}, {"mode": "vmap_grad"}]
)
@pytest.mark.parametrize(
    "function", [lambda x, k: {"a": jnp.sin(k @ x), "b": x[:1] ** 3}, lambda x, k: jnp.outer(x, k[0]) ** 2]
)
@pytest.mark.parametrize("wrt", ["x", "x+k"])
def test_every_method_of_a_gauss_newton_product_multiplies_by_the_transposed_jacobian_and_the_jacobian(
    wrt, function, method
):
    X, K = RNG.normal(size=(6, 4)), RNG.normal(size=(3, 4))
    problem = make_problem(function, {"x": X}, {"k": K}, wrt, "gauss_newton")
    with registered(problem) as case:
        case = dataclasses.replace(case, **method)
    v = (RNG.normal(size=X.shape), RNG.normal(size=(6, *K.shape)))[: len(problem.wrt)]
    namespace = {problem.name: function}
    exec(plain_code.write_code(problem, case), namespace)
    found = namespace["gauss_newton"](X, K, v if len(v) > 1 else v[0])
    for point in range(6):
        blocks = jax.jacrev(lambda *z: jax.flatten_util.ravel_pytree(function(*z))[0], (0, 1))(X[point], K)[
            : len(v)
        ]
        J = np.concatenate([np.reshape(block, (len(block), -1)) for block in blocks], axis=1)
        expected = J.T @ (J @ np.concatenate([np.ravel(a[point]) for a in v]))
        got = np.concatenate([np.ravel(a[point]) for a in jax.tree.leaves(found)])
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


SPARSE = {  # function -> the numbers of compressed columns and rows, None without an advantage
    "columns": (lambda x: x[1:] * x[:-1], (2, 0)),
    "rows": (lambda x: jnp.append(x[:-1] ** 2, 0.0) + x[-1] * jnp.eye(9)[0], (0, 1)),
    "a full row": (lambda x: jnp.append(x**2, jnp.sum(x)), (0, 2)),
    "a full matrix": (lambda x: jnp.cumsum(x**2), None),
}


@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_jacobian_is_expanded_to_the_dense_one(name):
    function, colors = SPARSE[name]
    problem = make_problem(function, {"x": RNG.normal(size=(3, 9))})
    with registered(problem) as case:
        coloring = candidates.find_useful_coloring(case)
        case = dataclasses.replace(case, mode=candidates.CODED)
    assert colors == (coloring and (coloring.column_count, coloring.row_count))
    if coloring:
        assert_equals(problem, plain_code.write_code(problem, case, coloring), jax.jacfwd)


def test_the_code_enables_float64_where_jax_does_and_names_the_function():
    lines = {}
    for is_enabled in (True, False):
        with jax.enable_x64(is_enabled):
            problem = make_problem(force, {"x": X.astype(np.float32)}, {"k": K.astype(np.float32)})
            with registered(problem) as case:
                lines[is_enabled] = plain_code.write_code(problem, case, xla_options={}).splitlines()
    assert 'jax.config.update("jax_enable_x64", True)' in lines[True]
    assert lines[False][:2] == ["import jax", "# force is your function of one point"]


def test_the_code_for_several_cores_of_a_cpu_sets_their_number():
    problem = make_problem(force, {"x": X}, {"k": K})
    with registered(problem) as case:
        one, two = (
            plain_code.write_code(problem, dataclasses.replace(case, devices=n), xla_options={})
            for n in (1, 2)
        )
    line = f'jax.config.update("jax_num_cpu_devices", {len(jax.devices())})'
    assert line in two and line not in one
    assert max(map(len, two.splitlines())) <= 110


@pytest.mark.process
def test_the_code_for_several_cores_needs_no_flags_of_the_process_that_wrote_it(tmp_path):
    """Execute the code in a process without flags, and again without the line that sets their number."""
    (tmp_path / "springs.py").write_text("def force(x):\n    return x[1:] * x[:-1]\n")
    write = (
        "import dataclasses, numpy\n"
        "from scaling.advice import plain_code, problem\n"
        "from springs import force\n"
        "p = problem.make_problem(force, {'x': numpy.ones((4, 3))}, import_line='from springs import force')\n"
        "with problem.registered(p) as case:\n"
        "    print(plain_code.write_code(p, dataclasses.replace(case, devices=2), xla_options={}))\n"
    )
    use = "\nprint(len(jacobian(np.ones((4, 3))).sharding.device_set))"

    def run(code, flags=""):
        environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(tmp_path)}
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)

    code = run(write, "--xla_force_host_platform_device_count=2").stdout
    assert run(code + use).stdout == "2\n"
    lines = [line for line in code.splitlines() if "num_cpu_devices" not in line]
    assert len(lines) == len(code.splitlines()) - 1
    done = run("\n".join(lines) + use)
    assert done.returncode == 1 and "cannot reshape array of size 1 into shape (2,)" in done.stderr


@pytest.mark.parametrize("name", ["jax", "force"])
def test_float64_is_enabled_before_the_module_of_the_function_is_imported(name):
    problem = make_problem(force, {"x": X}, {"k": K}, import_line=f"from springs import {name}")
    with registered(problem) as case:
        code = plain_code.write_code(problem, dataclasses.replace(case, mode="jacrev"), xla_options={})
    assert code.index('jax.config.update("jax_enable_x64", True)') < code.index(problem.import_line)
    found = plain_code.execute_code(problem, code)(X, K)
    np.testing.assert_allclose(found, jax.vmap(jax.jacrev(force), (0, None))(X, K))


def test_the_function_may_have_the_name_of_a_built_in_function():
    problem = make_problem(
        lambda x: x[1:] * x[:-1], {"x": RNG.normal(size=(3, 9))}, import_line="from springs import bool"
    )
    with registered(problem) as case:
        coloring = candidates.find_useful_coloring(case)
    code = plain_code.write_code(problem, dataclasses.replace(case, mode=candidates.CODED), coloring)
    assert plain_code.execute_code(problem, code)(problem.points["x"]).shape == (3, 8, 9)


@pytest.mark.parametrize("chunk", [None, 2])
def test_rows_of_a_function_that_also_returns_a_python_number_are_those_of_jax(chunk):
    problem = make_problem(lambda x: (x.reshape(3, 4).sum(1) ** 2, 1.0), {"x": RNG.normal(size=(2, 12))})
    with registered(problem) as case:
        coloring = None if chunk else candidates.find_useful_coloring(case)
        assert chunk or coloring.row_count
        case = dataclasses.replace(case, mode="jacrev" if chunk else candidates.CODED, chunk=chunk)
    assert_equals(problem, plain_code.write_code(problem, case, coloring), jax.jacfwd)


@pytest.mark.parametrize(("size", "is_large"), [(91, False), (92, True)])
def test_a_sparse_jacobian_of_8192_entries_has_nan_only_within_its_pattern(size, is_large):
    function = lambda x: jnp.sqrt(x[1:]) * x[:-1]  # noqa: E731
    x = np.arange(-2.0, size - 2)[None] ** 2  # with a zero
    problem = make_problem(function, {"x": x})
    with registered(problem) as case:
        coloring = candidates.find_useful_coloring(case)
    code = plain_code.write_code(problem, dataclasses.replace(case, mode=candidates.CODED), coloring)
    found, dense = np.asarray(run_plainly(problem, code)), np.asarray(jax.vmap(jax.jacfwd(function))(x))
    in_pattern = np.abs(np.subtract.outer(np.arange(size - 1) + 0.5, np.arange(size))) < 1
    assert np.isnan(found).any() and np.isnan(dense[:, ~in_pattern]).any()
    np.testing.assert_array_equal(found, np.where(in_pattern, dense, 0.0) if is_large else dense)
