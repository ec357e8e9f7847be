"""The watermarks of a store: read, made again of what is stored, moved by condition."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.listing import SegmentObjects, list_segments
from tieredstore.catalog.stored import StoredSegment, load_segments
from tieredstore.errors import CorruptData, ObjectNotFound, PreconditionFailed
from tieredstore.format.manifest_rules import DEFAULT_RULES, ManifestRules
from tieredstore.kafka.checkpoints import LeaderEpochs, segment_leader_epochs
from tieredstore.limits import MAX_INT64
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from tieredstore.places.record import refuse_other_layout
from tieredstore.uploader.watermark import (
    MAX_BYTES,
    ShippedSegment,
    Watermark,
    hole_key,
    hole_prefix,
    partition_of_hole,
    watermark_key,
)

_logger: Final = logging.getLogger(__name__)

_MOST_KNOWN: Final = 20_000  # about 1 KB each


@dataclass(frozen=True, slots=True)
class StoredWatermark:
    """A watermark, None if nothing was shipped yet, and the etag of the object that holds it, None without one."""

    value: Watermark | None
    etag: str | None


class WatermarkStore:
    """Reads and moves watermarks; of two who move one at the same time one is told (PreconditionFailed)."""

    def __init__(self, store: ObjectStore, prefix: str, pool: Executor, rules: ManifestRules = DEFAULT_RULES) -> None:
        self._store, self._prefix, self._pool, self._rules = store, prefix, pool, rules
        self._is_layout_known = False
        # What manifests have told stays true: an id is that of one attempt. So a store that fails now and then is asked
        # for fewer of them each time, and not for all of them until not one of hundreds of requests fails.
        self._known: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}

    def load(self, where: TopicIdPartition, history: LeaderEpochs) -> StoredWatermark:
        """The partition's watermark: its object, else what the stored segments of these epochs say, else None.

        A damaged object is told and passed over; the next move replaces it. ConfigError where segments were stored
        under other keys than those of the store.
        """
        if not self._is_layout_known:
            refuse_other_layout(self._store, self._prefix)
            self._is_layout_known = True
        key = watermark_key(self._prefix, where)
        etag: str | None = None
        try:
            # In this order: of an object that is replaced in between the etag is too old, and the move is refused.
            etag = self._store.head(key).etag
            return StoredWatermark(Watermark.parse(self._store.get_small(key, MAX_BYTES), where), etag)
        except ObjectNotFound:
            etag = None
        except CorruptData as error:
            _logger.error("%s; it is made again of the segments that are stored", error)  # noqa: TRY400
        return StoredWatermark(chain_of(where, self._segments(where), history, None), etag)

    def peek(self, where: TopicIdPartition) -> Watermark | None:
        """What the partition's object says, None if there is none: one request. CorruptData if it is damaged."""
        try:
            return Watermark.parse(self._store.get_small(watermark_key(self._prefix, where), MAX_BYTES), where)
        except ObjectNotFound:
            return None

    def advanced(self, watermark: Watermark, history: LeaderEpochs, until: int = MAX_INT64) -> Watermark:
        """The watermark behind what stands in the store already and joins on to it, as far as ``until`` is asked for.

        Costs a listing from the watermark on, and the manifests of that. Only where these do not reach ``until`` all
        that lies before it is read as well: what another replica has shipped has other borders.
        """
        where = watermark.where
        value = chain_of(where, self._segments(where, watermark.next_offset, until), history, watermark) or watermark
        if value.next_offset >= until:
            return value
        return chain_of(where, self._segments(where, 0, until), history, value) or value

    def _segments(
        self, where: TopicIdPartition, first_offset: int = 0, until: int = MAX_INT64
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """The whole segments that begin from one offset on and before another."""
        listed = list_segments(
            self._store,
            self._prefix,
            topic=where.topic,
            topic_id=where.topic_id,
            partition=where.partition,
            first_offset=first_offset,
        )
        within = itertools.takewhile(lambda objects: objects.start_offset < until, listed)
        whole = [objects for objects in within if not objects.missing]
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
        """Have it known that the partition has holes, by an object of its own: one listing then tells of all."""
        self._store.put(hole_key(self._prefix, where), b"its watermark has holes\n")

    def unmark(self, where: TopicIdPartition) -> None:
        """It has none any more."""
        self._store.delete([hole_key(self._prefix, where)])

    def with_holes(self) -> Iterator[TopicIdPartition]:
        """The partitions that are marked."""
        for info in self._store.list(hole_prefix(self._prefix)):
            where = partition_of_hole(self._prefix, info.key)
            if where is not None:
                yield where

    def move(self, stored: StoredWatermark, watermark: Watermark) -> StoredWatermark:
        """Replace ``stored`` by ``watermark``; PreconditionFailed if somebody else has moved it since it was read."""
        key, content = watermark_key(self._prefix, watermark.where), watermark.to_bytes()
        if stored.etag is not None:
            return StoredWatermark(watermark, self._store.replace(key, content, stored.etag))
        self._store.put(key, content, if_absent=True)
        # The etag that the write has given is not told; whoever has replaced it since then is noticed by its content.
        info = self._store.head(key)
        if self._store.get_small(key, MAX_BYTES) != content:
            raise PreconditionFailed(f"the watermark of {watermark.where} was moved by another uploader")
        return StoredWatermark(watermark, info.etag)


def chain_of(
    where: TopicIdPartition,
    segments: Iterable[RemoteLogSegmentMetadata],
    history: LeaderEpochs,
    watermark: Watermark | None,
) -> Watermark | None:
    """``watermark``, or one at the first segment, behind the segments that join on to it and to each other.

    Segments of other leader epochs than ``history`` has for their offsets hold what is no part of the log any more.
    """
    for segment in sorted(segments, key=lambda segment: (segment.start_offset, segment.end_offset)):
        if not agrees(segment, history):
            continue
        if watermark is None:
            watermark = Watermark(where, segment.start_offset, -1)
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
    """Whether the segment was written by the leaders whose epochs are ``history``, as far as that reaches back."""
    if not history or segment.end_offset < history[0][1]:
        return True
    start = max(segment.start_offset, history[0][1])
    stored = segment_leader_epochs(segment.segment_leader_epochs, start, segment.end_offset)
    return stored == segment_leader_epochs(history, start, segment.end_offset)
