"""The interface of notification queues: writers of batches append notifications, and readers read them in order.

A topic has read partitions, numbered from 0. A partition is an ordered log of notifications, each at an offset. Offsets
grow, but need not be consecutive. ``tieredstore.testing.notification_queue_tests`` holds the tests for every queue.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, NamedTuple

from tieredstore.config.named_class import installed_class
from tieredstore.errors import ConfigError, DataLossError, TieredStoreError
from tieredstore.installation import Extra
from tieredstore.process.closing import Closing
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.queue.own_objects import OwnFolder
from tieredstore.pubsub.settings import BatchSettings


class QueuedNotification(NamedTuple):
    """One notification and its offset; ``appended_ms`` is the time of the append by the writer's clock. The queue has
    no notification at the next ``unused`` offsets, and will never have one there."""

    offset: int
    appended_ms: int
    raw: bytes
    unused: int = 0

    @property
    def next_offset(self) -> int:
        """The offset at which a reader continues."""
        return self.offset + 1 + self.unused


class Position(NamedTuple):
    """The next record to read. ``offset`` is the offset of the record's batch in the queue. ``message`` is the
    Message's number in the batch, and ``record`` the record's number in the Message."""

    offset: int
    message: int = 0
    record: int = 0


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A group's state of one partition.

    ``position`` is None before the first commit. ``generation`` is None if the queue has no generations.
    """

    partition: int
    owner: str | None
    generation: int | None
    position: Position | None


class Claim(NamedTuple):
    """A member's claim on a partition. ``term`` numbers the periods in which members own the partition.

    If a member loses a partition and takes it again, the claim has a new ``term``, even if the member has not noticed
    the loss. ``committed`` is None before the first commit.
    """

    term: int
    committed: Position | None


def name_partitions(partitions: Sequence[int]) -> str:
    """Return ``partition 1``, or ``partition 1 and 2``."""
    return f"partition {' and '.join(map(str, partitions))}"


class GroupMember(ABC):
    """One member of a group, which shares the read partitions with other members. Not thread-safe."""

    @abstractmethod
    def tick(self) -> None:
        """Take part in the group. The consumer calls this often."""

    @abstractmethod
    def claims(self) -> dict[int, Claim]:
        """Return this member's partitions."""

    @property
    def version(self) -> int | None:
        """A number that changes whenever a claim is added, removed or changes its ``term``.

        The version is None if the queue does not count changes. Consumers then call :meth:`claims` before each record.
        """
        return None

    @abstractmethod
    def commit(self, positions: dict[int, Position]) -> None:
        """Commit the positions durably for the group.

        If another member owns some of the partitions, first commit the positions of the other partitions. Then give up
        the lost partitions, and raise FencedError."""

    @abstractmethod
    def leave(self) -> None:
        """Give up all partitions, so that other group members can take them at once."""


class QueueCursor:
    """A reader's position in one partition of a queue: ``offset`` is the next offset to read. Not thread-safe."""

    def __init__(self, queue: NotificationQueue, partition: int, offset: int) -> None:
        self.offset: int = offset
        self._queue = queue
        self._partition = partition

    def read(self) -> list[QueuedNotification]:
        """Return the next entries (see :meth:`NotificationQueue.read`) and advance. After an error, the next read
        continues with the same notification."""
        entries = self._queue.read(self._partition, self.offset)
        if entries:
            self.offset = entries[-1].next_offset
        return entries

    def check_end(self) -> None:
        """Raise DataLossError if the queue only seems to end at the cursor, because a notification is lost."""


class NotificationQueue(Closing):
    """The notifications of one topic. Thread-safe."""

    @property
    @abstractmethod
    def partitions(self) -> int:
        """Number of read partitions; it may grow."""

    @abstractmethod
    def append(self, partition: int, notifications: Sequence[bytes], deadline: Deadline) -> list[int]:
        """Append notifications in order, and return their offsets once they are durable.

        The queue recognizes its own writes, so that a retry after a lost answer causes no second entry.

        Raise StoreUnavailableError (retryable) if the append has failed, or if its state is unknown at the deadline.
        """

    @abstractmethod
    def read(self, partition: int, offset: int) -> list[QueuedNotification]:
        """Return some notifications from ``offset`` on, in order, without waiting; none at the queue's end.

        Raise DataLossError if retention has freed ``offset``. A queue may raise it too if ``offset`` is beyond the end.
        """

    def cursor(self, partition: int, offset: int) -> QueueCursor:
        """Return a cursor at ``offset``. Reads through the cursor may need fewer requests than :meth:`read`."""
        return QueueCursor(self, partition, offset)

    def walk(
        self,
        partition: int,
        begin: int | None = None,
        end: int | None = None,
        on_loss: Callable[[DataLossError], None] | None = None,
    ) -> Iterator[QueuedNotification]:
        """Yield the notifications from ``begin`` (default: the start) to ``end`` (exclusive), or to the queue's end.

        Raise DataLossError if any notification of this range is missing. With ``on_loss``, call it with the error
        instead, and go on after the loss.
        """
        cursor = self.cursor(partition, self.start(partition) if begin is None else begin)
        while end is None or cursor.offset < end:
            try:
                entries = cursor.read()
                if not entries:
                    cursor.check_end()
                    return
            except DataLossError as error:
                if on_loss is None or error.continue_at is None:
                    raise
                on_loss(error)
                cursor = self.cursor(partition, error.continue_at)
                continue
            for entry in entries:
                if end is not None and entry.offset >= end:
                    return
                yield entry

    def append_once(
        self, partition: int, notifications: Sequence[bytes], mark: str, since: int, deadline: Deadline
    ) -> list[int]:
        """Append the notifications that are not in the queue at or after offset ``since``.

        After a crash or an unknown state, the caller repeats the call with the same arguments. ``mark`` is a permanent
        name for these notifications.

        This default implementation ignores ``mark``. Instead, it searches the queue for the notifications' bytes,
        because no other notification has the same bytes. A delayed write of a dead process may still duplicate the
        notifications. A queue that stores the mark can avoid this.

        Raise DataLossError if retention has freed ``since``, because then it is unknown whether the notifications were
        appended.
        """
        del mark
        wanted = frozenset(notifications)
        stand = {entry.raw: entry.offset for entry in self.walk(partition, since) if entry.raw in wanted}
        missing = [raw for raw in notifications if raw not in stand]
        if missing:
            stand |= dict(zip(missing, self.append(partition, missing, deadline), strict=True))
        return [stand[raw] for raw in notifications]

    @abstractmethod
    def start(self, partition: int) -> int:
        """Return the first offset that retention has not freed."""

    @abstractmethod
    def end(self, partition: int) -> int:
        """Return an offset after the last entry. A reader of new entries begins there."""

    @abstractmethod
    def offset_at(self, partition: int, ms: int) -> int:
        """Return the offset of the first entry appended at ``ms`` or later by the writers' clocks. If there is no such
        entry, return the end."""

    def freeable(self, offset: int) -> int:
        """Return the offset to which :meth:`free` moves a queue's start if it is called with ``offset``."""
        return offset

    @abstractmethod
    def free(self, partition: int, offset: int) -> None:
        """Free the entries before ``offset``: first move the queue's start to ``offset``, then delete the entries."""

    def provide(self, partitions: int) -> None:
        """Make sure that the queue has at least ``partitions`` partitions. Raise ConfigError if this kind of queue
        cannot add more."""
        if partitions > self.partitions:
            raise ConfigError(
                f"the queue has {self.partitions} read partitions, and this kind of queue cannot add more"
            )

    def forgets_ms(self) -> int | None:
        """Return the time after which the queue drops notifications by itself; None if only :meth:`free` does."""
        return None

    def member(self, group: str) -> GroupMember | None:
        """Return a new member of ``group``, which joins at its first tick; None if groups of this queue are kept in the
        store."""
        del group
        return None

    def groups(self) -> dict[str, list[GroupPartition]] | None:
        """Return each group's state; None if groups of this queue are kept in the store."""
        return None


STORE: Final = "store"
KAFKA: Final = "kafka"
QUEUES: Final = "tieredstore.queues"
"""Group of entry points for ``pubsub.queue``."""
LOOK_AGAIN_S: Final = 30.0
"""Time in seconds between lookups of the number of partitions."""

_CLASSES: Final = {
    STORE: "tieredstore.pubsub.queue.store_queue:StoreQueue",
    KAFKA: "tieredstore.pubsub.queue.kafka_queue:KafkaQueue",
}


@dataclass(frozen=True, slots=True)
class QueueSite:
    """Everything needed to open a queue.

    ``name`` is the queue's name in its system, such as Kafka. ``partitions`` is the topic's number of partitions at the
    last lookup, and ``partitions_now`` looks the number up again.
    """

    folder: OwnFolder
    topic: str
    partitions: int
    name: str
    settings: BatchSettings
    partitions_now: Callable[[], int] | None = None


class TopicPartitions:
    """The number of partitions from which a topic is read. The number is refreshed every 30 s, and never decreases."""

    def __init__(self, site: QueueSite, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._known = site.partitions
        self._look = site.partitions_now
        self._monotonic = monotonic
        self._until_s = monotonic() + LOOK_AGAIN_S

    def __call__(self) -> int:
        """Return the number of partitions. Look it up again if the last lookup was more than 30 s ago. If the look-up
        fails, return the known number."""
        if self._look is not None and self._monotonic() >= self._until_s:
            self._until_s = self._monotonic() + LOOK_AGAIN_S
            with contextlib.suppress(TieredStoreError):
                self._known = max(self._known, self._look())
        return self._known


def open_queue(kind: str, site: QueueSite) -> NotificationQueue:
    """Return the queue of a topic.

    ``kind`` is ``store``, ``kafka``, or the name of an entry point ``tieredstore.queues`` of an installed package. Such
    an entry point is a subclass of NotificationQueue with a class method ``open(site)``. This function makes no
    connection.

    Raise ConfigError for an unknown kind.
    """
    return _find_opener(kind)(site)


def queue_name(kind: str, topic: str, settings: BatchSettings) -> str:
    """Return the name for the queue of a new topic."""
    return topic if kind == STORE else settings.queue_topic or f"{topic}_notifications"


def _find_opener(kind: str) -> Callable[[QueueSite], NotificationQueue]:
    try:
        path = _CLASSES.get(kind) or installed_class(QUEUES, kind)
    except ValueError as error:
        raise ConfigError(f"pubsub.queue {kind!r:.120}: {error}") from error
    if path is None:
        known = ", ".join(_CLASSES)
        raise ConfigError(f"unknown pubsub.queue {kind!r:.120}: expected {known}, or a queue of an installed package")
    module, _, name = path.partition(":")
    try:
        with Extra(f"the queue {kind}"):
            queue_class: object = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise ConfigError(f"cannot load the queue {kind}: {error}") from error
    if not (isinstance(queue_class, type) and issubclass(queue_class, NotificationQueue)):
        raise ConfigError(f"{path} is not a subclass of NotificationQueue")
    opener: Callable[[QueueSite], NotificationQueue] | None = getattr(queue_class, "open", None)
    if not callable(opener):
        raise ConfigError(f"{path} has no class method open(site)")
    return opener
