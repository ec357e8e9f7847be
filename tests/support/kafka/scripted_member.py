"""Fake broker side of a consumer, in this process: logs that grow or are truncated, and a group of one member with its
commits.

A :class:`ScriptedBroker` replaces librdkafka and the cluster beneath ``tieredstore.consumer.Consumer``. The test
controls the broker. The consumer makes the same calls as to the real client; a call fails where it would in librdkafka.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from tests.support.records.topic_buckets import FIRST_ID, Bucket, value_of
from tieredstore.consumer import Consumer
from tieredstore.consumer.assembly import Makers, Parts
from tieredstore.errors import BrokerUnavailableError
from tieredstore.live.cluster import GroupCommit, LiveEnd, LiveTopic
from tieredstore.live.epochs import EpochEnd
from tieredstore.model import TopicPartition, Uuid

SELDOM: Final[Mapping[str, object]] = MappingProxyType({"auto.commit.interval.ms": 86_400_000})
"""Client properties with which no commit is due by time."""

_NO_OFFSET: Final = -1001
_ENDLESS: Final = 1 << 62


@dataclass
class ScriptedLog:
    """Log of a partition on the broker, with the offsets from ``start`` to ``end`` (exclusive)."""

    start: int = 0
    end: int = 0
    cut_at: int = _ENDLESS
    """Offset from which on records have a later leader epoch, as after an election that truncated the log here."""
    hole: range = range(0)
    """Offsets removed by compaction at a segment's end: reading from here gives "message too large"."""
    stable: int = _ENDLESS
    """Last stable offset, if before the end."""
    stays_in_hole: bool = False
    """True if every read in the hole fails, not only the first."""
    epoch: int | None = None
    """Leader epoch of the records from ``cut_at`` on; None if the broker does not report epochs."""
    has_leader: bool = True


@dataclass
class ScriptedBroker:
    """State shared by all clients."""

    logs: dict[TopicPartition, ScriptedLog]
    topic_id: Uuid = FIRST_ID
    committed: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    commits: dict[tuple[TopicPartition, int], GroupCommit] = field(
        default_factory=dict[tuple[TopicPartition, int], GroupCommit]
    )
    """Commits of the members, by partition and offset."""
    failures: int = 0
    """Number of upcoming requests that fail."""
    is_eager: bool = False
    """True if the broker's groups assign all partitions at once."""

    def reader(self, config: Mapping[str, Any], **makers: Any) -> Consumer:
        """Return a consumer served by this broker; ``makers`` are fields of :class:`Makers`."""
        given: dict[str, Any] = {
            "cluster": lambda *_, **__: ScriptedCluster(self), "client": partial(ScriptedMember, self),
            "reassign_s": 0.005, "first_pause_s": 0.002, **makers,
        }  # fmt: skip
        kind: Any = type("ScriptedConsumer", (Consumer,), {"_makers": Makers(**given)})
        consumer: Consumer = kind(dict(config))
        return consumer

    @contextmanager
    def consumer(
        self,
        bucket: Bucket,
        *wheres: TopicPartition,
        makers: Any = MappingProxyType({}),
        client: Mapping[str, object] = MappingProxyType({}),
        **own: Any,
    ) -> Generator[tuple[Consumer, ScriptedMember]]:
        """Yield a consumer and its member, with this assignment, and with ``client`` properties.

        ``own`` has settings of ``tiered.storage``, such as ``refresh_ms`` for ``tiered.storage.refresh.ms``.
        """
        given = {
            "bootstrap.servers": "127.0.0.1:1", "group.id": "readers", "auto.offset.reset": "earliest", "log_level": 0,
            "partition.assignment.strategy": "range" if self.is_eager else "cooperative-sticky",
            "auto.commit.interval.ms": 0,
            "tiered.storage.refresh.ms": 50, "tiered.storage.settings": {**bucket.options, "chunk.size": "16384"},
            **{f"tiered.storage.{name if name == 'loss_cb' else name.replace('_', '.')}": own[name] for name in own},
            **client,
        }  # fmt: skip
        with self.reader(given, **makers) as consumer:
            member = member_of(consumer)
            member.is_eager = self.is_eager
            consumer.subscribe(sorted({topic for topic, _ in wheres}))
            member.assign_by_group(*wheres)
            yield consumer, member

    def answer(self) -> None:
        """Raise an error, and count it, if ``failures`` remain."""
        if self.failures:
            self.failures -= 1
            raise BrokerUnavailableError("the broker was told not to answer")

    def expect_leaders(self, wheres: Iterable[TopicPartition]) -> None:
        """Raise an error if one of the partitions has no leader, as the client does for the whole request."""
        for where in wheres:
            if not self.logs[where].has_leader:
                raise BrokerUnavailableError(f"{where} has no leader")


class ScriptedCluster:
    """Admin client's view of the broker."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker

    def within(self, _: float) -> ScriptedCluster:
        return self

    def describe(self, topics: Iterable[str]) -> dict[str, LiveTopic]:
        self._broker.answer()
        known = {
            topic: tuple(sorted(number for name, number in self._broker.logs if name == topic)) for topic in topics
        }
        leaderless = {where for where, log in self._broker.logs.items() if not log.has_leader}
        return {
            topic: LiveTopic(
                topic, self._broker.topic_id, numbers, frozenset(one for one in numbers if (topic, one) in leaderless)
            )
            for topic, numbers in known.items()
            if numbers
        }

    def earliest_offsets(self, wheres: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        self._broker.answer()
        self._broker.expect_leaders(wheres)
        return {where: self._broker.logs[where].start for where in wheres}

    def ends(self, wheres: Sequence[TopicPartition], isolation: object = None) -> dict[TopicPartition, LiveEnd]:
        ends = self.end_offsets(wheres, isolation)
        return {where: LiveEnd(end, self._broker.logs[where].epoch) for where, end in ends.items()}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        """Answer that epoch 0 (or the requested epoch, if lower) ends where the log is cut."""
        self._broker.answer()
        return {where: EpochEnd(min(epoch, 0), self._broker.logs[where].cut_at) for where, epoch in epochs.items()}

    def end_offsets(self, wheres: Sequence[TopicPartition], isolation: object = None) -> dict[TopicPartition, int]:
        self._broker.answer()
        self._broker.expect_leaders(wheres)
        logs = [self._broker.logs[where] for where in wheres]
        ends = [log.end if isolation == "read_uncommitted" else min(log.end, log.stable) for log in logs]
        return dict(zip(wheres, ends, strict=True))

    def commits(self, _: str, wheres: Sequence[TopicPartition]) -> dict[TopicPartition, GroupCommit]:
        self._broker.answer()
        known = {where: offset for where, offset in self._broker.committed.items() if where in wheres}
        return {where: self._broker.commits.get((where, at), GroupCommit(at)) for where, at in known.items()}

    def close(self) -> None: ...


class ScriptedMember:
    """Fake of librdkafka's consumer. Each call returns available data, at once or a moment later."""

    def __init__(self, broker: ScriptedBroker, consumer: object) -> None:
        self._broker = broker
        self._consumer = weakref.ref(consumer)
        self.fetching: dict[TopicPartition, int] = {}
        self.is_eager = False
        self.is_group_cooperative = False
        """True if the group has assigned partitions incrementally. Then it cannot assign all at once."""
        self.paused: set[TopicPartition] = set()
        """Paused partitions, including unassigned ones, because librdkafka keeps a pause across assignments."""
        self.known: set[TopicPartition] = set()
        """Partitions that were assigned at any time. Pausing other partitions has no effect."""
        self.of_group: list[TopicPartition] = []
        """The coordinator's assignment."""
        self.stopped: set[TopicPartition] = set()
        """Partitions in error, until the next assignment."""
        self.truncated: set[TopicPartition] = set()
        """Partitions that are truncated below the consumed offset, which librdkafka detects by the leader epoch."""
        self.stuck: set[TopicPartition] = set()
        """Partitions that deliver nothing until they are reassigned."""
        self.interrupts = 0
        """Number of upcoming calls that drop their messages and raise KeyboardInterrupt, as confluent-kafka does if a
        signal arrives during a call.
        """
        self.emits_eof = False
        """True if the end of a partition is an event, reported once."""
        self.is_silent = False
        """True if the broker does not answer in time."""
        self.calls = 0
        """Number of calls that polled the client."""
        self.rebalances: deque[Callable[[], None]] = deque()
        """Callbacks for the next call that serves the group."""
        self.callbacks: Mapping[str, Callable[..., None]] = {}
        self._given: dict[TopicPartition, int] = {}
        self._ended_at: dict[TopicPartition, int] = {}

    # ---- coordinator actions of a test

    def assign_by_group(self, *wheres: TopicPartition) -> None:
        def rebalance() -> None:
            self.of_group += wheres
            self.callbacks["on_assign"](self._consumer(), _places(wheres))

        self.rebalances.append(rebalance)

    def revoke_by_group(self, *wheres: TopicPartition, are_lost: bool = False) -> None:
        callback = "on_lost" if are_lost else "on_revoke"

        def rebalance() -> None:
            self.of_group = [where for where in self.of_group if where not in wheres]
            self.callbacks[callback](self._consumer(), _places(wheres))

        self.rebalances.append(rebalance)

    # ---- the client's calls

    def subscribe(self, _: Sequence[str], **callbacks: Callable[..., None]) -> None:
        self.callbacks = callbacks

    def unsubscribe(self) -> None:
        if self.of_group:
            self.revoke_by_group(*self.of_group)

    def consume(self, count: int, timeout_s: float) -> list[Any]:
        self.calls += 1
        while self.rebalances:
            self.rebalances.popleft()()
        messages: list[Any] = []
        for where in list(self.fetching):
            if where not in self.paused | self.stopped | self.stuck and len(messages) < count:
                messages += self._fetched(where, count - len(messages))
        if not messages and timeout_s:
            time.sleep(min(timeout_s, 0.001))
        if messages and self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return messages

    def _fetched(self, where: TopicPartition, count: int) -> list[Any]:
        log, offset = self._broker.logs[where], self.fetching[where]
        if where in self.truncated or not log.start <= offset <= log.end:
            self.stopped.add(where)
            cause = KafkaError._LOG_TRUNCATION if where in self.truncated else KafkaError.OFFSET_OUT_OF_RANGE
            self.truncated.discard(where)
            words = f"the requested offset is not available: {KafkaError(cause).str()} (broker 1)"
            if log.cut_at < offset:
                words += f": broker end offset is {log.cut_at} (offset leader epoch 0)"
            error = KafkaError(KafkaError._AUTO_OFFSET_RESET, words)
            return [Message(topic=where[0], partition=where[1], offset=offset, error=error)]
        if offset in log.hole:
            self.fetching[where] = offset if log.stays_in_hole else log.hole.stop
            large = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, f"Message at offset {offset} might be too large to fetch")
            return [Message(topic=where[0], partition=where[1], offset=offset, error=large)]
        offsets = range(offset, min(log.end, offset + count))
        if offset < log.hole.start <= offsets.stop:
            self.fetching[where], self._given[where] = log.hole.stop, log.hole.stop
            offsets = range(offset, log.hole.start)
        elif offsets:
            self.fetching[where] = self._given[where] = offsets.stop
        elif self.emits_eof and self._ended_at.get(where) != offset:
            self._ended_at[where] = offset
            end = KafkaError(KafkaError._PARTITION_EOF)
            return [Message(topic=where[0], partition=where[1], offset=offset, error=end)]
        return [
            Message(
                topic=where[0], partition=where[1], offset=one, value=value_of(*where, one),
                leader_epoch=(log.epoch or 0) if one >= log.cut_at else 0,
            )
            for one in offsets
        ]  # fmt: skip

    def assign(self, places: Sequence[KafkaPartition]) -> None:
        self._expect(KafkaError._STATE, is_so=not self.is_group_cooperative)
        self.fetching.clear()
        self.stopped.clear()
        self._given.clear()
        self._begin(places)

    def unassign(self) -> None:
        self.assign([])

    def incremental_assign(self, places: Sequence[KafkaPartition]) -> None:
        self._expect(KafkaError._STATE, is_so=not self.is_eager)
        self._expect(KafkaError._CONFLICT, is_so=all(_where(place) not in self.fetching for place in places))
        self._begin(places)

    def incremental_unassign(self, places: Sequence[KafkaPartition]) -> None:
        self._expect(KafkaError._STATE, is_so=not self.is_eager)
        self._expect(KafkaError._INVALID_ARG, is_so=all(_where(place) in self.fetching for place in places))
        for place in places:
            where = _where(place)
            del self.fetching[where]
            self._given.pop(where, None)
            self.stopped.discard(where)

    def pause(self, wheres: Iterable[TopicPartition]) -> None:
        self.paused |= set(wheres) & self.known

    def resume(self, wheres: Iterable[TopicPartition]) -> None:
        self.paused -= set(wheres)

    def seek(self, where: TopicPartition, offset: int, epoch: int | None = None) -> None:
        self._expect(KafkaError._STATE, is_so=where in self.fetching and where not in self.stopped)
        self.fetching[where] = offset
        self._given.pop(where, None)
        self._ended_at.pop(where, None)
        if epoch is not None and self._is_cut_below(where, offset, epoch):
            self.truncated.add(where)

    def _is_cut_below(self, where: TopicPartition, offset: int, epoch: int) -> bool:
        log = self._broker.logs[where]
        return log.cut_at < offset and epoch != log.epoch

    def positions(self, wheres: Sequence[TopicPartition]) -> list[KafkaPartition]:
        return [KafkaPartition(*where, self._given.get(where, _NO_OFFSET), leader_epoch=0) for where in wheres]

    def commit(self, places: Iterable[KafkaPartition], *, asynchronous: bool = True) -> Any:
        committed = list(places)
        for place in committed:
            commit = GroupCommit(place.offset, place.metadata, place.leader_epoch)
            self._broker.committed[_where(place)] = place.offset
            self._broker.commits[_where(place), place.offset] = commit
        return None if asynchronous else committed

    def watermarks(self, place: KafkaPartition, timeout_s: float, *, cached: bool = False) -> tuple[int, int] | None:
        log = self._broker.logs[_where(place)]
        if cached:
            return None
        return None if self.is_silent else (log.start, log.end)

    def offsets_for_times(self, places: Sequence[KafkaPartition], timeout_s: float) -> dict[TopicPartition, int]:
        """Use each record's offset as its time."""
        asked = [(self._broker.logs[_where(place)], place) for place in places]
        return {
            _where(place): -1 if place.offset == -1 or place.offset >= log.end else max(log.start, place.offset)
            for log, place in asked
        }

    def _begin(self, places: Sequence[KafkaPartition]) -> None:
        for place in places:
            self.stuck.discard(_where(place))
            self._expect(KafkaError._INVALID_ARG, is_so=place.offset >= 0)  # the consumer must pass explicit offsets
            self.fetching[_where(place)] = place.offset
            self._ended_at.pop(_where(place), None)
            self.known.add(_where(place))

    @staticmethod
    def _expect(code: int, *, is_so: bool) -> None:
        if not is_so:
            raise KafkaException(KafkaError(code, "as librdkafka refuses it"))


def member_of(consumer: Consumer) -> ScriptedMember:
    """Return the fake client inside a consumer served by a scripted broker."""
    inside: Any = consumer
    member: ScriptedMember = inside._client
    return member


def parts_of(consumer: Consumer) -> Parts:
    """Return a consumer's internal parts."""
    inside: Any = consumer
    parts: Parts = inside._parts
    return parts


def _where(place: KafkaPartition) -> TopicPartition:
    return place.topic, place.partition


def _places(wheres: Sequence[TopicPartition]) -> list[KafkaPartition]:
    return [KafkaPartition(*where) for where in wheres]
