"""Conversion of librdkafka's messages into Arrow record batches, one column after another."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Message

from tieredstore.errors import BatchCorruptError
from tieredstore.kafka.arrow_values import array_of
from tieredstore.kafka.records.columns import RecordColumns

MOST_MESSAGES: Final = 10_000
TARGET_BYTES: Final = 4 * 1024 * 1024
FIRST_MESSAGES: Final = 256
"""The number of messages to request at first, while their size is unknown."""


class MessageColumns:
    """Builds record batches of selected columns, with the same schema as records from a bucket."""

    def __init__(self, names: Sequence[str]) -> None:
        """Raise ConfigError for unknown columns."""
        self.schema: pa.Schema = RecordColumns(names).schema

    def build(self, messages: Sequence[Message]) -> pa.RecordBatch:
        """Return a record batch of these messages, which must not include errors."""
        arrays = [_column(field.name, field.type, messages) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def build_leading(self, messages: Sequence[Message]) -> pa.RecordBatch:
        """Return a record batch of these messages, up to the first that the client cannot return. There must be at
        least one message. Raise BatchCorruptError if the first message is such a message.
        """
        try:
            return self.build(messages)
        except BatchCorruptError:
            for count, message in enumerate(messages):
                try:
                    self.build([message])
                except BatchCorruptError:
                    if count == 0:
                        raise
                    return self.build(messages[:count])
            raise

    def build_each(self, messages: Sequence[Message]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of these messages, usually one. Raise BatchCorruptError at a message that the client
        cannot return, after the batch of the messages before it.
        """
        while messages:
            records = self.build_leading(messages)
            yield records
            messages = messages[records.num_rows :]


def before(messages: Sequence[Message], stop: int) -> Sequence[Message]:
    """Return the messages with offsets below ``stop``. ``messages`` must be in offset order."""
    if not messages or offset_of(messages[-1]) < stop:
        return messages
    return messages[: bisect_left(messages, stop, key=offset_of)]


def size_of(messages: Sequence[Message]) -> int:
    """Return the total size of keys and values in bytes, plus an estimate for headers: those of the last message."""
    if not messages:
        return 0
    keys = sum(len(key) for key in map(Message.key, messages) if key is not None)
    return sum(map(len, messages)) + keys + len(messages) * headers_size(messages[-1])


def headers_size(message: Message) -> int:
    """Return the size of a message's headers in bytes; 0 if the client cannot return them."""
    try:
        (headers,) = _headers((message,))
        return sum(len(name) + len(value or b"") for name, value in headers or ())
    except BatchCorruptError:
        return 0


def next_count(count: int, size: int) -> int:
    """Return how many messages to request next, if the last ``count`` messages had ``size`` bytes."""
    return max(1, min(MOST_MESSAGES, TARGET_BYTES * count // max(1, size)))


def pieces(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Split the messages into sequences of at most ``TARGET_BYTES``. A larger message is a sequence by itself."""
    first, held = 0, 0
    for at, message in enumerate(messages):
        size = len(message) + len(message.key() or b"")
        if held + size > TARGET_BYTES and at > first:
            yield messages[first:at]
            first, held = at, 0
        held += size
    yield messages[first:]


def epoch_of(message: Message) -> int | None:
    """Return a record's leader epoch; None if the broker does not report it."""
    epoch = message.leader_epoch()
    return None if epoch is None or epoch < 0 else epoch


def offset_of(message: Message) -> int:
    """Return the offset of a record, or the offset at which a partition's error occurred."""
    offset = message.offset()
    if offset is None:
        raise BatchCorruptError(f"librdkafka returned a message of {message.topic()} without an offset")
    return offset


class UnreadableHeaders:
    """Stands in a message for headers that the binding cannot return. Raises BatchCorruptError where it is iterated."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    def __iter__(self) -> Iterator[tuple[str, bytes | None]]:
        raise BatchCorruptError(self._sentence)


def _headers(messages: Sequence[Message]) -> list[Any]:
    all_headers: list[Any] = []
    # If a header's key is not UTF-8, confluent-kafka may return a value although it has set an error. Python notices
    # this only in calls by ``map``, and raises SystemError.
    try:
        all_headers.extend(map(Message.headers, messages))
    except (SystemError, UnicodeDecodeError) as error:
        message: Any = messages[len(all_headers)]
        sentence = (
            f"the record at offset {message.offset()} of {message.topic()}-{message.partition()} has a header whose "
            f"key is not UTF-8, which librdkafka's binding cannot return; read without headers"
        )
        # The next call would return the same value without an error. The value lacks the key, and its use would end
        # the process.
        message.set_headers(UnreadableHeaders(sentence))
        raise BatchCorruptError(sentence) from error
    return [headers or None for headers in all_headers]


# The functions below use ``map`` with a method of the class, because this takes half the time of a Python loop.
def _column(name: str, kind: pa.DataType, messages: Sequence[Message]) -> pa.Array:
    match name:
        case "key":
            return array_of(list(map(Message.key, messages)), kind)
        case "value":
            return array_of(list(map(Message.value, messages)), kind)
        case "headers":
            return array_of(_headers(messages), kind)
        case "offset":
            return array_of(list(map(Message.offset, messages)), kind)
        case "timestamp":
            # For a record without a timestamp, librdkafka returns 0 instead of -1.
            return array_of([moment if theirs else -1 for theirs, moment in map(Message.timestamp, messages)], kind)
        case "timestampType":
            # librdkafka's numbers of timestamp types are larger by one than Kafka's. For example, 0 instead of -1 means
            # no timestamp.
            return array_of([theirs - 1 for theirs, _ in map(Message.timestamp, messages)], kind)
        case _:
            return array_of([-1 if epoch is None else epoch for epoch in map(Message.leader_epoch, messages)], kind)
