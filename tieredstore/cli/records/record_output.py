"""Records for a person: a table, or lines by a format with kcat's letters."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

from tieredstore.cli.records.record_rows import TABLE, rows_of, table_cells
from tieredstore.cli.terminal.output import complain, terminal_width
from tieredstore.cli.terminal.tables import table_lines
from tieredstore.errors import ConfigError, excerpt

if TYPE_CHECKING:
    import pyarrow as pa

PartitionRecords: TypeAlias = "tuple[int, pa.RecordBatch]"
"""A partition's number, and records of it."""

IN_TABLE: Final = ("offset", "timestamp", "key", "value", "headers")
_SAMPLE: Final = 200
"""The number of records, from the first on, that determine the widths of a table's columns."""


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
