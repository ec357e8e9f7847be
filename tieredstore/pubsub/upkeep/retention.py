"""What a topic keeps: notifications are freed first, by time or size; their objects go ``delete.delay.ms`` later.

::

    <own folder>/retired/<topic>/<partition>/<20 digits>    objects whose notifications are freed, as JSON

They are as old as the store says that this object is; the ``ms`` in it is for stores whose listings tell no time.

A record of what is retired is written before the queue's start moves, so that who is killed anywhere loses track of
nothing: what was recorded and not freed is still referenced, and stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import NonNegativeInt, TypeAdapter

from tieredstore.pubsub.queue.batch_log import BatchLog, QueuedBatch
from tieredstore.pubsub.queue.own_objects import json_body, parse_own

_AT_ONCE: Final = 1000
_MOST_RECORD_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class _Record:
    ms: NonNegativeInt
    batches: tuple[tuple[int, str], ...]


_RECORD: Final = TypeAdapter(_Record)


@dataclass(frozen=True, slots=True)
class Retired:
    """Objects of batches that retention has freed, or was about to: what their record says."""

    record: str
    retired_ms: int
    batches: tuple[tuple[int, str], ...]
    """Offsets and keys."""


def expired_batches(log: BatchLog, partition: int, now_ms: int) -> tuple[list[QueuedBatch], int]:
    """Those of the oldest that ``pubsub.retention.ms`` and ``pubsub.retention.bytes`` do not keep, and the offset up to
    which they lie. One goes when all before it go: who reads along meets one start, and no holes."""
    settings, end = log.topics.batches, log.queue.end(partition)
    least_ms = None if settings.retention_ms is None else now_ms - settings.retention_ms
    over = 0
    if settings.retention_bytes is not None:
        over = sum(batch.size for batch in log.walk(partition)) - settings.retention_bytes
    expired: list[QueuedBatch] = []
    if least_ms is None and over <= 0:
        return expired, log.queue.start(partition)
    for batch in log.walk(partition):
        if not (over > 0 or (least_ms is not None and batch.appended_ms < least_ms)):
            return expired, batch.offset
        over -= batch.size
        expired.append(batch)
    return expired, end


def free_expired(log: BatchLog, expired: Sequence[QueuedBatch], until: int, now_ms: int) -> None:
    """Free these batches, all that one partition has before ``until``: recorded, then freed, a thousand at a time."""
    for first in range(0, len(expired), _AT_ONCE):
        some, rest = expired[first : first + _AT_ONCE], expired[first + _AT_ONCE :]
        partition = some[0].partition
        key = log.topics.folder.key("retired", log.topic.name, str(partition), f"{some[0].offset:020}")
        document = {"ms": now_ms, "batches": [[batch.offset, batch.key] for batch in some]}
        log.store.put(key, json_body(document))
        log.queue.free(partition, rest[0].offset if rest else until)


def retired_of(log: BatchLog, partition: int) -> Iterator[Retired]:
    """What was retired of a partition and is not deleted yet."""
    for info in log.store.list(log.topics.folder.key("retired", log.topic.name, str(partition), "")):
        raw = log.store.get_small(info.key, _MOST_RECORD_BYTES)
        record = parse_own(_RECORD, raw, info.key)
        yield Retired(info.key, record.ms if info.modified_ms is None else info.modified_ms, record.batches)
