"""The entries of a segment's indexes, as rows for a person and for scripts, and the option that names an index."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Final, TypeAlias

import typer

from tieredstore.cli.terminal.output import JsonValue, iso_utc, print_json_line, table_of_rows, terminal_width
from tieredstore.kafka.checkpoints import parse_leader_epochs, parse_producer_snapshot
from tieredstore.kafka.indexes import read_offset_index, read_time_index, read_txn_index
from tieredstore.model import IndexType

Row: TypeAlias = dict[str, JsonValue]

IndexName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--index",
        metavar="NAME",
        help="One index instead: " + ", ".join(kind.value for kind in IndexType) + "; or as Kafka's files are called.",
    ),
]


def show_entries(rows: Sequence[Row], *, as_json: bool) -> None:
    """The entries as a table, or one by one and how many there are."""
    if not as_json:
        sys.stdout.write(table_of_rows(rows, width=terminal_width()))
        return
    for row in rows:
        print_json_line(row)
    print_json_line({"summary": {"entries": len(rows)}})


def leader_epoch_rows(epochs: Iterable[tuple[int, int]]) -> list[JsonValue]:
    """Leader epochs for scripts."""
    return [{"epoch": epoch, "start_offset": start} for epoch, start in epochs]


def decode_rows(kind: IndexType, content: bytes, base_offset: int) -> list[Row]:
    """The entries of one index of the segment at ``base_offset``; BatchCorruptError if they do not hold together."""
    return _DECODERS[kind](content, base_offset)


def _offsets(content: bytes, base_offset: int) -> list[Row]:
    return [asdict(entry) for entry in read_offset_index(content, base_offset)]


def _timestamps(content: bytes, base_offset: int) -> list[Row]:
    return [
        {"timestamp_ms": entry.timestamp, "timestamp": iso_utc(entry.timestamp), "offset": entry.offset}
        for entry in read_time_index(content, base_offset)
    ]


def _producers(content: bytes, _base_offset: int) -> list[Row]:
    rows: list[Row] = []
    for state in parse_producer_snapshot(content):
        row: Row = asdict(state)
        row["timestamp_ms"] = row.pop("timestamp")
        rows.append(row)
    return rows


def _leader_epochs(content: bytes, _base_offset: int) -> list[Row]:
    return [{"epoch": epoch, "start_offset": start} for epoch, start in parse_leader_epochs(content)]


def _transactions(content: bytes, base_offset: int) -> list[Row]:
    return [asdict(entry) for entry in read_txn_index(content, base_offset)]


_DECODERS: Final[Mapping[IndexType, Callable[[bytes, int], list[Row]]]] = {
    IndexType.OFFSET: _offsets,
    IndexType.TIMESTAMP: _timestamps,
    IndexType.PRODUCER_SNAPSHOT: _producers,
    IndexType.LEADER_EPOCH: _leader_epochs,
    IndexType.TRANSACTION: _transactions,
}
