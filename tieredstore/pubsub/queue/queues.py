"""The contract of notification queues: what a writer appends to, and a reader goes along.

A topic has some read partitions, numbered from 0. A partition is an ordered log of notifications, each at an offset;
offsets grow and need not be dense. ``tieredstore.testing.notification_queue_tests`` ships what every queue must pass.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, NamedTuple, Protocol, cast

from tieredstore.config.installed import QUEUES, installed_class
from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.process.closing import Closing
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.queue.own_objects import OwnFolder
from tieredstore.pubsub.settings import BatchSettings


class QueuedNotification(NamedTuple):
    """One notification where it stands; ``appended_ms`` is its writer's clock."""

    offset: int
    appended_ms: int
    raw: bytes


class Position(NamedTuple):
    """The next record to read: an offset of the queue, a Message of that batch, a record of that Message."""

    offset: int
    message: int = 0
    record: int = 0


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """What a group knows of one partition: ``position`` is None before the first commit, ``generation`` where the queue
    counts none."""

    partition: int
    owner: str | None
    generation: int | None
    position: Position | None


class Claim(NamedTuple):
    """A member's hold on a partition: it names the term under which it holds. A partition that was lost and taken again
    is in another one, also if nobody saw that it was lost. ``committed`` is None before the first commit."""

    term: int
    committed: Position | None


def name_partitions(partitions: Sequence[int]) -> str:
    """``partition 1``, or ``partition 1 and 2``: each of them is meant."""
    return f"partition {' and '.join(map(str, partitions))}"


class GroupMember(ABC):
    """One member of a group, which shares the read partitions with the others. For one thread."""

    @abstractmethod
    def tick(self) -> bool:
        """Take part: called often. True if the claims have changed."""

    @abstractmethod
    def claims(self) -> dict[int, Claim]:
        """The partitions that this member has."""

    @property
    def version(self) -> int | None:
        """Another number whenever a claim came, went, or is in another term; None where nobody counts, so that
        :meth:`claims` is asked for before each record."""
        return None

    @abstractmethod
    def commit(self, positions: dict[int, Position]) -> None:
        """Make the positions durable; FencedError for one that another member has by now, which this member then has no
        more. All others that can be are committed before that is raised."""

    @abstractmethod
    def leave(self) -> None:
        """Give all partitions up, for others to take at once."""


class QueueCursor:
    """A reader's place in one partition of a queue: ``offset`` comes next. For one thread at a time."""

    def __init__(self, queue: NotificationQueue, partition: int, offset: int) -> None:
        self.offset: int = offset
        self._queue = queue
        self._partition = partition

    def read(self) -> list[QueuedNotification]:
        """What :meth:`NotificationQueue.read` gives, and go on behind it; after an error the place is the same."""
        entries = self._queue.read(self._partition, self.offset)
        if entries:
            self.offset = entries[-1].offset + 1
        return entries


class NotificationQueue(Closing):
    """The notifications of one topic. Used from many threads at once."""

    @property
    @abstractmethod
    def partitions(self) -> int:
        """How many read partitions there are; may grow."""

    @abstractmethod
    def append(self, partition: int, notifications: Sequence[bytes], deadline: Deadline) -> list[int]:
        """Append some notifications in their order and return their offsets, once they are durable.

        A lost answer is no second entry: what was written is recognised. StoreUnavailableError (retryable) when it
        could not be done, or not be known, by the deadline.
        """

    @abstractmethod
    def read(self, partition: int, offset: int) -> list[QueuedNotification]:
        """Some notifications from ``offset`` on, in their order; none when there are none yet. Does not wait.

        DataLossError if retention has freed ``offset``.
        """

    def cursor(self, partition: int, offset: int) -> QueueCursor:
        """A reader's place, kept as long as it reads on: a queue may ask less for it than for :meth:`read`."""
        return QueueCursor(self, partition, offset)

    def walk(self, partition: int, begin: int | None = None, end: int | None = None) -> Iterator[QueuedNotification]:
        """The notifications from ``begin``, or the start, up to ``end`` (half-open), or until nothing comes."""
        cursor = self.cursor(partition, self.start(partition) if begin is None else begin)
        while (end is None or cursor.offset < end) and (entries := cursor.read()):
            for entry in entries:
                if end is not None and entry.offset >= end:
                    return
                yield entry

    def append_once(
        self, partition: int, notifications: Sequence[bytes], mark: str, since: int, deadline: Deadline
    ) -> list[int]:
        """Append as :meth:`append` does, but what stands there by now, from offset ``since`` on: whoever was killed
        while appending, or does not know, asks again with the same arguments.

        ``mark`` names these notifications for ever, which are unlike all others. Here the queue is searched for them,
        and what a dead process still has under way may come after that: a queue that can tell by the mark does better.
        DataLossError where retention has freed ``since``, so that nobody knows.
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

    def provide(self, partitions: int) -> None:
        """Have so many read partitions at least, when a topic is made or grows; ConfigError for a queue that cannot."""
        if partitions > self.partitions:
            raise ConfigError(f"the queue has {self.partitions} read partitions, and nobody here adds others to it")

    def forgets_ms(self) -> int | None:
        """After how long the queue forgets a notification by itself; None if only :meth:`free` does."""
        return None

    def member(self, group: str) -> GroupMember | None:
        """A new member of ``group``, which joins at its first tick; None for a queue whose groups the store keeps."""
        del group
        return None

    def groups(self) -> dict[str, list[GroupPartition]] | None:
        """How far each group has come; None for a queue whose groups the store keeps."""
        return None


STORE: Final = "store"
KAFKA: Final = "kafka"
LOOK_AGAIN_S: Final = 30.0
"""As a queue in Kafka asks how many partitions there are."""

_CLASSES: Final = {
    STORE: "tieredstore.pubsub.queue.store_queue:StoreQueue",
    KAFKA: "tieredstore.pubsub.queue.kafka_queue:KafkaQueue",
}


@dataclass(frozen=True, slots=True)
class QueueSite:
    """What a queue is opened by. ``name`` is what the queue is called where it lies, ``partitions`` how many the topic
    had when it was looked up, and ``partitions_now`` looks again."""

    folder: OwnFolder
    topic: str
    partitions: int
    name: str
    settings: BatchSettings
    partitions_now: Callable[[], int] | None = None


class TopicPartitions:
    """How many read partitions a topic has, which may be given more while somebody writes or reads: looked up every
    30 s, and never fewer than were known."""

    def __init__(self, site: QueueSite, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._known = site.partitions
        self._look = site.partitions_now
        self._monotonic = monotonic
        self._until_s = monotonic() + LOOK_AGAIN_S

    def __call__(self) -> int:
        """By a request now and then; what was known where nobody answers."""
        if self._look is not None and self._monotonic() >= self._until_s:
            self._until_s = self._monotonic() + LOOK_AGAIN_S
            with contextlib.suppress(TieredStoreError):
                self._known = max(self._known, self._look())
        return self._known


class _OpenedBySite(Protocol):
    def open(self, site: QueueSite) -> NotificationQueue: ...


def open_queue(kind: str, site: QueueSite) -> NotificationQueue:
    """The queue of a topic: ``store``, ``kafka``, or what an installed package calls ``kind`` among its entry points
    ``tieredstore.queues``: a class that derives from NotificationQueue, with a class method ``open(site)``.

    Nothing is connected to yet. ConfigError for a kind that there is not.
    """
    return cast("_OpenedBySite", _queue_class(kind)).open(site)


def queue_name(kind: str, topic: str, settings: BatchSettings) -> str:
    """What the queue of a new topic is called."""
    return topic if kind == STORE else settings.queue_topic or f"{topic}_notifications"


def _queue_class(kind: str) -> type[NotificationQueue]:
    try:
        path = _CLASSES.get(kind) or installed_class(QUEUES, kind)
    except ValueError as error:
        raise ConfigError(f"pubsub.queue {kind!r:.120}: {error}") from error
    if path is None:
        known = ", ".join(_CLASSES)
        raise ConfigError(f"pubsub.queue {kind!r:.120} is neither one of {known} nor a queue of an installed package")
    module, _, name = path.partition(":")
    try:
        queue_class: object = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise ConfigError(f"the queue {kind} cannot be loaded: {error}; is its extra installed?") from error
    if not (isinstance(queue_class, type) and issubclass(queue_class, NotificationQueue)):
        raise ConfigError(f"{path} is not a class that derives from NotificationQueue")
    if not callable(getattr(queue_class, "open", None)):
        raise ConfigError(f"{path} has no class method open(site) to open a topic's queue by")
    return queue_class
