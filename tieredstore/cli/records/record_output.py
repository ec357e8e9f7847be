"""Records as output: rows of a table, JSON lines, and lines by a format with kcat's letters."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

from tieredstore.cli.terminal.output import complain, iso_utc, terminal_width
from tieredstore.cli.terminal.tables import Column, number, table_lines, text, word
from tieredstore.errors import ConfigError, excerpt
from tieredstore.query.writers import cell_text, json_line

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN: Final = ("offset", "timestamp", "timestampType", "key", "value", "headers")
"""The columns of records that commands show."""

TABLE: Final[Sequence[Column]] = (
    number("PARTITION", rank=2),
    number("OFFSET"),
    word("TIMESTAMP", rank=1),
    text("KEY"),
    text("VALUE"),
)
"""The columns of a table of records."""

IN_TABLE: Final = ("offset", "timestamp", "key", "value", "headers")
_SAMPLE: Final = 200
"""The number of records, from the first on, that determine the widths of a table's columns."""

PartitionRecords: TypeAlias = "tuple[int, pa.RecordBatch]"
"""A partition's number, and records of it."""


def rows_of(records: pa.RecordBatch, columns: Sequence[str] = SHOWN) -> Iterator[dict[str, Any]]:
    """Yield each record as a mapping from the names in ``columns`` to values."""
    values: list[Sequence[Any]] = [_values(records.column(name)) for name in columns]
    # Without columns, still yield one row per record.
    rows = zip(*values, strict=True) if values else ((),) * records.num_rows
    return (dict(zip(columns, row, strict=True)) for row in rows)


def json_lines(records: pa.RecordBatch, partition: int | None, *, topic: str | None = None) -> Iterator[str]:
    """Yield a JSON object for each record, one per line. ``topic`` and ``partition`` are omitted if None."""
    known: dict[str, object] = {"topic": topic, "partition": partition}
    place = {name: value for name, value in known.items() if value is not None}
    for row in rows_of(records):
        time = row["timestamp"]
        row["timestamp_type"] = row.pop("timestampType")
        yield json_line({**place, **row, "timestamp": iso_utc(time) or time})


def table_cells(row: Mapping[str, Any], partition: str, offset_width: int = 0) -> list[str]:
    """Return the cells of a record, for the columns of ``TABLE``. ``offset_width`` aligns offsets."""
    time = "-" if row["timestamp"] is None else iso_utc(row["timestamp"]) or str(row["timestamp"])
    headers = "".join(f"  {header['key']}={shown_text(header['value'])}" for header in row["headers"] or ())
    # Show a dash for an unknown offset, because files of other tools may contain only values.
    offset = ("-" if row["offset"] is None else str(row["offset"])).rjust(offset_width)
    return [partition, offset, time, shown_text(row["key"]), shown_text(row["value"]) + headers]


def _values(column: pa.Array) -> Sequence[Any]:
    # Read times as milliseconds, because a record's time may be beyond Python's calendar.
    values: Sequence[Any] = (column.view("int64") if str(column.type).startswith("timestamp") else column).to_pylist()
    return values


def shown_text(data: object) -> str:
    """Return text unchanged, other bytes in hexadecimal, and structured values as JSON."""
    return cell_text(data, null="null")


def write_table(batches: Iterable[PartitionRecords], *, offset_width: int = 0) -> None:
    """Write a table to stdout. The first records determine the widths. The value takes the rest of a line."""
    ahead = iter(batches)
    first = next(ahead, None)
    if first is None:
        complain("no records found")
        return
    rows = _table_rows(itertools.chain([first], ahead), offset_width)
    lines = table_lines(TABLE, rows, width=terminal_width(), sample=min(_SAMPLE, first[1].num_rows))
    sys.stdout.writelines(line + "\n" for line in lines)


def write_formatted(
    batches: Iterable[PartitionRecords], record_format: RecordFormat, file: BinaryIO, *, topic: str
) -> None:
    """Write each record in the format. Add no separators or line ends."""
    for partition, records in batches:
        place = {"topic": topic, "partition": partition}
        rows = rows_of(records, record_format.columns)
        file.write(b"".join(record_format.bytes_of({**place, **row}) for row in rows))
        file.flush()


def tell_left_out(sentences: Iterable[str]) -> None:
    """Report on stderr which records were not shown, and how to see these records."""
    for sentence in sentences:
        complain(f"left out: {sentence}; --isolation read_uncommitted shows them")


def _table_rows(batches: Iterable[PartitionRecords], offset_width: int) -> Iterator[list[str]]:
    for partition, records in batches:
        for row in rows_of(records, IN_TABLE):
            yield table_cells(row, str(partition), offset_width)
        # Flush each line before the next row is requested, because the next row may take long to arrive.
        sys.stdout.flush()


Record: TypeAlias = Mapping[str, Any]
"""A record's columns by name, with ``topic`` and ``partition``."""

_Part: TypeAlias = Callable[[Record], bytes]


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """A format for printing records. ``columns`` names the columns that the format needs."""

    parts: tuple[_Part, ...]
    columns: tuple[str, ...]

    def bytes_of(self, record: Record) -> bytes:
        """Format one record."""
        return b"".join([part(record) for part in self.parts])


def parse_format(text: str) -> RecordFormat:
    r"""Return a format with kcat's letters: ``%t [%p] at offset %o: key %k: %s\n``.

    ======  ==========================================================
    ``%s``  the value; ``%S`` its length, -1 for null; ``%R`` the same as four bytes, big endian
    ``%k``  the key; ``%K`` its length, -1 for null
    ``%h``  the headers: ``name=value,name=value``, NULL for null
    ``%t``  the topic; ``%p`` the partition; ``%o`` the offset
    ``%T``  the timestamp in milliseconds since 1970
    ``%%``  a per cent sign
    ======  ==========================================================

    The escapes are ``\n``, ``\r``, ``\t``, ``\0`` and ``\xHH``. A backslash before a character that is neither a letter
    nor a digit gives that character. Keys and values are written as raw bytes, and null as no bytes.

    Raise ConfigError for an unknown letter or escape.
    """
    parts: list[_Part] = []
    columns: dict[str, None] = {}
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match[0]
        if kind == "letter":
            column, part = _letter(token, text)
            parts.append(part)
            if column is not None:
                columns[column] = None
        else:
            parts.append(_constant(_unescape(token, text) if kind == "escape" else _encode(token)))
    return RecordFormat(tuple(parts), tuple(columns))


def _bytes(name: str) -> _Part:
    return lambda record: record[name] or b""


def _length(name: str) -> _Part:
    return lambda record: b"%d" % _length_of(record[name])


def _number(name: str) -> _Part:
    return lambda record: b"%d" % record[name]


def _headers(record: Record) -> bytes:
    pairs = record["headers"] or ()
    return b",".join(
        _encode(pair["key"]) + b"=" + (b"NULL" if pair["value"] is None else pair["value"]) for pair in pairs
    )


def _length_of(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _encode(text: str) -> bytes:
    # If bytes of an argument are not text in the locale's encoding, Python stores them as surrogates. Write such bytes
    # unchanged.
    return text.encode(errors="surrogateescape")


def _constant(data: bytes) -> _Part:
    return lambda _: data


# Count a trailing "\" or "%" as a token too, so that no part of a format is ignored.
_TOKEN: Final = re.compile(r"(?P<letter>%.?)|(?P<escape>\\(?:x[0-9A-Fa-f]{1,2}|.)?)|(?P<plain>[^%\\]+)", re.DOTALL)

_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0"}

_LETTERS: Final[Mapping[str, tuple[str | None, _Part]]] = {
    "s": ("value", _bytes("value")),
    "S": ("value", _length("value")),
    "R": ("value", lambda record: _length_of(record["value"]).to_bytes(4, "big", signed=True)),
    "k": ("key", _bytes("key")),
    "K": ("key", _length("key")),
    "h": ("headers", _headers),
    "t": (None, lambda record: _encode(record["topic"])),
    "p": (None, _number("partition")),
    "o": ("offset", _number("offset")),
    "T": ("timestamp", _number("timestamp")),
    "%": (None, _constant(b"%")),
}


def _letter(token: str, text: str) -> tuple[str | None, _Part]:
    if token[1:] not in _LETTERS:
        named = f"{token} is unknown" if token[1:] else "it ends in a single %"
        raise ConfigError(f"the format {excerpt(text)!r} cannot be used: {named}; letters are %{' %'.join(_LETTERS)}")
    return _LETTERS[token[1:]]


def _unescape(token: str, text: str) -> bytes:
    character = token[1:2]
    if len(token) > 2:
        return bytes.fromhex(token[2:].zfill(2))
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isalnum():
        raise ConfigError(
            rf"the format {excerpt(text)!r} cannot be used: {token} is unknown; escapes are \n \r \t \0 \xHH and \\"
        )
    return _encode(character or "\\")
