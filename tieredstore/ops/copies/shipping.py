"""Closed segments of a broker's disk into a store, each once.

:func:`plan_segment` says what would become of one segment and writes nothing; :func:`ship_segment` does just that. Both
give an outcome, also for what fails. :func:`in_order` takes many through either, and stops where going on is no use.
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from tieredstore.catalog.committed import CommittedSegments, SegmentIdentity
from tieredstore.errors import (
    CorruptData,
    InvalidKey,
    InvalidSegment,
    SegmentAlreadyExists,
    SegmentTooLarge,
    TieredStoreError,
)
from tieredstore.kafka.checkpoints import parse_broker_id
from tieredstore.kafka.logdir import FoundSegment, LogSegment, RecordsDeleted, describe
from tieredstore.model import RemoteLogSegmentMetadata, TopicIdPartition, Uuid

if TYPE_CHECKING:
    from tieredstore.remote import RemoteStorageManager

AroundUpload: TypeAlias = Callable[[RemoteLogSegmentMetadata], AbstractContextManager[object]]

_OF_ONE_SEGMENT: Final = (InvalidSegment, SegmentTooLarge, CorruptData, SegmentAlreadyExists, InvalidKey)


class SegmentStatus(enum.Enum):
    """What became of one segment, or would."""

    COPIED = "copied"
    WOULD_COPY = "would_copy"
    SKIPPED = "skipped"
    """A whole copy is committed already."""
    ACTIVE = "active"
    """The broker may still append to it."""
    DELETED = "deleted"
    """The broker has deleted its records, and will delete its files."""
    FAILED = "failed"
    NOT_TRIED = "not_tried"
    """One before it failed as this one would have."""


@dataclass(frozen=True, slots=True)
class SegmentOutcome:
    """What became of one segment, or would; None for what is not known.

    ``end_offset`` is inclusive; ``size`` is that of the log on disk, ``stored_size`` that of the three objects stored.
    ``segment_id`` names the copy: the one just made, or the one that was there.
    """

    segment: FoundSegment
    status: SegmentStatus
    partition: TopicIdPartition | None = None
    end_offset: int | None = None
    size: int | None = None
    segment_id: Uuid | None = None
    stored_size: int | None = None
    custom_metadata: bytes | None = None
    error: TieredStoreError | None = None


def concerns_one_segment(error: TieredStoreError) -> bool:
    """Whether the error tells nothing of the next segment. Any other would meet that one too."""
    return isinstance(error, _OF_ONE_SEGMENT)


def in_order(
    segments: Iterable[FoundSegment], step: Callable[[FoundSegment], SegmentOutcome]
) -> Iterator[SegmentOutcome]:
    """``step`` for one segment after the other. After an error that the next would meet too, the rest is NOT_TRIED."""
    stopped = False
    for segment in segments:
        if stopped:
            yield SegmentOutcome(segment, SegmentStatus.NOT_TRIED)
            continue
        outcome = step(segment)
        stopped = outcome.error is not None and not concerns_one_segment(outcome.error)
        yield outcome


def plan_segment(
    committed: CommittedSegments, segment: FoundSegment, *, topic_id: Uuid | None = None
) -> SegmentOutcome:
    """What :func:`ship_segment` would do now: WOULD_COPY, SKIPPED, ACTIVE, DELETED or FAILED. Needs no key."""

    def plan() -> SegmentOutcome:
        decision = _decide(committed, segment, topic_id)
        if isinstance(decision, SegmentOutcome):
            return decision
        partition, size = decision.topic_id_partition, decision.size_in_bytes
        return SegmentOutcome(segment, SegmentStatus.WOULD_COPY, partition, decision.end_offset, size)

    return _outcome_of(segment, plan)


def ship_segment(
    manager: RemoteStorageManager,
    committed: CommittedSegments,
    segment: FoundSegment,
    *,
    topic_id: Uuid | None = None,
    broker_id: int | None = None,
    on_progress: Callable[[int], None] | None = None,
    around_upload: AroundUpload = contextlib.nullcontext,
) -> SegmentOutcome:
    """Copy the segment if it is closed and ``committed``, of the manager's store, has no copy of it.

    COPIED, SKIPPED, ACTIVE, DELETED, or FAILED with the error; nothing is raised but what is a bug. May be called again
    after any outcome, also after the process was killed: a segment counts as copied once its manifest stands. Safe from
    several threads, each segment on one thread at a time.

    The topic id is that of ``partition.metadata`` and the broker's that of ``meta.properties`` unless given.
    ``on_progress`` is called with bytes of the log as they are done with; ``around_upload`` is entered with what the
    store is about to hold, and left when it holds all of it or nothing.
    """

    def ship() -> SegmentOutcome:
        decision = _decide(committed, segment, topic_id)
        if isinstance(decision, SegmentOutcome):
            return decision
        try:
            return _upload(manager, segment, decision, broker_id, on_progress, around_upload)
        finally:
            # Also after a failure: the answer to a manifest's write may be what was lost.
            committed.changed(SegmentIdentity.of(decision))

    return _outcome_of(segment, ship)


def size_on_disk(segment: FoundSegment) -> int:
    """Bytes of the segment's log; 0 if it is gone."""
    with contextlib.suppress(OSError):
        return segment.path("log").stat().st_size
    return 0


def _outcome_of(segment: FoundSegment, step: Callable[[], SegmentOutcome]) -> SegmentOutcome:
    """What ``step`` gives, or what it raises as an outcome."""
    try:
        return step()
    except RecordsDeleted:
        # As in Kafka, which copies nothing from before the start of the log: somebody may have meant it to be gone.
        return SegmentOutcome(segment, SegmentStatus.DELETED, size=size_on_disk(segment))
    except TieredStoreError as error:
        return SegmentOutcome(segment, SegmentStatus.FAILED, error=error)
    except OSError as error:
        # The store translates its own: this is the broker, which may delete a segment while it is copied.
        gone = InvalidSegment(f"{error.filename or segment} cannot be read: {error.strerror}")
        return SegmentOutcome(segment, SegmentStatus.FAILED, error=gone)


def _decide(committed: CommittedSegments, segment: FoundSegment, topic_id: Uuid | None) -> LogSegment | SegmentOutcome:
    """The segment described, if it is to be copied; otherwise what becomes of it instead."""
    identity = SegmentIdentity.without_log(segment, topic_id)
    if identity is not None and (skipped := _skipped(committed, segment, identity)):
        return skipped
    log = describe(segment, topic_id)
    if log.active:
        return SegmentOutcome(segment, SegmentStatus.ACTIVE, log.topic_id_partition, size=log.size_in_bytes)
    # Asked again if it was asked before: describing reads the headers of a whole log, and somebody else may have
    # committed the segment meanwhile. While the listing is new this asks no store.
    return _skipped(committed, segment, SegmentIdentity.of(log)) or log


def _skipped(committed: CommittedSegments, segment: FoundSegment, identity: SegmentIdentity) -> SegmentOutcome | None:
    copy = committed.find(identity)
    if copy is None:
        return None
    return SegmentOutcome(
        segment,
        SegmentStatus.SKIPPED,
        identity.partition,
        identity.end_offset,
        size_on_disk(segment),
        copy.segment_id.id,
        copy.stored_size,
    )


def _upload(
    manager: RemoteStorageManager,
    segment: FoundSegment,
    log: LogSegment,
    broker_id: int | None,
    on_progress: Callable[[int], None] | None,
    around_upload: AroundUpload,
) -> SegmentOutcome:
    segment_id = Uuid.random()
    broker_id = _broker_id(segment) if broker_id is None else broker_id
    metadata = log.to_metadata(segment_id, broker_id, time.time_ns() // 1_000_000)
    chunk_size = manager.settings.chunk_size
    left = log.size_in_bytes

    def on_chunk(_stored_chunk_size: int) -> None:
        # The manager tells of stored bytes, and a person counts those of the log.
        nonlocal left
        if on_progress is not None:
            on_progress(min(chunk_size, left))
        left = max(0, left - chunk_size)

    with around_upload(metadata):
        copied = manager.copy_segment(metadata, log.files, on_progress=on_chunk)
    return SegmentOutcome(
        segment,
        SegmentStatus.COPIED,
        log.topic_id_partition,
        log.end_offset,
        log.size_in_bytes,
        segment_id,
        copied.sizes.total,
        copied.custom_metadata,
    )


def _broker_id(segment: FoundSegment) -> int:
    """The id in the log directory's ``meta.properties``; -1 where there is none."""
    try:
        raw = (segment.directory.absolute().parent / "meta.properties").read_bytes()
    except FileNotFoundError:
        return -1
    broker_id = parse_broker_id(raw)
    return -1 if broker_id is None else broker_id
