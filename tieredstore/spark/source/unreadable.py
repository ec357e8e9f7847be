"""Segments that are in the bucket and that nobody can read: a batch must not end before them without a word."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tieredstore.errors import DataLoss
from tieredstore.spark.source.selections import (
    Assign,
    OffsetSpec,
    SpecificOffsets,
    Subscribe,
    SubscribePattern,
    TopicPartition,
)

if TYPE_CHECKING:
    from tieredstore.catalog import Problem
    from tieredstore.spark.source.log_snapshot import LogSnapshot
    from tieredstore.spark.source.options import SourceOptions


def check_readable(snapshot: LogSnapshot, options: SourceOptions) -> None:
    """DataLoss by ``failOnDataLoss`` for a segment that cannot be read, where the options ask for its offsets.

    At the beginning or the end of a log nothing else tells of one. One whose offsets another segment holds is no loss,
    nor is one of another life of its topic.
    """
    if not options.fail_on_data_loss:
        return
    for problem in snapshot.unreadable:
        if _is_asked_for(problem, options) and not _is_held_elsewhere(problem, snapshot):
            raise DataLoss(f"{problem}; set failOnDataLoss to false to read without it")


def _is_asked_for(problem: Problem, options: SourceOptions) -> bool:
    where = problem.segment_id.topic_id_partition
    if options.topic_ids.get(where.topic) not in (None, where.topic_id):
        return False
    place, start = (where.topic, where.partition), problem.start_offset
    # One that begins before the window and reaches into it is a gap there.
    first, stop = _offset(options.starting, place, 0), _offset(options.ending, place, start + 1)
    return is_selected(place, options) and first <= start < stop


def _offset(spec: OffsetSpec, place: TopicPartition, otherwise: int) -> int:
    """The offset that is named; ``otherwise`` where it depends on what there is."""
    named = spec.offsets.get(place, -1) if isinstance(spec, SpecificOffsets) else -1
    return named if named >= 0 else otherwise


def _is_held_elsewhere(problem: Problem, snapshot: LogSnapshot) -> bool:
    where = problem.segment_id.topic_id_partition
    log = snapshot.logs.get((where.topic, where.partition))
    if log is None:
        return False
    if log.topic_id != where.topic_id or (log.live_start is not None and log.live_start <= problem.start_offset):
        return True
    spans = () if log.lineage is None else log.lineage.spans
    return any(span.start <= problem.start_offset < span.stop for span in spans)


def is_selected(place: TopicPartition, options: SourceOptions) -> bool:
    """Whether the options select a partition, if it is there."""
    match options.selection:
        case Subscribe(topics=topics):
            return place[0] in topics
        case Assign(partitions=partitions):
            return place in partitions
        case SubscribePattern(pattern=pattern):
            return re.fullmatch(pattern, place[0]) is not None
