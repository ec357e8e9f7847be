"""How a command writes the records that it shows: as a table, or as one of the options says."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from tieredstore.cli.records.record_rows import SHOWN, TABLE, JsonBytes, json_lines, rows_of, shown_text, table_cells
from tieredstore.cli.terminal.output import complain, terminal_width
from tieredstore.cli.terminal.output_file import write_all
from tieredstore.cli.terminal.tables import table_lines
from tieredstore.errors import ConfigError, excerpt

if TYPE_CHECKING:
    from tieredstore.cli.records.record_filter import PartitionRecords

_SAMPLE: Final = 200
"""Rows of the first records that decide how wide the columns of a table are."""


def write_table(batches: Iterable[PartitionRecords], *, offset_width: int = 0) -> None:
    """A table on stdout; the first records decide how wide the columns are, the value has the rest of a line."""
    ahead = iter(batches)
    first = next(ahead, None)
    if first is None:
        complain("no records found")
        return
    rows = _table_rows(itertools.chain([first], ahead), offset_width)
    lines = table_lines(TABLE, rows, width=terminal_width(), sample=min(_SAMPLE, first[1].num_rows))
    sys.stdout.writelines(line + "\n" for line in lines)


def write_json(batches: Iterable[PartitionRecords], *, topic: str, coding: JsonBytes) -> None:
    """A JSON object a line on stdout."""
    for partition, records in batches:
        sys.stdout.writelines(json_lines(records, partition, topic=topic, coding=coding))
        sys.stdout.flush()


def write_text(batches: Iterable[PartitionRecords]) -> None:
    """Each value on stdout as it is, a line end behind it; null as ``null``, what is no text in hexadecimal."""
    _write_bytes(
        (partition, ((shown_text(row["value"]) + "\n").encode() for row in rows_of(records, ("value",))))
        for partition, records in batches
    )


def write_formatted(batches: Iterable[PartitionRecords], record_format: RecordFormat, *, topic: str) -> None:
    """Each record on stdout by a format, and nothing else."""

    def of_batch(partition: int, records: Any) -> Iterator[bytes]:
        place = {"topic": topic, "partition": partition}
        return (record_format.bytes_of({**place, **row}) for row in rows_of(records, record_format.columns))

    _write_bytes((partition, of_batch(partition, records)) for partition, records in batches)


def _write_bytes(batches: Iterable[tuple[int, Iterable[bytes]]]) -> None:
    """Bytes as they are; on a terminal without what it would obey."""
    shown: Callable[[bytes], bytes] = bytes_in_terminal if sys.stdout.isatty() else bytes
    sys.stdout.flush()
    for _, pieces in batches:
        for piece in pieces:
            write_all(sys.stdout.buffer, shown(piece))
        sys.stdout.buffer.flush()


def _table_rows(batches: Iterable[PartitionRecords], offset_width: int) -> Iterator[list[str]]:
    for partition, records in batches:
        for row in rows_of(records):
            yield table_cells(row, str(partition), offset_width)
        # The line of the last row was written before the next one is asked for.
        sys.stdout.flush()


RecordWriter: TypeAlias = "Callable[[Iterable[PartitionRecords], int], None]"
"""Writes records to stdout; the number is the width that the greatest offset has."""

AsText: TypeAlias = Annotated[bool, typer.Option("--text", help="Only the values, as they are, a line each.")]
Format: TypeAlias = Annotated[
    str | None,
    typer.Option("--format", metavar="FORMAT", help="As kcat has it: '%t [%p] %o %T %k: %s\\n', %h %S %K %R."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object a record.")]
CodedBytes: TypeAlias = Annotated[
    JsonBytes | None,
    typer.Option("--json-bytes", help="Bytes in JSON: base64, text where they are UTF-8, or both (the default)."),
]


def record_writer(
    topic: str, *, as_text: bool, format_text: str | None, as_json: bool, json_bytes: JsonBytes | None
) -> tuple[RecordWriter, tuple[str, ...]]:
    """What writes records, and which columns of them it looks at; ConfigError for options that exclude each other."""
    asked = [
        name
        for name, is_given in (("--json", as_json), ("--text", as_text), ("--format", format_text is not None))
        if is_given
    ]
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(asked)} exclude each other: give one of them")
    if json_bytes is not None and not as_json:
        raise ConfigError("--json-bytes says how --json writes bytes: give --json too")
    if as_json:
        coding = json_bytes or JsonBytes.BOTH
        return lambda batches, _: write_json(batches, topic=topic, coding=coding), SHOWN
    if as_text:
        return lambda batches, _: write_text(batches), ("value",)
    if format_text is not None:
        record_format = parse_format(format_text)
        return lambda batches, _: write_formatted(batches, record_format, topic=topic), record_format.columns
    return lambda batches, width: write_table(batches, offset_width=width), SHOWN


Record: TypeAlias = Mapping[str, Any]
"""A record's columns by their names, and ``topic`` and ``partition``."""

_Part: TypeAlias = Callable[[Record], bytes]


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How each record is written; ``columns`` are those of the records that are looked at."""

    parts: tuple[_Part, ...]
    columns: tuple[str, ...]

    def bytes_of(self, record: Record) -> bytes:
        """One record."""
        return b"".join([part(record) for part in self.parts])


def parse_format(text: str) -> RecordFormat:
    r"""A format with kcat's letters: ``%t [%p] at offset %o: key %k: %s\n``.

    ======  ==========================================================
    ``%s``  the value; ``%S`` its length, -1 for null; ``%R`` the same as four bytes, big endian
    ``%k``  the key; ``%K`` its length, -1 for null
    ``%h``  the headers: ``name=value,name=value``, NULL for null
    ``%t``  the topic; ``%p`` the partition; ``%o`` the offset
    ``%T``  the timestamp in milliseconds since 1970
    ``%%``  a per cent sign
    ======  ==========================================================

    Beside them ``\n``, ``\r``, ``\t``, ``\0`` and ``\xHH``; before any other character but a letter or a digit a
    backslash stands for that character. Keys and values are written as the bytes they are, null as nothing. ConfigError
    for a letter or an escape that means nothing.
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


def bytes_in_terminal(data: bytes) -> bytes:
    """What a terminal may be given of bytes that anybody may have written: no control characters but line ends."""
    text = data.decode(errors="replace")
    kept = (
        character if character.isprintable() or character in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )
    return "".join(kept).encode()


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
    # What the shell gave that is no text in the locale's encoding stays the bytes that it was.
    return text.encode(errors="surrogateescape")


def _constant(data: bytes) -> _Part:
    return lambda _: data


# "\" at the end, and "%" there, are tokens too: nothing of a format is passed over.
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
        named = f"{token} means nothing" if token[1:] else "it ends in a single %"
        raise ConfigError(f"the format {excerpt(text)!r} cannot be used: {named}; there are %{' %'.join(_LETTERS)}")
    return _LETTERS[token[1:]]


def _unescape(token: str, text: str) -> bytes:
    character = token[1:2]
    if len(token) > 2:
        return bytes.fromhex(token[2:].zfill(2))
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isalnum():
        raise ConfigError(
            rf"the format {excerpt(text)!r} cannot be used: {token} means nothing; there are \n \r \t \0 \xHH and \\"
        )
    return _encode(character or "\\")
