"""The entries of a segment's indexes as rows, and the option that names an index."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Final, TypeAlias

import typer

from tieredstore.cli.terminal.output import JsonValue, iso_utc, leader_epoch_rows
from tieredstore.cli.terminal.rows import Field, Row, field
from tieredstore.cli.terminal.tables import number, word
from tieredstore.kafka.checkpoints import parse_leader_epochs, parse_producer_snapshot
from tieredstore.kafka.indexes import read_offset_index, read_time_index, read_txn_index
from tieredstore.model import IndexType

Entry: TypeAlias = dict[str, JsonValue]
"""One entry of an index: its fields by name."""

IndexName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--index",
        metavar="NAME",
        help="One index instead: " + ", ".join(kind.value for kind in IndexType) + "; or the suffix of Kafka's file.",
    ),
]


def row_of(entries: Sequence[Entry]) -> Row[Entry]:
    """Declare the fields of an index's entries. On a narrow terminal, the last columns are dropped first."""

    def declare(rank: int, name: str) -> Field[Entry]:
        align = word if any(isinstance(entry[name], str) for entry in entries) else number
        return field(name, operator.itemgetter(name), align(name.upper().replace("_", " "), rank=rank))

    return Row(*(declare(rank, name) for rank, name in enumerate(entries[0] if entries else ())))


def decode_rows(kind: IndexType, content: bytes, base_offset: int) -> list[Entry]:
    """Decode one index of the segment at ``base_offset``. Raise BatchCorruptError if its entries are inconsistent."""
    return _DECODERS[kind](content, base_offset)


def _timestamps(content: bytes, base_offset: int) -> list[Entry]:
    return [
        {"timestamp_ms": entry.timestamp, "timestamp": iso_utc(entry.timestamp), "offset": entry.offset}
        for entry in read_time_index(content, base_offset)
    ]


def _producers(content: bytes, _base_offset: int) -> list[Entry]:
    rows: list[Entry] = []
    for state in parse_producer_snapshot(content):
        row: Entry = asdict(state)
        row["timestamp_ms"] = row.pop("timestamp")
        rows.append(row)
    return rows


_DECODERS: Final[Mapping[IndexType, Callable[[bytes, int], list[Entry]]]] = {
    IndexType.OFFSET: lambda content, base: [asdict(entry) for entry in read_offset_index(content, base)],
    IndexType.TIMESTAMP: _timestamps,
    IndexType.PRODUCER_SNAPSHOT: _producers,
    IndexType.LEADER_EPOCH: lambda content, _: leader_epoch_rows(parse_leader_epochs(content)),
    IndexType.TRANSACTION: lambda content, base: [asdict(entry) for entry in read_txn_index(content, base)],
}
