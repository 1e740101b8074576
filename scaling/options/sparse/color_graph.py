"""Color the columns and rows of a sparsity pattern by greedy algorithms (DSATUR) in loops compiled by numba.

A coloring reduces the number of seeds that compute a sparse Jacobian: one seed computes a compressed slice,
which is the sum of all columns, or of all rows, of one color. Each entry of the matrix is read from one
slice. A column owns the entries that are read from the slice that contains the column, and a row owns the
entries that are read from the slice that contains the row.

Two columns conflict if a row has an entry in both columns, and at least one of the two entries is owned by
its column. Conflicting columns must have different colors, because otherwise the slice would contain the sum
of both entries. The same applies to rows. If columns own all entries, this is column coloring. If rows own
some entries, it is the direct bicoloring of T. F. Coleman and A. Verma, "The efficient computation of sparse
Jacobian matrices using automatic differentiation", SIAM J. Sci. Comput. 19(4), 1998; see also A. H.
Gebremedhin, F. Manne and A. Pothen, "What color is your Jacobian?", SIAM Review 47(4), 2005. Finding the
smallest number of colors is NP-hard. The greedy algorithms of this file find a small number.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numba
import numpy as np

from scaling.core.shape import Coloring, Pattern

_MOST_BITMASK_COLORS = 62  # the most colors that fit into the bits of an int64


class ConflictGraph(NamedTuple):
    """The entries of a sparse matrix, sorted both by column and by row, to find conflicting columns.

    An entry is called owned if its column owns it.

    Attributes:
        order: the indices of the columns to color, in decreasing order of their number of entries.
        column_start: the offset of each column in `row_of` and `owned`, an array of shape (columns + 1,) like
            `indptr` of the CSC format.
        row_of, owned: the row of each entry, and whether its column owns it. Entries are sorted by column.
        row_start: the offset of each row in `column_of`, an array of shape (rows + 1,) like `indptr` of CSR.
        column_of: the column of each entry. Entries are sorted by row, and owned entries are first in a row.
        owned_end: the index in `column_of` after the last owned entry of each row, of shape (rows,).
    """

    order: np.ndarray
    column_start: np.ndarray
    row_of: np.ndarray
    owned: np.ndarray
    row_start: np.ndarray
    column_of: np.ndarray
    owned_end: np.ndarray


def color(pattern: Pattern, compress: str) -> Coloring:
    """Return a coloring of the columns, of the rows, or of both the columns and the rows of a pattern.

    `compress` is "columns", "rows" or "both". For "both", the result is the coloring with the fewest colors
    among those of the partitions that `_partitions` yields.
    """
    if compress != "both":
        return color_partition(pattern, np.full(len(pattern.rows), compress == "rows"))
    best, fewest = None, np.inf
    for lower_bound, by_row in sorted(_partitions(pattern), key=lambda partition: partition[0]):
        if lower_bound < fewest:
            coloring = color_partition(pattern, by_row)
            count = coloring.column_count + coloring.row_count
            best, fewest = (coloring, count) if count < fewest else (best, fewest)
    assert best is not None
    return best


def color_partition(pattern: Pattern, by_row: np.ndarray) -> Coloring:
    """Return a coloring of the columns and the rows for given owners of the entries.

    Args:
        by_row: a boolean array of shape (entries,), true for an entry that its row owns, not its column.
    """
    columns, column_count = _color_owners(pattern, ~by_row)
    rows, row_count = _color_owners(_transpose(pattern), by_row)
    return Coloring(
        pattern,
        columns if column_count else None,
        rows if row_count else None,
        column_count,
        row_count,
        by_row,
    )


def _transpose(pattern: Pattern) -> Pattern:
    """Return the pattern of the transposed matrix, with the entries in the same order."""
    return Pattern(pattern.cols, pattern.rows, pattern.inputs, pattern.outputs)


def _color_owners(pattern: Pattern, owned: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the color of each column, or -1 for a column that owns no entry, and the number of colors.

    `owned` is a boolean array of shape (entries,), true for an entry that its column owns.
    """
    columns = np.unique(pattern.cols[owned])
    owned_in_row = np.bincount(pattern.rows[owned], minlength=pattern.outputs)
    lower_bound = int(owned_in_row.max())
    color_of = np.full(pattern.inputs, -1, np.int32)
    if len(columns) > lower_bound and lower_bound <= _MOST_BITMASK_COLORS:
        graph = _conflict_graph(pattern, owned, columns)
        if count := int(_color_by_saturation(*graph, color_of)):
            return color_of, count
        color_of[:] = -1
    # The columns with an owned entry in the fullest row all conflict with each other.
    is_fullest = pattern.rows == owned_in_row.argmax()
    color_of[pattern.cols[owned & is_fullest]] = np.arange(lower_bound)
    uncolored = columns[color_of[columns] < 0]
    if not uncolored.size:
        return color_of, lower_bound
    count = int(_color_in_order(*_conflict_graph(pattern, owned, uncolored), color_of))
    return color_of, max(lower_bound, count)


def _conflict_graph(pattern: Pattern, owned: np.ndarray, columns: np.ndarray) -> ConflictGraph:
    by_column = np.argsort(pattern.cols, kind="stable")
    by_row = np.argsort(2 * pattern.rows.astype(np.int64) + ~owned, kind="stable")
    column_start = _first_entries(pattern.cols, pattern.inputs)
    row_start = _first_entries(pattern.rows, pattern.outputs)
    owned_end = row_start[:-1] + np.bincount(pattern.rows[owned], minlength=pattern.outputs)
    order = columns[np.argsort(-np.diff(column_start)[columns], kind="stable")]
    return ConflictGraph(
        order,
        column_start,
        pattern.rows[by_column],
        owned[by_column],
        row_start,
        pattern.cols[by_row],
        owned_end,
    )


def _first_entries(lines: np.ndarray, count: int) -> np.ndarray:
    """Return the offset of each row in a list of entries sorted by row, like `indptr` of the CSR format.

    `lines` contains the row of each entry and `count` is the number of rows. The function applies equally to
    columns.
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(lines, minlength=count))])


def compile_loops() -> None:
    """Compile the numba functions of this file, so that measured times do not include compilation."""
    pattern = Pattern(np.array([0, 0, 1, 1], np.int32), np.array([0, 1, 1, 2], np.int32), 2, 3)
    for loop in (_color_by_saturation, _color_in_order):
        loop(
            *_conflict_graph(pattern, np.ones(4, bool), np.arange(3, dtype=np.int32)),
            np.full(3, -1, np.int32),
        )
    list(_partitions(pattern))


@numba.njit(cache=True)
def _insert(links, node, head):
    """Insert a node after the head of a doubly linked list.

    `links` is a pair of arrays that contain the next and the previous node of each node.
    """
    following, preceding = links
    following[node], preceding[node] = following[head], head
    preceding[following[head]], following[head] = node, node


@numba.njit(cache=True)
def _remove(links, node):
    following, preceding = links
    following[preceding[node]], preceding[following[node]] = following[node], preceding[node]


@numba.njit(cache=True)
def _color_in_order(order, column_start, row_of, owned, row_start, column_of, owned_end, color_of):
    """Color the columns in the given order, each with the lowest color that no conflicting column has.

    The colors are written to `color_of`, and the highest of them plus one is returned. The other arguments
    are the fields of `ConflictGraph`.
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


@numba.njit(cache=True)
def _color_by_saturation(order, column_start, row_of, owned, row_start, column_of, owned_end, color_of):
    """Color the columns by the DSATUR algorithm, each with the lowest color that no conflicting column has.

    The saturation of a column is the number of distinct colors of the columns that it conflicts with. The
    next column to color is the one with the highest saturation. Among columns of equal saturation, the next
    is the one whose saturation increased last. Therefore colors spread from neighbor to neighbor, and repeat
    periodically on a grid.

    The colors are written to `color_of`. The number of colors is returned, or 0 if the colors do not fit into
    an int64 bitmask. The other arguments are the fields of `ConflictGraph`. Source: D. Brelaz, "New methods
    to color the vertices of a graph", Communications of the ACM 22(4), 1979.
    """
    n, count, highest = len(color_of), 0, 0
    neighbor_colors = np.zeros(n, np.int64)  # bitmask of the colors of conflicting columns
    saturation = np.full(n, -1, np.int64)  # number of these colors, or -1 for a column not to be colored
    # Doubly linked lists of the columns of each saturation. The list of saturation k starts at node n + k.
    links = np.arange(n + 64), np.arange(n + 64)
    for column in order[::-1]:
        saturation[column] = 0
        _insert(links, column, n)
    for _ in range(len(order)):
        while links[0][n + highest] == n + highest:
            highest -= 1
        column, color = links[0][n + highest], 0
        _remove(links, column)
        saturation[column] = -1
        while (neighbor_colors[column] >> color) & 1:
            color += 1
        if color >= _MOST_BITMASK_COLORS:
            return 0
        color_of[column], count = color, max(count, color + 1)
        for p in range(column_start[column], column_start[column + 1]):
            row = row_of[p]
            for q in range(row_start[row], row_start[row + 1] if owned[p] else owned_end[row]):
                other = column_of[q]
                if saturation[other] >= 0 and not (neighbor_colors[other] >> color) & 1:
                    neighbor_colors[other] |= np.int64(1) << color
                    saturation[other] += 1
                    _remove(links, other)
                    _insert(links, other, n + saturation[other])
                    highest = max(highest, saturation[other])
    return count


def _partitions(pattern: Pattern) -> Iterator[tuple[int, np.ndarray]]:
    """Yield candidate partitions of the entries into those owned by columns and those owned by rows.

    In the first candidate, columns own all entries, and in the second, rows own all entries. For the others,
    rows and columns are eliminated one by one, always the one with the most remaining entries, which then
    owns these entries. After some number of steps, elimination stops, and the remaining entries are all owned
    by columns, or all by rows. For either choice, the candidates with the smallest and the largest number of
    steps are yielded among those with the least lower bound on the number of colors.

    Yields:
        A lower bound on the number of colors.
        A boolean array of shape (entries,), true for an entry that its row owns.
    """
    by_row, by_column = np.argsort(pattern.rows, kind="stable"), np.argsort(pattern.cols, kind="stable")
    row_start = _first_entries(pattern.rows, pattern.outputs)
    column_start = _first_entries(pattern.cols, pattern.inputs)
    yield int(np.diff(row_start).max()), np.zeros(len(by_row), bool)
    yield int(np.diff(column_start).max()), np.ones(len(by_row), bool)
    row_stage, column_stage, owned, excluded = _elimination_order(
        row_start, pattern.cols[by_row], column_start, pattern.rows[by_column]
    )
    of_row, of_column = row_stage[pattern.rows], column_stage[pattern.cols]
    for side, (stage_of, start) in enumerate([(row_stage, row_start), (column_stage, column_start)]):
        # 0: the remaining entries are owned by columns, so that columns own all entries of a remaining row.
        # 1: the remaining entries are owned by rows.
        most_remaining = np.zeros(len(owned[side]), np.int64)
        np.maximum.at(most_remaining, stage_of, np.diff(start))
        most_remaining = np.maximum.accumulate(most_remaining[::-1])[::-1]
        lower_bounds = np.maximum(most_remaining, excluded[side]) + owned[side]
        smallest = np.flatnonzero(lower_bounds == lower_bounds.min())
        for stage in dict.fromkeys((int(smallest[0]), int(smallest[-1]))):
            is_eliminated = np.minimum(of_row, of_column) < stage
            yield int(lower_bounds[stage]), np.where(is_eliminated, of_row < of_column, bool(side))


@numba.njit(cache=True)
def _elimination_order(row_start, column_of, column_start, row_of):
    """Eliminate rows and columns one by one, to choose the entries that each row and each column owns.

    In each stage, the row or column with the most remaining entries is eliminated and owns these entries,
    until no entries remain. `_partitions` derives bounds on the number of colors from the results. The
    arguments are the entries sorted by row and by column, as in `ConflictGraph`.

    Returns:
        An array of shape (rows,): the stage that eliminates each row, or the number of stages if none does.
        An array of shape (columns,): the same for each column.
        An array of shape (2, stages + 1): the most entries of a column that eliminated rows own, and the most
            entries of a row that eliminated columns own, after each number of completed stages.
        An array of shape (2, stages + 1): the most entries of an eliminated row that columns own, and the
            most entries of an eliminated column that rows own, after each number of completed stages.
    """
    m, n = len(row_start) - 1, len(row_start) + len(column_start) - 2  # rows, and lines: rows then columns
    full = np.concatenate((np.diff(row_start), np.diff(column_start)))
    remaining, stage_of, highest = full.copy(), np.full(n, -1, np.int64), full.max()
    owned, excluded = np.zeros((2, n + 1), np.int64), np.zeros((2, n + 1), np.int64)
    # Doubly linked lists of the lines with k remaining entries. The list of k starts at node n + k.
    links = np.arange(n + highest + 1), np.arange(n + highest + 1)
    for line in range(n - 1, -1, -1):
        _insert(links, line, n + remaining[line])
    stage = 0
    while True:
        while highest > 0 and links[0][n + highest] == n + highest:
            highest -= 1
        if highest == 0:
            stage_of[stage_of < 0] = stage
            return stage_of[:m], stage_of[m:], owned[:, : stage + 1], excluded[:, : stage + 1]
        line = links[0][n + highest]
        _remove(links, line)
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
                _remove(links, other)
                _insert(links, other, n + remaining[other])
