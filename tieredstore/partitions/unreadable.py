"""Segments that are in the bucket and that nobody can read: a batch must not end before them without a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.errors import DataLoss
from tieredstore.model import TopicPartition
from tieredstore.partitions.offset_specs import OffsetSpec, SpecificOffsets
from tieredstore.partitions.selections import is_selected

if TYPE_CHECKING:
    from tieredstore.catalog.view import Problem
    from tieredstore.partitions.log_query import LogQuery
    from tieredstore.partitions.log_snapshot import LogSnapshot


def check_readable(snapshot: LogSnapshot, query: LogQuery, starting: OffsetSpec, ending: OffsetSpec) -> None:
    """DataLoss by the query's policy for a segment that cannot be read, where its offsets are asked for.

    At the beginning or the end of a log nothing else tells of one. One whose offsets another segment holds is no loss,
    nor is one of another life of its topic.
    """
    if not query.fails_on_loss:
        return
    for problem in snapshot.unreadable:
        if _is_asked_for(problem, query, starting, ending) and not _is_held_elsewhere(problem, snapshot):
            raise DataLoss(f"{problem}; {query.words.accept_loss} to read without it")


def _is_asked_for(problem: Problem, query: LogQuery, starting: OffsetSpec, ending: OffsetSpec) -> bool:
    partition = problem.segment_id.topic_id_partition
    if query.topic_ids.get(partition.topic) not in (None, partition.topic_id):
        return False
    where, start = (partition.topic, partition.partition), problem.start_offset
    # One that begins before the window and reaches into it is a gap there.
    first, stop = _offset(starting, where, 0), _offset(ending, where, start + 1)
    return is_selected(query.selection, where) and first <= start < stop


def _offset(spec: OffsetSpec, where: TopicPartition, otherwise: int) -> int:
    """The offset that is named; ``otherwise`` where it depends on what there is."""
    named = spec.offsets.get(where, -1) if isinstance(spec, SpecificOffsets) else -1
    return named if named >= 0 else otherwise


def _is_held_elsewhere(problem: Problem, snapshot: LogSnapshot) -> bool:
    partition = problem.segment_id.topic_id_partition
    log = snapshot.logs.get((partition.topic, partition.partition))
    if log is None:
        return False
    if log.topic_id != partition.topic_id or (log.live_start is not None and log.live_start <= problem.start_offset):
        return True
    spans = () if log.lineage is None else log.lineage.spans
    return any(span.start <= problem.start_offset < span.stop for span in spans)
