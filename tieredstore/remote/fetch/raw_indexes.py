"""Indexes that the raw layout does not store (transactions, producers, leader epochs), computed from the logs."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Final

from tieredstore.errors import SegmentNotFoundError
from tieredstore.format.keys import Suffix, listing_prefix, parse_key
from tieredstore.kafka.checkpoints import LeaderEpochs, ProducerState, format_leader_epochs, format_producer_snapshot
from tieredstore.kafka.end_markers import TransactionStep, play_markers
from tieredstore.kafka.indexes import format_txn_index
from tieredstore.model import IndexType, RemoteLogSegmentMetadata, TopicIdPartition
from tieredstore.process.bounded_map import BoundedMap
from tieredstore.remote.fetch.log_batches import LogBatches

if TYPE_CHECKING:
    from tieredstore.remote.fetch.indexes import Indexes
    from tieredstore.remote.fetch.manifests import Manifests
    from tieredstore.remote.fetch.stream import SegmentStream

_MOST: Final = 4096
_MADE: Final = frozenset({IndexType.TRANSACTION, IndexType.PRODUCER_SNAPSHOT, IndexType.LEADER_EPOCH})


class RawIndexes:
    """Indexes of a store in the raw layout: stored indexes from ``stored``, other indexes computed on demand.

    The transaction index and the producer snapshot cost one read of the log per segment.

    A transaction that began in an earlier segment is found only if that segment's transactions were read before. This
    is usual, because readers read segments in order.
    """

    def __init__(
        self,
        stored: Indexes,
        open_log: Callable[[RemoteLogSegmentMetadata], SegmentStream],
        manifests: Manifests,
    ) -> None:
        self._stored, self._open_log, self._manifests = stored, open_log, manifests
        self._steps = BoundedMap[str, tuple[TransactionStep, ...]](_MOST)
        # Open transactions, by partition and offset in its log. An entry may lack transactions, but never contains a
        # wrong transaction.
        self._open = BoundedMap[tuple[TopicIdPartition, int], dict[int, int]](_MOST)

    def get(self, metadata: RemoteLogSegmentMetadata, types: Iterable[IndexType]) -> dict[IndexType, BinaryIO]:
        """Return the requested indexes. The raw layout provides all of them."""
        wanted = list(types)
        indexes = self._stored.get(metadata, [kind for kind in wanted if kind not in _MADE])
        for kind in wanted:
            if kind in _MADE:
                indexes[kind] = io.BytesIO(self._make_index(metadata, kind))
        return indexes

    def one(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> BinaryIO:
        """Return one index, which may be empty."""
        return self.get(metadata, [index_type])[index_type]

    def _make_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
        if kind is IndexType.LEADER_EPOCH:
            return format_leader_epochs(self._history(metadata))
        steps = self._read_steps(metadata)
        where = metadata.topic_id_partition
        aborted, still_open = play_markers(steps, self._open.get((where, metadata.start_offset)) or {})
        behind = (where, metadata.end_offset + 1)
        self._open.put(behind, {**still_open, **{
            producer: first for producer, first in (self._open.get(behind) or {}).items()
            if first < still_open.get(producer, first + 1)
        }})  # fmt: skip
        if kind is IndexType.TRANSACTION:
            return format_txn_index(aborted)
        states = (ProducerState(producer, 0, -1, first, 0, -1, -1, first) for producer, first in still_open.items())
        return format_producer_snapshot(states)

    def _read_steps(self, metadata: RemoteLogSegmentMetadata) -> tuple[TransactionStep, ...]:
        name = str(metadata.remote_log_segment_id)
        steps = self._steps.get(name)
        if steps is None:
            with self._open_log(metadata) as stream:
                steps = tuple(LogBatches(stream, 0, metadata.segment_size_in_bytes, metadata).steps())
            self._steps.put(name, steps)
        return steps

    def _history(self, metadata: RemoteLogSegmentMetadata) -> LeaderEpochs:
        """Return the partition's leader epochs up to the end of the segment, from all segments that begin before this
        end.

        If segments contradict each other, the segment with the later epoch decides where that epoch starts.
        """
        starts: dict[int, int] = {}
        for segment in self._before(metadata):
            for epoch, start in segment.segment_leader_epochs:
                starts[epoch] = min(start, starts.get(epoch, start))
        history: list[tuple[int, int]] = []
        for epoch, start in sorted(starts.items(), reverse=True):
            if not history or start < history[-1][1]:
                history.append((epoch, start))
        return tuple(reversed(history))

    def _before(self, metadata: RemoteLogSegmentMetadata) -> Iterator[RemoteLogSegmentMetadata]:
        where, prefix = metadata.topic_id_partition, self._manifests.layout.prefix
        for info in self._manifests.store.list(listing_prefix(prefix, where.topic, where.topic_id, where.partition)):
            key = parse_key(prefix, info.key)
            if key is None or key.suffix is not Suffix.MANIFEST or key.start_offset > metadata.start_offset:
                continue
            named = RemoteLogSegmentMetadata(key.segment_id, key.start_offset, -1, 0)
            try:
                recorded = self._manifests.get(named).manifest.metadata
            except SegmentNotFoundError:
                continue
            if recorded is not None:
                yield recorded
