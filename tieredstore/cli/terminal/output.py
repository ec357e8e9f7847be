"""Output of commands: JSON, tables, sentences, and numbers.

Numbers look the same everywhere. For a person: ``human_bytes`` (in ``model``: ``1.5 MiB``), ``human_rate`` (``12.0
MiB/s``), ``human_count`` (``1,234``), ``quantity`` (``1 segment``), ``human_time`` (``2026-01-01 00:00:13``, UTC),
``human_ratio`` (``3.47``), ``human_amount`` (``12.34``), and ``-`` for unknown values. For scripts: raw bytes and
milliseconds, ``iso_utc``, ``ratio_of``, and null.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

from tieredstore.cli.terminal.tables import Column, plain, table_lines
from tieredstore.model import human_bytes

JsonValue: TypeAlias = "Mapping[str, JsonValue] | Sequence[JsonValue] | str | int | float | bool | None"
"""A value that can be printed as JSON."""

MAX_TIME_MS: Final = 253_402_300_799_999  # the end of the year 9999: ISO 8601 has no more than four digits for a year
_SAMPLE: Final = 200
_LEAST_AMOUNT: Final = 0.01


def print_json_line(value: JsonValue) -> None:
    """Print ``value`` as one line of JSON to stdout and flush it, because items may come hours apart."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def print_lines(lines: Iterable[str]) -> None:
    """Print lines to stdout and flush them."""
    sys.stdout.writelines(plain(line) + "\n" for line in lines)
    sys.stdout.flush()


def complain(sentence: str) -> None:
    """Print a sentence to stderr after the program's name. The sentence may span several lines."""
    sys.stderr.write("\n".join(map(plain, f"tieredstore: {sentence}".split("\n"))) + "\n")
    sys.stderr.flush()


def print_table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], *, total: bool = False, wide: bool = False
) -> None:
    """Print a table to stdout, with columns of :mod:`tieredstore.cli.terminal.tables`. ``total`` is a last, separate
    row.

    On a terminal each row is one line. In a pipe nothing is cut. ``wide`` shows all columns, and cuts nothing.
    """
    _write_lines(table_lines(columns, rows, width=terminal_width(), is_wide=wide, total=total))


def print_growing_table(columns: Sequence[Column], rows: Iterable[Sequence[str]], *, wide: bool = False) -> None:
    """Print a table of possibly millions of rows to stdout. The first rows determine the widths of columns."""
    _write_lines(table_lines(columns, rows, width=terminal_width(), is_wide=wide, sample=_SAMPLE))


def _write_lines(lines: Iterable[str]) -> None:
    sys.stdout.writelines(line + "\n" for line in lines)


def terminal_width() -> int | None:
    """Return the number of cells in a line of stdout. Return None if stdout is not a terminal, because nothing is cut
    then."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def iso_utc(timestamp_ms: int | None) -> str | None:
    """Return a Kafka timestamp as ISO 8601 in UTC with milliseconds. Return None if it is unknown or not a date."""
    if timestamp_ms is None or not 0 <= timestamp_ms <= MAX_TIME_MS:
        return None
    seconds, ms = divmod(timestamp_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"


def leader_epoch_rows(epochs: Iterable[tuple[int, int]]) -> list[dict[str, JsonValue]]:
    """Return leader epochs and their first offsets, for scripts."""
    return [{"epoch": epoch, "start_offset": start} for epoch, start in epochs]


def ratio_of(original: int, stored: int) -> float | None:
    """Return log bytes per stored byte (including stored indexes and manifest). Return None if nothing is stored."""
    return round(original / stored, 4) if stored else None


def human_ratio(original: int, stored: int) -> str:
    """Return the compression ratio as text, such as ``3.47``. Return ``-`` if it is unknown."""
    ratio = ratio_of(original, stored)
    return "-" if ratio is None else f"{ratio:.2f}"


def human_rate(count: int, seconds: float) -> str:
    """Return the rate of ``count`` bytes in ``seconds``: ``12.0 MiB/s``."""
    return f"{human_bytes(round(count / max(seconds, 1e-9)))}/s"


def human_count(count: int) -> str:
    """Return a number for a sentence: ``1,234``. Never format offsets so, because users type offsets again."""
    return f"{count:,}"


def human_share(part: int, whole: int) -> str:
    """Return a part and its whole as text, such as ``2.9 of 25.6 MiB``."""
    (size, unit), of = human_bytes(part).split(), human_bytes(whole)
    return f"{size} of {of}" if of.endswith(f" {unit}") else f"{size} {unit} of {of}"


def quantity(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``no segments``, ``1 segment`` or ``1,234 segments``."""
    return f"{human_count(count) if count else 'no'} {noun}{'s' * (count != 1)}"


def human_amount(amount: float | None) -> str:
    """Return an amount of money for a person, with two decimals: ``1,234.00``, ``12.34``, ``<0.01``."""
    if amount is None:
        return "-"
    if amount and abs(amount) < _LEAST_AMOUNT:
        return f"<{_LEAST_AMOUNT}" if amount > 0 else f">-{_LEAST_AMOUNT}"
    return f"{amount:,.2f}"


def human_time(timestamp_ms: int | None) -> str:
    """Return a Kafka timestamp to the second, in UTC: ``2026-01-01 00:00:13``. Return ``-`` if unknown or not a
    date."""
    text = iso_utc(timestamp_ms)
    return "-" if text is None else text[:19].replace("T", " ")
