"""Segments that are in the bucket and that nobody can read: a log must not end or begin at them without a word."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from tieredstore.catalog.problems import Problem, unreadable_between
from tieredstore.errors import DataLoss
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import TopicPartition
from tieredstore.partitions.offset_specs import OffsetSpec, SpecificOffsets
from tieredstore.partitions.selections import is_selected

if TYPE_CHECKING:
    from tieredstore.partitions.log import OffsetWindow, PartitionLog
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.query import LogQuery


def check_readable(
    snapshot: LogSnapshot,
    query: LogQuery,
    windows: Mapping[TopicPartition, OffsetWindow],
    *,
    starts_there: Collection[TopicPartition] = (),
    stops_there: Collection[TopicPartition] = (),
) -> None:
    """DataLoss by the query's policy for segments that nobody can read and that may have records of the windows.

    At the beginning or the end of a log nothing else tells of one. It counts there unless somebody named the offset
    that the window begins at (of the partitions ``starts_there``) or ends at (``stops_there``). One whose offsets
    another segment or the broker holds is no loss, nor is one of another life of its topic.
    """
    hidden = [*_without_log(snapshot, query)]
    for where, (start, stop) in windows.items():
        problems = _problems_of(snapshot, snapshot.logs[where])
        hidden += unreadable_between(
            problems, _extents(snapshot.logs[where]), start, stop,
            starts_there=where in starts_there, stops_there=where in stops_there,
        )  # fmt: skip
    if hidden and query.fails_on_loss:
        more = f" (and so it is with {len(hidden) - 1} more)" if len(hidden) > 1 else ""
        raise DataLoss(f"{hidden[0]}{more}; {query.words.accept_loss} to read without it")


def named_partitions(spec: OffsetSpec) -> Collection[TopicPartition]:
    """Those for which an offset is named; the others begin or end where there is something."""
    named = spec.offsets.items() if isinstance(spec, SpecificOffsets) else ()
    return frozenset(where for where, offset in named if offset >= 0)


def _without_log(snapshot: LogSnapshot, query: LogQuery) -> Iterator[Problem]:
    """Of partitions that are selected and have nothing that can be read."""
    for problem in snapshot.unreadable:
        partition = problem.segment_id.topic_id_partition
        where = partition.topic, partition.partition
        is_other_life = query.topic_ids.get(partition.topic) not in (None, partition.topic_id)
        if where not in snapshot.logs and is_selected(query.selection, where) and not is_other_life:
            yield problem


def _problems_of(snapshot: LogSnapshot, log: PartitionLog) -> list[Problem]:
    own = log.stored_partition
    return [problem for problem in snapshot.unreadable if problem.segment_id.topic_id_partition == own]


def _extents(log: PartitionLog) -> list[OffsetWindow]:
    """What can be read of the log, ascending."""
    stored = [] if log.lineage is None else [(span.start, span.stop) for span in log.lineage.spans]
    live = [] if log.live_start is None else [(log.live_start, MAX_OFFSET)]
    return sorted((*stored, *live))
