"""What is said of a segment, held against what it holds, before it takes anything from another one.

A manifest has no checksum: one digit that is another one makes a segment reach over those behind it, or puts it into a
leader epoch in which it never was. Then all that others hold there would count as known, or its own as left behind.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from tieredstore.catalog.completion import last_batch, read_history
from tieredstore.errors import CorruptData, SegmentCorrupt
from tieredstore.kafka.checkpoints import LeaderEpochs, segment_leader_epochs
from tieredstore.model import RemoteLogSegmentMetadata

if TYPE_CHECKING:
    from tieredstore.kafka.batches import BatchHeader
    from tieredstore.remote.source import SegmentSource


def reaching_over(segments: Iterable[RemoteLogSegmentMetadata]) -> Iterator[RemoteLogSegmentMetadata]:
    """Those that are said to reach into another one; not where several are said to hold the same offsets."""
    ordered = sorted(segments, key=attrgetter("start_offset"))
    if all(one.end_offset < following.start_offset for one, following in itertools.pairwise(ordered)):
        return  # as nearly always
    # At one start the longest goes first, since it is the one that hides the others.
    by_extent = sorted(ordered, key=lambda segment: (segment.start_offset, -segment.end_offset))
    extents = [list(group) for _, group in itertools.groupby(by_extent, key=_extent)]
    for group, following in itertools.pairwise(extents):
        if following[0].start_offset <= group[0].end_offset:
            yield from group


def proven(source: SegmentSource, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """The segment with the end that its last batch has, and with the leader epochs that are its own.

    Three requests. Where compaction took the last batches it ends before what is said, and is none the worse for that:
    no record is behind. CorruptData if its log does not hold together; UnknownKey where it cannot be opened.
    """
    last = last_batch(source, segment)
    if last is None or last.last_offset < segment.start_offset:
        raise SegmentCorrupt(f"{segment} is said to end at offset {segment.end_offset}, and has no batch")
    ended = dataclasses.replace(segment, end_offset=last.last_offset)
    return dataclasses.replace(ended, segment_leader_epochs=_own_epochs(source, ended, last))


def _own_epochs(source: SegmentSource, segment: RemoteLogSegmentMetadata, last: BatchHeader) -> LeaderEpochs:
    """What the leader-epoch index says, unless the log speaks for the manifest."""
    said = segment.segment_leader_epochs
    try:
        history = read_history(source, segment)
    # Then it rules nothing either: what the manifest says has no other witness against it.
    except CorruptData:
        return said
    indexed = segment_leader_epochs(history, segment.start_offset, segment.end_offset)
    if not indexed:
        return said
    # Each batch has the epoch of the leader that took it. Neither of the two has a checksum; this is the third witness.
    index_is_wrong = last.partition_leader_epoch not in (-1, indexed[-1][0])
    return said if said and index_is_wrong else indexed


def _extent(segment: RemoteLogSegmentMetadata) -> tuple[int, int]:
    return segment.start_offset, segment.end_offset
