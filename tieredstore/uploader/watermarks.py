"""The upload watermarks in a store: read, rebuilt from stored segments, and moved by conditional writes."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.committed import CommittedSegments
from tieredstore.catalog.lineage import ruling_segment
from tieredstore.catalog.listing import Scope, SegmentObjects, list_segments
from tieredstore.catalog.stored import StoredSegment, load_segments
from tieredstore.catalog.watermark import (
    MAX_BYTES,
    Hole,
    MoveBack,
    ShippedSegment,
    Watermark,
    hole_key,
    hole_prefix,
    partition_of_hole,
    read_watermark,
    watermark_key,
)
from tieredstore.errors import CorruptDataError, ObjectNotFoundError, PreconditionFailedError
from tieredstore.format.manifest import DEFAULT_RULES, ManifestRules
from tieredstore.kafka.checkpoints import LeaderEpochs, epoch_at, find_difference, have_same_leaders
from tieredstore.limits import MAX_INT64
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from tieredstore.places.record import refuse_other_layout
from tieredstore.remote.layout import KeyLayout

_logger: Final = logging.getLogger(__name__)

_MOST_KNOWN: Final = 20_000  # about 1 KB each


@dataclass(frozen=True, slots=True)
class StoredWatermark:
    """An upload watermark (None if nothing was uploaded yet), and the etag of its object (None if there is no object).

    ``is_remade`` is true for a watermark rebuilt from stored segments.
    """

    value: Watermark | None
    etag: str | None
    is_remade: bool = False

    def is_in(self, loaded: StoredWatermark) -> bool:
        """Return True if ``loaded`` shows the object unchanged since this process last read or wrote it."""
        return not loaded.is_remade and loaded.etag is not None and loaded.etag == self.etag


class WatermarkStore:
    """Reads and moves upload watermarks. Of two concurrent moves, one raises PreconditionFailedError."""

    def __init__(
        self,
        store: ObjectStore,
        layout: KeyLayout,
        pool: Executor,
        committed: CommittedSegments,
        rules: ManifestRules = DEFAULT_RULES,
    ) -> None:
        """Create the view of one store."""
        self._store, self._pool, self._committed, self._rules = store, pool, committed, rules
        self._prefix, self._derived_id = layout.prefix, layout.derived_id
        self._is_layout_known = False
        # A segment's manifest never changes, so cache its metadata. After a failure, a new attempt then reads only the
        # manifests that are not cached yet. Without the cache, an attempt might need hundreds of successful reads in a
        # row.
        self._known: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}

    def load(
        self, where: TopicIdPartition, history: LeaderEpochs, begins: Callable[[], int | None] = lambda: None
    ) -> StoredWatermark:
        """Return the partition's upload watermark from its object. If the object is missing or damaged, rebuild the
        watermark from the stored segments whose leader epochs are in ``history``. If there are no such segments, the
        watermark is None.

        ``begins`` returns the log's first offset on disk. If this offset is before the first stored segment, a rebuilt
        watermark starts at this offset. A damaged object is logged and ignored; the next move replaces it.

        Raise ConfigError if the store's segments have keys of another layout, or if the topic was re-created.
        """
        if not self._is_layout_known:
            refuse_other_layout(self._store, self._prefix)
            self._is_layout_known = True
        key = watermark_key(self._prefix, where)
        etag: str | None = None
        try:
            # Read the etag first. If another uploader replaces the object before the read, the store refuses the move
            # because of the old etag.
            etag = self._store.head(key).etag
            raw = self._store.get_small(key, MAX_BYTES)
            return StoredWatermark(Watermark.parse(raw, where, self._derived_id(where.topic)), etag)
        except ObjectNotFoundError:
            etag = None
        except CorruptDataError as error:
            _logger.error("%s; rebuilding it from the stored segments", error)  # noqa: TRY400
        # List through the cache of committed segments, which keeps this listing for the next lookup.
        segments = [*self._tell(self._committed.list_anew(where))]
        value = chain_of(where, segments, history, None, begins)
        if value is None:
            return StoredWatermark(None, etag)
        return StoredWatermark(_with_move(value, segments, history), etag, is_remade=True)

    def peek(self, where: TopicIdPartition) -> Watermark | None:
        """Read the partition's watermark object with one request; return None if there is no object. Raise
        CorruptDataError if the object is damaged.
        """
        return read_watermark(self._store, self._prefix, where, self._derived_id(where.topic))

    def first(self, where: TopicIdPartition) -> RemoteLogSegmentMetadata | None:
        """Return the first complete stored segment of a partition. The call takes one listing and reads one
        manifest."""
        listed = list_segments(self._store, self._prefix, Scope.of(where))
        whole = (objects for objects in listed if not objects.missing)
        return next(self._tell(itertools.islice(whole, 1)), None)

    def begin(self, where: TopicIdPartition) -> int:
        """Return the offset of the first complete stored segment, or 0 if there is none."""
        first = self.first(where)
        return 0 if first is None else first.start_offset

    def advance(self, watermark: Watermark, history: LeaderEpochs, until: int = MAX_INT64) -> Watermark:
        """Advance the upload watermark over adjoining stored segments, as far as ``until``.

        The call lists the store from the watermark on, and makes a request for each listed manifest. If these segments
        do not reach ``until``, the call reads earlier segments too, because another replica's segments have other
        boundaries.
        """
        where = watermark.where
        value = chain_of(where, self.segments(where, watermark.next_offset, until), history, watermark) or watermark
        if value.next_offset >= until:
            return value
        return chain_of(where, self.segments(where, 0, until), history, value) or value

    def agreed_end(self, watermark: Watermark, history: LeaderEpochs, until: int) -> int:
        """Return the offset up to which the store agrees with ``history``, at most ``until``. Each offset before it is
        in a hole of ``watermark`` or in a stored segment, with the same leader epoch, or in neither.
        """
        return _find_end_of_log([*self.segments(watermark.where, 0, until)], watermark.holes, history, until)

    def without_other(self, watermark: Watermark, history: LeaderEpochs) -> Watermark:
        """Return the watermark without its last segment if ``history`` has other leader epochs at the segment's
        offsets."""
        last = watermark.segment
        if last is None:
            return watermark
        found = self.segments(watermark.where, last.base_offset, last.base_offset + 1)
        named = (segment for segment in found if str(segment.remote_log_segment_id.id) == last.id)
        return watermark if all(agrees(segment, history) for segment in named) else replace(watermark, segment=None)

    def segments(
        self, where: TopicIdPartition, first_offset: int = 0, until: int = MAX_INT64
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield the complete segments that begin at or after ``first_offset`` and before ``until``."""
        listed = list_segments(self._store, self._prefix, Scope.of(where, first_offset))
        return self._tell(itertools.takewhile(lambda objects: objects.start_offset < until, listed))

    def _tell(self, listed: Iterable[SegmentObjects]) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield the metadata from the manifests of complete segments."""
        whole = [objects for objects in listed if not objects.missing]
        unknown: list[SegmentObjects] = []
        for objects in whole:
            metadata = self._known.get(objects.segment_id)
            if metadata is None:
                unknown.append(objects)
            else:
                yield metadata
        for entry in load_segments(self._store, unknown, self._pool, rules=self._rules):
            if isinstance(entry, StoredSegment):
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[entry.metadata.remote_log_segment_id] = entry.metadata
                yield entry.metadata

    def mark_holes(self, where: TopicIdPartition) -> None:
        """Write a separate object that marks the partition as having holes, so that one listing finds all marked
        partitions.
        """
        self._store.put(hole_key(self._prefix, where), b"its watermark has holes\n")

    def unmark(self, where: TopicIdPartition) -> None:
        """Remove the object that marks the partition as having holes. Write it again if the watermark has holes,
        because another uploader may just have recorded them."""
        self._store.delete([hole_key(self._prefix, where)])
        watermark = self.peek(where)
        if watermark is not None and watermark.holes:
            self.mark_holes(where)

    def with_holes(self) -> Iterator[TopicIdPartition]:
        """Yield the partitions marked as having holes."""
        for info in self._store.list(hole_prefix(self._prefix)):
            where = partition_of_hole(self._prefix, info.key)
            if where is not None:
                yield where

    def move(self, stored: StoredWatermark, watermark: Watermark) -> StoredWatermark:
        """Replace ``stored`` by ``watermark``. Raise PreconditionFailedError if the object has changed since it was
        read.
        """
        key, content = watermark_key(self._prefix, watermark.where), watermark.to_bytes()
        if stored.etag is not None:
            return StoredWatermark(watermark, self._store.replace(key, content, stored.etag))
        self._store.put(key, content, if_absent=True)
        try:
            # Read the etag first, as in ``load``.
            etag = self._store.head(key).etag
            if self._store.get_small(key, MAX_BYTES) == content:
                return StoredWatermark(watermark, etag)
        except ObjectNotFoundError as error:
            raise PreconditionFailedError(f"the upload watermark of {watermark.where} was deleted") from error
        raise PreconditionFailedError(f"another uploader has moved the upload watermark of {watermark.where}")


def chain_of(
    where: TopicIdPartition,
    segments: Iterable[RemoteLogSegmentMetadata],
    history: LeaderEpochs,
    watermark: Watermark | None,
    begins: Callable[[], int | None] = lambda: None,
) -> Watermark | None:
    """Return ``watermark`` advanced over the segments that follow it without a gap.

    If ``watermark`` is None, begin at the first segment, or at the offset that ``begins`` returns, whichever is
    earlier. Ignore segments whose leader epochs differ from ``history``, because they are no longer part of the log.
    """
    for segment in sorted(segments, key=lambda segment: (segment.start_offset, segment.end_offset)):
        if not agrees(segment, history):
            continue
        if watermark is None:
            begin = begins()
            start = segment.start_offset if begin is None else min(begin, segment.start_offset)
            watermark = Watermark(where, start, -1)
        if segment.start_offset > watermark.next_offset:
            break
        if segment.end_offset >= watermark.next_offset:
            epoch = segment.segment_leader_epochs[-1][0] if segment.segment_leader_epochs else -1
            watermark = watermark.behind(
                ShippedSegment(str(segment.remote_log_segment_id.id), segment.start_offset, segment.end_offset),
                segment.end_offset + 1,
                epoch,
                segment.broker_id,
                max(0, segment.event_timestamp_ms),
            )
    return watermark


def agrees(segment: RemoteLogSegmentMetadata, history: LeaderEpochs) -> bool:
    """Return True if ``history``, as far back as it reaches, has the leader epochs of the segment's offsets."""
    return not history or have_same_leaders(
        segment.segment_leader_epochs, history, segment.start_offset, segment.end_offset
    )


def _find_end_of_log(
    segments: Sequence[RemoteLogSegmentMetadata], holes: Sequence[Hole], history: LeaderEpochs, until: int
) -> int:
    """Return the offset up to which stored segments and holes agree with ``history`` (see
    :meth:`WatermarkStore.agreed_end`).
    """
    differences = {segment: _find_difference_of(segment, history) for segment in segments}
    extents = [(hole.first_offset, _find_end_of_agreement(hole, history)) for hole in holes]
    extents += [(segment.start_offset, stop) for segment, stop in differences.items()]
    known = [
        *((hole.first_offset, hole.last_offset) for hole in holes),
        *((segment.start_offset, segment.end_offset) for segment in segments),
    ]
    end = 0
    for start, stop in sorted([*extents, (until, until)]):
        # Pass over offsets that no segment has, because retention or a user has deleted their segments.
        if start > end and any(first <= end <= last for first, last in known):
            break
        end = max(end, stop)
    ruler = ruling_segment(segments) if segments else None
    if ruler is not None and differences[ruler] <= ruler.end_offset:
        # Readers prefer the latest epoch, even if the store also has the log's own records of an earlier epoch.
        later = (stop for segment, stop in differences.items() if _is_later(segment, history, stop))
        end = min([end, *later])
    return min(end, until)


def _with_move(watermark: Watermark, segments: Sequence[RemoteLogSegmentMetadata], history: LeaderEpochs) -> Watermark:
    """Return the rebuilt watermark. If readers prefer stored records that ``history`` does not have, record that the
    watermark was moved back, as after an unclean election.
    """
    ruler = ruling_segment(segments)
    if agrees(ruler, history):
        return watermark
    end = ruler.end_offset + 1
    move = MoveBack(end, _find_end_of_log(segments, (), history, end), history[-1][0], watermark.at_ms)
    return replace(watermark, moved_back=(move,))


def _find_end_of_agreement(hole: Hole, history: LeaderEpochs) -> int:
    """Return the first offset of the hole whose record has another leader epoch in ``history``, or the hole's end
    (exclusive) if there is none.
    """
    if hole.leader_epochs and hole.leader_epochs[0][1] > hole.first_offset:
        # The epochs of the hole's first records are unknown. They are the same if both logs have the same epoch later.
        epoch, start = hole.leader_epochs[0]
        if epoch_at(history, start) not in (None, epoch):
            return hole.first_offset
    return find_difference(hole.leader_epochs, history, hole.first_offset, hole.last_offset)


def _find_difference_of(segment: RemoteLogSegmentMetadata, history: LeaderEpochs) -> int:
    return find_difference(segment.segment_leader_epochs, history, segment.start_offset, segment.end_offset)


def _is_later(segment: RemoteLogSegmentMetadata, history: LeaderEpochs, offset: int) -> bool:
    """Return True if the segment has the offset, and in a later leader epoch than ``history``."""
    if not history or offset > segment.end_offset:
        return False
    own, other = epoch_at(segment.segment_leader_epochs, offset), epoch_at(history, offset)
    return own is not None and own > (history[0][0] if other is None else other)
