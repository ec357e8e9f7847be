"""What commands write: JSON, tables, sentences, numbers for a person."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

JsonValue: TypeAlias = "Mapping[str, JsonValue] | Sequence[JsonValue] | str | int | float | bool | None"
"""What can be printed as JSON."""

_MAX_TIME_MS: Final = 253_402_300_799_999  # the end of the year 9999, the last that ISO 8601 has four digits for
_WIDTH_OF_A_PIPE: Final = 240


def json_text(value: JsonValue) -> str:
    """``value`` as indented JSON, ASCII only: it can be printed in any locale."""
    return json.dumps(value, indent=2) + "\n"


def print_json(value: JsonValue) -> None:
    """``value`` as indented JSON on stdout."""
    sys.stdout.write(json_text(value))


def print_json_line(value: JsonValue) -> None:
    """``value`` as one line of JSON on stdout, at once: for what comes one by one over hours."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def json_array(rows: Iterable[JsonValue]) -> Iterator[str]:
    """The pieces of a JSON array, one row a line, as ``rows`` are made."""
    separator = "[\n "
    for row in rows:
        yield separator + json.dumps(row)
        separator = ",\n "
    yield "[]\n" if separator.startswith("[") else "\n]\n"


def print_lines(lines: Iterable[str]) -> None:
    """Lines on stdout, at once."""
    sys.stdout.writelines(plain(line) + "\n" for line in lines)
    sys.stdout.flush()


def complain(sentence: str) -> None:
    """A sentence on stderr, under the program's name; it may go on over several lines."""
    sys.stderr.write("\n".join(map(plain, f"tieredstore: {sentence}".split("\n"))) + "\n")
    sys.stderr.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, total: bool = False) -> None:
    """A table on stdout. A column whose name starts with ``>`` is aligned to the right; ``total`` parts the last row.

    On a terminal it fits the width; in a pipe nothing is cut.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH_OF_A_PIPE
    sys.stdout.write(_table_text(columns, rows, width, total=total))


def table_of_rows(rows: Sequence[Mapping[str, JsonValue]]) -> str:
    """Rows of the same fields as the text of a table, or a line that says there are none."""
    if not rows:
        return "no entries\n"
    columns = [f">{name.upper().replace('_', ' ')}" for name in rows[0]]
    return _table_text(columns, ([str(cell) for cell in row.values()] for row in rows), _WIDTH_OF_A_PIPE)


def _table_text(columns: Sequence[str], rows: Iterable[Sequence[str]], width: int, *, total: bool = False) -> str:
    from rich import box  # noqa: PLC0415  a tenth of a second, and JSON needs none of it
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    lines = [[plain(cell) for cell in row] for row in rows]
    for number, line in enumerate(lines):
        table.add_row(*line, end_section=total and number == len(lines) - 2)
    text = io.StringIO()
    Console(file=text, width=width, markup=False, highlight=False, color_system=None).print(table)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def plain(text: str) -> str:
    """``text`` without control characters: names come from a store, and a terminal would obey them."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def iso_utc(timestamp_ms: int | None) -> str | None:
    """A Kafka timestamp as ISO 8601 in UTC with milliseconds; None where it is not known or not a date."""
    if timestamp_ms is None or not 0 <= timestamp_ms <= _MAX_TIME_MS:
        return None
    seconds, ms = divmod(timestamp_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"


def ratio_of(original: int, stored: int) -> float | None:
    """How many original bytes one stored byte holds; None if nothing is stored."""
    return round(original / stored, 4) if stored else None


def human_ratio(original: int, stored: int) -> str:
    """The ratio for a person."""
    ratio = ratio_of(original, stored)
    return "-" if ratio is None else f"{ratio:.2f}"


def human_rate(count: int, seconds: float) -> str:
    """``count`` bytes in ``seconds``, as MB/s."""
    return f"{count / max(seconds, 1e-9) / 1e6:.0f} MB/s"
