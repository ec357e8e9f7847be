"""What ``tieredstore pubsub inspect`` shows of a batch, on this machine or in a store."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from tieredstore.backends.base import ObjectStore
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.records.record_rows import rows_of, shown_text
from tieredstore.cli.terminal.output import JsonValue, counted, iso_utc, print_growing_table, print_json, print_lines
from tieredstore.cli.terminal.tables import Column, number, text, word
from tieredstore.errors import ConfigError
from tieredstore.model import human_bytes
from tieredstore.pubsub.format.batches import BatchIndex
from tieredstore.pubsub.upkeep.inspection import (
    BatchSource,
    InspectedMessage,
    decode_messages,
    inspect_messages,
    read_index,
)

if TYPE_CHECKING:
    from tieredstore.pubsub.format.decoder import BatchDecoder

_SHOWN: Final = ("message", "record", "timestamp", "message_id", "key", "value", "headers")
_COLUMNS: Final[tuple[Column, ...]] = (
    number("MESSAGE"), number("BYTE", rank=5), number("SIZE"), number("RECORDS"), word("COMPRESSION", rank=4),
    word("PRODUCER", rank=3), number("REQUEST", rank=1), word("STARTED", rank=6), text("DAMAGE", rank=2),
)  # fmt: skip
_RECORD_COLUMNS: Final[tuple[Column, ...]] = (
    number("MESSAGE"), number("RECORD"), word("TIMESTAMP", rank=1), word("ID", rank=2), text("KEY"), text("VALUE"),
)  # fmt: skip


def show_batch(
    batch: str, settings: Path | None, store: str | None, *, records: bool, as_json: bool, wide: bool
) -> None:
    """The command: Messages or records of a file or an object; typer.Exit with 4 for damaged Messages."""
    from tieredstore.pubsub.format.decoder import BatchDecoder

    with _open_source(batch, settings, store) as source:
        if records:
            _show_records(source, BatchDecoder(_SHOWN), as_json=as_json, wide=wide)
        else:
            _show_messages(source, BatchDecoder(("message",)), as_json=as_json, wide=wide)


@dataclass(frozen=True, slots=True)
class _FileSource:
    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def read(self, start: int, stop: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)


@dataclass(frozen=True, slots=True)
class _ObjectSource:
    store: ObjectStore
    name: str
    size: int

    def read(self, start: int, stop: int) -> bytes:
        return self.store.get(self.name, start, stop) if stop > start else b""


@contextlib.contextmanager
def _open_source(batch: str, settings: Path | None, store_url: str | None) -> Generator[BatchSource]:
    # With --store it is a key, whatever lies in this folder; without it a file wins, which one can see.
    if store_url is None and Path(batch).is_file():
        try:
            yield _FileSource(Path(batch))
        except OSError as error:
            if error.filename is None or str(error.filename) != batch:
                raise
            raise ConfigError(f"{batch} cannot be read: {error.strerror}") from error
        return
    if settings is None and store_url is None:
        raise ConfigError(f"there is no file {batch}; for a key of a store give --settings FILE (-c) or --store URL")
    with open_chosen_bucket(settings, store_url) as bucket:
        yield _ObjectSource(bucket.store, batch, bucket.store.head(batch).size)


def _show_messages(source: BatchSource, decoder: BatchDecoder, *, as_json: bool, wide: bool) -> None:
    index = read_index(source)
    damaged: list[str] = []

    def noted(messages: Iterator[InspectedMessage]) -> Iterator[InspectedMessage]:
        for message in messages:
            if message.damage is not None:
                damaged.append(message.damage)
            yield message

    messages = noted(inspect_messages(source, index, decoder))
    if as_json:
        print_json(_document(source, index, messages))
    else:
        print_lines([f"{source.name}: {counted(len(index), 'Message')}, {human_bytes(index.object_size)}"])
        print_growing_table(_COLUMNS, map(_cells, messages), wide=wide)
    if damaged:
        raise typer.Exit(4)


def _document(source: BatchSource, index: BatchIndex, messages: Iterator[InspectedMessage]) -> JsonValue:
    return {
        "object": source.name,
        "size": index.object_size,
        "header_size": index.size,
        "messages": [_message_fields(message) for message in messages],
    }


def _message_fields(message: InspectedMessage) -> dict[str, JsonValue]:
    header, request = message.header, message.header and message.header.request
    return {
        "message": message.place.number,
        "position": message.place.start,
        "size": message.size,
        "producer_address": _address(request.address) if request else None,
        "producer_started_ms": request.epoch_ms if request else None,
        "producer_started": iso_utc(request.epoch_ms) if request else None,
        "request_id": request.request_id if request else None,
        "compression": header.compression.name.lower() if header else None,
        "records": header.record_count if header else None,
        "body_size": header.body_size if header else None,
        "damage": message.damage,
    }


def _cells(message: InspectedMessage) -> list[str]:
    fields = _message_fields(message)
    names = ("message", "position", "size", "records", "compression", "producer_address", "request_id")
    cells = [*(fields[name] for name in names), fields["producer_started"], message.damage]
    return ["-" if cell is None else str(cell) for cell in cells]


def _address(address: bytes) -> str:
    try:
        return str(ip_address(address))
    except ValueError:  # of another length than an address of IPv4 or IPv6
        return address.hex()


def _show_records(source: BatchSource, decoder: BatchDecoder, *, as_json: bool, wide: bool) -> None:
    index = read_index(source)
    rows = (row for batch in decode_messages(source, index, decoder) for row in rows_of(batch, _SHOWN))
    if as_json:
        sys.stdout.writelines(map(_json_line, rows))
    else:
        print_growing_table(_RECORD_COLUMNS, map(_record_cells, rows), wide=wide)


def _json_line(row: dict[str, Any]) -> str:
    headers = None if row["headers"] is None else [[item["key"], _base64(item["value"])] for item in row["headers"]]
    return (
        json.dumps(
            {
                "message": row["message"],
                "record": row["record"],
                "id": _base64(row["message_id"]),
                "key": _base64(row["key"]),
                "value": _base64(row["value"]),
                "headers": headers,
                "timestamp": row["timestamp"],
            }
        )
        + "\n"
    )


def _record_cells(row: dict[str, Any]) -> list[str]:
    headers = "".join(f"  {item['key']}={shown_text(item['value'])}" for item in row["headers"] or ())
    time = "-" if row["timestamp"] is None else iso_utc(row["timestamp"]) or str(row["timestamp"])
    message_id = "-" if row["message_id"] is None else row["message_id"].hex()
    places = (str(row["message"]), str(row["record"]))
    return [*places, time, message_id, shown_text(row["key"]), shown_text(row["value"]) + headers]


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
