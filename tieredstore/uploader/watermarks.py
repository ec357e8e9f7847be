"""The watermarks of a store: read, rebuilt from stored segments, moved by conditional writes."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.committed import CommittedSegments
from tieredstore.catalog.listing import SegmentObjects, list_segments
from tieredstore.catalog.stored import StoredSegment, load_segments
from tieredstore.catalog.watermark import (
    MAX_BYTES,
    ShippedSegment,
    Watermark,
    hole_key,
    hole_prefix,
    partition_of_hole,
    read_watermark,
    watermark_key,
)
from tieredstore.errors import CorruptDataError, ObjectNotFoundError, PreconditionFailedError
from tieredstore.format.manifest_rules import DEFAULT_RULES, ManifestRules
from tieredstore.kafka.checkpoints import LeaderEpochs, have_same_leaders
from tieredstore.limits import MAX_INT64
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.places.record import refuse_other_layout

_logger: Final = logging.getLogger(__name__)

_MOST_KNOWN: Final = 20_000  # about 1 KB each


@dataclass(frozen=True, slots=True)
class StoredWatermark:
    """A watermark, None if nothing was uploaded yet, and the etag of its object, None without one.

    ``written`` is the content that this process wrote first: its etag is unknown, and read when needed. ``is_remade``:
    it was rebuilt from stored segments, not read from the object.
    """

    value: Watermark | None
    etag: str | None
    written: Watermark | None = None
    is_remade: bool = False

    def is_in(self, loaded: StoredWatermark) -> bool:
        """Return True if the object has not moved since: the loaded one is the one last seen, or written."""
        if loaded.is_remade:
            return False
        if self.written is not None:
            return self.written == loaded.value
        return loaded.etag is not None and loaded.etag == self.etag


class WatermarkStore:
    """Reads and moves watermarks; of two concurrent moves one raises PreconditionFailedError."""

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        pool: Executor,
        committed: CommittedSegments,
        rules: ManifestRules = DEFAULT_RULES,
        made_id: Callable[[str], Uuid] | None = None,
    ) -> None:
        """Set up; ``made_id`` derives topic ids if a store has one place for a topic's name: the raw layout."""
        self._store, self._prefix, self._pool, self._rules = store, prefix, pool, rules
        self._committed, self._made_id = committed, made_id
        self._is_layout_known = False
        # Manifests never change under an id, which is one attempt's. So a store that fails now and then is asked for
        # fewer of them each time, not for all until hundreds of requests succeed in a row.
        self._known: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}

    def load(
        self, where: TopicIdPartition, history: LeaderEpochs, begins: Callable[[], int | None] = lambda: None
    ) -> StoredWatermark:
        """Return the partition's watermark: its object, else one rebuilt from the stored segments of these epochs, else
        None.

        ``begins`` is the start of the log on disk: earlier offsets before the first stored segment were never
        uploaded. A damaged object is logged and ignored; the next move replaces it. Raise ConfigError if segments
        were stored under other keys than the store's, and if the topic was re-created.
        """
        if not self._is_layout_known:
            refuse_other_layout(self._store, self._prefix)
            self._is_layout_known = True
        key = watermark_key(self._prefix, where)
        etag: str | None = None
        try:
            # In this order: if the object is replaced in between, the etag is too old, and the move is refused.
            etag = self._store.head(key).etag
            raw = self._store.get_small(key, MAX_BYTES)
            return StoredWatermark(Watermark.parse(raw, where, self._made_id_of(where)), etag)
        except ObjectNotFoundError:
            etag = None
        except CorruptDataError as error:
            _logger.error("%s; it is made again of the segments that are stored", error)  # noqa: TRY400
        # The same listing answers the next question for committed segments.
        segments = self._tell(self._committed.list_anew(where))
        value = chain_of(where, segments, history, None, begins)
        return StoredWatermark(value, etag, is_remade=value is not None)

    def peek(self, where: TopicIdPartition) -> Watermark | None:
        """Return the partition's object, None if there is none: one request. Raise CorruptDataError if it is
        damaged.
        """
        return read_watermark(self._store, self._prefix, where, self._made_id_of(where))

    def first(self, where: TopicIdPartition) -> RemoteLogSegmentMetadata | None:
        """Return the first whole segment that is stored of a partition: one listing, and a manifest."""
        listed = list_segments(
            self._store, self._prefix, topic=where.topic, topic_id=where.topic_id, partition=where.partition
        )
        whole = (objects for objects in listed if not objects.missing)
        return next(self._tell(itertools.islice(whole, 1)), None)

    def _made_id_of(self, where: TopicIdPartition) -> Uuid | None:
        return None if self._made_id is None else self._made_id(where.topic)

    def advance(self, watermark: Watermark, history: LeaderEpochs, until: int = MAX_INT64) -> Watermark:
        """Advance the watermark over adjoining stored segments, as far as ``until``.

        Costs a listing from the watermark on, and its manifests. Only if these do not reach ``until``, earlier segments
        are read as well: another replica's uploads have other borders.
        """
        where = watermark.where
        value = chain_of(where, self._segments(where, watermark.next_offset, until), history, watermark) or watermark
        if value.next_offset >= until:
            return value
        return chain_of(where, self._segments(where, 0, until), history, value) or value

    def _segments(
        self, where: TopicIdPartition, first_offset: int = 0, until: int = MAX_INT64
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield the whole segments that begin from one offset on and before another."""
        listed = list_segments(
            self._store,
            self._prefix,
            topic=where.topic,
            topic_id=where.topic_id,
            partition=where.partition,
            first_offset=first_offset,
        )
        return self._tell(itertools.takewhile(lambda objects: objects.start_offset < until, listed))

    def _tell(self, listed: Iterable[SegmentObjects]) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield the metadata in whole segments' manifests."""
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
        """Mark the partition as having holes, by a separate object: one listing then shows all marks."""
        self._store.put(hole_key(self._prefix, where), b"its watermark has holes\n")

    def unmark(self, where: TopicIdPartition) -> None:
        """Remove the mark."""
        self._store.delete([hole_key(self._prefix, where)])

    def with_holes(self) -> Iterator[TopicIdPartition]:
        """Yield the marked partitions."""
        for info in self._store.list(hole_prefix(self._prefix)):
            where = partition_of_hole(self._prefix, info.key)
            if where is not None:
                yield where

    def move(self, stored: StoredWatermark, watermark: Watermark) -> StoredWatermark:
        """Replace ``stored`` by ``watermark``; raise PreconditionFailedError if it has moved since it was read."""
        key, content = watermark_key(self._prefix, watermark.where), watermark.to_bytes()
        etag = stored.etag if stored.written is None else self._etag_of(stored.written)
        if etag is not None:
            return StoredWatermark(watermark, self._store.replace(key, content, etag))
        self._store.put(key, content, if_absent=True)
        return StoredWatermark(watermark, None, written=watermark)

    def _etag_of(self, written: Watermark) -> str | None:
        """Return the etag of the object as this process wrote it; another writer's content is noticed."""
        key = watermark_key(self._prefix, written.where)
        try:
            # In this order, as above.
            etag = self._store.head(key).etag
            if self._store.get_small(key, MAX_BYTES) == written.to_bytes():
                return etag
        except ObjectNotFoundError as error:
            raise PreconditionFailedError(f"the watermark of {written.where} was deleted") from error
        raise PreconditionFailedError(f"the watermark of {written.where} was moved by another uploader")


def chain_of(
    where: TopicIdPartition,
    segments: Iterable[RemoteLogSegmentMetadata],
    history: LeaderEpochs,
    watermark: Watermark | None,
    begins: Callable[[], int | None] = lambda: None,
) -> Watermark | None:
    """Return ``watermark`` advanced over the segments that adjoin it and each other.

    Without one it begins with the first segment, or at ``begins`` if that is earlier. Segments of other leader epochs
    than ``history`` has for their offsets are no longer part of the log.
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
    """Return True if the segment was written by the leaders of this history, as far as that reaches back."""
    return not history or have_same_leaders(
        segment.segment_leader_epochs, history, segment.start_offset, segment.end_offset
    )
