"""Copies closed segments from a broker's disk into a store, each segment once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from tieredstore.catalog.committed import CommittedSegments, SegmentIdentity
from tieredstore.errors import (
    CorruptDataError,
    InvalidKeyError,
    InvalidSegmentError,
    ObjectArchivedError,
    SegmentAlreadyExistsError,
    SegmentTooLargeError,
    TieredStoreError,
)
from tieredstore.kafka.checkpoints import parse_broker_id
from tieredstore.kafka.logdir import FoundSegment, LogSegment, RecordsDeletedError, describe
from tieredstore.model import RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.ops.steps import Outcome, Step
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool

if TYPE_CHECKING:
    from tieredstore.remote import RemoteStorageManager

AroundUpload: TypeAlias = Callable[[RemoteLogSegmentMetadata], AbstractContextManager[object]]

_OF_ONE_SEGMENT: Final = (
    InvalidSegmentError,
    SegmentTooLargeError,
    CorruptDataError,
    SegmentAlreadyExistsError,
    InvalidKeyError,
    ObjectArchivedError,  # of a stored copy, of which it is unknown if it is this segment's
)


@dataclass(frozen=True, slots=True)
class ShipStep(Step[FoundSegment]):
    """The result of shipping one segment, or only the plan. Unknown values are None.

    ``end_offset`` is inclusive. ``size`` is the log's size on disk, ``stored_size`` the size of the three objects in
    the store. ``segment_id`` is the id of the new or existing copy.
    """

    partition: TopicIdPartition | None = None
    end_offset: int | None = None
    size: int | None = None
    segment_id: Uuid | None = None
    stored_size: int | None = None
    custom_metadata: bytes | None = None
    error: TieredStoreError | None = None


def concerns_one_segment(error: TieredStoreError) -> bool:
    """Return True if the error affects only one segment. Then the next segments may succeed."""
    return isinstance(error, _OF_ONE_SEGMENT)


def size_on_disk(segment: FoundSegment) -> int:
    """Return the size of the segment's log; 0 if the log is gone."""
    with contextlib.suppress(OSError):
        return segment.path("log").stat().st_size
    return 0


@dataclass(frozen=True, slots=True)
class Shipper:
    """Copies closed segments that have no copy among ``committed``. Without a manager, the shipper only plans and needs
    no keys.

    Topic id and broker id come from ``partition.metadata`` and ``meta.properties`` unless given. ``on_progress`` gets
    the number of log bytes just finished. Several threads may use one shipper for different segments.

    ``around_upload`` returns a context manager. The shipper enters this manager before it writes the first object of a
    copy, and leaves the manager after the copy is complete or undone.
    """

    committed: CommittedSegments
    manager: RemoteStorageManager | None = None
    _: KW_ONLY
    topic_id: Uuid | None = None
    broker_id: int | None = None
    on_progress: Callable[[int], object] = int
    around_upload: AroundUpload = contextlib.nullcontext

    def ship_all(self, segments: Iterable[FoundSegment], *, parallel: int = 1) -> Iterator[ShipStep]:
        """Copy ``parallel`` segments at once; yield the results in order.

        After an error that other segments would meet too, do not try the remaining segments: they are NOT_TRIED.
        """
        is_stopped = False

        def ship(segment: FoundSegment) -> ShipStep:
            nonlocal is_stopped
            step = ShipStep(segment, Outcome.NOT_TRIED) if is_stopped else self.ship(segment)
            is_stopped = is_stopped or (step.error is not None and not concerns_one_segment(step.error))
            return step

        if parallel == 1:
            yield from map(ship, segments)
            return
        with ThreadPool(parallel, "tieredstore-upload") as pool:
            yield from in_parallel(pool, ship, segments, at_once=parallel)

    def ship(self, segment: FoundSegment) -> ShipStep:
        """Copy one segment. Return its outcome, and raise only for bugs.

        The outcomes:

        - COPIED: the segment was copied
        - THERE: the store has a complete copy
        - ACTIVE: the broker may still append to the segment
        - GONE: the broker has deleted the segment's records
        - FAILED: the step has the error

        The caller may repeat the call after any outcome, and after a kill. A segment counts as copied once its manifest
        exists.
        """
        try:
            return self._ship(segment)
        except RecordsDeletedError:
            # Like Kafka, copy no records before the log's start offset, because they may have been deleted on purpose.
            return ShipStep(segment, Outcome.GONE, size=size_on_disk(segment))
        except TieredStoreError as error:
            return ShipStep(segment, Outcome.FAILED, error=error)
        except OSError as error:
            # An OSError comes from the broker's disk, because stores raise their own error classes. Report it as the
            # failure of this segment, which the broker may have deleted during the copy.
            gone = InvalidSegmentError(f"{error.filename or segment} cannot be read: {error.strerror}")
            return ShipStep(segment, Outcome.FAILED, error=gone)

    def _ship(self, segment: FoundSegment) -> ShipStep:
        identity = SegmentIdentity.without_log(segment, self.topic_id)
        if identity is not None and (there := self._find_copy(segment, identity)):
            return there
        log = describe(segment, self.topic_id)
        if log.active:
            return ShipStep(segment, Outcome.ACTIVE, partition=log.topic_id_partition, size=log.size_in_bytes)
        # Look again, because another process may have copied the segment while its headers were read. Looking again
        # costs no request while the listing is fresh.
        identity = SegmentIdentity.of(log)
        if there := self._find_copy(segment, identity):
            return there
        copied = partial(
            ShipStep, segment, Outcome.COPIED,
            partition=log.topic_id_partition, end_offset=log.end_offset, size=log.size_in_bytes,
        )  # fmt: skip
        if self.manager is None:
            return copied()
        broker_id = _broker_id(segment) if self.broker_id is None else self.broker_id
        metadata = log.to_metadata(Uuid.random(), broker_id, time.time_ns() // 1_000_000)
        try:
            with self.around_upload(metadata):
                copy = self.manager.copy_segment(metadata, log.files, on_progress=self._count_chunks(self.manager, log))
        finally:
            # Mark the segment as changed even after a failure. Its manifest may have been written although the answer
            # was lost.
            self.committed.recheck(identity)
        return copied(
            segment_id=metadata.remote_log_segment_id.id,
            stored_size=copy.sizes.total,
            custom_metadata=copy.custom_metadata,
        )

    def _find_copy(self, segment: FoundSegment, identity: SegmentIdentity) -> ShipStep | None:
        copy = self.committed.find(identity)
        if copy is None:
            return None
        return ShipStep(
            segment, Outcome.THERE,
            partition=identity.partition, end_offset=identity.end_offset, size=size_on_disk(segment),
            segment_id=copy.segment_id.id, stored_size=copy.stored_size,
        )  # fmt: skip

    def _count_chunks(self, manager: RemoteStorageManager, log: LogSegment) -> Callable[[int], None]:
        """Return a callback for stored chunks that reports progress in bytes of the log."""
        chunk_size, left = manager.settings.chunk_size, log.size_in_bytes

        def on_chunk(_stored_chunk_size: int) -> None:
            nonlocal left
            self.on_progress(min(chunk_size, left))
            left = max(0, left - chunk_size)

        return on_chunk


def _broker_id(segment: FoundSegment) -> int:
    """Return the broker id in the log directory's ``meta.properties``; -1 if there is none."""
    try:
        raw = (segment.directory.absolute().parent / "meta.properties").read_bytes()
    except FileNotFoundError:
        return -1
    broker_id = parse_broker_id(raw)
    return -1 if broker_id is None else broker_id
