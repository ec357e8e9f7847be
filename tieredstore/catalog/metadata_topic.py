"""The state of every remote segment, from the records of ``__remote_log_metadata`` in order."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tieredstore.catalog.metadata_records import (
    SegmentRecord,
    SegmentState,
    SegmentUpdate,
    parse_metadata_record,
)
from tieredstore.catalog.problems import Problem, ProblemKind
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition

_PROBLEMS: Final = {
    SegmentState.COPY_SEGMENT_STARTED: ProblemKind.UNFINISHED,
    SegmentState.DELETE_SEGMENT_STARTED: ProblemKind.BEING_DELETED,
}


class SegmentStates:
    """Takes the records of all partitions of the metadata topic; for one thread.

    As in Kafka a segment can be read only between the end of its copy and the start of its deletion. Records that come
    twice change nothing, and an update of a segment that is not known (its first record was deleted) tells nothing.
    """

    def __init__(self) -> None:
        self._segments: defaultdict[TopicIdPartition, dict[RemoteLogSegmentId, SegmentRecord]] = defaultdict(dict)

    def apply(self, value: bytes) -> None:
        """Take the value of the next record; CorruptData if it is none of Kafka's."""
        record = parse_metadata_record(value)
        if isinstance(record, SegmentRecord):
            known = self._segments[record.metadata.topic_id_partition]
            known.setdefault(record.metadata.remote_log_segment_id, record)
        elif isinstance(record, SegmentUpdate):
            self._update(record)
        else:
            # From the mark on nothing of the partition is to be read, and its topic's id does not come again.
            self._segments.pop(record.partition, None)

    def finished(self) -> Iterator[RemoteLogSegmentMetadata]:
        """The segments that can be read."""
        return (
            record.metadata
            for known in self._segments.values()
            for record in known.values()
            if record.state is SegmentState.COPY_SEGMENT_FINISHED
        )

    def problems(self) -> Iterator[Problem]:
        """The segments that cannot be read, yet or any more."""
        for segment_id, record in itertools.chain(*(known.items() for known in self._segments.values())):
            if (kind := _PROBLEMS.get(record.state)) is not None:
                yield Problem(kind, segment_id, record.metadata.start_offset, f"{kind.value}, says the metadata topic")

    def _update(self, update: SegmentUpdate) -> None:
        segments = self._segments[update.segment_id.topic_id_partition]
        known = segments.get(update.segment_id)
        if known is None or update.state.value < known.state.value:
            return  # states only go forward
        if update.state is SegmentState.DELETE_SEGMENT_FINISHED:
            del segments[update.segment_id]
            return
        metadata = dataclasses.replace(
            known.metadata,
            broker_id=update.broker_id,
            event_timestamp_ms=update.event_timestamp_ms,
            custom_metadata=update.custom_metadata,
        )
        segments[update.segment_id] = SegmentRecord(metadata, update.state)
