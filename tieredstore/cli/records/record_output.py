"""How a command writes the records that it shows: as a table, or as one of the options says."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from tieredstore.cli.records.record_format import RecordFormat, bytes_in_terminal, parse_format
from tieredstore.cli.records.record_rows import SHOWN, TABLE, JsonBytes, json_lines, rows_of, shown_text, table_cells
from tieredstore.cli.terminal.output import complain, terminal_width
from tieredstore.cli.terminal.output_file import write_all
from tieredstore.cli.terminal.tables import table_lines
from tieredstore.errors import ConfigError

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
