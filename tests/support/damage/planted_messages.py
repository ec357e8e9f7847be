"""Messages at chosen places, stored in objects with notifications, as a writer makes them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.pubsub.pubsub_brokers import LONG_S
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.format.messages import MessagePlace, parse_message_header
from tieredstore.pubsub.produce.batch_writer import BatchWriter, SealedMessage
from tieredstore.pubsub.queue.topics import BatchLog, Topics


def store_messages(topics: Topics, topic: str, messages: Sequence[bytes], partition: int | None = None) -> int:
    """Store these Messages as one batch and return its offset in the read partition."""
    headers = [parse_message_header(message, MessagePlace("a test's", 0, 0)) for message in messages]
    sealed = [
        SealedMessage(message, header.request, header.record_count, 0, 0)
        for message, header in zip(messages, headers, strict=True)
    ]
    writer = BatchWriter(BatchLog(topics, topics.get(topic)))
    try:
        return writer.write(sealed, Deadline.after(LONG_S), partition)[1]
    finally:
        writer.close()
