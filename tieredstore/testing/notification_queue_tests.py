"""Contract tests of notification queues: ``class TestMine(NotificationQueueTests)`` with a fixture ``queue``."""

from __future__ import annotations

import threading

import pytest

from tieredstore.errors import DataLossError, InvalidRangeError
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.queue.queues import NotificationQueue, QueuedNotification

_LONG_S = 120.0


def read_all(queue: NotificationQueue, partition: int, offset: int | None = None) -> list[QueuedNotification]:
    """Read a partition from ``offset``, or from its start, until nothing more arrives."""
    return list(queue.walk(partition, offset))


class NotificationQueueTests:
    """The contract of :class:`~tieredstore.pubsub.queue.queues.NotificationQueue`.

    Each test has a fresh queue of two partitions.
    """

    @pytest.fixture
    def queue(self) -> NotificationQueue:
        """The queue under test."""
        raise NotImplementedError

    def append(self, queue: NotificationQueue, *raw: bytes, partition: int = 0) -> list[int]:
        """Append notifications with a deadline that no test reaches."""
        return queue.append(partition, raw, Deadline.after(_LONG_S))

    def test_a_fresh_queue_is_empty(self, queue: NotificationQueue) -> None:
        """A fresh queue has nothing to read, and its start equals its end."""
        assert queue.partitions == 2
        assert queue.read(0, queue.start(0)) == []
        assert queue.start(1) == queue.end(1)

    def test_notifications_are_read_in_order_at_the_offsets_of_append(self, queue: NotificationQueue) -> None:
        """Each partition has its own order and offsets."""
        offsets = self.append(queue, b"a") + self.append(queue, b"b", b"c") + self.append(queue, b"d")
        self.append(queue, b"other", partition=1)
        entries = read_all(queue, 0)
        assert [entry.raw for entry in entries] == [b"a", b"b", b"c", b"d"]
        assert [entry.offset for entry in entries] == offsets == sorted(set(offsets))
        assert [entry.raw for entry in read_all(queue, 1)] == [b"other"]

    def test_a_reader_may_start_at_any_offset(self, queue: NotificationQueue) -> None:
        """A reader may start in the middle of notifications that were appended together."""
        offsets = self.append(queue, b"a", b"b", b"c") + self.append(queue, b"d")
        assert [entry.raw for entry in read_all(queue, 0, offsets[1])] == [b"b", b"c", b"d"]
        assert read_all(queue, 0, offsets[-1] + 1) == []

    def test_the_end_is_after_every_notification(self, queue: NotificationQueue) -> None:
        """The end is after every notification so far; the next notification is appended at this offset or later."""
        (before,) = self.append(queue, b"a")
        end = queue.end(0)
        (after,) = self.append(queue, b"b")
        assert before < end <= after
        assert [entry.raw for entry in read_all(queue, 0, end)] == [b"b"]

    def test_concurrent_writers_lose_no_notification(self, queue: NotificationQueue) -> None:
        """Sixteen writers append to one partition at once. Each notification exists once, at the offset that its writer
        received."""
        offsets: dict[bytes, int] = {}
        gate = threading.Barrier(16)

        def write(writer: int) -> None:
            gate.wait(_LONG_S)
            for number in range(4):
                raw = b"%d-%d" % (writer, number)
                (offsets[raw],) = self.append(queue, raw)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_LONG_S)
        assert {entry.raw: entry.offset for entry in read_all(queue, 0)} == offsets
        assert len(read_all(queue, 0)) == 64

    def test_reading_a_freed_offset_raises_data_loss_error(self, queue: NotificationQueue) -> None:
        """Reading an offset before the queue's start raises an error."""
        offsets = [self.append(queue, b"%d" % number)[0] for number in range(5)]
        queue.free(0, offsets[3])
        assert queue.start(0) == offsets[3]
        assert [entry.raw for entry in read_all(queue, 0)] == [b"3", b"4"]
        with pytest.raises(DataLossError):
            queue.read(0, offsets[1])
        queue.free(0, offsets[3])
        (after,) = self.append(queue, b"5")
        assert after > offsets[4]

    def test_a_time_is_found_as_an_offset(self, queue: NotificationQueue) -> None:
        """``offset_at`` returns the offset of the first notification appended at the given time or later; for a future
        time, the end."""
        for number in range(7):
            self.append(queue, b"%d" % number)
        entries = read_all(queue, 0)
        for entry in entries:
            first = next(other.offset for other in entries if other.appended_ms >= entry.appended_ms)
            assert queue.offset_at(0, entry.appended_ms) == first
        assert queue.offset_at(0, 0) == entries[0].offset
        assert queue.offset_at(0, entries[-1].appended_ms + 3_600_000) >= entries[-1].offset + 1

    def test_an_absent_partition_raises_invalid_range_error(self, queue: NotificationQueue) -> None:
        """Every method raises InvalidRangeError for a partition that the queue lacks."""
        with pytest.raises(InvalidRangeError):
            self.append(queue, b"a", partition=2)
        with pytest.raises(InvalidRangeError):
            queue.read(2, 0)
