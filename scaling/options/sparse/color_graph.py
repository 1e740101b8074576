"""Colour the columns and the rows of a sparse matrix so that its entries can be read off compressed slices.

Each entry is owned by its column or by its row, off whose slice it is read. Columns that own an entry get a
colour, and two of them differ where a row has an entry of each and one of these is owned by its column: then
nothing is added to what is read. Likewise for rows. Where columns own all entries that is the colouring of
columns alone; where rows own some it is the direct bicolouring of T. F. Coleman and A. Verma, "The efficient
computation of sparse Jacobian matrices using automatic differentiation", SIAM J. Sci. Comput. 19(4), 1998;
see also A. H. Gebremedhin, F. Manne and A. Pothen, "What color is your Jacobian?", SIAM Review 47(4), 2005.
To find the fewest colours is NP-hard: these are found greedily.

Knows NumPy, and asks asdex for colours and numba, which comes with it, for speed. Does not know functions, or
how a pattern is found.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

_MOST = 62  # colours that are kept as the bits of a number
_PAIRS = 10**10  # of columns that meet in a row: asdex looks at each of them


@dataclass(frozen=True)
class Matrix:
    """Where a matrix has entries: rows and columns, (entries,) int32, each entry once; and its shape."""

    rows: np.ndarray
    cols: np.ndarray
    shape: tuple[int, int]

    @property
    def transposed(self) -> "Matrix":
        """Return the transposed matrix. The entries keep their order."""
        return Matrix(self.cols, self.rows, self.shape[::-1])


@dataclass(frozen=True)
class Colors:
    """The colour of each column, or of each row: int32, -1 for none. And how many colours there are."""

    of: np.ndarray
    count: int


@dataclass(frozen=True)
class TwoSidedColors:
    """Colours of columns and of rows, and of each entry whether its row owns it."""

    columns: Colors
    rows: Colors
    by_row: np.ndarray

    @property
    def count(self) -> int:
        """All colours."""
        return self.columns.count + self.rows.count


def color_columns(matrix: Matrix, owned: np.ndarray | None = None) -> Colors:
    """Colour the columns, or the rows if the matrix is transposed.

    owned: the entries that columns own, or None.
    """
    mine = np.ones(len(matrix.rows), bool) if owned is None else owned
    wanted = np.unique(matrix.cols[mine])
    least = _fullest(matrix.rows[mine])
    if least == len(wanted):  # they all meet in one row
        of = np.full(matrix.shape[1], -1, np.int32)
        of[wanted] = np.arange(least)
        return Colors(of, least)
    best = None
    for attempt in _attempts(matrix, mine, wanted, least, alone=owned is None):
        best = attempt if best is None or attempt.count < best.count else best
        if best.count == least:
            break
    assert best is not None
    return best


def color_both(matrix: Matrix) -> TwoSidedColors:
    """Colour columns and rows together with the fewest colours found, which may be of one of them alone."""
    best = None
    for least, by_row in sorted(_divisions(matrix), key=lambda division: division[0]):
        if best is None or least < best.count:
            found = divide_entries(matrix, by_row())
            best = found if best is None or found.count < best.count else best
    assert best is not None
    return best


def divide_entries(matrix: Matrix, by_row: np.ndarray) -> TwoSidedColors:
    """Colour columns and rows for a given division of the entries between them."""
    of_columns = color_columns(matrix, None if not by_row.any() else ~by_row)
    return TwoSidedColors(
        of_columns, color_columns(matrix.transposed, None if by_row.all() else by_row), by_row
    )


def _fullest(places: np.ndarray) -> int:
    """Return a lower bound of the colours: the most columns whose entries meet in a row."""
    return int(np.bincount(places).max(initial=0))


def _attempts(
    matrix: Matrix, owned: np.ndarray, wanted: np.ndarray, least: int, alone: bool
) -> Iterator[Colors]:
    """Yield colourings of the columns, the most promising first. alone: columns own every entry."""
    of = np.full(matrix.shape[1], -1, np.int32)
    if least <= _MOST and (count := int(_fast(_by_saturation)(*_graph(matrix, owned, wanted), of))):
        yield Colors(of, count)
    if alone and int(np.sum(np.bincount(matrix.rows).astype(np.int64) ** 2)) <= _PAIRS:
        yield _by_asdex(matrix, wanted)
        return
    # Columns that meet in the fullest row differ in any case.
    of = np.full(matrix.shape[1], -1, np.int32)
    fullest = np.bincount(matrix.rows[owned]).argmax()
    of[matrix.cols[owned & (matrix.rows == fullest)]] = np.arange(least)
    rest = wanted[of[wanted] < 0]
    yield Colors(of, max(least, int(_fast(_in_order)(*_graph(matrix, owned, rest), of))))


def _graph(matrix: Matrix, owned: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the wanted columns, fullest first, and the entries by column and by row."""
    by_column = np.argsort(matrix.cols, kind="stable")
    owned_first = 2 * matrix.rows.astype(np.int64) + ~owned
    by_row = np.argsort(owned_first, kind="stable")
    column_at, row_at = _starts(matrix.cols, matrix.shape[1]), _starts(matrix.rows, matrix.shape[0])
    own_end = row_at[:-1] + np.bincount(matrix.rows[owned], minlength=matrix.shape[0])
    order = wanted[np.argsort(-np.diff(column_at)[wanted], kind="stable")]
    return order, column_at, matrix.rows[by_column], owned[by_column], row_at, matrix.cols[by_row], own_end


def ready() -> None:
    """Compile every loop, ours and those of asdex, so that its time is not measured."""
    matrix = Matrix(np.array([0, 0, 1, 1], np.int32), np.array([0, 1, 1, 2], np.int32), (2, 3))
    wanted = np.unique(matrix.cols)
    for loop in (_by_saturation, _in_order):
        _fast(loop)(*_graph(matrix, np.ones(4, bool), wanted), np.full(3, -1, np.int32))
    _by_asdex(matrix, wanted)
    list(_divisions(matrix))


def _starts(places: np.ndarray, count: int) -> np.ndarray:
    """Return where each place begins among entries sorted by place, and where the last ends: (count + 1,)."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(places, minlength=count))])


def _by_asdex(matrix: Matrix, wanted: np.ndarray) -> Colors:
    """Return the colours of columns alone that asdex finds."""
    import asdex

    of, count = asdex.color_cols(asdex.SparsityPattern.from_coo(matrix.rows, matrix.cols, matrix.shape))
    colors = np.full(matrix.shape[1], -1, np.int32)
    colors[wanted] = of[wanted]
    return Colors(colors, int(count))


@functools.cache
def _fast(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loop, compiled once and kept on disk."""
    import numba

    return numba.njit(cache=True)(loop)


def _in_order(order, column_at, row_of, owned, row_at, column_of, own_end, of):
    """Give one column after another the lowest free colour; return how many colours these take."""
    taken, count = np.full(len(of) + 1, -1, np.int64), 0
    for v in order:
        for p in range(column_at[v], column_at[v + 1]):
            i = row_of[p]
            for q in range(row_at[i], row_at[i + 1] if owned[p] else own_end[i]):
                if of[column_of[q]] >= 0:
                    taken[of[column_of[q]]] = v
        color = 0
        while taken[color] == v:
            color += 1
        of[v] = color
        count = max(count, color + 1)
    return count


def _by_saturation(order, column_at, row_of, owned, row_at, column_of, own_end, of):
    """Colour always the column that has the fewest free colours, of these the one that met a new colour last.

    So colours spread from neighbour to neighbour, and on a grid may fall into its own pattern. Returns how
    many there are, 0 where they are more than the bits of a number. After D. Brelaz, Communications of the
    ACM 22(4), 1979.
    """
    n, count, top = len(of), 0, 0
    met = np.zeros(n, np.int64)  # the colours of neighbours, as bits
    level = np.full(n, -1, np.int64)  # how many these are; -1 once coloured
    # Rings of columns of one level; that of level k begins at n + k.
    after, before = np.arange(n + 64), np.arange(n + 64)
    for v in order[::-1]:
        level[v], after[v], before[v], before[after[n]], after[n] = 0, after[n], n, v, v
    for _ in range(len(order)):
        while after[n + top] == n + top:
            top -= 1
        v, color = after[n + top], 0
        after[before[v]], before[after[v]], level[v] = after[v], before[v], -1
        while (met[v] >> color) & 1:
            color += 1
        if color >= 62:
            return 0
        of[v], count = color, max(count, color + 1)
        for p in range(column_at[v], column_at[v + 1]):
            i = row_of[p]
            for q in range(row_at[i], row_at[i + 1] if owned[p] else own_end[i]):
                w = column_of[q]
                if level[w] >= 0 and not (met[w] >> color) & 1:
                    met[w], level[w] = met[w] | np.int64(1) << color, level[w] + 1
                    after[before[w]], before[after[w]], ring = after[w], before[w], n + level[w]
                    after[w], before[w], before[after[ring]], after[ring] = after[ring], ring, w, w
                    top = max(top, level[w])
    return count


def _divisions(matrix: Matrix) -> Iterator[tuple[int, Callable[[], np.ndarray]]]:
    """Ways to divide the entries between columns and rows, with the fewest colours that each allows.

    The fullest row or column is taken away with its entries, which it owns, then the fullest of what is left,
    and so on; at each stage what is left may go to columns or to rows.
    """
    count = len(matrix.rows)
    yield _fullest(matrix.rows), lambda: np.zeros(count, bool)
    yield _fullest(matrix.cols), lambda: np.ones(count, bool)
    by_row, by_column = np.argsort(matrix.rows, kind="stable"), np.argsort(matrix.cols, kind="stable")
    row_at, column_at = _starts(matrix.rows, matrix.shape[0]), _starts(matrix.cols, matrix.shape[1])
    row_stage, column_stage, owned, rest = _fast(_taken_away)(
        row_at, matrix.cols[by_row], column_at, matrix.rows[by_column]
    )

    def divided(stage: int, left_to_rows: bool) -> np.ndarray:
        of_row, of_column = row_stage[matrix.rows], column_stage[matrix.cols]
        return np.where(np.minimum(of_row, of_column) < stage, of_row < of_column, left_to_rows)

    for side, (stage_of, at) in enumerate([(row_stage, row_at), (column_stage, column_at)]):
        there = np.zeros(len(owned[side]), np.int64)  # at each stage, the fullest of those that still go
        np.maximum.at(there, stage_of, np.diff(at))
        least = np.maximum(np.maximum.accumulate(there[::-1])[::-1], rest[side]) + owned[side]
        lowest = np.flatnonzero(least == least.min())
        for stage in dict.fromkeys((int(lowest[0]), int(lowest[-1]))):
            yield int(least[stage]), functools.partial(divided, stage, bool(side))


def _taken_away(row_at, column_of, column_at, row_of):
    """Takes the fullest row or column away, one after another, until nothing is left.

    Returns the stage at which each row and each column goes, the last for those that stay; and of each stage
    the most entries that rows own in a column and columns in a row so far (2, stages), and the most that
    columns own in a row that is gone and rows in a column that is gone (2, stages).
    """
    m, lines = len(row_at) - 1, len(row_at) + len(column_at) - 2  # lines: rows, then columns
    full = np.concatenate((np.diff(row_at), np.diff(column_at)))
    left, stage_of, top = full.copy(), np.full(lines, -1, np.int64), full.max()
    owned, rest = np.zeros((2, lines + 1), np.int64), np.zeros((2, lines + 1), np.int64)
    # Rings of lines with as many entries left.
    after, before = np.arange(lines + top + 1), np.arange(lines + top + 1)
    for v in range(lines - 1, -1, -1):
        ring = lines + left[v]
        after[v], before[v], before[after[ring]], after[ring] = after[ring], ring, v, v
    stage = 0
    while True:
        while top > 0 and after[lines + top] == lines + top:
            top -= 1
        if top == 0:
            stage_of[stage_of < 0] = stage
            return stage_of[:m], stage_of[m:], owned[:, : stage + 1], rest[:, : stage + 1]
        v = after[lines + top]
        after[before[v]], before[after[v]], stage_of[v] = after[v], before[v], stage
        side = 0 if v < m else 1
        stage += 1
        owned[:, stage], rest[:, stage] = owned[:, stage - 1], rest[:, stage - 1]
        rest[side, stage] = max(rest[side, stage], full[v] - left[v])
        for p in (
            range(row_at[v], row_at[v + 1]) if side == 0 else range(column_at[v - m], column_at[v - m + 1])
        ):
            w = m + column_of[p] if side == 0 else row_of[p]
            if stage_of[w] < 0:
                left[w] -= 1
                owned[side, stage] = max(owned[side, stage], full[w] - left[w])
                after[before[w]], before[after[w]], ring = after[w], before[w], lines + left[w]
                after[w], before[w], before[after[ring]], after[ring] = after[ring], ring, w, w
