"""State machine of bucket, broker and group: each offset once, in order, and no unreported hole."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import TopicPartition
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.kafka.scripted_member import ScriptedBroker, ScriptedLog, member_of, parts_of
from tests.support.records.topic_buckets import Bucket, value_of
from tests.support.stores.doubles import FaultyStore
from tieredstore.backends.registry import store_from_settings
from tieredstore.config import Settings
from tieredstore.consumer.assembly import Parts
from tieredstore.consumer.partition import Bucket as InBucket
from tieredstore.consumer.streams import Turn
from tieredstore.errors import DataLossError
from tieredstore.live.follower import Link
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.remote import RemoteStorageManager

DEADLINE_S: Final = 60.0
TOPIC: Final = "orders"
WHERES: Final = ((TOPIC, 0), (TOPIC, 1))
PARTITIONS: Final = st.sampled_from(WHERES)
Where = tuple[str, int]


class Machine(RuleBasedStateMachine):
    """One group member with two partitions. The model has the received and the expected offsets of each partition."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.bucket = Bucket(self.folder)
        self.broker = ScriptedBroker({where: ScriptedLog() for where in WHERES})
        self.failures = 0
        self.segments: defaultdict[Where, list[RemoteLogSegmentMetadata]] = defaultdict(list)
        self.positions: dict[Where, int | None] = {}
        """Position of each assigned partition; None if the consumer chose the start and has returned nothing yet."""
        self.paused: set[Where] = set()
        self.reached: defaultdict[Where, int] = defaultdict(int)
        """The highest offset of each partition that was returned or sought."""
        self.given: set[Where] = set()
        self.beginnings: defaultdict[Where, set[int]] = defaultdict(lambda: {0})
        """All starts that the combined log has had. A reset leads to one of them."""
        self.lost: list[Any] = []
        self.later_s = 0.0
        """Seconds by which the consumer's clock is ahead of the real one."""

    def _manager(self, chosen: Settings, **more: Any) -> RemoteStorageManager:
        return RemoteStorageManager(
            chosen, store=FaultyStore(store_from_settings(chosen), lambda _: self._store_fails()), **more
        )

    def _store_fails(self) -> bool:
        self.failures -= self.failures > 0
        return self.failures > 0

    @initialize(
        mode=st.sampled_from(["kafka_preferred", "remote_preferred", "remote_only"]),
        policy=st.sampled_from(["fail", "report"]),
        is_eager=st.booleans(),
    )
    def open(self, mode: str, policy: str, is_eager: bool) -> None:
        self.mode, self.policy = mode, policy
        self.consumer = self.broker.reader(
            {
                "bootstrap.servers": "127.0.0.1:1", "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0,
                "partition.assignment.strategy": "range" if is_eager else "cooperative-sticky",
                "auto.commit.interval.ms": 0, "tiered.storage.mode": mode, "tiered.storage.refresh.ms": 10,
                "tiered.storage.on.data.loss": policy, "tiered.storage.loss_cb": self.lost.append,
                "tiered.storage.settings": self.bucket.options | {"chunk.size": "16384"},
            },
            manager=self._manager,
            clock=lambda: time.monotonic() + self.later_s,
        )  # fmt: skip
        self.member = member_of(self.consumer)
        self.member.is_eager = is_eager
        self.consumer.subscribe([TOPIC])
        self._assigned(*WHERES)

    # ---- bucket and broker

    @rule(where=PARTITIONS, count=st.integers(1, 30))
    def produce(self, where: Where, count: int) -> None:
        self.broker.logs[where].end += count

    @rule(where=PARTITIONS, count=st.integers(1, 20))
    def upload(self, where: Where, count: int) -> None:
        log, end = self.broker.logs[where], self._stored_end(where)
        skip = max(0, log.start - end)
        count = min(count, log.end - end - skip)
        if count > 0:
            self.segments[where].append(self.bucket.write(count, *where, skip=skip))
            # The broker may have deleted records before the first copied segment.
            self.beginnings[where].add(self._beginning(where))

    @rule(where=PARTITIONS, count=st.integers(1, 25), is_careful=st.sampled_from([True, True, True, False]))
    def retain(self, where: Where, count: int, is_careful: bool) -> None:
        """Delete records on the broker, sometimes records that are not copied yet."""
        log = self.broker.logs[where]
        log.start = min(log.start + count, max(log.start, self._stored_end(where)) if is_careful else log.end)
        self.beginnings[where].add(self._beginning(where))

    @rule(where=PARTITIONS)
    def retain_stored(self, where: Where) -> None:
        if len(self.segments[where]) > 1:
            self.bucket.delete(self.segments[where].pop(0))
            self.beginnings[where].add(self._beginning(where))

    @rule(count=st.integers(1, 4))
    def fail_in_the_store(self, count: int) -> None:
        self.failures = count + 1

    @rule(count=st.integers(1, 3))
    def fail_at_the_broker(self, count: int) -> None:
        self.broker.failures = count

    @rule(count=st.integers(1, 2))
    def interrupt(self, count: int) -> None:
        self.member.interrupts = count

    @rule()
    def a_while_passes(self) -> None:
        self.later_s += 0.012

    # ---- the group

    @rule(where=PARTITIONS, are_lost=st.booleans())
    def revoke(self, where: Where, are_lost: bool) -> None:
        """Revoke the partition; the next call assigns it again, as when another member joins or leaves."""
        wheres = WHERES if self.member.is_eager else (where,)
        before = dict(self.positions)
        self.member.revoke_by_group(*wheres, are_lost=are_lost)
        self._poll(1)
        for one in wheres:
            position = before[one]
            if not are_lost and one in self.given and position is not None and self.broker.committed[one] != position:
                # A reset or a loss may have moved the position since.
                assert self._may_follow(one, position, self.broker.committed[one])
        self._assigned(*wheres)

    # ---- user actions

    @rule(count=st.sampled_from([1, 1, 3, 40]))
    def poll(self, count: int) -> None:
        self._poll(count)

    @rule(most=st.sampled_from([1, 7, None]))
    def poll_arrow(self, most: int | None) -> None:
        self._poll_arrow(most, 0.005)

    @rule(where=PARTITIONS, share=st.floats(0, 1))
    def seek(self, where: Where, share: float) -> None:
        first, end = self._beginning(where), self._end(where)
        self._seek(where, first + round(share * (end - first)))

    @rule(where=PARTITIONS)
    def pause(self, where: Where) -> None:
        self._serve_the_group()
        self.consumer.pause([TopicPartition(*where)])
        self.paused.add(where)

    @rule(where=PARTITIONS)
    def resume(self, where: Where) -> None:
        self._serve_the_group()
        self.consumer.resume([TopicPartition(*where)])
        self.paused.discard(where)

    @rule()
    def commit(self) -> None:
        self.consumer.commit()

    @rule()
    def read_all_there_is(self) -> None:
        """Read everything from bucket and broker, up to a hole, which must be reported."""
        end = time.monotonic() + DEADLINE_S
        while behind := [where for where in WHERES if where not in self.paused and self._is_behind(where)]:
            assert time.monotonic() < end, (behind, self.positions, self.consumer.tiered_stats())
            self._poll_arrow(None, 0.01)

    @invariant()
    @precondition(lambda self: hasattr(self, "consumer"))
    def nothing_is_committed_that_was_not_given(self) -> None:
        for where, offset in self.broker.committed.items():
            if offset > self.reached[where]:
                assert self._may_follow(where, self.reached[where], offset), (where, self.reached[where], offset)

    @invariant()
    @precondition(lambda self: hasattr(self, "consumer"))
    def a_partition_is_read_in_one_place(self) -> None:
        core = self._parts.core
        known = core.partitions.values()
        in_bucket = [(one.where, one.phase.stream.turn) for one in known if isinstance(one.phase, InBucket)]
        assert sorted(one.where for one in core.readable) == sorted(where for where, _ in in_bucket)
        assert Turn.DROPPED not in {turn for _, turn in in_bucket}
        assert core.live.unheard == {one.where for one, live in core.live if live.link is not Link.HEARD}
        assert not core.live.leaving or self.member.is_eager
        if not self.member.is_eager or core.live.due_in is None:
            assert set(self.member.fetching) == {partition.where for partition, _ in core.live}

    def teardown(self) -> None:
        try:
            if hasattr(self, "consumer"):
                for where in WHERES:
                    self.resume(where)
                self.read_all_there_is()
                self.consumer.close()
        finally:
            self.bucket.close()
            shutil.rmtree(self.folder)

    # ---- the model

    @property
    def _parts(self) -> Parts:
        return parts_of(self.consumer)

    def _assigned(self, *wheres: Where) -> None:
        for where in wheres:
            self.positions[where] = self.broker.committed.get(where)
            self.given.discard(where)
        self.member.assign_by_group(*wheres)

    def _seek(self, where: Where, offset: int) -> None:
        self._serve_the_group()
        self.consumer.seek(TopicPartition(*where, offset))
        self.positions[where] = offset
        self.reached[where] = max(offset, self.reached[where])

    def _serve_the_group(self) -> None:
        """Serve pending rebalances, because only assigned partitions can be sought and paused."""
        while self.member.rebalances:
            self._poll(1)

    def _poll(self, count: int) -> None:
        try:
            messages: list[Any] = self.consumer.consume(count, 0.005)
        except DataLossError:
            self._step_over_holes()
            return
        except KeyboardInterrupt:
            return
        for message in messages:
            assert message.error() is None, message.error()
            where = message.topic(), message.partition()
            assert message.value() == value_of(*where, message.offset())
            self._take(where, range(message.offset(), message.offset() + 1))

    def _poll_arrow(self, most: int | None, timeout_s: float) -> None:
        try:
            batch = self.consumer.poll_arrow(timeout_s, most, ["offset", "value"])
        except DataLossError:
            self._step_over_holes()
            return
        except KeyboardInterrupt:
            return
        if batch is not None:
            columns: Any = batch.records
            rows = columns.to_pydict()
            offsets = range(batch.start_offset, batch.next_offset)
            assert rows["offset"] == list(offsets)
            where = batch.topic, batch.partition
            assert rows["value"] == [value_of(*where, offset) for offset in offsets]
            self._take(where, offsets)

    def _take(self, where: Where, offsets: range) -> None:
        assert where not in self.paused
        expected = self.positions[where]
        if expected is None:
            assert offsets.start in self.beginnings[where]
        elif offsets.start != expected:
            assert self._may_follow(where, expected, offsets.start), (where, expected, offsets, self.beginnings)
        self.positions[where] = offsets.stop
        self.reached[where] = max(offsets.stop, self.reached[where])
        self.given.add(where)

    def _may_follow(self, where: Where, position: int, offset: int) -> bool:
        """Return True if ``offset`` may follow: after a reset, or if all offsets between are reported as lost."""
        for start, stop in sorted((one.start, one.stop) for one in self.lost if one.partition.partition == where[1]):
            if start <= position < stop:
                position = stop
        was_reset = offset in self.beginnings[where] and self._parts.measures.resets > 0
        return offset == position or (was_reset and offset > position)

    def _step_over_holes(self) -> None:
        """Assert that the error is for a hole at a partition's position, and seek past it."""
        assert self.policy == "fail"
        failed = [where for where, one in self.consumer.tiered_stats().items() if one["phase"] == "failed"]
        assert failed
        for where in failed:
            position = self.positions[where]
            stands = self.consumer.tiered_stats()[where]["position"]
            if position != stands:
                assert position is None or self._may_follow(where, position, stands)
            assert not self._has(where, stands)
            later = [at for at in range(stands, self._end(where)) if self._has(where, at)]
            self._seek(where, later[0] if later else self._end(where))

    def _is_behind(self, where: Where) -> bool:
        position = self.positions[where]
        if position is None:
            position = self._beginning(where)
            return any(self._has(where, at) for at in range(position, self._end(where)))
        return any(self._has(where, at) for at in range(position, self._end(where)))

    def _has(self, where: Where, offset: int) -> bool:
        log = self.broker.logs[where]
        stored = any(one.start_offset <= offset <= one.end_offset for one in self.segments[where])
        return stored or (self.mode != "remote_only" and log.start <= offset < log.end)

    def _stored_end(self, where: Where) -> int:
        return self.bucket.ends[*where, self.broker.topic_id]

    def _end(self, where: Where) -> int:
        return self._stored_end(where) if self.mode == "remote_only" else self.broker.logs[where].end

    def _beginning(self, where: Where) -> int:
        stored = self.segments[where]
        if self.mode == "remote_only":
            return stored[0].start_offset if stored else 0
        live = self.broker.logs[where].start
        return min(live, stored[0].start_offset) if stored else live


def _run(examples: int, steps: int) -> None:
    usual: Any = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    run: Any = run_state_machine_as_test
    run(Machine, settings=settings(max_examples=examples, stateful_step_count=steps, **usual))


@pytest.mark.slow
def test_each_offset_once_and_in_order() -> None:
    _run(12, 25)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_offset_once_and_in_order_for_long() -> None:
    _run(1500, 60)
