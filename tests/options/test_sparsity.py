"""Sparsity: patterns that hold every entry, colours by which every entry can be read off, and two workloads that show both."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scaling.core import inputs, process_cache, workload
from scaling.core.case import Case, Refusal
from scaling.core.pattern import Coloring, Pattern
from scaling.options.sparse import color_graph, sparsity
from scaling.options.sparse.color_graph import Matrix

pytestmark = pytest.mark.thin(20, "contract")

jax.config.update("jax_enable_x64", True)

KINDS = ("scattered", "full rows", "full columns", "both", "banded", "empty lines")


@pytest.fixture(autouse=True)
def nothing_kept():
    """Each test begins without patterns and colourings of another."""
    process_cache.clear()
    sparsity._import_asdex.cache_clear()


def drawn(generator, kind):
    """A random pattern of one kind as a boolean matrix, at least one entry in it and never square."""
    rows = int(generator.integers(1, 15))
    there = generator.random((rows, rows + int(generator.integers(1, 9)))) < generator.choice(
        [0.05, 0.15, 0.4]
    )
    there = there if generator.random() < 0.5 else there.T
    rows, cols = there.shape
    if kind in ("full rows", "both"):
        there[generator.integers(rows, size=2)] |= generator.random(cols) < 0.9
    if kind in ("full columns", "both"):
        there[:, generator.integers(cols, size=2)] |= generator.random((rows, 1)) < 0.9
    if kind == "banded":
        there |= np.abs(np.subtract.outer(np.arange(rows), np.arange(cols))) < 2
    if kind == "empty lines":
        there[generator.integers(rows)] = there[:, generator.integers(cols)] = False
    there[-1, -1] |= not there.any()
    return there


def pattern_of(there):
    """The pattern of a boolean matrix."""
    rows, cols = np.nonzero(there)
    return Pattern(rows.astype(np.int32), cols.astype(np.int32), *there.shape)


def colored(pattern, how):
    """A pattern coloured, without a function that has it."""
    return sparsity._make_coloring(pattern, sparsity._color(pattern, how), 0.0, 0.0)


def seeds(colors, count):
    """For each colour the sum of the rows of the identity that have it: (count, lines)."""
    return np.zeros((0, 0), int) if colors is None else (colors == np.arange(count)[:, None]).astype(int)


def read_off(found, J):
    """The entries of a matrix, read off its compressed columns and rows as the colouring says: (entries,)."""
    columns, rows = seeds(found.columns, found.column_count), seeds(found.rows, found.row_count)
    at = found.pattern
    entries = np.empty(len(at.rows), J.dtype)
    if (of := ~found.by_row).any():
        entries[of] = (J @ columns.T)[at.rows[of], found.columns[at.cols[of]]]
    if (of := found.by_row).any():
        entries[of] = (rows @ J)[found.rows[at.rows[of]], at.cols[of]]
    return entries


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", sparsity.COMPRESSIONS)
def test_every_entry_of_every_matrix_is_read_off_its_compressed_columns_and_rows(how, kind):
    generator = np.random.default_rng(1)
    for _ in range(
        300 if how == "both" else 50
    ):  # columns or rows alone ask asdex, which compiles for each number of entries
        there = drawn(generator, kind)
        found = colored(pattern_of(there), how)
        J = there * generator.integers(1, 10**6, there.shape)
        np.testing.assert_array_equal(read_off(found, J), J[there])
        sparsity.validate_coloring(found)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_holds_where_quicker_ways_to_colour_are_left_out(kind, monkeypatch):
    monkeypatch.setattr(color_graph, "_MOST_BITMASK_COLORS", 0)
    monkeypatch.setattr(color_graph, "_MOST_ASDEX_PAIRS", 0)
    generator = np.random.default_rng(2)
    for _ in range(100):
        there = drawn(generator, kind)
        found = colored(pattern_of(there), ("columns", "both")[int(generator.integers(2))])
        J = there * generator.integers(1, 10**6, there.shape)
        np.testing.assert_array_equal(read_off(found, J), J[there])


@pytest.mark.parametrize("kind", KINDS)
def test_any_division_of_the_entries_between_columns_and_rows_can_be_coloured(kind):
    generator = np.random.default_rng(3)
    for _ in range(100):
        there = drawn(generator, kind)
        pattern = pattern_of(there)
        by_row = generator.random(len(pattern.rows)) < generator.choice([0.1, 0.5, 0.9])
        matrix = Matrix(pattern.rows, pattern.cols, there.shape)
        found = sparsity._make_coloring(pattern, color_graph.color_partition(matrix, by_row), 0.0, 0.0)
        J = there * generator.integers(1, 10**6, there.shape)
        np.testing.assert_array_equal(read_off(found, J), J[there])
        sparsity.validate_coloring(found)


@pytest.mark.parametrize("kind", KINDS)
def test_both_together_need_no_more_colours_than_the_better_of_columns_and_rows_and_none_less_than_must_be(
    kind,
):
    generator = np.random.default_rng(4)
    for _ in range(50):
        there = drawn(generator, kind)
        columns, rows, both = (colored(pattern_of(there), how) for how in sparsity.COMPRESSIONS)
        assert both.column_count + both.row_count <= min(columns.column_count, rows.row_count)
        assert there.sum(axis=1).max() <= columns.column_count <= there.any(axis=0).sum()
        assert there.sum(axis=0).max() <= rows.row_count <= there.any(axis=1).sum()
        assert columns.rows is None and rows.columns is None and columns.row_count == rows.column_count == 0


@pytest.mark.parametrize("most", [color_graph._MOST_BITMASK_COLORS, 0], ids=["our colours", "asdex's"])
def test_colours_are_numbered_without_a_gap_and_lines_without_an_entry_have_none(most, monkeypatch):
    monkeypatch.setattr(color_graph, "_MOST_BITMASK_COLORS", most)
    there = np.zeros((4, 7), bool)
    there[1, [0, 2, 5]] = there[3, [2, 6]] = True
    columns, rows = colored(pattern_of(there), "columns"), colored(pattern_of(there), "rows")
    assert sorted(set(columns.columns)) == [-1, 0, 1, 2] and (columns.columns[[1, 3, 4]] == -1).all()
    assert sorted(set(rows.rows)) == [-1, 0, 1] and (rows.rows[[0, 2]] == -1).all()


@pytest.mark.parametrize("thick", [1, 3])
def test_an_arrowhead_needs_few_colours_of_both_kinds_and_one_for_each_unknown_of_either_kind(thick):
    for n in (11, 3000):
        there = [(i, j) for i in range(n) for j in {*range(thick), i, *(range(n) if i < thick else ())}]
        rows, cols = np.array(sorted(there), np.int32).T
        pattern = Pattern(rows, cols, n, n)
        both = colored(pattern, "both")
        assert both.column_count + both.row_count == 2 * thick + 1
        assert colored(pattern, "columns").column_count == colored(pattern, "rows").row_count == n


@pytest.mark.parametrize("side", [5, 35])
def test_a_grid_gets_the_five_colours_that_its_rows_must_have(side):
    built = workload.build(Case("stencil", sizes={"side": side}))
    pattern = Pattern(*built.pattern(), side**2, side**2)
    assert colored(pattern, "columns").column_count == colored(pattern, "both").column_count == 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_colouring_is_valid_just_if_every_entry_is_read_off_it(kind):
    generator, seen = np.random.default_rng(5), set()
    for _ in range(60):
        there = drawn(generator, kind)
        found = colored(pattern_of(there), sparsity.COMPRESSIONS[int(generator.integers(3))])
        lines = {
            name: getattr(found, name) for name in ("columns", "rows") if getattr(found, name) is not None
        }
        name = list(lines)[int(generator.integers(len(lines)))]
        changed = lines[name].copy()
        changed[generator.integers(len(changed))] = generator.integers(
            -1, getattr(found, name.removesuffix("s") + "_count")
        )
        found = dataclasses.replace(found, **{name: changed})
        J = there * generator.integers(1, 10**6, there.shape)
        line = {"columns": found.pattern.cols, "rows": found.pattern.rows}[name]
        colorless = (changed[line] < 0) & (found.by_row == (name == "rows"))
        right = not colorless.any() and (read_off(found, J) == J[there]).all()
        seen.add(right)
        if right:
            sparsity.validate_coloring(found)
        else:
            with pytest.raises(
                ValueError, match=r"entry \(\d+, \d+\) cannot be read from the color of its (column|row)"
            ):
                sparsity.validate_coloring(found)
    assert seen == {True, False}


def test_a_valid_colouring_has_as_many_colours_as_it_says_and_a_side_for_every_entry():
    found = colored(pattern_of(np.eye(3, 5, dtype=bool)), "columns")
    for wrong in (
        {"column_count": 0},
        {"by_row": ~found.by_row},
        {"columns": None, "column_count": 0},
        {"row_count": 1},
    ):
        with pytest.raises(ValueError):
            sparsity.validate_coloring(dataclasses.replace(found, **wrong))


def test_places_that_many_entries_share_are_found_by_sorting_as_by_counting():
    generator = np.random.default_rng(6)
    for _ in range(50):
        place, color = generator.integers(0, 30, 40), generator.integers(-1, 3, 40).astype(np.int32)
        far = place * 10**7  # too many places to count in
        want = [np.sum((place == p) & (color == c)) > 1 for p, c in zip(place, color, strict=True)]
        np.testing.assert_array_equal(sparsity._collides(color, place, 3), want)
        np.testing.assert_array_equal(sparsity._collides(color, far, 3), want)


def shapes(*of):
    """Shapes of float32 arrays."""
    return tuple(jax.ShapeDtypeStruct(shape, np.float32) for shape in of)


def test_a_pattern_runs_over_all_inputs_in_order_flat_and_over_the_outputs_flat():
    a, b = np.arange(1.0, 7).reshape(2, 3), np.arange(7.0, 11)

    def function(a, b):
        return jnp.stack([a[0] * b[1:], a[1] + b[:3] ** 2])

    found = sparsity.find_coloring("two inputs", function, shapes((2, 3), (4,)), "columns").pattern
    by_a, by_b = jax.jacfwd(function, argnums=(0, 1))(a, b)
    J = np.concatenate([by_a.reshape(6, 6), by_b.reshape(6, 4)], axis=1)
    rows, cols = np.nonzero(J)
    np.testing.assert_array_equal((found.rows, found.cols), (rows, cols))
    assert (found.outputs, found.inputs) == (6, 10) and found.rows.dtype == found.cols.dtype == np.int32


def test_an_entry_that_happens_to_be_zero_belongs_to_the_pattern():
    found = sparsity.find_coloring(
        "zero", lambda x: x[:2] * x[2:] + jnp.sin(x[1]), shapes((4,)), "rows"
    ).pattern
    assert list(zip(found.rows, found.cols, strict=True)) == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 3)]


@pytest.mark.parametrize(
    "sizes", [("stencil", None, {"side": 3}), ("stencil", None, {"side": 6}), ("stencil", "rolls", {"side": 7}),
              ("arrowhead", None, {"n": 2}), ("arrowhead", None, {"n": 9})], ids=str,
)  # fmt: skip
def test_the_pattern_that_is_detected_is_the_one_known_by_hand(sizes):
    name, formulation, sizes = sizes
    built = workload.build(Case(name, formulation=formulation, sizes=sizes))
    ((_, draw),) = built.points.items()
    found = sparsity.find_coloring(name, built.function, shapes(draw.shape), "both")
    np.testing.assert_array_equal((found.pattern.rows, found.pattern.cols), built.pattern())
    sparsity.validate_coloring(found)


def test_a_function_is_looked_at_once_and_a_pattern_coloured_once():
    calls = []

    def function(x):
        calls.append(x)
        return x[1:] * x[:-1]

    first = sparsity.find_coloring("key", function, shapes((5,)), "columns")
    looked = len(calls)
    assert sparsity.find_coloring("key", function, shapes((5,)), "columns") is first
    again = sparsity.find_coloring("key", function, shapes((5,)), "rows")
    assert (
        again.pattern is first.pattern
        and again.detect_seconds == first.detect_seconds > 0
        and again.rows is not None
    )
    assert len(calls) == looked
    other = sparsity.find_coloring("another key", function, shapes((7,)), "columns")
    assert len(calls) > looked and other.pattern.inputs == 7


def test_of_many_patterns_the_last_are_kept():
    for n in range(2, 9):
        sparsity.find_coloring(n, lambda x: x**2, shapes((n,)), "columns")
    kept = process_cache._values
    assert list(kept["pattern"]) == [5, 6, 7, 8] and len(kept["coloring"]) == 4


def test_without_asdex_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "asdex", None)
    with pytest.raises(Refusal, match=r"pip install 'ad-scaling\[sparse\]'"):
        sparsity.find_coloring("key", lambda x: x**2, shapes((3,)), "columns")


def test_what_asdex_cannot_read_is_refused_in_its_words_and_one_line():
    with pytest.raises(Refusal, match="No handler for primitive 'fft'") as refused:
        sparsity.find_coloring("key", lambda x: jnp.fft.fft(x).real, shapes((3,)), "columns")
    assert "\n" not in str(refused.value) and "key" not in process_cache._values.get("pattern", {})


def test_nothing_to_colour_and_no_known_way_are_refused():
    with pytest.raises(Refusal, match="does not depend"):
        sparsity.find_coloring("key", lambda x: jnp.zeros(4), shapes((3,)), "columns")
    with pytest.raises(Refusal, match="did you mean 'columns'"):
        sparsity.find_coloring("key", lambda x: x**2, shapes((3,)), "column")


def test_looking_at_a_function_leaves_the_collector_of_cycles_as_it_was():
    import gc

    assert gc.isenabled()
    with pytest.raises(Refusal):
        sparsity.find_coloring("key", lambda x: jnp.zeros(4), shapes((3,)), "columns")
    assert gc.isenabled()


CASES = [
    ("stencil", {"side": 4}, None),
    ("stencil", {"side": 3}, "rolls"),
    ("arrowhead", {"n": 6}, None),
    ("arrowhead", {"n": 2}, None),
]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(("name", "sizes", "formulation"), CASES, ids=str)
def test_a_sparse_workload_is_what_jax_says_in_every_form_that_it_offers(name, sizes, formulation, dtype):
    case = Case(name, sizes=sizes, formulation=formulation, points=5, dtype=dtype)
    built, dense = (
        workload.build(dataclasses.replace(case, seeds=seeds)) for seeds in ("colored", "identity")
    )
    exact = inputs.exact_inputs(case, built, 0, 5)
    ((given, x),) = exact.items()
    entries, whole = built.nonzeros(exact), built.reference(exact)
    n, rounding = whole.value.shape[1], {"float64": 1e-14, "float32": 1e-6, "bfloat16": 0.03}[dtype]

    def near(got, want):
        assert got.dtype == dtype
        error = np.abs(np.asarray(got, np.float64).reshape(want.shape) - want).max() / np.abs(want).max()
        assert error < rounding

    @jax.jit
    def forms(x):
        by_hand = [
            [of.whole_modes[mode](**{given: x}) for mode in ("analytic", "analytic_vmap")]
            for of in (built, dense)
        ]
        return jax.vmap(built.function)(x), jax.vmap(jax.jacfwd(built.function))(x), *by_hand

    value, derivative, as_entries, written_out = forms(jnp.asarray(x, dtype))
    near(value, whole.value)
    for got in (derivative, *written_out):
        near(got, whole.derivative)
    for got in as_entries:
        near(got, entries.derivative)
    rows, cols = built.pattern()
    np.testing.assert_array_equal(whole.derivative[:, rows, cols], entries.derivative[:, 0])
    assert np.count_nonzero(whole.derivative) == 5 * len(
        rows
    ) == entries.derivative.size and whole.derivative.shape == (5, n, n)
    assert np.all(np.diff(rows.astype(int) * n + cols) > 0) and rows.dtype == cols.dtype == np.int32


def test_no_two_entries_of_a_row_or_column_of_a_sparse_workload_are_the_same():
    for name, sizes in (("stencil", {"side": 5}), ("arrowhead", {"n": 7})):
        case = Case(name, sizes=sizes)
        built = workload.build(case)
        J = built.reference(inputs.exact_inputs(case, built, 0, 1)).derivative[0]
        for line in J:
            assert len(set(line[line != 0])) == np.count_nonzero(line)


def test_grids_on_which_neighbours_are_the_same_cell_and_arrows_without_a_shaft_are_refused():
    for name, sizes in (("stencil", {"side": 2}), ("arrowhead", {"n": 1})):
        with pytest.raises(Refusal, match=r"sizes\."):
            workload.build(Case(name, sizes=sizes))


def test_a_colouring_says_what_it_read_off_which():
    found = sparsity.find_coloring(
        "arrow", workload.build(Case("arrowhead", sizes={"n": 12})).function, shapes((12,)), "both"
    )
    assert isinstance(found, Coloring) and (found.column_count, found.row_count) == (2, 1)
    assert found.by_row.any() and not found.by_row.all() and found.by_row.shape == found.pattern.rows.shape
