"""Messages of librdkafka into Arrow columns, one column after the other."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import Message

from tieredstore.errors import BatchCorruptError
from tieredstore.kafka.arrow_values import array_of
from tieredstore.kafka.records.columns import RecordColumns


class MessageColumns:
    """Record batches of the asked columns, of the schema that the records of a bucket have."""

    def __init__(self, names: Sequence[str]) -> None:
        """ConfigError for columns that there are not."""
        self.schema: pa.Schema = RecordColumns(names).schema

    def build(self, messages: Sequence[Message]) -> pa.RecordBatch:
        """A record batch of messages, none of which is an error."""
        arrays = [_column(field.name, field.type, messages) for field in _fields(self.schema)]
        built: pa.RecordBatch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return built


def before(messages: Sequence[Message], stop: int) -> Sequence[Message]:
    """Those with offsets below ``stop``; offsets ascend."""
    if not messages or _offset(messages[-1]) < stop:
        return messages
    return messages[: bisect_left(messages, stop, key=_offset)]


def size_of(messages: Sequence[Message]) -> int:
    """Bytes of keys and values."""
    return sum(map(len, messages)) + sum(len(key) for key in map(Message.key, messages) if key is not None)


def _fields(schema: Any) -> list[Any]:
    return list(schema)


def pieces(messages: Sequence[Message], target_bytes: int) -> Iterator[Sequence[Message]]:
    """The messages in runs of at most ``target_bytes``, or of one that is larger."""
    first, held = 0, 0
    for at, message in enumerate(messages):
        size = size_of((message,))
        if held + size > target_bytes and at > first:
            yield messages[first:at]
            first, held = at, 0
        held += size
    yield messages[first:]


def last_offset(messages: Sequence[Message]) -> int:
    """That of the last one; there is one."""
    return _offset(messages[-1])


def epoch_of(message: Message) -> int | None:
    """The leader epoch of a record; None from a broker that tells none."""
    epoch = message.leader_epoch()
    return None if epoch is None or epoch < 0 else epoch


def _offset(message: Message) -> int:
    offset: Any = message.offset()
    return int(offset)


def _headers(messages: Sequence[Message]) -> list[Any]:
    all_headers: list[Any] = []
    # Through map as below: only there Python sees that the method has failed where it returns nonetheless.
    try:
        all_headers.extend(map(Message.headers, messages))
    except (SystemError, UnicodeDecodeError) as error:
        message = messages[len(all_headers)]
        raise BatchCorruptError(
            f"the record at offset {message.offset()} of {message.topic()}-{message.partition()} has a header whose "
            f"key is not UTF-8, which librdkafka's binding cannot give; read without headers"
        ) from error
    return [headers or None for headers in all_headers]


# A method of the class, mapped over the messages, costs half of what a loop in Python does.
def _column(name: str, kind: Any, messages: Sequence[Message]) -> Any:
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
            return array_of([moment for _, moment in map(Message.timestamp, messages)], kind)
        case "timestampType":
            # Kafka's numbers begin with -1 for none, librdkafka's with 0.
            return array_of([theirs - 1 for theirs, _ in map(Message.timestamp, messages)], kind)
        case _:
            return array_of([-1 if epoch is None else epoch for epoch in map(Message.leader_epoch, messages)], kind)
