"""Color the columns and rows of a sparsity pattern by a greedy algorithm (DSATUR), compiled by numba.

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
smallest number of colors is NP-hard. The greedy algorithm of this file finds a small number.
"""

from collections.abc import Iterator

import numba
import numpy as np

from scaling.core.shape import Pattern
from scaling.options.sparse.coloring import Coloring

_MAX_THRESHOLDS = 20  # the maximum number of thresholds that `_partitions` tries
_MAX_SATURATION_SIZE = (
    2**26
)  # the product of columns and entries of the fullest row, up to which DSATUR is used


def color(pattern: Pattern, compress: str) -> Coloring:
    """Return a coloring of the columns, of the rows, or of both the columns and the rows of a pattern.

    Args:
        compress: "columns", "rows" or "both". For "both", several ways to divide the entries between columns
            and rows are tried, and the coloring with the fewest colors is returned.
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
    """Return a coloring of the columns and the rows of a pattern.

    Args:
        by_row: a boolean array of shape (entries,), true for an entry that is read from a compressed row, and
            false for an entry that is read from a compressed column.
    """
    transposed = Pattern(pattern.cols, pattern.rows, pattern.inputs, pattern.outputs)
    columns, column_count = _color_columns(pattern, ~by_row)
    rows, row_count = _color_columns(transposed, by_row)
    column_colors, row_colors = columns if column_count else None, rows if row_count else None
    return Coloring(pattern, column_colors, row_colors, column_count, row_count, by_row)


def _partitions(pattern: Pattern) -> Iterator[tuple[int, np.ndarray]]:
    """Yield candidate partitions of the entries into those owned by columns and those owned by rows.

    Rows and columns with more entries than a threshold own their entries. If both the row and the column of
    an entry have more, the fuller one owns it. The remaining entries are all owned by columns, or all by
    rows. At the highest threshold, all entries remain, so that columns alone and rows alone are candidates.

    Yields:
        A lower bound on the number of colors.
        A boolean array of shape (entries,), true for an entry that its row owns.
    """
    in_row, in_column = (np.bincount(lines)[lines] for lines in (pattern.rows, pattern.cols))
    fullest = np.maximum(in_row, in_column)
    for threshold in np.unique(fullest)[-_MAX_THRESHOLDS:]:
        for others_by_row in (False, True):
            by_row = np.where(fullest > threshold, in_row >= in_column, others_by_row)
            in_rows = np.bincount(pattern.rows[~by_row]).max(initial=0)
            in_columns = np.bincount(pattern.cols[by_row]).max(initial=0)
            yield int(in_rows + in_columns), by_row


def _color_columns(pattern: Pattern, owned: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the color of each column of a pattern, an array of shape (inputs,), and the number of colors.

    `owned` is a boolean array of shape (entries,), true for the entries that are read from a column of the
    compressed Jacobian. A column without such an entry has the color -1.
    """
    columns = np.unique(pattern.cols[owned])
    color_of = np.full(pattern.inputs, -1, np.int32)
    owned_in_row = np.bincount(pattern.rows[owned], minlength=1)
    fullest = pattern.cols[owned & (pattern.rows == owned_in_row.argmax())]  # they conflict with each other
    if len(fullest) == len(columns):
        color_of[fullest] = np.arange(len(fullest))
        return color_of, len(fullest)
    if len(fullest) * pattern.inputs > _MAX_SATURATION_SIZE:
        color_of[fullest] = np.arange(len(fullest))
        graph = _conflict_graph(pattern, owned, columns[color_of[columns] < 0])
        return color_of, max(len(fullest), int(_color_in_order(graph, color_of)))
    graph, most = _conflict_graph(pattern, owned, columns), len(fullest)
    while True:
        most *= 2
        is_used = np.zeros((pattern.inputs, most), bool)
        if _color_by_saturation(graph, fullest, color_of, is_used):
            return color_of, int(color_of.max()) + 1


def _conflict_graph(pattern: Pattern, owned: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the entries of a pattern sorted both by column and by row, to find conflicting columns.

    Args:
        owned: a boolean array of shape (entries,), true for an entry that its column owns.
        columns: the indices of the columns to color.
    Returns:
        The columns to color, in decreasing order of their number of entries.
        The offset of each column in the next two arrays, of shape (columns + 1,) like `indptr` of CSC.
        The row of each entry, and whether its column owns it. Entries are sorted by column.
        The offset of each row in the next array, of shape (rows + 1,) like `indptr` of CSR.
        The column of each entry. Entries are sorted by row, and owned entries are first in a row.
        The index in that array after the last owned entry of each row, of shape (rows,).
    """
    by_column = np.argsort(pattern.cols, kind="stable")
    by_row = np.argsort(2 * pattern.rows.astype(np.int64) + ~owned, kind="stable")
    column_start = np.cumsum(np.bincount(pattern.cols + 1, minlength=pattern.inputs + 1))
    row_start = np.cumsum(np.bincount(pattern.rows + 1, minlength=pattern.outputs + 1))
    owned_end = row_start[:-1] + np.bincount(pattern.rows[owned], minlength=pattern.outputs)
    order = columns[np.argsort(-np.diff(column_start)[columns], kind="stable")]
    return (
        order,
        column_start,
        pattern.rows[by_column],
        owned[by_column],
        row_start,
        pattern.cols[by_row],
        owned_end,
    )


def compile_numba_functions() -> None:
    """Call the numba functions of this file once, so that later measured times exclude their compilation."""
    pattern = Pattern(np.array([0, 0, 1, 1], np.int32), np.array([0, 1, 1, 2], np.int32), 2, 3)
    color(pattern, "columns")
    graph = _conflict_graph(pattern, np.ones(4, bool), np.arange(3))
    _color_in_order(graph, np.full(3, -1, np.int32))


@numba.njit(cache=True)
def _insert(links, node, head):
    """Insert a node after the node `head` of a doubly linked list.

    `links` is a pair of arrays that contain the next and the previous node of each node.
    """
    following, preceding = links
    following[node], preceding[node] = following[head], head
    preceding[following[head]], following[head] = node, node


@numba.njit(cache=True)
def _remove(links, node):
    """Remove a node from its doubly linked list, in the form of `_insert`."""
    following, preceding = links
    following[preceding[node]], preceding[following[node]] = following[node], preceding[node]


@numba.njit(cache=True)
def _color_in_order(graph, color_of):
    """Color the columns in the order of the graph, each with the lowest color that no conflict excludes.

    Write the colors to `color_of`, and return the highest color plus one. The time is linear in the number of
    conflicts, and the memory in the number of columns.

    Args:
        graph: the result of `_conflict_graph`.
        color_of: an array of shape (columns,) with the color of each column, or -1 for an uncolored column.
    """
    order, column_start, row_of, owned, row_start, column_of, owned_end = graph
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
def _color_by_saturation(graph, first, color_of, is_used):
    """Color the columns by the DSATUR algorithm, each with the lowest color that no conflicting column has.

    The saturation of a column is the number of distinct colors of the columns that it conflicts with. The
    next column to color is the one with the highest saturation. Among columns of equal saturation, the next
    is the one whose saturation increased last. Therefore colors spread from neighbor to neighbor, and repeat
    periodically on a grid. Source: D. Brelaz, "New methods to color the vertices of a graph", Communications
    of the ACM 22(4), 1979.

    Write the colors to `color_of`, and return whether `is_used` has enough columns for the colors.

    Args:
        graph: the result of `_conflict_graph`.
        first: columns that conflict with each other, which are colored first.
        color_of: an array of shape (columns,). Columns that are not to be colored keep their values.
        is_used: an array of shape (columns, colors), initially false. It is set to true where a conflicting
            column has the color.
    """
    order, column_start, row_of, owned, row_start, column_of, owned_end = graph
    n, most = is_used.shape
    saturation = np.full(n, -1)  # -1 for a column that has a color or needs none
    # Doubly linked lists of the columns of each saturation. The list of saturation k starts at node n + k.
    links = np.arange(n + most + 1), np.arange(n + most + 1)
    for column in order[::-1]:
        saturation[column] = 0
        _insert(links, column, n)
    for column in first:
        saturation[column] = -1
        _remove(links, column)
    highest = 0
    for colored in range(len(order)):
        if colored < len(first):
            column, color = first[colored], colored
        else:
            while links[0][n + highest] == n + highest:
                highest -= 1
            column, color = links[0][n + highest], 0
            saturation[column] = -1
            _remove(links, column)
            while color < most and is_used[column, color]:
                color += 1
            if color == most:
                return False
        color_of[column] = color
        for p in range(column_start[column], column_start[column + 1]):
            row = row_of[p]
            for q in range(row_start[row], row_start[row + 1] if owned[p] else owned_end[row]):
                other = column_of[q]
                if saturation[other] >= 0 and not is_used[other, color]:
                    is_used[other, color] = True
                    saturation[other] += 1
                    _remove(links, other)
                    _insert(links, other, n + saturation[other])
                    highest = max(highest, saturation[other])
    return True
