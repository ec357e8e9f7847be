"""Lineages of many partitions: which of them need a leader-epoch index is found out, and that is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.catalog.completion import read_history
from tieredstore.catalog.lineage import needs_history, ruling_segment, trace_lineage
from tieredstore.catalog.view import Catalog, PartitionSegments, Problem
from tieredstore.errors import CorruptData, IndexNotRecorded, SegmentNotFound, TieredStoreError, UnknownKey
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from tieredstore.process.parallel import in_parallel

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource


@dataclass(frozen=True, slots=True)
class TracedPartition:
    """One partition's segments, the one that rules them, and its leader-epoch index if that had to be read."""

    ruler: RemoteLogSegmentMetadata
    history: LeaderEpochs | None
    segments: PartitionSegments


def trace_partitions(
    source: SegmentSource,
    segments: Iterable[RemoteLogSegmentMetadata],
    known: Mapping[RemoteLogSegmentId, LeaderEpochs],
    pool: Executor,
    *,
    at_once: int,
) -> list[TracedPartition]:
    """The lineage of each partition of ``segments``; two requests where an index is needed and not ``known``.

    What is wrong with one partition's index takes the place of its lineage; an error of the store is raised.
    """
    grouped: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = defaultdict(list)
    for segment in segments:
        grouped[segment.topic_id_partition].append(segment)
    jobs = in_parallel(pool, lambda group: _trace(source, group, known), grouped.values(), at_once=at_once)
    return list(jobs)


def catalog_of(traced: Iterable[TracedPartition], problems: Iterable[Problem]) -> Catalog:
    """The catalog of these partitions."""
    segments = {partition.ruler.topic_id_partition: partition.segments for partition in traced}
    return Catalog.of(dict(sorted(segments.items())), problems)


def _trace(
    source: SegmentSource,
    segments: Sequence[RemoteLogSegmentMetadata],
    known: Mapping[RemoteLogSegmentId, LeaderEpochs],
) -> TracedPartition:
    ruler = ruling_segment(segments)
    history = None
    try:
        if needs_history(ruler, segments):
            # The index never changes under its id, so that the catalog file may keep it.
            history = known.get(ruler.remote_log_segment_id) or read_history(source, ruler)
        lineage = trace_lineage(segments, ruler, history)
    # Trouble with one partition is told where it is asked for; the others are as good as before.
    except (CorruptData, UnknownKey, IndexNotRecorded, SegmentNotFound) as error:
        return TracedPartition(ruler, None, PartitionSegments.of(segments, _explained(ruler, error)))
    return TracedPartition(ruler, history, PartitionSegments.of(segments, lineage))


def _explained(ruler: RemoteLogSegmentMetadata, error: TieredStoreError) -> TieredStoreError:
    """The same error, saying what cannot be known without the index."""
    return type(error)(f"which segments make up {ruler.topic_id_partition} cannot be told: {error}")
