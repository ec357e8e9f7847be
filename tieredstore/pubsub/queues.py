"""The contract of notification queues: what a writer appends to, and a reader goes along.

A topic has some read partitions, numbered from 0. A partition is an ordered log of notifications, each at an offset;
offsets grow and need not be dense. ``tieredstore.testing.notification_queue_tests`` ships what every queue must pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from tieredstore.process.deadline import Deadline


class QueuedNotification(NamedTuple):
    """One notification where it stands; ``appended_ms`` is its writer's clock."""

    offset: int
    appended_ms: int
    raw: bytes


class NotificationQueue(ABC):
    """The notifications of one topic. Used from many threads at once."""

    @property
    @abstractmethod
    def partitions(self) -> int:
        """How many read partitions there are; may grow."""

    @abstractmethod
    def append(self, partition: int, notifications: Sequence[bytes], deadline: Deadline) -> list[int]:
        """Append some notifications in their order and return their offsets, once they are durable.

        A lost answer is no second entry: what was written is recognised. StoreUnavailable (retryable) when it could not
        be done, or not be known, by the deadline.
        """

    @abstractmethod
    def read(self, partition: int, offset: int) -> list[QueuedNotification]:
        """Some notifications from ``offset`` on, in their order; none when there are none yet. Does not wait.

        DataLoss if retention has freed ``offset``.
        """

    @abstractmethod
    def start(self, partition: int) -> int:
        """The first offset that retention has not freed."""

    @abstractmethod
    def end(self, partition: int) -> int:
        """One more than the last offset, or more: where a reader begins who wants only what comes."""

    @abstractmethod
    def offset_at(self, partition: int, ms: int) -> int:
        """The first offset that was appended at ``ms`` or later, by the writers' clocks; the end if there is none."""

    @abstractmethod
    def free(self, partition: int, offset: int) -> None:
        """Free what lies before ``offset``: the start moves first, then entries are deleted."""
