"""Batches in ``tieredstore show``: Messages or records.

``tieredstore show`` imports this module only for a file that may be a batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from tieredstore.cli.records.formats import Asked, Rows, Shown, View
from tieredstore.cli.terminal.output import counted, iso_utc
from tieredstore.cli.terminal.rows import Row, field
from tieredstore.cli.terminal.tables import number, text, word
from tieredstore.model import human_bytes
from tieredstore.pubsub.cli.records import RECORD
from tieredstore.pubsub.consume.partition_state import records_of, with_places
from tieredstore.pubsub.errors import MessageCorruptError
from tieredstore.pubsub.format.batches import START_SIZE, BatchIndex, parse_index_size, read_index
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.format.messages import MessageHeader, MessagePlace, parse_message_header
from tieredstore.pubsub.format.notifications import parse_batch_key

if TYPE_CHECKING:
    from tieredstore.pubsub.format.messages import ProducerRequest


@dataclass(frozen=True, slots=True)
class _Source:
    """One object; ``read`` returns its bytes ``start:stop``."""

    name: str
    size: int
    read: Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class _Message:
    """One Message: its place, its header and its damage. The header is None if it cannot be parsed."""

    place: MessagePlace
    size: int
    header: MessageHeader | None
    damage: str | None


def is_batch(asked: Asked) -> bool:
    """Return True if the file's name or its first bytes look like a batch's."""
    if parse_batch_key(asked.name, asked.name.rpartition("/")[0]) is not None:
        return asked.path is not None or asked.store.is_given
    if asked.path is None or not asked.path.is_file():
        return False
    with asked.path.open("rb") as file:
        start = file.read(START_SIZE)
    try:
        parse_index_size(start, asked.name)
    except MessageCorruptError:
        return False
    return True


@contextlib.contextmanager
def show_batch(asked: Asked) -> Generator[Shown]:
    """Show a batch's records, or its Messages. Every Message is decoded completely; for a damaged Message, show the
    reason."""
    with _open(asked) as source:
        index = read_index(source.read, source.name, source.size)
        if asked.view is View.RECORDS:
            messages = ((index.place(at), memoryview(source.read(*index.byte_range(at)))) for at in range(len(index)))
            batches = BatchDecoder().decode_messages(messages)
            yield Rows(RECORD, (record for batch in batches for record in records_of(with_places(batch, 0, 0))))
            return
        heading = f"{source.name}: {counted(len(index), 'Message')}, {human_bytes(index.object_size)}"
        sizes = {"size": index.object_size, "header_size": index.size}
        yield Rows(_MESSAGE, _inspect(source, index), heading, sums=lambda: sizes)


def _inspect(source: _Source, index: BatchIndex) -> Iterator[_Message]:
    """Read and yield each Message in order. A Message counts as undamaged only if all of its records can be decoded."""
    decoder, damaged = BatchDecoder(("message",)), 0
    for at in range(len(index)):
        start, stop = index.byte_range(at)
        place, header, damage = index.place(at), None, None
        message = source.read(start, stop)
        try:
            header = parse_message_header(message, place)
            for _ in decoder.decode_message(message, place):
                pass
        except MessageCorruptError as error:
            damage, damaged = str(error), damaged + 1
        yield _Message(place, stop - start, header, damage)
    if damaged:
        raise MessageCorruptError(f"{source.name}: {damaged} of {counted(len(index), 'Message')} damaged")


@contextlib.contextmanager
def _open(asked: Asked) -> Generator[_Source]:
    if asked.path is not None:
        with asked.path.open("rb") as file:

            def read(start: int, stop: int) -> bytes:
                file.seek(start)
                return file.read(stop - start)

            yield _Source(asked.name, asked.path.stat().st_size, read)
        return
    with asked.store.open() as bucket:
        store = bucket.opened().store
        size = store.head(asked.name).size
        yield _Source(asked.name, size, lambda start, stop: store.get(asked.name, start, stop))


def _request(message: _Message) -> ProducerRequest | None:
    return None if message.header is None else message.header.request


def _request_id(message: _Message) -> int | None:
    return None if (request := _request(message)) is None else request.request_id


def _compression(message: _Message) -> str | None:
    return None if message.header is None else message.header.compression.name.lower()


def _address(message: _Message) -> str | None:
    if (request := _request(message)) is None:
        return None
    try:
        return str(ip_address(request.address))
    except ValueError:  # neither an IPv4 nor an IPv6 address
        return request.address.hex()


_MESSAGE: Final[Row[_Message]] = Row(
    field("message", lambda message: message.place.number, number("MESSAGE")),
    field("position", lambda message: message.place.start, number("BYTE", rank=5)),
    field("size", lambda message: message.size, number("SIZE")),
    field("records", lambda message: message.header and message.header.record_count, number("RECORDS")),
    field("compression", _compression, word("COMPRESSION", rank=4)),
    field("producer_address", _address, word("PRODUCER", rank=3)),
    field("producer_started_ms", lambda message: (request := _request(message)) and request.epoch_ms),
    field("request_id", _request_id, number("REQUEST", rank=1)),
    field(
        "producer_started",
        lambda message: None if (request := _request(message)) is None else iso_utc(request.epoch_ms),
        word("STARTED", rank=6),
    ),
    field("body_size", lambda message: message.header and message.header.body_size),
    field("damage", lambda message: message.damage, text("DAMAGE", rank=2)),
)
