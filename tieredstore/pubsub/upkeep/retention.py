"""What a topic keeps: notifications are freed first, by time or size; their objects go ``delete.delay.ms`` later.

::

    <own folder>/retired/<topic>/<partition>/<20 digits>    objects whose notifications are freed, as JSON

They are as old as the store says that this object is; the ``ms`` in it is for stores whose listings tell no time.

A record of what is retired is written before the queue's start moves, so that who is killed anywhere loses track of
nothing: what was recorded and not freed is still referenced, and stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from tieredstore.errors import CorruptData
from tieredstore.pubsub.format.notifications import Notification, parse_notification
from tieredstore.pubsub.queue.own_objects import OwnFolder, json_body, number_in
from tieredstore.pubsub.queue.queues import NotificationQueue, QueuedNotification
from tieredstore.pubsub.queue.topics import Topic, Topics

_AT_ONCE: Final = 1000
_MOST_RECORD_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class QueuedBatch:
    """A batch that the queue tells of."""

    partition: int
    offset: int
    appended_ms: int
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class Retired:
    """Objects of batches that retention has freed, or was about to: what their record says."""

    record: str
    retired_ms: int
    batches: tuple[tuple[int, str], ...]
    """Offsets and keys."""


def queued_batches(topics: Topics, topic: Topic, queue: NotificationQueue, partition: int) -> Iterator[QueuedBatch]:
    """All batches of a read partition, from its start; NotificationCorrupt for what may refer to anything."""
    offset = queue.start(partition)
    while entries := queue.read(partition, offset):
        for entry in entries:
            yield _batch(topics, topic, partition, entry)
        offset = entries[-1].offset + 1


def _batch(topics: Topics, topic: Topic, partition: int, entry: QueuedNotification) -> QueuedBatch:
    where = f"queue {topic.name}/{partition}, offset {entry.offset}"
    notification: Notification = parse_notification(entry.raw, where)
    key = topics.check_place(notification, topic, where)
    return QueuedBatch(partition, entry.offset, entry.appended_ms, key, notification.total_size)


def expired_batches(
    topics: Topics, topic: Topic, queue: NotificationQueue, partition: int, now_ms: int
) -> tuple[list[QueuedBatch], int]:
    """Those of the oldest that ``pubsub.retention.ms`` and ``pubsub.retention.bytes`` do not keep, and the offset up to
    which they lie. One goes when all before it go: who reads along meets one start, and no holes."""
    settings, end = topics.settings.pubsub, queue.end(partition)
    least_ms = None if settings.retention_ms is None else now_ms - settings.retention_ms
    over = 0
    if settings.retention_bytes is not None:
        over = sum(each.size for each in queued_batches(topics, topic, queue, partition)) - settings.retention_bytes
    expired: list[QueuedBatch] = []
    if least_ms is None and over <= 0:
        return expired, queue.start(partition)
    for batch in queued_batches(topics, topic, queue, partition):
        if not (over > 0 or (least_ms is not None and batch.appended_ms < least_ms)):
            return expired, batch.offset
        over -= batch.size
        expired.append(batch)
    return expired, end


def free_expired(
    topics: Topics, topic: Topic, queue: NotificationQueue, expired: Sequence[QueuedBatch], until: int, now_ms: int
) -> None:
    """Free these batches, all that one partition has before ``until``: recorded, then freed, a thousand at a time."""
    for first in range(0, len(expired), _AT_ONCE):
        some, rest = expired[first : first + _AT_ONCE], expired[first + _AT_ONCE :]
        key = _record_key(topics.folder, topic, some[0].partition, some[0].offset)
        document = {"ms": now_ms, "batches": [[batch.offset, batch.key] for batch in some]}
        topics.store.put(key, json_body(document))
        queue.free(some[0].partition, rest[0].offset if rest else until)


def retired_of(topics: Topics, topic: Topic, partition: int) -> Iterator[Retired]:
    """What was retired of a partition and is not deleted yet."""
    beginning = topics.folder.key("retired", topic.name, str(partition), "")
    for info in topics.store.list(beginning):
        raw = topics.store.get_small(info.key, _MOST_RECORD_BYTES)
        retired = _parse_retired(raw or b"", info.key)
        yield retired if info.modified_ms is None else replace(retired, retired_ms=info.modified_ms)


def _record_key(folder: OwnFolder, topic: Topic, partition: int, offset: int) -> str:
    return folder.key("retired", topic.name, str(partition), f"{offset:020}")


def _parse_retired(raw: bytes, key: str) -> Retired:
    try:
        document: Any = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"{key} is not what pubsub wrote: {error}") from error
    if not isinstance(document, dict):
        raise CorruptData(f"{key} is not what pubsub wrote: no object of JSON")
    fields = cast("dict[str, Any]", document)
    batches: object = fields.get("batches")
    pairs: list[tuple[int, str]] = []
    for pair in cast("list[object]", batches) if isinstance(batches, list) else [None]:
        match pair:
            case [int() as offset, str() as name]:
                pairs.append((offset, name))
            case _:
                raise CorruptData(f"{key} is not what pubsub wrote: its batches are not offsets and keys")
    return Retired(key, number_in(fields, "ms", key), tuple(pairs))
