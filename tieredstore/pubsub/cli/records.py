"""Records of batches at a terminal: ``pubsub produce`` reads them, ``pubsub cat`` and ``tieredstore show`` print them.

This module is separate from ``pubsub`` and ``files``, which import it only to run a command or to show a batch.
"""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from tieredstore.cli.records.formats import Asked, Rows, Shown, View
from tieredstore.cli.records.record_output import shown_text
from tieredstore.cli.terminal.output import complain, iso_utc, print_lines, quantity
from tieredstore.cli.terminal.rows import Row, attributes, column, field
from tieredstore.cli.terminal.tables import number, plain, text, word
from tieredstore.model import human_bytes
from tieredstore.process.futures import outcome
from tieredstore.pubsub.consume.partition_state import ConsumedRecord, records_of, with_places
from tieredstore.pubsub.errors import InvalidRecordError, MessageCorruptError
from tieredstore.pubsub.format.batches import START_SIZE, BatchIndex, parse_index_size, read_index
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.format.messages import MessageHeader, MessagePlace, parse_message_header
from tieredstore.pubsub.format.notifications import parse_batch_key
from tieredstore.pubsub.produce.futures import RecordPlace

if TYPE_CHECKING:
    from tieredstore.pubsub.consume.consumer import BatchConsumer
    from tieredstore.pubsub.format.messages import ProducerRequest
    from tieredstore.pubsub.produce.producer import BatchProducer
    from tieredstore.pubsub.queue.queues import NotificationQueue
    from tieredstore.pubsub.queue.topics import Topics

_GROUP_WAIT_S: Final = 30.0


def produce_lines(producer: BatchProducer, topic: str, separator: str | None) -> None:
    """Send each line of stdin as a record. Print the number of stored records at the end."""
    sent: deque[Future[RecordPlace]] = deque()
    count, size = 0, 0
    for line in sys.stdin.buffer:
        value, key = line.removesuffix(b"\n"), None
        if separator is not None:
            head, between, rest = value.partition(separator.encode())
            if not between:
                raise InvalidRecordError(f"line {count + 1} has no {separator!r:.20} between key and value")
            key, value = head, rest
        sent.append(producer.send(value, key))
        count, size = count + 1, size + len(value)
        while sent and sent[0].done():
            outcome(sent.popleft())
    producer.flush()
    while sent:
        outcome(sent.popleft())
    print_lines([f"{count} records, {size} bytes of values, stored in topic {topic}"])


def show_records(
    topics: Topics, consumer: BatchConsumer, *, last: int | None, count: int | None, follow: bool, as_json: bool
) -> None:
    """Show records up to the queue's current end, or forever. Commit a group's position as records are shown."""
    left = count
    with topics.queue(topics.get(consumer.topic)) as queue, consumer:
        ends = {} if follow else {partition: queue.end(partition) for partition in range(queue.partitions)}
        _join(consumer)
        if last:
            consumer.seek_to_last(last)
        while left != 0 and (follow or _is_before(consumer, queue, ends)):
            for record in consumer.records(0.2):
                sys.stdout.write(json.dumps(_CONSUMED.json(record)) + "\n" if as_json else _text_line(record))
                left = None if left is None else left - 1
                if left == 0:
                    break
            sys.stdout.flush()
            if consumer.group is not None:
                consumer.commit()


def _join(consumer: BatchConsumer) -> None:
    """Wait until the group has a free partition. The partitions of a killed member become free after a timeout."""
    waited_s = 0.0
    while consumer.group is not None and not consumer.assignment() and waited_s < _GROUP_WAIT_S:
        if not waited_s:
            complain(f"group {consumer.group}: waiting for a partition: other members own all of them")
        time.sleep(1.0)
        waited_s += 1.0


def _is_before(consumer: BatchConsumer, queue: NotificationQueue, ends: dict[int, int]) -> bool:
    """Return True if a queue has entries between the consumer's position and the partition's end in ``ends``. Offsets
    have gaps, so this reads the queue instead of comparing offsets. The read raises DataLossError for a position beyond
    the queue's end."""
    return any(
        bool(queue.read(partition, position.offset)) and position.offset < ends[partition]
        for partition, position in consumer.position().items()
        if position.offset != ends.get(partition, position.offset)
    )


def _encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _time(record: ConsumedRecord) -> str:
    return "-" if record.timestamp is None else iso_utc(record.timestamp) or str(record.timestamp)


def _headers(record: ConsumedRecord) -> str:
    return "".join(f"  {name}={shown_text(value)}" for name, value in record.headers)


_RECORD: Final[Row[ConsumedRecord]] = Row(
    field("message", lambda record: record.message, number("MESSAGE")),
    field("record", lambda record: record.record, number("RECORD")),
    column(word("TIMESTAMP", rank=1), _time),
    column(word("ID", rank=2), lambda record: "-" if record.message_id is None else record.message_id.hex()),
    column(text("KEY"), lambda record: shown_text(record.key)),
    column(text("VALUE"), lambda record: shown_text(record.value) + _headers(record)),
    field("id", lambda record: _encode(record.message_id)),
    field("key", lambda record: _encode(record.key)),
    field("value", lambda record: _encode(record.value)),
    field("headers", lambda record: [[name, _encode(value)] for name, value in record.headers] or None),
    field("timestamp", lambda record: record.timestamp),
)
"""The columns that show a batch's record, with MemQ's field names."""
_CONSUMED: Final[Row[ConsumedRecord]] = Row(attributes("partition", "offset"), _RECORD)


def _text_line(record: ConsumedRecord) -> str:
    place = f"{record.partition}/{record.offset}/{record.message}/{record.record}"
    told = f"{place:<16}  {_time(record):<24}  {shown_text(record.key):<16}  {shown_text(record.value)}"
    return plain(told + _headers(record)) + "\n"


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
            yield Rows(_RECORD, (record for batch in batches for record in records_of(with_places(batch, 0, 0))))
            return
        heading = f"{source.name}: {quantity(len(index), 'Message')}, {human_bytes(index.object_size)}"
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
        raise MessageCorruptError(f"{source.name}: {damaged} of {quantity(len(index), 'Message')} damaged")


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
