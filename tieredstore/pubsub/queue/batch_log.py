"""The batches of a topic along its queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tieredstore.errors import DataLoss, ObjectNotFound
from tieredstore.process.closing import Closing
from tieredstore.pubsub.errors import MessageCorrupt
from tieredstore.pubsub.format.batches import BatchIndex, headers_in
from tieredstore.pubsub.format.messages import MessageHeader, parse_message_header
from tieredstore.pubsub.format.notifications import Notification, parse_notification
from tieredstore.pubsub.queue.queues import QueuedNotification
from tieredstore.pubsub.queue.topics import Topic, Topics

_MOST_HEADER: Final = 256
_WHOLE_BELOW: Final = 65_536  # bytes a Message, below which the whole object is read for its headers


@dataclass(frozen=True, slots=True)
class QueuedBatch:
    """A batch where it stands in the queue. :meth:`BatchLog.batch_of` alone makes one, once it has checked that the
    notification points to an object of its topic; ``appended_ms`` is the writer's clock."""

    partition: int
    offset: int
    appended_ms: int
    key: str
    notification: Notification

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return self.notification.total_size

    def check(self, crc32: int) -> None:
        """MessageCorrupt if the object has another CRC-32 than the notification says, if it says one."""
        facts = self.notification.facts
        if facts is not None and facts.crc32 != crc32:
            raise MessageCorrupt(f"{self.key}: the object is not the one that was written: it has another CRC-32")

    def check_count(self, messages: int) -> None:
        """MessageCorrupt if the object has another number of Messages than the notification says."""
        if messages != self.notification.message_count:
            raise MessageCorrupt(f"{self.key}: its notification has {self.notification.message_count} Messages")


class BatchLog(Closing):
    """``topic`` with its queue, opened. Used from many threads at once."""

    def __init__(self, topics: Topics, topic: Topic) -> None:
        self.topics = topics
        self.topic = topic
        self.store = topics.store
        self.queue = topics.queue(topic)

    def close(self) -> None:
        """Let the queue go."""
        self.queue.close()

    def place(self, partition: int, offset: int) -> str:
        """A place of the queue, for messages."""
        return f"queue {self.topic.name}/{partition}, offset {offset}"

    def batch_of(self, partition: int, entry: QueuedNotification) -> QueuedBatch:
        """The batch that a notification tells of; NotificationCorrupt for what may point to anything."""
        where = self.place(partition, entry.offset)
        notification = parse_notification(entry.raw, where)
        key = self.topics.check_place(notification, self.topic, where)
        return QueuedBatch(partition, entry.offset, entry.appended_ms, key, notification)

    def walk(self, partition: int, begin: int | None = None, end: int | None = None) -> Iterator[QueuedBatch]:
        """The batches of a partition as :meth:`NotificationQueue.walk` gives their notifications."""
        for entry in self.queue.walk(partition, begin, end):
            yield self.batch_of(partition, entry)

    def loss(self, batch: QueuedBatch) -> DataLoss:
        """What is raised for a batch whose object is absent."""
        return DataLoss(f"{self.place(batch.partition, batch.offset)}: the object {batch.key} is not there")

    def fetch(self, batch: QueuedBatch) -> bytes:
        """The object of a batch; DataLoss if it is absent."""
        try:
            return self.store.get(batch.key)
        except ObjectNotFound as error:
            raise self.loss(batch) from error

    def headers(self, batch: QueuedBatch) -> Iterator[tuple[int, MessageHeader | MessageCorrupt]]:
        """Each Message's number and its header, or what is wrong with that. MessageCorrupt for a damaged index.

        By one GET of the object, or by small ones where Messages are large.
        """
        notification = batch.notification
        if batch.size <= _WHOLE_BELOW * notification.message_count:
            yield from headers_in(self.store.get(batch.key), batch.key)
            return
        index = BatchIndex(self.store.get(batch.key, 0, notification.header_size), batch.key, batch.size)
        for number in range(len(index)):
            start, stop = index.byte_range(number)
            head = self.store.get(batch.key, start, min(stop, start + _MOST_HEADER))
            try:
                yield number, parse_message_header(head, index.place(number), whole=False)
            except MessageCorrupt as error:
                yield number, error
