"""One read of a range from a broker, with Kafka clients that no other read shares, and messages that cannot be read."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import pyarrow as pa
import pytest
from confluent_kafka import Message

from tieredstore.errors import BatchCorruptError
from tieredstore.kafka.records import COLUMNS
from tieredstore.live import Isolation, LiveReader
from tieredstore.live.messages import MessageColumns
from tieredstore.model import Uuid


def read_live(
    properties: Mapping[str, str],
    topic: str,
    partition: int,
    start: int,
    stop: int,
    *,
    isolation: Isolation,
    columns: Sequence[str] = COLUMNS,
    topic_id: Uuid | None = None,
    timeout_s: float = 60.0,
) -> Generator[pa.RecordBatch, None, None]:
    """Read like :meth:`LiveReader.read`; close the reader after the last batch. Raise ConfigError at once."""
    reader = LiveReader(properties, isolation=isolation, timeout_s=timeout_s)
    return _read_and_close(reader, reader.read(topic, partition, start, stop, columns=columns, topic_id=topic_id))


def _read_and_close(
    reader: LiveReader, batches: Generator[pa.RecordBatch, None, None]
) -> Generator[pa.RecordBatch, None, None]:
    with reader:
        yield from batches


def refuse_message(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    """Let the message at ``offset`` be one that the Kafka client cannot return."""
    build = MessageColumns.build

    def refuse(columns: MessageColumns, messages: Sequence[Message]) -> pa.RecordBatch:
        if any(message.offset() == offset for message in messages):
            raise BatchCorruptError("a header's key is not UTF-8")
        return build(columns, messages)

    monkeypatch.setattr(MessageColumns, "build", refuse)
