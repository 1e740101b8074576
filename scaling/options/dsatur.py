"""Color the columns of a sparsity pattern by saturation: the DSATUR graph coloring, compiled by numba.

Source: D. Brelaz, "New methods to color the vertices of a graph", Communications of the ACM 22(4), 1979.
"""

import numba
import numpy as np


def color_columns(rows: np.ndarray, cols: np.ndarray, inputs: int, max_colors: int) -> np.ndarray | None:
    """Return a color for each column, such that no row has nonzeros in two columns of the same color.

    `rows` and `cols` are the positions of the nonzeros. The result is an array of shape (inputs,), with -1
    for a column without nonzeros. Return None if `max_colors` colors do not suffice. The memory is linear in
    `inputs * max_colors`.
    """
    by_column, by_row = np.argsort(cols, kind="stable"), np.argsort(rows, kind="stable")
    column_start, row_start = (np.cumsum(np.bincount(lines + 1)) for lines in (cols, rows))
    nonzeros_per_column = np.bincount(cols, minlength=inputs)
    order = np.argsort(-nonzeros_per_column, kind="stable")[: np.count_nonzero(nonzeros_per_column)]
    colors = np.full(inputs, -1, np.int32)
    is_used = np.zeros((inputs, max_colors), bool)  # whether a conflicting column has the color
    graph = order, column_start, rows[by_column], row_start, cols[by_row]
    return colors if _color_by_saturation(graph, colors, is_used) else None


@numba.njit(cache=True)
def _insert(links, node, head):
    """Insert `node` after `head` in a doubly linked list.

    `links` contains two arrays: the next and the previous node of each node.
    """
    following, preceding = links
    following[node], preceding[node] = following[head], head
    preceding[following[head]], following[head] = node, node


@numba.njit(cache=True)
def _make_lists(order, n, max_colors):
    """Return doubly linked lists of columns, one list for each saturation k = 0, ..., max_colors.

    Node n + k is the head of list k, where n is the number of columns. Initially, list 0 contains all columns
    of `order`, and the other lists are empty.
    """
    links = np.arange(n + max_colors + 1), np.arange(n + max_colors + 1)
    for column in order[::-1]:
        _insert(links, column, n)
    return links


@numba.njit(cache=True)
def _remove(links, node):
    following, preceding = links
    following[preceding[node]], preceding[following[node]] = following[node], preceding[node]


@numba.njit(cache=True)
def _color_by_saturation(graph, colors, is_used):
    """Write the color of each column to `colors`, and return whether there are enough colors.

    The saturation of a column is the number of distinct colors of the columns that conflict with it. The
    column with the highest saturation is colored next. It gets the lowest color that no conflicting column
    has.

    `graph` contains five arrays: the columns that need a color, the index pointers and the row indices of the
    pattern in CSC format, and the index pointers and the column indices in CSR format. Initially, `colors`
    contains -1 for each column, and `is_used`, of shape (columns, colors), contains False. `is_used[i, c]`
    becomes True if a column that conflicts with column i gets the color c.
    """
    order, column_start, row_of, row_start, column_of = graph
    column_count, max_colors = is_used.shape
    saturation = np.full(column_count, -1)  # -1 for a column that has a color or needs none
    saturation[order] = 0
    links, highest = _make_lists(order, column_count, max_colors), 0
    for _ in range(len(order)):
        while links[0][column_count + highest] == column_count + highest:
            highest -= 1
        column, color = links[0][column_count + highest], 0
        saturation[column] = -1
        _remove(links, column)
        while color < max_colors and is_used[column, color]:
            color += 1
        if color == max_colors:
            return False
        colors[column] = color
        for entry in range(column_start[column], column_start[column + 1]):
            row = row_of[entry]
            for neighbor in column_of[row_start[row] : row_start[row + 1]]:
                if saturation[neighbor] >= 0 and not is_used[neighbor, color]:
                    is_used[neighbor, color] = True
                    saturation[neighbor] += 1
                    _remove(links, neighbor)
                    # Insert at the front, so that neighbors are colored next, and colors repeat on a grid.
                    _insert(links, neighbor, column_count + saturation[neighbor])
                    highest = max(highest, saturation[neighbor])
    return True
