"""Made-up partitions with transactions: the broker's log, and the records that a read_committed consumer sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hypothesis import strategies as st

from tests.support.records.stored_records import StoredTopic
from tieredstore.kafka.checkpoints import ProducerState
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.testing.segments import Producer, Record, build_batch, build_end_marker

Act = Literal["send", "commit", "abort", "plain"]
Step = tuple[Act, int, int]  # action, producer, number of records
STEPS = st.tuples(
    st.sampled_from(["send", "send", "send", "commit", "abort", "plain"]), st.integers(1, 4), st.integers(1, 3)
)


@dataclass
class Segment:
    """Segment under construction: its batches, and the aborted transactions for its index."""

    base: int
    batches: list[bytes] = field(default_factory=list[bytes])
    aborted: list[AbortedTransaction] = field(default_factory=list[AbortedTransaction])


@dataclass
class Partition:
    """Partition to which steps are applied; ``outcome`` maps each record's offset to its transaction's outcome."""

    offset: int = 0
    opened: dict[int, int] = field(default_factory=dict[int, int])
    unsettled: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    outcome: dict[int, tuple[bool, int]] = field(default_factory=dict[int, tuple[bool, int]])  # committed, marker
    first_of: dict[int, int] = field(default_factory=dict[int, int])

    def play(self, step: Step, segment: Segment) -> None:
        act, producer, count = step
        if act in ("commit", "abort"):
            self._end(producer, segment, committed=act == "commit")
            return
        who = Producer(producer, 0, 0, transactional=True) if act == "send" else Producer()
        records = [Record(b"%d" % (self.offset + i), timestamp_ms=self.offset + i) for i in range(count)]
        segment.batches.append(build_batch(records, self.offset, producer=who))
        taken = range(self.offset, self.offset + count)
        if act == "send":
            self.opened.setdefault(producer, self.offset)
            self.unsettled.setdefault(producer, []).extend(taken)
            self.first_of.update(dict.fromkeys(taken, self.opened[producer]))
        else:
            self.outcome.update(dict.fromkeys(taken, (True, taken[0])))
        self.offset += count

    def _end(self, producer: int, segment: Segment, *, committed: bool) -> None:
        marker = self.offset
        segment.batches.append(build_end_marker(marker, Producer(producer, 0), commit=committed, timestamp_ms=marker))
        self.offset += 1
        first = self.opened.pop(producer, None)
        if first is None:
            return  # a marker of a transaction without records, which Kafka can write
        self.outcome.update(dict.fromkeys(self.unsettled.pop(producer), (committed, marker)))
        if not committed:
            stable = min([*self.opened.values(), marker + 1])
            segment.aborted.append(AbortedTransaction(producer, first, marker, stable))

    def snapshot(self) -> list[ProducerState]:
        idle = ProducerState(99, 0, 0, 0, 0, 0, -1, -1)
        return [idle, *(ProducerState(who, 0, 0, first, 0, 0, 0, first) for who, first in self.opened.items())]

    def visible(self, end: int, stop: int) -> tuple[list[int], int]:
        """Return the offsets below ``stop`` that a reader of the log up to ``end`` sees, and where the reader stops."""
        limit = min(stop, end)
        for offset, first in self.first_of.items():
            is_decided = offset in self.outcome and self.outcome[offset][1] < end
            if offset < end and not is_decided:
                limit = min(limit, first)
        seen = [offset for offset, (committed, _) in self.outcome.items() if committed and offset < limit]
        return sorted(seen), limit


def store(
    topic: StoredTopic, plan: Sequence[Sequence[Step]], begins: Sequence[int] | None = None
) -> tuple[Partition, list[int]]:
    """Copy a segment for each list of steps; return the partition, and each segment's end.

    Each segment is copied by a broker whose log may lack earlier segments. ``begins`` has the number of the first
    segment in that broker's log.
    """
    partition, ends = Partition(), list[int]()
    for number, steps in enumerate(plan):
        for step in steps:
            partition.play(step, Segment(0))
        begin = 0 if begins is None else begins[number]
        known, segment = Partition([0, *ends][begin]), Segment(0)
        for known_steps in plan[begin : number + 1]:
            segment = Segment(known.offset)
            for step in known_steps:
                known.play(step, segment)
        topic.copy(
            segment.base,
            segment.batches,
            producers=known.snapshot(),
            aborted=segment.aborted,
            leader_epochs=((0, [0, *ends][begin]),),
            broker_id=1 + begin,
        )
        ends.append(partition.offset)
    return partition, ends
