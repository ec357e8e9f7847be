"""Topics of batches: their definitions, queues and objects, and their batches in queue order."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from pydantic import AfterValidator, Field, TypeAdapter

from tieredstore.api.scopes import is_glob
from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.config import Settings
from tieredstore.errors import (
    AccessDeniedError,
    ConfigError,
    CorruptDataError,
    DataLossError,
    InvalidKeyError,
    NewerVersionError,
    ObjectNotFoundError,
    PreconditionFailedError,
    TieredStoreError,
    TopicNotFoundError,
    excerpt,
)
from tieredstore.kafka.records._slabs import SlabPool
from tieredstore.model import can_be_topic
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
from tieredstore.pubsub.queue.groups import list_groups
from tieredstore.pubsub.queue.own_objects import OwnFolder
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
from tieredstore.versions import TOPIC

MOST_PARTITIONS: Final = 1000
"""Maximum number of partitions from which a topic is read."""

_LOOK_BACK: Final = 1024  # initial number of offsets to search backwards


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's definition.

    ``partitions`` is the number of partitions in the definition. ``path`` is the prefix of the topic's keys.
    ``is_hashed`` is True if keys begin with a hash. ``queue`` is the kind of the topic's queue. ``queue_name`` is the
    queue's name in its system, for example in Kafka."""

    name: Annotated[str, Field(alias="topic")]
    partitions: Annotated[int, Field(ge=1, le=MOST_PARTITIONS)]
    path: Annotated[str, AfterValidator(check_path)]
    is_hashed: Annotated[bool, Field(alias="hashed")]
    queue: str = STORE
    queue_name: Annotated[str, Field(alias="queueName")] = ""


_TOPIC: Final = TypeAdapter(Topic)


class Topics:
    """The topics of a cluster in one store. Raises ConfigError if the store's conditional writes are not atomic."""

    def __init__(
        self, store: ObjectStore, settings: Settings, *, configured: Topic | None = None, bucket: str = ""
    ) -> None:
        """``configured`` is a topic that MemQ's configuration file defines, with the name of its ``bucket``.
        :meth:`get` also finds this topic."""
        if not store.conditional_writes:
            raise ConfigError(
                f"pubsub needs a store with atomic conditional writes, which {store.identity} does not guarantee; use "
                "S3, GCS, Azure Blob Storage or a folder that is not on NFS"
            )
        self.store = store
        self.settings = settings
        self.batches: BatchSettings = settings.section(BatchSettings)
        self.folder: OwnFolder = OwnFolder(store, settings.key_prefix, self.batches.cluster)
        self.bucket_name: str = bucket or bucket_name(settings)
        # Memory for batches of all topics, for writing and reading. A block is recycled only after its last user
        # releases it, so an upload that hangs does no harm.
        self.memory: SlabPool = SlabPool()
        self._configured = configured

    def create(self, name: str, partitions: int = 1) -> Topic:
        """Create a topic. Raise PreconditionFailedError if the name exists."""
        check_topic_name(name)
        self._refuse_configured(name)
        _check_partitions(name, partitions)
        path = check_path(self.path_of(name))
        if not self.batches.hashing and path.partition("/")[0] in PREFIXES:
            raise ConfigError(
                f"the path {path} begins like a hash, so gc of this topic or of the topic {path[3:]} could delete "
                "batches of the other: set pubsub.hashing=true, or choose another key.prefix or pubsub.cluster"
            )
        kind = self.batches.queue
        called = queue_name(kind, name, self.batches)
        topic = Topic(name, partitions, path, self.batches.hashing, kind, called)
        # Create the queue before the topic becomes visible, so that after a crash between the two steps the same
        # command can create the topic.
        with self.queue(topic) as queue:
            queue.provide(partitions)
        try:
            self.store.put(self._key(name), _body_of(topic), if_absent=True)
        except PreconditionFailedError as error:
            raise PreconditionFailedError(f"topic {name} already exists; see `pubsub topics`") from error
        return topic

    def path_of(self, name: str) -> str:
        """Return the path of a topic that this cluster creates."""
        return f"{self.settings.key_prefix}{self.batches.cluster}/topics/{name}"

    def get(self, name: str) -> Topic:
        """Return a topic. Raise TopicNotFoundError if it does not exist."""
        check_topic_name(name)
        if self._configured is not None and self._configured.name == name:
            return self._configured
        try:
            return self._read(name)
        except ObjectNotFoundError:
            raise TopicNotFoundError(
                f"there is no topic {name} in cluster {self.batches.cluster}: create it "
                f"(`tieredstore pubsub topics {name} --create`), or see pubsub.cluster"
            ) from None

    def _refuse_configured(self, name: str) -> None:
        """Raise ConfigError if MemQ's file defines the topic, because creating it here would create a second, different
        topic.
        """
        if self._configured is not None and self._configured.name == name:
            raise ConfigError(
                f"topic {name} is defined by MemQ's configuration file and cannot be created or changed here: use it "
                "unchanged, create its notification topic with Kafka's tools, or leave the file out to use a topic of "
                "this project"
            )

    def has(self, name: str) -> bool:
        """Return True if there is a topic of this name. Return False for an invalid name."""
        try:
            self.get(name)
        except NewerVersionError:
            raise
        except (ConfigError, TopicNotFoundError):
            return False
        return True

    def select(self, names: Sequence[str], on_error: Callable[[TieredStoreError], None]) -> Sequence[Topic]:
        """Return the topics that match names or globs, or all. Raise TopicNotFoundError for a name that matches no
        topic.

        Call ``on_error`` with the error of each definition that is damaged, of a newer version or of an invalid name,
        and leave out its topic."""
        chosen = {} if names else dict.fromkeys(self.names())
        for name in names:
            matching = sorted(fnmatch.filter(self.names(), name)) if is_glob(name) else [check_topic_name(name)]
            if not matching:
                raise TopicNotFoundError(f"no topic in cluster {self.batches.cluster} matches {excerpt(name)!r}")
            chosen |= dict.fromkeys(matching)
        found: list[Topic] = []
        for name in chosen:
            try:
                found.append(self.get(name) if names else self._read(name))
            except (ConfigError, CorruptDataError) as error:
                on_error(error)
        return found

    def names(self) -> Iterator[str]:
        """Yield the names of all topics, including topics with damaged definitions."""
        beginning = self.folder.key("topics", "")
        for info in self.store.list(beginning):
            if info.key.endswith(".json"):
                yield info.key.removeprefix(beginning).removesuffix(".json")

    def grow(self, name: str, partitions: int) -> Topic:
        """Add read partitions to a topic until it has ``partitions``. Raise ConfigError for a lower number, because
        entries would be lost."""
        _check_partitions(name, partitions)
        self._refuse_configured(name)
        self.get(name)
        stored = self.folder.read_with_etag(self._key(name), TOPIC, _TOPIC)
        if stored is None:
            raise TopicNotFoundError(f"topic {name} no longer exists")
        topic = self._check(stored[0], name)
        if partitions < topic.partitions:
            raise ConfigError(
                f"topic {name} has {topic.partitions} read partitions, and their number cannot be reduced"
            )
        grown = replace(topic, partitions=partitions)
        with self.queue(grown) as queue:
            queue.provide(partitions)
        self.store.replace(self._key(name), _body_of(grown), stored[1])
        return grown

    def queue(self, topic: Topic) -> NotificationQueue:
        """Return the topic's queue, which the caller closes."""
        site = QueueSite(
            self.folder, topic.name, topic.partitions, topic.queue_name, self.batches,
            lambda: self.get(topic.name).partitions,
        )  # fmt: skip
        return open_queue(topic.queue, site)

    def groups(self, topic: Topic) -> Mapping[str, Sequence[GroupPartition]]:
        """Return the groups that have read the topic, by name, with their states."""
        with self.queue(topic) as queue:
            states = queue.groups()
            partitions = queue.partitions
        return list_groups(self.folder, topic.name, partitions) if states is None else states

    def objects(self, topic: Topic) -> Iterator[tuple[ObjectInfo, BatchKey]]:
        """Yield all objects under the topic's path with a key in the form of a batch's key. The objects may lack a
        notification."""
        path = topic.path
        for folder in [f"{prefix}/{path}/" for prefix in PREFIXES] if topic.is_hashed else [f"{path}/"]:
            for info in self.store.list(folder):
                if (parsed := parse_batch_key(info.key, path)) is not None:
                    yield info, parsed

    def check_alone(self, topic: Topic) -> None:
        """Raise ConfigError if another cluster has a topic with the same path. Its batches have no notification in this
        topic's queue.

        This happens if definitions are copied to another key prefix or cluster of the bucket, or if two combinations of
        ``key.prefix`` and ``pubsub.cluster`` give the same path. Credentials may be limited to ``key.prefix``, so pass
        over definitions that they may not read.
        """
        owner = topic.path.removesuffix(f"/topics/{topic.name}")
        for at in range(len(owner)):
            if at and owner[at - 1].isalnum():  # a key prefix ends with a slash, or at least with a dash or the like
                continue
            key = OwnFolder(self.store, owner[:at], owner[at:]).key("topics", f"{topic.name}.json")
            if key == self._key(topic.name):
                continue
            try:
                self.store.head(key)
            except (ObjectNotFoundError, InvalidKeyError, AccessDeniedError):
                continue
            raise ConfigError(
                f"{key} defines a topic of another cluster with the same objects, under {topic.path}: gc of one "
                "cluster would delete batches of the other; delete one of the two definitions first"
            )

    def check_place(self, notification: Notification, topic: Topic, where: str) -> str:
        """Return the key of the object to which a notification points.

        Raise NotificationCorruptError if the notification names another topic or bucket, or a key outside the topic's
        path, because brokers and readers must not fetch such an object.
        """
        if notification.topic != topic.name:
            raise NotificationCorruptError(f"{where}: the notification is of topic {notification.topic!r:.80}")
        if notification.bucket != self.bucket_name:
            raise NotificationCorruptError(f"{where}: the notification points to bucket {notification.bucket!r:.80}")
        parsed: BatchKey | None = parse_batch_key(notification.key, topic.path)
        if parsed is None or parsed.is_hashed != topic.is_hashed:
            raise NotificationCorruptError(
                f"{where}: the notification points to {notification.key!r:.120}, which is not a key under {topic.path}"
            )
        return notification.key

    def _key(self, name: str) -> str:
        return self.folder.key("topics", f"{name}.json")

    def _read(self, name: str) -> Topic:
        return self._check(self.folder.read(self._key(name), TOPIC, _TOPIC), name)

    def _check(self, topic: Topic, name: str) -> Topic:
        if topic.name != name:
            raise CorruptDataError(f"{self._key(name)} is not a valid pub/sub topic: its topic is not {name}")
        return topic


def bucket_name(settings: Settings) -> str:
    """Return the name of the store's bucket, as notifications state it; empty for a store without buckets."""
    if settings.s3 is not None:
        return settings.s3.bucket_name
    if settings.gcs is not None:
        return settings.gcs.bucket_name
    return settings.azure.container_name if settings.azure is not None else ""


def check_topic_name(name: object) -> str:
    """Return ``name``. Raise ConfigError if it is not a valid topic name."""
    if not isinstance(name, str) or not can_be_topic(name):
        raise ConfigError(f"invalid topic name {name!r:.120}: use letters, digits, dots, dashes and underscores")
    return name


def _check_partitions(name: str, partitions: int) -> None:
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise ConfigError(f"topic {name} cannot have {partitions} read partitions: choose 1 to {MOST_PARTITIONS}")


def _body_of(topic: Topic) -> bytes:
    return TOPIC.to_bytes(_TOPIC.dump_python(topic, by_alias=True, exclude_defaults=True))


_MOST_HEADER: Final = 256
_WHOLE_BELOW: Final = 65_536  # mean bytes per Message; below it, read the whole object to get the headers


@dataclass(frozen=True, slots=True)
class QueuedBatch:
    """A batch and its place in the queue.

    Only :meth:`BatchLog.batch_of` creates a QueuedBatch, after a check that the notification points to an object of its
    topic. ``next_offset`` is the place after it in the queue. ``appended_ms`` is the time of the append by the writer's
    clock."""

    partition: int
    offset: int
    next_offset: int
    appended_ms: int
    key: str
    notification: Notification

    @property
    def size(self) -> int:
        """Size of the object in bytes."""
        return self.notification.total_size

    def check(self, crc32: int) -> None:
        """Raise MessageCorruptError if the notification has a CRC-32 that differs from the object's ``crc32``."""
        facts = self.notification.facts
        if facts is not None and facts.crc32 != crc32:
            raise MessageCorruptError(f"{self.key}: the object's CRC-32 differs from the one written")

    def check_count(self, messages: int) -> None:
        """Raise MessageCorruptError if the object's number of Messages differs from the number in the notification."""
        if messages != self.notification.message_count:
            raise MessageCorruptError(
                f"{self.key}: {messages} Messages found, but its notification has {self.notification.message_count}"
            )


class BatchLog(Closing):
    """A topic that is opened in its cluster: its definition, its queue, and the store of its objects. Thread-safe."""

    def __init__(self, topics: Topics, topic: Topic) -> None:
        self.topics = topics
        self.topic = topic
        self.settings: BatchSettings = topics.batches
        self.store: ObjectStore = topics.store
        self.queue: NotificationQueue = topics.queue(topic)

    def close(self) -> None:
        """Close the queue."""
        self.queue.close()

    def place(self, partition: int, offset: int) -> str:
        """Return a text that names a place in the queue, for error messages."""
        return f"queue {self.topic.name}/{partition}, offset {offset}"

    def batch_of(self, partition: int, entry: QueuedNotification) -> QueuedBatch:
        """Return the batch of a notification. Raise NotificationCorruptError if the notification points outside the
        topic."""
        where = self.place(partition, entry.offset)
        notification = parse_notification(entry.raw, where)
        key = self.topics.check_place(notification, self.topic, where)
        return QueuedBatch(partition, entry.offset, entry.next_offset, entry.appended_ms, key, notification)

    def walk(
        self,
        partition: int,
        begin: int | None = None,
        end: int | None = None,
        on_loss: Callable[[DataLossError], None] | None = None,
    ) -> Iterator[QueuedBatch]:
        """Yield a partition's batches, over the same offsets as :meth:`NotificationQueue.walk`."""
        for entry in self.queue.walk(partition, begin, end, on_loss):
            yield self.batch_of(partition, entry)

    def position_before_end(self, partition: int, records: int) -> Position:
        """Return the position after which a partition has ``records`` more records, as counted in the headers of its
        Messages.

        Return the start if the partition has fewer records. The search goes backwards in growing steps, so that it
        reads few batches more than needed. A missing or damaged batch counts as empty; a reader will report it.
        """
        start, end = self.queue.start(partition), self.queue.end(partition)
        left, stop, width = records, end, _LOOK_BACK
        while left > 0 and stop > start:
            begin = max(start, stop - width)
            for batch in reversed(list(self.walk(partition, begin, stop))):
                counts = self._record_counts(batch)
                if (total := sum(counts)) >= left:
                    return _position_after(batch.offset, counts, total - left)
                left -= total
            stop, width = begin, 2 * width
        return Position(end if records == 0 else start)

    def _record_counts(self, batch: QueuedBatch) -> list[int]:
        try:
            headers = [header for _, header in self.headers(batch)]
        except (ObjectNotFoundError, MessageCorruptError):
            return []
        return [0 if isinstance(header, MessageCorruptError) else header.record_count for header in headers]

    def loss(self, batch: QueuedBatch) -> DataLossError:
        """Return the error for a batch whose object is missing."""
        return DataLossError(f"{self.place(batch.partition, batch.offset)}: the object {batch.key} is missing")

    def headers(self, batch: QueuedBatch) -> Iterator[tuple[int, MessageHeader | MessageCorruptError]]:
        """Yield each Message's number and header, or the header's error. Raise MessageCorruptError if the index is
        damaged.

        This method reads the whole object, or only the headers if the Messages are large.
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


def _position_after(offset: int, counts: Sequence[int], records: int) -> Position:
    """Return the position after the first ``records`` records of a batch; ``counts`` are the record counts of its
    Messages."""
    for message, count in enumerate(counts):
        if records < count:
            return Position(offset, message, records)
        records -= count
    return Position(offset + 1)
