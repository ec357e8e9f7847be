"""Closed segments of a broker's disk into a store, each once."""

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
)


@dataclass(frozen=True, slots=True)
class ShipStep(Step[FoundSegment]):
    """The result of one segment, or the plan; None for unknown values.

    ``end_offset`` is inclusive; ``size`` is that of the log on disk, ``stored_size`` that of the three objects stored.
    ``segment_id`` names the copy: the new one, or the existing one.
    """

    partition: TopicIdPartition | None = None
    end_offset: int | None = None
    size: int | None = None
    segment_id: Uuid | None = None
    stored_size: int | None = None
    custom_metadata: bytes | None = None
    error: TieredStoreError | None = None


def concerns_one_segment(error: TieredStoreError) -> bool:
    """Return True if the error affects only this segment, not the next ones."""
    return isinstance(error, _OF_ONE_SEGMENT)


def size_on_disk(segment: FoundSegment) -> int:
    """Return the bytes of the segment's log; 0 if it is gone."""
    with contextlib.suppress(OSError):
        return segment.path("log").stat().st_size
    return 0


@dataclass(frozen=True, slots=True)
class Shipper:
    """Copies closed segments without a copy among ``committed``, those of the manager's store; without a manager it
    only plans, and needs no key.

    The topic id comes from ``partition.metadata`` and the broker's id from ``meta.properties`` unless given.
    ``on_progress`` is called with bytes of the log as they are finished; ``around_upload`` is entered with the copy's
    metadata before the store holds anything of it, and left when it holds all or nothing. Safe from several threads,
    each segment on one thread at a time.
    """

    committed: CommittedSegments
    manager: RemoteStorageManager | None = None
    _: KW_ONLY
    topic_id: Uuid | None = None
    broker_id: int | None = None
    on_progress: Callable[[int], object] = int
    around_upload: AroundUpload = contextlib.nullcontext

    def ship_all(self, segments: Iterable[FoundSegment], *, parallel: int = 1) -> Iterator[ShipStep]:
        """Copy ``parallel`` segments at once and yield them in order. After an error that the next would meet too,
        the rest is NOT_TRIED.
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
        """Copy one segment.

        COPIED; THERE: a whole copy is committed already; ACTIVE: the broker may still append to it; GONE: the broker
        has deleted its records; or FAILED with the error: only bugs raise.

        It can be called again after any outcome, also after the process was killed: a segment counts as copied once its
        manifest exists.
        """
        try:
            return self._ship(segment)
        except RecordsDeletedError:
            # Like Kafka, copy nothing from before the start of the log: it may have been deleted on purpose.
            return ShipStep(segment, Outcome.GONE, size=size_on_disk(segment))
        except TieredStoreError as error:
            return ShipStep(segment, Outcome.FAILED, error=error)
        except OSError as error:
            # The store translates its own errors: this is the broker's disk, where a segment may be deleted during its
            # copy.
            gone = InvalidSegmentError(f"{error.filename or segment} cannot be read: {error.strerror}")
            return ShipStep(segment, Outcome.FAILED, error=gone)

    def _ship(self, segment: FoundSegment) -> ShipStep:
        identity = SegmentIdentity.without_log(segment, self.topic_id)
        if identity is not None and (there := self._find_copy(segment, identity)):
            return there
        log = describe(segment, self.topic_id)
        if log.active:
            return ShipStep(segment, Outcome.ACTIVE, partition=log.topic_id_partition, size=log.size_in_bytes)
        # Check again: describing reads the headers of a whole log, and another process may have committed the segment
        # in between. While the listing is fresh this asks no store.
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
            # Also after a failure: the lost answer may be that of the manifest's write.
            self.committed.changed(identity)
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
        """Return a callback that converts the manager's stored bytes into bytes of the log, for a person."""
        chunk_size, left = manager.settings.chunk_size, log.size_in_bytes

        def on_chunk(_stored_chunk_size: int) -> None:
            nonlocal left
            self.on_progress(min(chunk_size, left))
            left = max(0, left - chunk_size)

        return on_chunk


def _broker_id(segment: FoundSegment) -> int:
    """Return the id in the log directory's ``meta.properties``; -1 without one."""
    try:
        raw = (segment.directory.absolute().parent / "meta.properties").read_bytes()
    except FileNotFoundError:
        return -1
    broker_id = parse_broker_id(raw)
    return -1 if broker_id is None else broker_id
