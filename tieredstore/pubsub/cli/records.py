"""Implementation of ``pubsub produce`` and ``pubsub cat``; prints the records of batches for ``show``.

This module is separate from ``pubsub``, which imports this module only to run a command.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from tieredstore.cli.records.record_rows import shown_text
from tieredstore.cli.terminal.output import complain, iso_utc, print_lines
from tieredstore.cli.terminal.rows import Row, attributes, column, field
from tieredstore.cli.terminal.tables import number, plain, text, word
from tieredstore.process.futures import outcome
from tieredstore.pubsub.consume.partition_state import ConsumedRecord
from tieredstore.pubsub.errors import InvalidRecordError
from tieredstore.pubsub.produce.futures import RecordPlace

if TYPE_CHECKING:
    from tieredstore.pubsub.consume.consumer import BatchConsumer
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


RECORD: Final[Row[ConsumedRecord]] = Row(
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
_CONSUMED: Final[Row[ConsumedRecord]] = Row(attributes("partition", "offset"), RECORD)


def _text_line(record: ConsumedRecord) -> str:
    place = f"{record.partition}/{record.offset}/{record.message}/{record.record}"
    told = f"{place:<16}  {_time(record):<24}  {shown_text(record.key):<16}  {shown_text(record.value)}"
    return plain(told + _headers(record)) + "\n"
