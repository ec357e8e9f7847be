"""How a command writes the records that it shows: as a table, or as one of the options says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tieredstore.cli.records.record_format import parse_format
from tieredstore.cli.records.record_output import write_formatted, write_json, write_table, write_text
from tieredstore.cli.records.record_rows import SHOWN, JsonBytes
from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.cli.records.record_filter import PartitionRecords

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
