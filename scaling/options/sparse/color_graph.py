"""Greedy graph coloring of the columns and rows of a sparse matrix, in loops compiled by numba (DSATUR).

A coloring reduces the number of seeds that compute a sparse Jacobian: one seed computes a compressed slice,
which is the sum of all columns, or of all rows, of one color. Each entry of the matrix is read either from
the slice that contains its column, and is then owned by the column, or from the slice that contains its row,
and is then owned by the row.

Two columns conflict if a row has an entry in both columns, and at least one of the two entries is owned by
its column. Conflicting columns must have different colors, because otherwise the slice would contain the sum
of both entries. The same applies to rows. If columns own all entries, this is column coloring. If rows own
some entries, it is the direct bicoloring of T. F. Coleman and A. Verma, "The efficient computation of sparse
Jacobian matrices using automatic differentiation", SIAM J. Sci. Comput. 19(4), 1998; see also A. H.
Gebremedhin, F. Manne and A. Pothen, "What color is your Jacobian?", SIAM Review 47(4), 2005. The smallest
number of colors is NP-hard to find, and the greedy algorithms of this file approximate it.

Columns are also colored by asdex. The loops are compiled by numba, which asdex depends on.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

_MOST_BITMASK_COLORS = 62  # the most colors that fit into the bits of an int64
_MOST_ASDEX_PAIRS = 10**10  # the most pairs of entries in the same row; asdex visits each pair


@dataclass(frozen=True)
class Matrix:
    """The sparsity pattern of a matrix.

    Attributes:
        rows, cols: the row and the column of each entry, (entries,) int32, without duplicates.
        shape: (number of rows, number of columns).
    """

    rows: np.ndarray
    cols: np.ndarray
    shape: tuple[int, int]

    @property
    def transposed(self) -> "Matrix":
        """Return the pattern of the transposed matrix, with the entries in the same order."""
        return Matrix(self.cols, self.rows, self.shape[::-1])


@dataclass(frozen=True)
class Colors:
    """The colors of the columns, or of the rows, of a matrix.

    Attributes:
        color_of: the color of each column or row, int32. It is -1 for one that owns no entry.
        count: the number of colors.
    """

    color_of: np.ndarray
    count: int


@dataclass(frozen=True)
class TwoSidedColors:
    """A coloring of both the columns and the rows of a matrix.

    Attributes:
        columns, rows: the colors of the columns and of the rows.
        by_row: whether each entry is read from (owned by) its row, not its column: (entries,) bool.
    """

    columns: Colors
    rows: Colors
    by_row: np.ndarray

    @property
    def count(self) -> int:
        """Return the number of colors of columns and rows together."""
        return self.columns.count + self.rows.count


class ConflictGraph(NamedTuple):
    """The entries of a matrix, sorted both by column and by row, from which conflicting columns are found.

    An entry is called owned if its column owns it.

    Attributes:
        order: the indices of the columns to color, in decreasing number of entries.
        column_start: the offsets of the columns in `row_of` and `owned`, like `indptr` of the CSC format:
            (columns + 1,).
        row_of, owned: the row of each entry, and whether the entry is owned. Entries are sorted by column.
        row_start: the offsets of the rows in `column_of`, like `indptr` of the CSR format: (rows + 1,).
        column_of: the column of each entry. Entries are sorted by row, with the owned ones first in each row.
        owned_end: for each row, the index in `column_of` after the last owned entry: (rows,).
    """

    order: np.ndarray
    column_start: np.ndarray
    row_of: np.ndarray
    owned: np.ndarray
    row_start: np.ndarray
    column_of: np.ndarray
    owned_end: np.ndarray


def color_columns(matrix: Matrix, owned: np.ndarray | None = None) -> Colors:
    """Color the columns so that the entries that they own can be read from the compressed columns.

    Columns without such entries get no color (-1). Of several algorithms, the coloring with the fewest colors
    is returned.

    Args:
        owned: whether each entry is owned by (read from) its column, (entries,) bool. None if all entries
            are.
    """
    by_column = np.ones(len(matrix.rows), bool) if owned is None else owned
    columns = np.unique(matrix.cols[by_column])
    lower_bound = _most_entries(matrix.rows[by_column])
    if lower_bound == len(columns):  # a row contains an entry of every column
        color_of = np.full(matrix.shape[1], -1, np.int32)
        color_of[columns] = np.arange(lower_bound)
        return Colors(color_of, lower_bound)
    best = None
    for attempt in _try_algorithms(matrix, by_column, columns, lower_bound, owns_all=owned is None):
        best = attempt if best is None or attempt.count < best.count else best
        if best.count == lower_bound:
            break
    assert best is not None
    return best


def color_both(matrix: Matrix) -> TwoSidedColors:
    """Color the columns, the rows, or both, whichever needs the fewest colors.

    Several partitions of the entries into those owned by columns and by rows are tried; see `_partitions`.
    """
    best = None
    for lower_bound, owned_by_row in sorted(_partitions(matrix), key=lambda partition: partition[0]):
        if best is None or lower_bound < best.count:
            colors = color_partition(matrix, owned_by_row())
            best = colors if best is None or colors.count < best.count else best
    assert best is not None
    return best


def color_partition(matrix: Matrix, by_row: np.ndarray) -> TwoSidedColors:
    """Color the columns and the rows for a given partition of the entries.

    Args:
        by_row: whether each entry is read from (owned by) its row, not its column: (entries,) bool.
    """
    columns = color_columns(matrix, None if not by_row.any() else ~by_row)
    rows = color_columns(matrix.transposed, None if by_row.all() else by_row)
    return TwoSidedColors(columns, rows, by_row)


def _most_entries(lines: np.ndarray) -> int:
    return int(np.bincount(lines).max(initial=0))


def _try_algorithms(
    matrix: Matrix, owned: np.ndarray, columns: np.ndarray, lower_bound: int, owns_all: bool
) -> Iterator[Colors]:
    """Yield colorings of the columns by different algorithms, the one that usually is best first.

    Args:
        owned: whether each entry is owned by its column: (entries,) bool.
        columns: the indices of the columns to color.
        lower_bound: the largest number of owned entries in a row, which is a lower bound on the number of
            colors.
        owns_all: whether columns own all entries.
    """
    color_of = np.full(matrix.shape[1], -1, np.int32)
    if lower_bound <= _MOST_BITMASK_COLORS:
        graph = _conflict_graph(matrix, owned, columns)
        if count := int(_jit(_color_by_saturation)(*graph, color_of)):
            yield Colors(color_of, count)
    if owns_all and int(np.sum(np.bincount(matrix.rows).astype(np.int64) ** 2)) <= _MOST_ASDEX_PAIRS:
        yield _color_by_asdex(matrix, columns)
        return
    # The columns with an owned entry in the fullest row all conflict with each other.
    color_of = np.full(matrix.shape[1], -1, np.int32)
    fullest = np.bincount(matrix.rows[owned]).argmax()
    color_of[matrix.cols[owned & (matrix.rows == fullest)]] = np.arange(lower_bound)
    uncolored = columns[color_of[columns] < 0]
    count = int(_jit(_color_in_order)(*_conflict_graph(matrix, owned, uncolored), color_of))
    yield Colors(color_of, max(lower_bound, count))


def _conflict_graph(matrix: Matrix, owned: np.ndarray, columns: np.ndarray) -> ConflictGraph:
    by_column = np.argsort(matrix.cols, kind="stable")
    by_row = np.argsort(2 * matrix.rows.astype(np.int64) + ~owned, kind="stable")
    column_start, row_start = (
        _first_entries(matrix.cols, matrix.shape[1]),
        _first_entries(matrix.rows, matrix.shape[0]),
    )
    owned_end = row_start[:-1] + np.bincount(matrix.rows[owned], minlength=matrix.shape[0])
    order = columns[np.argsort(-np.diff(column_start)[columns], kind="stable")]
    return ConflictGraph(
        order,
        column_start,
        matrix.rows[by_column],
        owned[by_column],
        row_start,
        matrix.cols[by_row],
        owned_end,
    )


def compile_loops() -> None:
    """Compile all loops of this file and of asdex, so that measured times do not include compilation."""
    matrix = Matrix(np.array([0, 0, 1, 1], np.int32), np.array([0, 1, 1, 2], np.int32), (2, 3))
    columns = np.unique(matrix.cols)
    for loop in (_color_by_saturation, _color_in_order):
        _jit(loop)(*_conflict_graph(matrix, np.ones(4, bool), columns), np.full(3, -1, np.int32))
    _color_by_asdex(matrix, columns)
    list(_partitions(matrix))


def _first_entries(lines: np.ndarray, count: int) -> np.ndarray:
    """Return the offset of each row in entries sorted by row, like `indptr` of the CSR format: (count + 1,).

    `lines` contains the row of each entry and `count` is the number of rows. Columns are treated alike.
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(lines, minlength=count))])


def _color_by_asdex(matrix: Matrix, columns: np.ndarray) -> Colors:
    """Color the columns with asdex. All entries must be owned by columns, because asdex does not bicolor."""
    import asdex

    of_all, count = asdex.color_cols(asdex.SparsityPattern.from_coo(matrix.rows, matrix.cols, matrix.shape))
    color_of = np.full(matrix.shape[1], -1, np.int32)
    color_of[columns] = of_all[columns]
    return Colors(color_of, int(count))


@functools.cache
def _jit(loop: Callable[..., Any]) -> Callable[..., Any]:
    import numba

    return numba.njit(cache=True)(loop)


def _color_in_order(order, column_start, row_of, owned, row_start, column_of, owned_end, color_of):
    """Color the columns in the given order, each with the lowest color that no conflicting column has.

    The colors are written to `color_of`, and the number of colors is returned. The other arguments are the
    fields of `ConflictGraph`.
    """
    used_by, count = np.full(len(color_of) + 1, -1, np.int64), 0  # color -> last column that cannot have it
    for column in order:
        for p in range(column_start[column], column_start[column + 1]):
            row = row_of[p]
            for q in range(row_start[row], row_start[row + 1] if owned[p] else owned_end[row]):
                if color_of[column_of[q]] >= 0:
                    used_by[color_of[column_of[q]]] = column
        color = 0
        while used_by[color] == column:
            color += 1
        color_of[column] = color
        count = max(count, color + 1)
    return count


def _color_by_saturation(order, column_start, row_of, owned, row_start, column_of, owned_end, color_of):
    """Color the columns by the DSATUR algorithm, each with the lowest color that no conflicting column has.

    The saturation of a column is the number of distinct colors of the columns that it conflicts with. The
    next column to color is the one with the highest saturation. If there are several, it is the one whose
    saturation increased last, so that colors spread from neighbor to neighbor and repeat periodically on a
    grid.

    The colors are written to `color_of`. The number of colors is returned, or 0 if the colors do not fit into
    an int64 bitmask. The other arguments are the fields of `ConflictGraph`. Source: D. Brelaz, "New methods
    to color the vertices of a graph", Communications of the ACM 22(4), 1979.
    """
    n, count, highest = len(color_of), 0, 0
    neighbor_colors = np.zeros(n, np.int64)  # bitmask of the colors of conflicting columns
    saturation = np.full(n, -1, np.int64)  # number of these colors, or -1 for a column not to be colored
    # Doubly linked lists of the columns of each saturation. The list of saturation k starts at node n + k.
    following, preceding = np.arange(n + 64), np.arange(n + 64)

    def insert(node, head):
        following[node], preceding[node] = following[head], head
        preceding[following[head]], following[head] = node, node

    def remove(node):
        following[preceding[node]], preceding[following[node]] = following[node], preceding[node]

    for column in order[::-1]:
        saturation[column] = 0
        insert(column, n)
    for _ in range(len(order)):
        while following[n + highest] == n + highest:
            highest -= 1
        column, color = following[n + highest], 0
        remove(column)
        saturation[column] = -1
        while (neighbor_colors[column] >> color) & 1:
            color += 1
        if color >= 62:
            return 0
        color_of[column], count = color, max(count, color + 1)
        for p in range(column_start[column], column_start[column + 1]):
            row = row_of[p]
            for q in range(row_start[row], row_start[row + 1] if owned[p] else owned_end[row]):
                other = column_of[q]
                if saturation[other] >= 0 and not (neighbor_colors[other] >> color) & 1:
                    neighbor_colors[other] |= np.int64(1) << color
                    saturation[other] += 1
                    remove(other)
                    insert(other, n + saturation[other])
                    highest = max(highest, saturation[other])
    return count


def _partitions(matrix: Matrix) -> Iterator[tuple[int, Callable[[], np.ndarray]]]:
    """Yield candidate partitions of the entries into those owned by columns and those owned by rows.

    The first two candidates are that columns own all entries, and that rows do. For the others, the row or
    column with the most entries is eliminated and owns these entries, then the row or column with the most
    remaining entries, and so on. After each number of eliminations, the remaining entries could all be owned
    by columns, or all by rows. For either choice, the numbers of eliminations with the smallest lower bound
    are determined, and the first and the last of these are yielded.

    Yields:
        A lower bound on the number of colors.
        A function that returns whether each entry is owned by its row: (entries,) bool.
    """
    count = len(matrix.rows)
    yield _most_entries(matrix.rows), lambda: np.zeros(count, bool)
    yield _most_entries(matrix.cols), lambda: np.ones(count, bool)
    by_row, by_column = np.argsort(matrix.rows, kind="stable"), np.argsort(matrix.cols, kind="stable")
    row_start, column_start = (
        _first_entries(matrix.rows, matrix.shape[0]),
        _first_entries(matrix.cols, matrix.shape[1]),
    )
    row_stage, column_stage, owned, excluded = _jit(_elimination_order)(
        row_start, matrix.cols[by_row], column_start, matrix.rows[by_column]
    )

    def owned_by_row(stage: int, rest_to_rows: bool) -> np.ndarray:
        of_row, of_column = row_stage[matrix.rows], column_stage[matrix.cols]
        is_eliminated = np.minimum(of_row, of_column) < stage
        return np.where(is_eliminated, of_row < of_column, rest_to_rows)

    for side, (stage_of, start) in enumerate([(row_stage, row_start), (column_stage, column_start)]):
        # 0: the remaining entries are owned by columns, so that columns own all entries of a remaining row.
        # 1: the remaining entries are owned by rows.
        most_remaining = np.zeros(len(owned[side]), np.int64)
        np.maximum.at(most_remaining, stage_of, np.diff(start))
        most_remaining = np.maximum.accumulate(most_remaining[::-1])[::-1]
        lower_bounds = np.maximum(most_remaining, excluded[side]) + owned[side]
        smallest = np.flatnonzero(lower_bounds == lower_bounds.min())
        for stage in dict.fromkeys((int(smallest[0]), int(smallest[-1]))):
            yield int(lower_bounds[stage]), functools.partial(owned_by_row, stage, bool(side))


def _elimination_order(row_start, column_of, column_start, row_of):
    """Eliminate rows and columns one by one, to choose the entries that each row and each column owns.

    In each stage, the row or column with the most remaining entries is eliminated and owns these entries,
    until no entries remain. `_partitions` derives bounds on the number of colors from the results. The
    arguments are the entries sorted by row and by column, as in `ConflictGraph`.

    Returns:
        The index of the stage that eliminates each row, or the number of stages if none does: (rows,).
        The same for each column: (columns,).
        owned, (2, stages + 1): the most entries of a column that eliminated rows own, and the most entries of
            a row that eliminated columns own. The second axis is the number of completed stages.
        excluded, (2, stages + 1): the most entries of an eliminated row that columns own, and the most
            entries of an eliminated column that rows own. The second axis is the same.
    """
    m, n = len(row_start) - 1, len(row_start) + len(column_start) - 2  # rows, and lines: rows then columns
    full = np.concatenate((np.diff(row_start), np.diff(column_start)))
    remaining, stage_of, highest = full.copy(), np.full(n, -1, np.int64), full.max()
    owned, excluded = np.zeros((2, n + 1), np.int64), np.zeros((2, n + 1), np.int64)
    # Doubly linked lists of the lines with k remaining entries. The list of k starts at node n + k.
    following, preceding = np.arange(n + highest + 1), np.arange(n + highest + 1)

    def insert(node, head):
        following[node], preceding[node] = following[head], head
        preceding[following[head]], following[head] = node, node

    def remove(node):
        following[preceding[node]], preceding[following[node]] = following[node], preceding[node]

    for line in range(n - 1, -1, -1):
        insert(line, n + remaining[line])
    stage = 0
    while True:
        while highest > 0 and following[n + highest] == n + highest:
            highest -= 1
        if highest == 0:
            stage_of[stage_of < 0] = stage
            return stage_of[:m], stage_of[m:], owned[:, : stage + 1], excluded[:, : stage + 1]
        line = following[n + highest]
        remove(line)
        stage_of[line] = stage
        stage += 1
        side = 0 if line < m else 1
        owned[:, stage], excluded[:, stage] = owned[:, stage - 1], excluded[:, stage - 1]
        excluded[side, stage] = max(excluded[side, stage], full[line] - remaining[line])
        start, stop = (
            (row_start[line], row_start[line + 1])
            if side == 0
            else (column_start[line - m], column_start[line - m + 1])
        )
        for p in range(start, stop):
            other = m + column_of[p] if side == 0 else row_of[p]
            if stage_of[other] < 0:
                remaining[other] -= 1
                owned[side, stage] = max(owned[side, stage], full[other] - remaining[other])
                remove(other)
                insert(other, n + remaining[other])
