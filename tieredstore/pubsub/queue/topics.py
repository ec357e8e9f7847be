"""Topics of batches: what each is, where its objects and its queue lie, and its batches along the queue."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from pydantic import Field, TypeAdapter

from tieredstore.api.scopes import is_glob
from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.config import Settings
from tieredstore.errors import (
    ConfigError,
    CorruptDataError,
    DataLossError,
    ObjectNotFoundError,
    PreconditionFailedError,
    TopicNotFoundError,
    excerpt,
)
from tieredstore.kafka.records._slabs import SlabPool
from tieredstore.process.closing import Closing
from tieredstore.pubsub.errors import MessageCorruptError, NotificationCorruptError
from tieredstore.pubsub.format.batches import BatchIndex, headers_in
from tieredstore.pubsub.format.messages import MessageHeader, parse_message_header
from tieredstore.pubsub.format.notifications import (
    PREFIXES,
    BatchKey,
    Notification,
    check_path,
    parse_batch_key,
    parse_notification,
)
from tieredstore.pubsub.queue.groups import list_group, list_groups
from tieredstore.pubsub.queue.own_objects import OwnFolder, json_body
from tieredstore.pubsub.queue.queues import (
    STORE,
    GroupPartition,
    NotificationQueue,
    Position,
    QueuedNotification,
    QueueSite,
    open_queue,
    queue_name,
)
from tieredstore.pubsub.settings import BatchSettings

MOST_PARTITIONS: Final = 1000
"""Read partitions of a topic at most."""

_LOOK_BACK: Final = 1024  # offsets of a queue that are looked back over at first
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: its name, how many read partitions it was made with, the path of its keys, whether they have ``hh``
    before, which queue it has and what that is called where it lies."""

    name: Annotated[str, Field(alias="topic")]
    partitions: Annotated[int, Field(ge=1, le=MOST_PARTITIONS)]
    path: str
    is_hashed: Annotated[bool, Field(alias="hashed")]
    queue: str = STORE
    queue_name: Annotated[str, Field(alias="queueName")] = ""


_TOPIC: Final = TypeAdapter(Topic)


class Topics:
    """The topics of a cluster in one store; ConfigError for a store whose conditional writes are not atomic."""

    def __init__(self, store: ObjectStore, settings: Settings, *, configured: Topic | None = None) -> None:
        """``configured`` is a topic that somebody else defines: it is what :meth:`get` gives for its name."""
        if not store.conditional_writes:
            raise ConfigError(
                f"pubsub needs a store of which one of racing writers wins, and {store.identity} cannot promise that; "
                "use one that can (S3, GCS, Azure Blob Storage or a folder that is not on NFS)"
            )
        self.store = store
        self.settings = settings
        self.batches: BatchSettings = settings.section(BatchSettings)
        self.folder: OwnFolder = OwnFolder(store, settings.key_prefix, self.batches.cluster)
        self.bucket_name: str = bucket_name(settings)
        # For batches, of whatever topic, that are written or were read. A try that hangs keeps what it sends: memory
        # comes back when nobody sends it any more.
        self.memory: SlabPool = SlabPool()
        self._configured = configured

    def create(self, name: str, partitions: int = 1) -> Topic:
        """A new topic; PreconditionFailedError if there is one of that name."""
        check_topic_name(name)
        self._refuse_configured(name)
        _check_partitions(name, partitions)
        path = check_path(f"{self.settings.key_prefix}{self.batches.cluster}/topics/{name}")
        kind = self.batches.queue
        called = queue_name(kind, name, self.batches)
        topic = Topic(name, partitions, path, self.batches.hashing, kind, called)
        # Before anybody sees the topic: who is killed in between runs the same again.
        with self.queue(topic) as queue:
            queue.provide(partitions)
        try:
            self.store.put(self._key(name), _body_of(topic), if_absent=True)
        except PreconditionFailedError as error:
            raise PreconditionFailedError(f"there is a topic {name} already; `pubsub topics` shows it") from error
        return topic

    def get(self, name: str) -> Topic:
        """The topic; TopicNotFoundError if there is none."""
        check_topic_name(name)
        if self._configured is not None and self._configured.name == name:
            return self._configured
        try:
            return self._check(self.folder.read(self._key(name), _TOPIC), name)
        except ObjectNotFoundError:
            raise TopicNotFoundError(
                f"there is no topic {name} in cluster {self.batches.cluster}: create it "
                f"(`tieredstore pubsub topics {name} --create`), or see pubsub.cluster"
            ) from None

    def _refuse_configured(self, name: str) -> None:
        """ConfigError for a topic that a file describes: what was made by its name would be another one."""
        if self._configured is not None and self._configured.name == name:
            raise ConfigError(
                f"topic {name} is MemQ's, as the file of its configuration says, and is not made or changed here: use "
                "it as it is, make its notification topic by Kafka's tools, or leave the file out for a topic of ours"
            )

    def has(self, name: str) -> bool:
        """Whether there is a topic of that name, which may be no name of one."""
        try:
            self.get(name)
        except (ConfigError, TopicNotFoundError):
            return False
        return True

    def list(self) -> Iterator[Topic]:
        """All topics, by name; CorruptDataError for what is none among them."""
        for name in self.names():
            yield self._check(self.folder.read(self._key(name), _TOPIC), name)

    def select(self, names: Sequence[str]) -> Sequence[Topic]:
        """The topics that are named, by name or glob, or all; TopicNotFoundError for a name of none."""
        if not names:
            return [*self.list()]
        chosen: dict[str, None] = {}
        for name in names:
            matching = sorted(fnmatch.filter(self.names(), name)) if is_glob(name) else [name]
            if not matching:
                raise TopicNotFoundError(f"no topic in cluster {self.batches.cluster} matches {excerpt(name)!r}")
            chosen |= dict.fromkeys(matching)
        return [self.get(name) for name in chosen]

    def names(self) -> Iterator[str]:
        """What all topics are called, also those that cannot be read."""
        beginning = self.folder.key("topics", "")
        for info in self.store.list(beginning):
            if info.key.endswith(".json"):
                yield info.key.removeprefix(beginning).removesuffix(".json")

    def grow(self, name: str, partitions: int) -> Topic:
        """The topic with more read partitions; ConfigError for fewer, since what they hold would be lost."""
        _check_partitions(name, partitions)
        self._refuse_configured(name)
        self.get(name)
        stored = self.folder.read_with_etag(self._key(name), _TOPIC)
        if stored is None:
            raise TopicNotFoundError(f"topic {name} is gone")
        topic = self._check(stored[0], name)
        if partitions < topic.partitions:
            raise ConfigError(f"topic {name} has {topic.partitions} read partitions, which never become fewer")
        grown = replace(topic, partitions=partitions)
        with self.queue(grown) as queue:
            queue.provide(partitions)
        self.store.replace(self._key(name), _body_of(grown), stored[1])
        return grown

    def queue(self, topic: Topic) -> NotificationQueue:
        """The topic's notifications; to be closed by whoever asked for it."""
        site = QueueSite(
            self.folder, topic.name, topic.partitions, topic.queue_name, self.batches,
            lambda: self.get(topic.name).partitions,
        )  # fmt: skip
        return open_queue(topic.queue, site)

    def groups(self, topic: Topic) -> dict[str, Sequence[GroupPartition]]:
        """The groups that have read the topic, by name, and how far each has come."""
        with self.queue(topic) as queue:
            states = queue.groups()
            partitions = queue.partitions
        if states is not None:
            return dict(states)
        names = list_groups(self.folder, topic.name)
        return {name: list_group(self.folder, name, topic.name, partitions) for name in names}

    def objects(self, topic: Topic) -> Iterator[tuple[ObjectInfo, BatchKey]]:
        """Whatever lies under the topic's path with the key of a batch, notified or not."""
        path = topic.path
        for folder in [f"{prefix}/{path}/" for prefix in PREFIXES] if topic.is_hashed else [f"{path}/"]:
            for info in self.store.list(folder):
                if (parsed := parse_batch_key(info.key, path)) is not None:
                    yield info, parsed

    def check_place(self, notification: Notification, topic: Topic, where: str) -> str:
        """The key that a notification of the topic points to.

        NotificationCorruptError, and nothing is fetched, if that is another topic, another store, or not under its
        path.
        """
        if notification.topic != topic.name or notification.key is None:
            raise NotificationCorruptError(f"{where}: the notification is of topic {notification.topic!r:.80}")
        if notification.bucket != self.bucket_name:
            raise NotificationCorruptError(f"{where}: the notification points to bucket {notification.bucket!r:.80}")
        parsed: BatchKey | None = parse_batch_key(notification.key, topic.path)
        if parsed is None or parsed.is_hashed != topic.is_hashed:
            raise NotificationCorruptError(
                f"{where}: the notification points to {notification.key!r:.120}, which is no key under {topic.path}"
            )
        return notification.key

    def _key(self, name: str) -> str:
        return self.folder.key("topics", f"{name}.json")

    def _check(self, topic: Topic, name: str) -> Topic:
        if topic.name != name:
            raise CorruptDataError(f"{self._key(name)} is not what pubsub wrote: it is no topic {name}")
        check_path(topic.path)
        return topic


def bucket_name(settings: Settings) -> str:
    """What notifications call the store's bucket; empty for stores that have none."""
    if settings.s3 is not None:
        return settings.s3.bucket_name
    if settings.gcs is not None:
        return settings.gcs.bucket_name
    return settings.azure.container_name if settings.azure is not None else ""


def check_topic_name(name: object) -> str:
    """``name`` as it is; ConfigError for what cannot be one."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in {".", ".."}:
        raise ConfigError(f"{name!r:.120} cannot name a topic: letters, digits, dots, dashes and underscores can")
    return name


def _check_partitions(name: str, partitions: int) -> None:
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise ConfigError(f"topic {name} cannot have {partitions} read partitions: 1 to {MOST_PARTITIONS} can be")


def _body_of(topic: Topic) -> bytes:
    return json_body(_TOPIC.dump_python(topic, by_alias=True, exclude_defaults=True))


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
        """MessageCorruptError if the object has another CRC-32 than the notification says, if it says one."""
        facts = self.notification.facts
        if facts is not None and facts.crc32 != crc32:
            raise MessageCorruptError(f"{self.key}: the object is not the one that was written: it has another CRC-32")

    def check_count(self, messages: int) -> None:
        """MessageCorruptError if the object has another number of Messages than the notification says."""
        if messages != self.notification.message_count:
            raise MessageCorruptError(f"{self.key}: its notification has {self.notification.message_count} Messages")


class BatchLog(Closing):
    """``topic`` with its queue, opened. Used from many threads at once."""

    def __init__(self, topics: Topics, topic: Topic) -> None:
        self.topics = topics
        self.topic = topic
        self.store: ObjectStore = topics.store
        self.queue: NotificationQueue = topics.queue(topic)

    def close(self) -> None:
        """Let the queue go."""
        self.queue.close()

    def place(self, partition: int, offset: int) -> str:
        """A place of the queue, for messages."""
        return f"queue {self.topic.name}/{partition}, offset {offset}"

    def batch_of(self, partition: int, entry: QueuedNotification) -> QueuedBatch:
        """The batch that a notification tells of; NotificationCorruptError for what may point to anything."""
        where = self.place(partition, entry.offset)
        notification = parse_notification(entry.raw, where)
        key = self.topics.check_place(notification, self.topic, where)
        return QueuedBatch(partition, entry.offset, entry.appended_ms, key, notification)

    def walk(self, partition: int, begin: int | None = None, end: int | None = None) -> Iterator[QueuedBatch]:
        """The batches of a partition as :meth:`NotificationQueue.walk` gives their notifications."""
        for entry in self.queue.walk(partition, begin, end):
            yield self.batch_of(partition, entry)

    def position_before_end(self, partition: int, records: int) -> Position:
        """Where the last ``records`` of a partition begin, as the headers of their Messages count them.

        The start where there are fewer. Looks back over more and more of the queue, and at no more batches than it has
        to; what is damaged counts as no record, and is met by who reads.
        """
        start, end = self.queue.start(partition), self.queue.end(partition)
        left, stop, width = records, end, _LOOK_BACK
        while left > 0 and stop > start:
            begin = max(start, stop - width)
            for batch in reversed(list(self.walk(partition, begin, stop))):
                counts = self._record_counts(batch)
                if (total := sum(counts)) >= left:
                    return _behind(batch.offset, counts, total - left)
                left -= total
            stop, width = begin, 2 * width
        return Position(end if records == 0 else start)

    def _record_counts(self, batch: QueuedBatch) -> list[int]:
        try:
            headers = [header for _, header in self.headers(batch)]
        except ObjectNotFoundError as error:
            raise self.loss(batch) from error
        except MessageCorruptError:
            return []
        return [0 if isinstance(header, MessageCorruptError) else header.record_count for header in headers]

    def loss(self, batch: QueuedBatch) -> DataLossError:
        """What is raised for a batch whose object is absent."""
        return DataLossError(f"{self.place(batch.partition, batch.offset)}: the object {batch.key} is not there")

    def fetch(self, batch: QueuedBatch) -> bytes:
        """The object of a batch; DataLossError if it is absent."""
        try:
            return self.store.get(batch.key)
        except ObjectNotFoundError as error:
            raise self.loss(batch) from error

    def headers(self, batch: QueuedBatch) -> Iterator[tuple[int, MessageHeader | MessageCorruptError]]:
        """Each Message's number and its header, or what is wrong with that. MessageCorruptError for a damaged index.

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
            except MessageCorruptError as error:
                yield number, error


def _behind(offset: int, counts: Sequence[int], records: int) -> Position:
    """The place in a batch behind so many records, whose Messages have ``counts``."""
    for message, count in enumerate(counts):
        if records < count:
            return Position(offset, message, records)
        records -= count
    return Position(offset + 1)
