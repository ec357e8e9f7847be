"""Model of a replicated partition, as an oracle for tests: leaders append, fail, truncate each other and copy segments.

Each record has a unique identity, so two logs hold the same record exactly where the entries are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from hypothesis import strategies as st

from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid

PARTITION = TopicIdPartition(Uuid(bytes(range(16))), "events", 3)
REPLICAS = 3


@dataclass(frozen=True)
class Entry:
    """A record, with its unique identity and the epoch of the leader that appended it."""

    epoch: int
    identity: int


def make_segment(
    start: int,
    end: int,
    epochs: LeaderEpochs,
    *,
    number: int = 0,
    copied_ms: int | None = None,
    max_timestamp_ms: int = -1,
    where: TopicIdPartition = PARTITION,
) -> RemoteLogSegmentMetadata:
    """Return the metadata of offsets ``start..end`` (inclusive) of a partition; its id is made from ``number``."""
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(where, Uuid(number.to_bytes(16, "big"))),
        start,
        end,
        100,
        max_timestamp_ms=max_timestamp_ms,
        event_timestamp_ms=number if copied_ms is None else copied_ms,
        segment_leader_epochs=epochs,
    )


@dataclass(frozen=True)
class Copy:
    """Copied segment: its entries, its leader-epoch index, and the leader's log up to the segment's end."""

    segment: RemoteLogSegmentMetadata
    entries: tuple[Entry, ...]
    history: LeaderEpochs
    log: tuple[Entry, ...]

    def holds(self, offset: int) -> Entry | None:
        at = offset - self.segment.start_offset
        return self.entries[at] if 0 <= at < len(self.entries) else None


@dataclass
class PartitionHistory:
    """Logs of some replicas, all from offset 0 on; offsets before ``log_start`` must not be read."""

    logs: list[list[Entry]] = field(default_factory=lambda: [[] for _ in range(REPLICAS)])
    leader: int = 0
    epoch: int = 0
    log_start: int = 0
    copies: list[Copy] = field(default_factory=list)
    appended: int = 0

    def append(self, count: int) -> None:
        for _ in range(count):
            self.logs[self.leader].append(Entry(self.epoch, self.appended))
            self.appended += 1

    def replicate(self, replica: int) -> None:
        """Truncate a follower to the prefix shared with the leader, and fetch the rest."""
        self.logs[replica] = list(self.logs[self.leader])

    def elect(self, replica: int, by: int) -> None:
        """Elect a leader; if its log lacks records, the election is unclean and loses them."""
        self.leader = replica
        self.epoch += by
        self.log_start = min(self.log_start, len(self.logs[replica]))

    def retain(self, share: int) -> None:
        """Advance the log start by ``share`` sixteenths of the log, as retention would."""
        self.log_start += (len(self.logs[self.leader]) - self.log_start) * share // 16

    def copy(self, first: int, size: int) -> None:
        """Copy part of the leader's log, regardless of earlier copies."""
        log = self.logs[self.leader]
        start = self.log_start + first
        entries = tuple(log[start : start + size])
        if entries:
            end = start + len(entries) - 1
            epochs = _epochs(entries, start)
            segment = make_segment(start, end, epochs, number=len(self.copies))
            history = _epochs(log[self.log_start : end + 1], self.log_start)
            self.copies.append(Copy(segment, entries, history, tuple(log[: end + 1])))


def _epochs(entries: Sequence[Entry], start: int) -> LeaderEpochs:
    """Return the leader-epoch checkpoint of these records; like Kafka, leave out epochs without a record."""
    extents: list[tuple[int, int]] = []
    for epoch, group in groupby(enumerate(entries, start), key=lambda item: item[1].epoch):
        extents.append((epoch, next(group)[0]))
    return tuple(extents)


_steps = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 8), st.just(0)),
    st.tuples(st.just("replicate"), st.integers(0, REPLICAS - 1), st.just(0)),
    st.tuples(st.just("elect"), st.integers(0, REPLICAS - 1), st.integers(1, 3)),
    st.tuples(st.just("retain"), st.integers(0, 16), st.just(0)),
    st.tuples(st.just("copy"), st.integers(0, 20), st.integers(1, 20)),
)


@st.composite
def partition_copies(draw: st.DrawFn) -> list[Copy]:
    """Draw the copies that a random history has left in the bucket: at least one, in any order, some of them lost."""
    history = PartitionHistory()
    for name, first, second in draw(st.lists(_steps, min_size=5, max_size=40)):
        match name:
            case "append":
                history.append(first)
            case "replicate":
                history.replicate(first)
            case "elect":
                history.elect(first, second)
            case "retain":
                history.retain(first)
            case _:
                history.copy(first, second)
    if not history.copies:
        history.append(1)
        history.copy(0, 20)
    kept = draw(st.lists(st.booleans(), min_size=len(history.copies), max_size=len(history.copies)))
    left = [copy for copy, stays in zip(history.copies, kept, strict=True) if stays] or history.copies[-1:]
    return draw(st.permutations(left))
