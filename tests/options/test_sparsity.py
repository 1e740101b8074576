"""Tests of sparsity: detected patterns contain every entry, every entry can be read off a coloring, and sparse workloads."""

import dataclasses
import gc
import itertools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scaling.core import inputs, workload
from scaling.core.case import Case, Refusal
from scaling.core.derivative import Pattern, to_dense
from scaling.core.workload import Workload, uniform
from scaling.options import coloring as colorings
from scaling.options.coloring import Coloring, color_pattern

pytestmark = pytest.mark.thin(20, "thorough")

jax.config.update("jax_enable_x64", True)

COMPRESSIONS = ("columns", "rows", "both")
KINDS = ("scattered", "full rows", "full columns", "both", "banded", "empty rows and columns")


@pytest.fixture(autouse=True)
def clear_caches():
    workload.clear_cache()
    colorings._prepare_libraries.cache_clear()


def draw_mask(generator, kind):
    """Return a random pattern of one kind as a boolean matrix with at least one entry; it is never square."""
    rows = int(generator.integers(1, 15))
    mask = generator.random((rows, rows + int(generator.integers(1, 9)))) < generator.choice(
        [0.05, 0.15, 0.4]
    )
    mask = mask if generator.random() < 0.5 else mask.T
    rows, cols = mask.shape
    if kind in ("full rows", "both"):
        mask[generator.integers(rows, size=2)] |= generator.random(cols) < 0.9
    if kind in ("full columns", "both"):
        mask[:, generator.integers(cols, size=2)] |= generator.random((rows, 1)) < 0.9
    if kind == "banded":
        mask |= np.abs(np.subtract.outer(np.arange(rows), np.arange(cols))) < 2
    if kind == "empty rows and columns":
        mask[generator.integers(rows)] = mask[:, generator.integers(cols)] = False
    mask[-1, -1] |= not mask.any()
    return mask


def pattern_of(mask):
    """Return the pattern of a boolean matrix."""
    rows, cols = np.nonzero(mask)
    return Pattern(rows.astype(np.int32), cols.astype(np.int32), *mask.shape)


def seeds(colors, count):
    """Return the seed of each color, shape (count, rows or columns)."""
    return (colors == np.arange(count)[:, None]).astype(int)


def read_off(coloring, J):
    """Return the entries (entries,) that the coloring reads off the compressed columns and rows of a matrix."""
    columns, rows = seeds(coloring.columns, coloring.column_count), seeds(coloring.rows, coloring.row_count)
    pattern = coloring.pattern
    entries = np.empty(len(pattern.rows), J.dtype)
    if (selected := ~coloring.by_row).any():
        entries[selected] = (J @ columns.T)[pattern.rows[selected], coloring.columns[pattern.cols[selected]]]
    if (selected := coloring.by_row).any():
        entries[selected] = (rows @ J)[coloring.rows[pattern.rows[selected]], pattern.cols[selected]]
    return entries


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_entry_can_be_read_off_the_compressed_columns_and_rows(compression, kind):
    generator = np.random.default_rng(1)
    for _ in range(300 if compression == "both" else 50):
        mask = draw_mask(generator, kind)
        coloring = color_pattern(pattern_of(mask), compression)
        J = mask * generator.integers(1, 10**6, mask.shape)
        np.testing.assert_array_equal(read_off(coloring, J), J[mask])


@pytest.mark.parametrize("count", [5, 80])
def test_columns_that_all_conflict_need_a_color_each_though_a_row_has_two_entries(count):
    pairs = np.array(list(itertools.combinations(range(count), 2)), np.int32)
    rows = np.repeat(np.arange(len(pairs), dtype=np.int32), 2)
    coloring = color_pattern(Pattern(rows, pairs.reshape(-1), len(pairs), count), "columns")
    assert coloring.column_count == count == len(set(coloring.columns))


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_colors_is_within_its_bounds(kind):
    generator = np.random.default_rng(4)
    for _ in range(50):
        mask = draw_mask(generator, kind)
        columns, rows, both = (color_pattern(pattern_of(mask), method) for method in COMPRESSIONS)
        assert both.column_count + both.row_count <= min(columns.column_count, rows.row_count)
        assert mask.sum(axis=1).max() <= columns.column_count <= mask.any(axis=0).sum()
        assert mask.sum(axis=0).max() <= rows.row_count <= mask.any(axis=1).sum()
        assert columns.row_count == rows.column_count == 0


def test_colors_are_consecutive_and_empty_rows_and_columns_have_none():
    mask = np.zeros((4, 7), bool)
    mask[1, [0, 2, 5]] = mask[3, [2, 6]] = True
    columns, rows = color_pattern(pattern_of(mask), "columns"), color_pattern(pattern_of(mask), "rows")
    assert sorted(set(columns.columns)) == [-1, 0, 1, 2] and (columns.columns[[1, 3, 4]] == -1).all()
    assert sorted(set(rows.rows)) == [-1, 0, 1] and (rows.rows[[0, 2]] == -1).all()


@pytest.mark.parametrize("width", [1, 3])
def test_an_arrowhead_needs_few_colors_only_with_both_columns_and_rows(width):
    for n in (11, 3000):
        indices = [(i, j) for i in range(n) for j in {*range(width), i, *(range(n) if i < width else ())}]
        rows, cols = np.array(sorted(indices), np.int32).T
        pattern = Pattern(rows, cols, n, n)
        both = color_pattern(pattern, "both")
        assert both.column_count + both.row_count == 2 * width + 1
        assert color_pattern(pattern, "columns").column_count == color_pattern(pattern, "rows").row_count == n


@pytest.mark.parametrize("side", [5, 35])
def test_a_stencil_gets_the_minimum_of_five_colors(side):
    built = workload.build(Case("stencil", sizes={"side": side}))
    pattern = Pattern(*built.pattern(), side**2, side**2)
    assert color_pattern(pattern, "columns").column_count == color_pattern(pattern, "both").column_count == 5


def float32_shapes(*sizes):
    """Return the shapes of float32 arrays."""
    return tuple(jax.ShapeDtypeStruct(shape, np.float32) for shape in sizes)


def test_a_pattern_has_the_flattened_inputs_in_order_and_the_flattened_outputs():
    a, b = np.arange(1.0, 7).reshape(2, 3), np.arange(7.0, 11)

    def function(a, b):
        return jnp.stack([a[0] * b[1:], a[1] + b[:3] ** 2])

    pattern = colorings.find_coloring("two inputs", function, float32_shapes((2, 3), (4,)), "columns").pattern
    by_a, by_b = jax.jacfwd(function, argnums=(0, 1))(a, b)
    J = np.concatenate([by_a.reshape(6, 6), by_b.reshape(6, 4)], axis=1)
    rows, cols = np.nonzero(J)
    np.testing.assert_array_equal((pattern.rows, pattern.cols), (rows, cols))
    assert (pattern.outputs, pattern.inputs) == (6, 10)
    assert pattern.rows.dtype == pattern.cols.dtype == np.int32


@pytest.mark.parametrize(
    "function",
    [
        lambda x, k: jnp.where(k > 0, x, x[::-1]),
        lambda x, k: x * (k > 5),
        lambda x, k: jnp.zeros(4).at[k.astype(int)].add(x),
        lambda x, k: (jnp.outer(k, k) - 1) @ x,
    ],
)
def test_a_pattern_holds_for_all_values_of_the_inputs_that_are_not_differentiated(function, monkeypatch):
    module = types.ModuleType("masked")
    module.workload = lambda case: Workload(function, points={"x": uniform(4), "k": uniform(4)}, wrt="x")
    monkeypatch.setitem(sys.modules, "masked", module)
    case = Case("masked", mode="jacfwd", seeds="colored", wrt="x")
    pattern = colorings.detect_coloring(case, workload.build(case)).pattern
    found = set(zip(pattern.rows.tolist(), pattern.cols.tolist(), strict=True))
    for k in ([-3.0, 2.0, 0.0, 1.0], [9.0, -9.0, 3.0, 2.0]):
        J = jax.jacfwd(function)(jnp.arange(1.0, 5.0), jnp.array(k))
        assert {tuple(entry) for entry in np.argwhere(J).tolist()} <= found


def test_an_entry_that_is_zero_by_coincidence_belongs_to_the_pattern():
    pattern = colorings.find_coloring(
        "zero", lambda x: x[:2] * x[2:] + jnp.sin(x[1]), float32_shapes((4,)), "rows"
    ).pattern
    assert list(zip(pattern.rows, pattern.cols, strict=True)) == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 3)]


@pytest.mark.parametrize(
    "sizes", [("stencil", None, {"side": 3}), ("stencil", None, {"side": 6}), ("stencil", "rolls", {"side": 7}),
              ("arrowhead", None, {"n": 2}), ("arrowhead", None, {"n": 9})], ids=str,
)  # fmt: skip
def test_the_detected_pattern_is_that_of_the_workload(sizes):
    name, formulation, sizes = sizes
    built = workload.build(Case(name, formulation=formulation, sizes=sizes))
    ((_, draw),) = built.points.items()
    coloring = colorings.find_coloring(name, built.function, float32_shapes(draw.shape), "both")
    np.testing.assert_array_equal((coloring.pattern.rows, coloring.pattern.cols), built.pattern())


def test_a_pattern_is_detected_once_and_colored_once():
    calls = []

    def function(x):
        calls.append(x)
        return x[1:] * x[:-1]

    first = colorings.find_coloring("key", function, float32_shapes((5,)), "columns")
    traces = len(calls)
    assert colorings.find_coloring("key", function, float32_shapes((5,)), "columns") is first
    by_row = colorings.find_coloring("key", function, float32_shapes((5,)), "rows")
    assert by_row.pattern is first.pattern and by_row.row_count
    assert by_row.detect_seconds == first.detect_seconds > 0
    assert len(calls) == traces
    other = colorings.find_coloring("another key", function, float32_shapes((7,)), "columns")
    assert len(calls) > traces and other.pattern.inputs == 7


def test_only_the_latest_patterns_are_cached():
    for n in range(2, 9):
        colorings.find_coloring(n, lambda x: x**2, float32_shapes((n,)), "columns")
    cached = workload._cached_values
    assert list(cached["pattern"]) == [5, 6, 7, 8] and len(cached["coloring"]) == 4


def test_functions_that_capture_other_indices_have_other_patterns(monkeypatch):
    def build(case):
        order = np.random.default_rng(case.data_seed).permutation(5)
        return Workload(lambda x: x[order][1:] ** 2, points={"x": uniform(5)})

    module = types.ModuleType("gathered")
    module.workload = build
    monkeypatch.setitem(sys.modules, "gathered", module)
    cases = [Case("gathered", target="jacobian", seeds="colored", data_seed=seed) for seed in (0, 0, 1)]
    first, same, other = (colorings.detect_coloring(case, workload.build(case)) for case in cases)
    assert first is same
    for case, coloring in zip(cases, (first, same, other), strict=True):
        order = np.random.default_rng(case.data_seed).permutation(5)
        assert (coloring.pattern.rows.tolist(), coloring.pattern.cols.tolist()) == (
            list(range(4)),
            order[1:].tolist(),
        )


def test_without_asdex_the_error_has_the_command_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "asdex", None)
    with pytest.raises(Refusal, match=r"pip install 'ad-scaling\[sparse\]'"):
        colorings.find_coloring("key", lambda x: x**2, float32_shapes((3,)), "columns")


def test_without_a_folder_for_the_cache_of_numba_the_error_names_the_variable_to_set(monkeypatch, tmp_path):
    (tmp_path / "asdex.py").write_text("raise RuntimeError('cannot cache function: no locator available')\n")
    monkeypatch.delitem(sys.modules, "asdex", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Refusal, match=r"no locator available\): set NUMBA_CACHE_DIR"):
        colorings.find_coloring("key", lambda x: x**2, float32_shapes((3,)), "columns")


def test_a_function_that_asdex_cannot_analyze_is_rejected_with_its_message():
    with pytest.raises(Refusal, match="No handler for primitive 'fft'") as error:
        colorings.find_coloring("key", lambda x: jnp.fft.fft(x).real, float32_shapes((3,)), "columns")
    assert "\n" not in str(error.value) and "key" not in workload._cached_values.get("pattern", {})


def test_an_empty_pattern_is_rejected_and_garbage_collection_stays_enabled():
    with pytest.raises(Refusal, match="does not depend"):
        colorings.find_coloring("key", lambda x: jnp.zeros(4), float32_shapes((3,)), "columns")
    assert gc.isenabled()


CASES = [
    ("stencil", {"side": 4}, None),
    ("stencil", {"side": 3}, "rolls"),
    ("arrowhead", {"n": 6}, None),
    ("arrowhead", {"n": 2}, None),
]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(("name", "sizes", "formulation"), CASES, ids=str)
def test_every_form_of_a_sparse_workload_agrees_with_jax(name, sizes, formulation, dtype):
    case = Case(name, sizes=sizes, formulation=formulation, points=5, dtype=dtype)
    built, dense = (
        workload.build(dataclasses.replace(case, seeds=seeds)) for seeds in ("colored", "identity")
    )
    exact = inputs.exact_inputs(case, built, 0, 5)
    ((argument, x),) = exact.items()
    entries, rounding = built.nonzeros(exact), {"float64": 1e-14, "float32": 1e-6, "bfloat16": 0.03}[dtype]
    (rows, cols), n = built.pattern(), entries.value.shape[1]
    whole = to_dense(Pattern(rows, cols, n, n), entries.derivative[:, 0])

    def assert_close(got, want):
        assert got.dtype == dtype
        error = np.abs(np.asarray(got, np.float64).reshape(want.shape) - want).max() / np.abs(want).max()
        assert error < rounding

    @jax.jit
    def forms(x):
        analytic = [
            [version.whole_modes[mode](**{argument: x}) for mode in ("analytic", "analytic_vmap")]
            for version in (built, dense)
        ]
        return jax.vmap(built.function)(x), jax.vmap(jax.jacfwd(built.function))(x), *analytic

    value, derivative, analytic_entries, analytic_dense = forms(jnp.asarray(x, dtype))
    assert_close(value, entries.value)
    for got in (derivative, *analytic_dense):
        assert_close(got, whole)
    for got in analytic_entries:
        assert_close(got, entries.derivative)
    assert np.count_nonzero(whole) == 5 * len(rows) == entries.derivative.size
    assert np.all(np.diff(rows.astype(int) * n + cols) > 0) and rows.dtype == cols.dtype == np.int32


def test_the_entries_of_a_row_of_a_sparse_workload_are_distinct():
    for name, sizes in (("stencil", {"side": 5}), ("arrowhead", {"n": 7})):
        case = Case(name, sizes=sizes)
        built = workload.build(case)
        entries = built.nonzeros(inputs.exact_inputs(case, built, 0, 1)).derivative.reshape(-1)
        assert len(set(zip(built.pattern()[0], entries, strict=True))) == len(entries)


def test_sparse_workloads_that_are_too_small_are_rejected():
    for name, sizes in (("stencil", {"side": 2}), ("arrowhead", {"n": 1})):
        with pytest.raises(Refusal, match=r"sizes\."):
            workload.build(Case(name, sizes=sizes))


def test_a_coloring_has_the_side_from_which_each_entry_is_read():
    coloring = colorings.find_coloring(
        "arrow", workload.build(Case("arrowhead", sizes={"n": 12})).function, float32_shapes((12,)), "both"
    )
    assert isinstance(coloring, Coloring) and (coloring.column_count, coloring.row_count) == (2, 1)
    assert coloring.by_row.any() and not coloring.by_row.all()
    assert coloring.by_row.shape == coloring.pattern.rows.shape


def test_a_pattern_with_one_full_row_is_colored_in_little_memory():
    n, full = 100_000, 2_000  # the tridiagonal Jacobian of a PDE, and one integral constraint
    rows = np.concatenate([np.repeat(np.arange(n), 3), np.full(full, n)])
    columns = np.concatenate([(np.arange(n)[:, None] + np.arange(-1, 2)).ravel(), np.arange(full) * 50])
    inside = (columns >= 0) & (columns < n)
    pattern = Pattern(rows[inside].astype(np.int32), columns[inside].astype(np.int32), n + 1, n)
    coloring = color_pattern(pattern, "columns")
    assert coloring.column_count == full
    slots = pattern.rows.astype(np.int64) * full + coloring.columns[pattern.cols]
    assert len(np.unique(slots)) == len(slots), "two nonzeros of a row never have the same color"


def test_a_coloring_of_too_many_conflicts_is_refused_and_the_other_mode_needs_one_color():
    rows = np.arange(10**6, dtype=np.int32)  # each input reaches a quarter of a million outputs
    pattern = Pattern(rows, rows % 4, 10**6, 4)
    assert color_pattern(pattern, "columns").column_count == color_pattern(pattern, "both").column_count == 1
    with pytest.raises(Refusal, match=r"minutes to find 250,000 or more colors here: use another mode"):
        color_pattern(pattern, "rows")


def test_memory_that_runs_out_says_nothing_on_the_function(monkeypatch):
    def detect(*_, **__):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes.")

    monkeypatch.setattr("asdex.jacobian_sparsity", detect)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"^RESOURCE_EXHAUSTED"):
        colorings.detect_pattern(jnp.sin, (jax.ShapeDtypeStruct((3,), "float32"),), ())
