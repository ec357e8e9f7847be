"""Tables that fit: on a terminal each row is one line, in a pipe nothing is cut. The functions return lines and print
nothing.

There is a function for each kind of column::

    columns = [text("TOPIC"), number("SIZE", rank=1), moment("LAST RECORD"), word("TOPIC ID", rank=WIDE)]

``number`` and ``word`` (an id, a fixed word) are never cut. ``text`` (names and texts from elsewhere) is cut with ``…``
if the terminal is too narrow.

If that is not enough, columns with a rank are dropped. The greatest rank is dropped first, and within a rank the
rightmost column. ``--wide`` shows all columns.

Users look first for columns with a rank up to ``WANTED``. Before such a column is dropped, cells with a shorter form
are shortened, for example a ``moment`` to its day.
"""

from __future__ import annotations

import bisect
import itertools
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

GAP: Final = "  "
"""Gap between two columns."""

WIDE: Final = 100
"""The rank of columns that only ``--wide`` shows, also in a pipe."""

WANTED: Final = 2
"""If a table is too wide, columns with a higher rank than this are dropped before any cell is shortened."""

_LEAST: Final = 8
_DAY: Final = len("2026-01-01")
_LONGEST_RULE: Final = 240
_ELLIPSIS: Final = "…"


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``least`` is its minimum width in cells, or None for a column that is never cut. ``short`` shortens a
    cell."""

    name: str
    is_right: bool = False
    least: int | None = None
    rank: int = 0
    short: Callable[[str], str] | None = None


Row: TypeAlias = Sequence[str]


def number(name: str, *, rank: int = 0) -> Column:
    """Make a column of numbers, sizes or ratios: right-aligned, never cut."""
    return Column(name, is_right=True, rank=rank)


def word(name: str, *, rank: int = 0, short: Callable[[str], str] | None = None) -> Column:
    """Make a column of ids or fixed words, which are never cut."""
    return Column(name, rank=rank, short=short)


def moment(name: str, *, rank: int = 0) -> Column:
    """Make a column of times to the second, shortened to the day if there is no room."""
    return Column(name, rank=rank, short=lambda cell: cell[:_DAY])


def text(name: str, *, rank: int = 0) -> Column:
    """Make a column of names or sentences, cut down to eight cells if the terminal is too narrow."""
    return Column(name, least=_LEAST, rank=rank)


def table_lines(
    columns: Sequence[Column],
    rows: Iterable[Row],
    *,
    width: int | None = None,
    is_wide: bool = False,
    total: bool = False,
    sample: int | None = None,
) -> Iterator[str]:
    """Yield the lines of a table, without line ends: header, rule, rows. ``total`` is a last row after another rule.

    ``width`` is the number of cells in a line of the terminal, None for a pipe. With ``sample``, that many first rows
    determine the widths of columns, and the other rows are read one by one. Without ``sample``, all rows are read
    first.
    """
    ahead = iter(rows)
    first: list[Row] = [[*map(plain, row)] for row in itertools.islice(ahead, sample)]
    width = None if is_wide else width
    needed = _measure(columns, first)
    shown = [at for at in _find_fitting(columns, needed, width) if is_wide or columns[at].rank < WIDE]
    is_short = width is not None and _lacks_wanted(columns, needed, shown, width)
    if is_short:
        needed = _measure(columns, [_shorten(columns, row) for row in first])
        shown = _find_fitting(columns, needed, width)
    layout = _Layout([columns[at] for at in shown], _widths(columns, needed, shown, width), width, is_short)
    yield layout.names()
    rule = "─" * min(sum(layout.widths) + len(GAP) * (len(shown) - 1), width or _LONGEST_RULE)
    yield rule
    for place, row in enumerate(first, 1):
        if total and place == len(first):
            yield rule
        yield layout.line([row[at] for at in shown])
    for row in ahead:
        yield layout.line([plain(row[at]) for at in shown])


@dataclass(frozen=True, slots=True)
class _Layout:
    columns: Sequence[Column]
    widths: Sequence[int]
    width: int | None
    is_short: bool

    def names(self) -> str:
        """Return the header line."""
        return self._line([column.name for column in self.columns])

    def line(self, cells: Sequence[str]) -> str:
        """Return the line of one row. If the last column is text, it takes the rest of the line."""
        return self._line(_shorten(self.columns, cells) if self.is_short else cells)

    def _line(self, cells: Sequence[str]) -> str:
        *others, (last, end, end_width) = zip(cells, self.columns, self.widths, strict=True)
        padded = [_pad(self._cut(cell, column, width), width, column) for cell, column, width in others]
        line = GAP.join([*padded, _pad(last, end_width, end)]).rstrip()
        return line if self.width is None else cut(line, self.width)

    def _cut(self, cell: str, column: Column, width: int) -> str:
        return cell if self.width is None or column.least is None else cut(cell, width)


def plain(words: str) -> str:
    """Return ``words`` without control characters. Names come from a store, and a terminal would obey control
    characters in them."""
    if words.isprintable():
        return words
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in words)


def cut(words: str, width: int) -> str:
    """Return ``words`` in at most ``width`` cells of a terminal. A ``…`` marks the cut."""
    if words.isascii():
        return words if len(words) <= width else words[: max(width - 1, 0)] + _ELLIPSIS[:width]
    end = kept = 0
    for at, character in enumerate(words):
        end += _cells_of(character)
        if end > width:
            return words[:kept] + _ELLIPSIS[:width]
        if end < width:
            kept = at + 1
    return words


def cell_count(words: str) -> int:
    """Return the terminal cells of ``words``: most characters take one, East Asian ones two, accents none."""
    return len(words) if words.isascii() else sum(map(_cells_of, words))


def _cells_of(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _pad(words: str, width: int, column: Column) -> str:
    padding = " " * (width - cell_count(words))
    return padding + words if column.is_right else words + padding


def _shorten(columns: Sequence[Column], row: Row) -> Row:
    return [cell if column.short is None else column.short(cell) for column, cell in zip(columns, row, strict=True)]


def _measure(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    """Return the width that each column needs if nothing is cut."""
    return [max(map(cell_count, (column.name, *(row[at] for row in rows)))) for at, column in enumerate(columns)]


def _lacks_wanted(columns: Sequence[Column], needed: Sequence[int], shown: Sequence[int], width: int) -> bool:
    """Return True if a column of a rank up to ``WANTED`` is dropped, or if the shown columns do not fit."""
    left_out = (column.rank for at, column in enumerate(columns) if at not in shown)
    return _total(columns, needed, shown) > width or any(rank <= WANTED for rank in left_out)


def _total(columns: Sequence[Column], needed: Sequence[int], shown: Sequence[int]) -> int:
    """Return the minimum width of a line."""
    return sum(_least(columns[at], needed[at]) for at in shown) + len(GAP) * (len(shown) - 1)


def _find_fitting(columns: Sequence[Column], needed: Sequence[int], width: int | None) -> list[int]:
    """Return the indexes of the columns that fit, each at its minimum width."""
    shown = list(range(len(columns)))
    if width is None:
        return shown
    shown = [at for at in shown if columns[at].rank < WIDE]
    dropped = sorted((at for at in shown if columns[at].rank), key=lambda at: (columns[at].rank, at))
    while dropped and len(shown) > 1 and _total(columns, needed, shown) > width:
        shown.remove(dropped.pop())
    return shown


def _least(column: Column, needed: int) -> int:
    return needed if column.least is None else min(column.least, needed)


def _widths(columns: Sequence[Column], needed: Sequence[int], shown: Sequence[int], width: int | None) -> list[int]:
    """Return the width of each shown column. If the columns are too wide, the widest columns that may be cut get
    narrower."""
    least = [_least(columns[at], needed[at]) for at in shown]
    most = [needed[at] for at in shown]
    if width is None:
        return most
    room = width - len(GAP) * (len(shown) - 1)

    def cap_at(cap: int) -> list[int]:
        return [max(low, min(high, cap)) for low, high in zip(least, most, strict=True)]

    # Find the largest limit of widths with which all columns fit. A binary search is correct, because the sum of the
    # widths grows with the limit.
    return cap_at(bisect.bisect_right(range(max(most) + 1), room, key=lambda cap: sum(cap_at(cap))) - 1)
