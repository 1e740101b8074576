"""Color the conflict graph of a sparsity pattern with few colors (DSATUR), in functions compiled by numba.

One seed computes a compressed slice, the sum of all columns, or of all rows, of one color. Each entry of the
Jacobian is read from one slice: a column owns the entries that are read from a slice of columns, and a row
owns the others. Two columns conflict, and must have different colors, if a row has an entry in both, and at
least one of these entries is owned by its column. The same applies to rows.

If columns own all entries, this is column coloring, otherwise the direct bicoloring of T. F. Coleman and A.
Verma, "The efficient computation of sparse Jacobian matrices using automatic differentiation", SIAM J. Sci.
Comput. 19(4), 1998; see also A. H. Gebremedhin, F. Manne and A. Pothen, "What color is your Jacobian?", SIAM
Review 47(4), 2005. Finding the smallest number of colors is NP-hard.
"""

from collections.abc import Iterator

import numba
import numpy as np

from scaling.core.case import Refusal
from scaling.core.shape import Pattern
from scaling.options.sparse.coloring import Coloring

_MAX_THRESHOLDS = 20  # the maximum number of thresholds that `_partitions` tries
_MAX_SATURATION_SIZE = 2**26  # DSATUR is used up to this number of columns times entries of the fullest row
_MAX_CONFLICTS = 5 * 10**10  # the maximum number of pairs of conflicting entries; coloring more takes minutes


def color(pattern: Pattern, compress: str) -> Coloring:
    """Return a coloring of the columns, the rows or both of a sparsity pattern, as `compress` states.

    For "both", several divisions of the entries between columns and rows are tried, and the coloring with the
    fewest colors is returned.
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
    """Return a coloring with which entries are read from rows where `by_row` is true, else from columns."""
    transposed = Pattern(pattern.cols, pattern.rows, pattern.inputs, pattern.outputs)
    columns, column_count = _color_columns(pattern, ~by_row)
    rows, row_count = _color_columns(transposed, by_row)
    column_colors, row_colors = columns if column_count else None, rows if row_count else None
    return Coloring(pattern, column_colors, row_colors, column_count, row_count, by_row)


def _partitions(pattern: Pattern) -> Iterator[tuple[int, np.ndarray]]:
    """Yield candidate partitions (bound, by_row) of the entries into entries owned by rows and by columns.

    The color of its owner identifies an entry. `bound` is a lower bound on the number of colors, and `by_row`
    is true for entries owned by rows. Rows and columns with more entries than a threshold own their entries.
    If both the row and the column of an entry exceed the threshold, the one with more entries owns the entry.
    The remaining entries are all owned by columns, or all by rows. At the highest threshold, all entries
    remain, so that columns alone and rows alone are candidates.
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
    """Return an array of shape (inputs,) with the color of each column, and the number of colors.

    `owned` states for each entry whether its column owns it. A column that owns no entry has the color -1.
    Raise `Refusal` if there are too many conflicts to color the columns within minutes.
    """
    columns = np.unique(pattern.cols[owned])
    color_of = np.full(pattern.inputs, -1, np.int32)
    owned_in_row = np.bincount(pattern.rows[owned], minlength=1)
    fullest = pattern.cols[owned & (pattern.rows == owned_in_row.argmax())]  # they conflict with each other
    if len(fullest) == len(columns):
        color_of[fullest] = np.arange(len(fullest))
        return color_of, len(fullest)
    if np.sum(np.square(owned_in_row, dtype=float)) > _MAX_CONFLICTS:
        fix = "use another mode, such as forward instead of reverse, or seeds=identity"
        raise Refusal(f"seeds=colored takes minutes to find {len(fullest):,} or more colors here: {fix}")
    if len(fullest) * pattern.inputs > _MAX_SATURATION_SIZE:
        color_of[fullest] = np.arange(len(fullest))
        graph = _conflict_graph(pattern, owned, columns[color_of[columns] < 0])
        return color_of, max(len(fullest), int(_color_in_order(graph, color_of)))
    graph, max_colors = _conflict_graph(pattern, owned, columns), len(fullest)
    while True:
        max_colors *= 2
        is_used = np.zeros((pattern.inputs, max_colors), bool)
        if _color_by_saturation(graph, fullest, color_of, is_used):
            return color_of, int(color_of.max()) + 1


def _conflict_graph(pattern: Pattern, owned: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the entries of a pattern, sorted by column and by row, as arrays to find conflicting columns.

    Conflicting columns and owned entries are defined at the top of this module. The arrays are

    order           the columns to color, in decreasing order of their number of entries
    column_start    the offset of each column in the next two arrays, like `indptr` of CSC
    row_of, owned   the row of each entry, and whether its column owns it, sorted by column
    row_start       the offset of each row in the next array, like `indptr` of CSR
    column_of       the column of each entry, sorted by row, with the owned entries of a row first
    owned_end       for each row, the index in `column_of` after its last owned entry
    """
    by_column = np.argsort(pattern.cols, kind="stable")
    by_row = np.argsort(2 * pattern.rows.astype(np.int64) + ~owned, kind="stable")
    column_start = np.cumsum(np.bincount(pattern.cols + 1, minlength=pattern.inputs + 1))
    row_start = np.cumsum(np.bincount(pattern.rows + 1, minlength=pattern.outputs + 1))
    owned_end = row_start[:-1] + np.bincount(pattern.rows[owned], minlength=pattern.outputs)
    order = columns[np.argsort(-np.diff(column_start)[columns], kind="stable")]
    row_of, column_of = pattern.rows[by_column], pattern.cols[by_row]
    return order, column_start, row_of, owned[by_column], row_start, column_of, owned_end


def compile_numba_functions() -> None:
    """Call the numba functions of this file once, so that later measured times exclude their compilation."""
    pattern = Pattern(np.array([0, 0, 1, 1], np.int32), np.array([0, 1, 1, 2], np.int32), 2, 3)
    color(pattern, "columns")
    graph = _conflict_graph(pattern, np.ones(4, bool), np.arange(3))
    _color_in_order(graph, np.full(3, -1, np.int32))


@numba.njit(cache=True)
def _insert(links, node, head):
    """Insert a node after `head` into `links`, doubly linked lists as arrays of next and previous nodes."""
    following, preceding = links
    following[node], preceding[node] = following[head], head
    preceding[following[head]], following[head] = node, node


@numba.njit(cache=True)
def _remove(links, node):
    following, preceding = links
    following[preceding[node]], preceding[following[node]] = following[node], preceding[node]


@numba.njit(cache=True)
def _color_in_order(graph, color_of):
    """Give each column, in the order of the graph, the lowest color that no conflicting column has.

    Write the colors to `color_of`, where -1 marks an uncolored column, and return the highest new color + 1.
    The run time is linear in the number of conflicts, and the memory is linear in the number of columns.
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

    The columns `first`, which conflict with each other, are colored first. The next column is the one with
    the highest saturation, the number of distinct colors of the columns that it conflicts with. Among several
    such columns, the last whose saturation increased is next, so that colors spread from neighbor to
    neighbor and repeat periodically on a grid. Source: D. Brelaz, "New methods to color the vertices of a
    graph", Communications of the ACM 22(4), 1979.

    Write the colors to `color_of`, and return whether the second axis of `is_used` is long enough for them.
    `is_used` is an array of shape (columns, colors), initially false. It is set to true where a conflicting
    column has the color.
    """
    order, column_start, row_of, owned, row_start, column_of, owned_end = graph
    n, max_colors = is_used.shape
    saturation = np.full(n, -1)  # -1 for a column that has a color or needs none
    # Doubly linked lists of the columns of each saturation. The list of saturation k starts at node n + k.
    links = np.arange(n + max_colors + 1), np.arange(n + max_colors + 1)
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
            while color < max_colors and is_used[column, color]:
                color += 1
            if color == max_colors:
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
