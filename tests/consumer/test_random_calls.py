"""Random sequences of all calls on confluent-kafka's consumer and ours: the same records, results and errors.

Two topics have the same records, and each consumer reads one of them. One topic is complete on the broker, the other is
partly in the bucket only. Intended differences are left out here; docs/how-to/consumer.md lists those that users see.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, OFFSET_STORED, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from tests.support.kafka.kafka_topics import Produced, delete_records, make_topic, producer_of, send
from tests.support.kafka.live_topics import TieredTopic
from tests.support.servers.kafka import KafkaServer
from tieredstore.consumer import Consumer
from tieredstore.limits import MAX_OFFSET

pytestmark = [pytest.mark.slow, pytest.mark.broker]

PROTOCOLS: Final[dict[str, dict[str, str]]] = {
    "by hand": {},
    "eager": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "kip848": {"group.protocol": "consumer"},
}
DEADLINE_S: Final = 60.0
TAIL_BASE: Final = -2000  # librdkafka's RD_KAFKA_OFFSET_TAIL_BASE
_library: Any = confluent_kafka

Spot = tuple[str, int]
"""A partition of both consumers' topics: a name that stands for the topic of either one, and a number."""
SPOTS: Final[tuple[Spot, ...]] = (("tiered", 0), ("tiered", 1), ("live", 0))


class Twins:
    """The same records in two topics. ``names`` has the topic of each consumer."""

    def __init__(self, server: KafkaServer, folder: Path) -> None:
        self.server = server
        self.tiered = TieredTopic(server, folder, partitions=2)
        self.names = {
            "plain": {"tiered": make_topic(server, partitions=2), "live": make_topic(server)},
            "ours": {"tiered": self.tiered.topic, "live": make_topic(server)},
        }
        self.ends = dict.fromkeys(SPOTS, 0)
        for spot in SPOTS:
            self.produce(spot, 40)
        self.tiered.tier()
        # One partition is partly deleted on the broker, within a segment; the other is complete there.
        delete_records(server, self.tiered.topic, 13)

    def produce(self, spot: Spot, count: int) -> None:
        producer = producer_of(self.server)
        records = [Produced(b"k" * 1000, b"%d" % at) for at in range(self.ends[spot], self.ends[spot] + count)]
        for names in self.names.values():
            for at in range(0, count, 10):
                send(producer, names[spot[0]], records[at : at + 10], partition=spot[1])
        self.ends[spot] += count


class Side:
    """One of the two consumers, and the next offset of each partition assigned to it."""

    def __init__(self, name: str, consumer: Any, twins: Twins, committed: dict[Spot, int], told: list[str]) -> None:
        self.name = name
        self.consumer = consumer
        self._twins = twins
        self._topics = twins.names[name]
        self._spots = {topic: spot for spot, topic in self._topics.items()}
        self._committed = committed
        self._told = told
        """JSON statistics that the plain client has reported."""
        self._is_settled = True
        self.nexts: dict[Spot, int] = {}
        """The next expected offset."""
        self.given: set[Spot] = set()
        """Partitions that returned a record since they were assigned or sought."""
        self.heard: list[tuple[str, Spot]] = []
        """Calls of the group's callbacks: their kind and partition."""
        self.starts_at: int | None = None
        """Start offset in the assign callback; None leaves it to the library."""
        self.commits_revoked = False
        self.outcomes: list[object] = []

    def wait_for_the_coordinator(self) -> None:
        """Wait for the coordinator, because the plain client passes a temporary refusal on to its caller."""
        end = time.monotonic() + DEADLINE_S
        while not isinstance(self.outcome(lambda: self.consumer.committed([self.place(SPOTS[0])], 5)), list):
            assert time.monotonic() < end

    def place(self, spot: Spot, offset: int = OFFSET_INVALID) -> Place:
        return Place(self._topics[spot[0]], spot[1], offset)

    def topics(self, names: Iterable[str]) -> list[str]:
        return [self._topics[name] for name in names]

    def outcome(self, call: Callable[[], object]) -> object:
        """Return a call's result or error in a comparable form."""
        try:
            result = call()
        except KafkaException as error:
            return KafkaError(error.args[0].code()).name()
        except Exception as error:  # noqa: BLE001  the test compares classes
            return type(error).__name__
        return self._plain(result)

    def _plain(self, result: object) -> object:
        if isinstance(result, list):
            places: list[Place] = result
            return sorted((self._spots[place.topic], place.partition, place.offset) for place in places)
        return result

    def assigned(self) -> set[Spot]:
        return {(self._spots[place.topic], place.partition) for place in self.consumer.assignment()}

    @property
    def is_located(self) -> bool:
        """True if the consumer reports a position for each partition."""
        return all(place.offset >= 0 for place in self.consumer.position([self.place(spot) for spot in self.nexts]))

    def settle(self, source: random.Random) -> None:
        """Read until the plain client fetches exactly the assigned partitions.

        Other calls must wait, because of a fault of librdkafka 2.16. If a call changes something during a request to
        the broker, the client drops the answer and repeats the request half a second later. If the partition was sought
        or assigned again by then, the repeated request moves it back to the earlier place. If the partition was
        unassigned, the request still sets a place, from which the next assignment then fetches.
        """
        end = time.monotonic() + DEADLINE_S
        self._told.clear()
        since, agreeing = time.monotonic() * 1e6, 0
        while not self._is_settled and agreeing < 2:
            self.read(1, 0.01, source)
            # The first statistics after a call may predate the call's effect.
            for told in map(json.loads, self._told):
                if told["ts"] > since:
                    agreeing = agreeing + 1 if self._fetching(told) == dict.fromkeys(self.nexts, "active") else 0
            self._told.clear()
            assert time.monotonic() < end, (self.name, self.nexts)
        self._is_settled = True

    def _fetching(self, told: dict[str, Any]) -> dict[Spot, str]:
        """Return the partitions that the plain client fetches or asks about, by its statistics."""
        return {
            (self._spots[topic["topic"]], int(number)): partition["fetch_state"]
            for topic in told["topics"].values()
            for number, partition in topic["partitions"].items()
            if partition["fetch_state"] not in {"none", "stopped"}
        }

    def begin(self, spot: Spot, offset: int) -> None:
        """Set the model's start of a partition."""
        self._is_settled = False
        end = self._twins.ends[spot]
        if offset <= TAIL_BASE:
            offset = max(0, end - (TAIL_BASE - offset))
        elif offset in (OFFSET_STORED, OFFSET_INVALID):
            offset = self._committed.get(spot, 0)
        elif offset < 0:
            offset = {OFFSET_BEGINNING: 0, OFFSET_END: end}[offset]
        self.nexts[spot] = offset
        self.given.discard(spot)

    def end(self, spot: Spot) -> None:
        self._is_settled = False
        self.nexts.pop(spot, None)
        self.given.discard(spot)

    def end_all(self) -> None:
        self._is_settled = False
        self.nexts.clear()
        self.given.clear()

    def subscribe(self, names: Sequence[str]) -> object:
        callbacks = {"on_assign": self._on_assign, "on_revoke": self._on_revoke, "on_lost": self._on_revoke}
        return self.outcome(lambda: self.consumer.subscribe(self.topics(names), **callbacks))

    def _on_assign(self, consumer: Any, places: list[Place]) -> None:
        spots = [(self._spots[place.topic], place.partition) for place in places]
        self.heard += [("assigned", spot) for spot in spots]
        offset = OFFSET_INVALID if self.starts_at is None else self.starts_at
        for spot in spots:
            self.begin(spot, offset)
        if self.starts_at is not None:
            chosen = [self.place(spot, offset) for spot in spots]
            (consumer.assign if self.is_eager else consumer.incremental_assign)(chosen)

    def _on_revoke(self, consumer: Any, places: list[Place]) -> None:
        spots = [(self._spots[place.topic], place.partition) for place in places]
        self.heard += [("revoked", spot) for spot in spots]
        if self.commits_revoked:
            outcome: Any = self.outcome(lambda: consumer.commit(asynchronous=False))
            self.outcomes.append(outcome)
            if isinstance(outcome, list):
                # Update at once, because the next assignment may come in this very call, and starts at these offsets.
                self._committed.update({(name, number): offset for name, number, offset in outcome if offset >= 0})
        for spot in spots:
            self.end(spot)

    is_eager = False

    def read(self, count: int, wait: float, source: random.Random) -> None:
        """Make one call that returns records. Assert that each record is the next of its partition."""
        if self.name == "ours" and source.random() < 0.3:
            batch = self.consumer.poll_arrow(wait, count, ["offset", "value"])
            if batch is not None:
                rows = batch.records.to_pydict()
                for offset, value in zip(rows["offset"], rows["value"], strict=True):
                    self._take((self._spots[batch.topic], batch.partition), offset, value)
            return
        if count == 1 or self.name == "plain":
            message = self.consumer.poll(wait)
            messages = [] if message is None else [message]
        else:
            messages = self.consumer.consume(count, wait)
        for message in messages:
            assert message.error() is None, (self.name, message.error())
            spot = self._spots[message.topic()], message.partition()
            self._take(spot, message.offset(), message.value())

    def _take(self, spot: Spot, offset: int, value: bytes) -> None:
        assert self.nexts.get(spot) == offset, (self.name, spot, self.nexts, offset)
        assert value == b"%d" % offset
        self.nexts[spot] = offset + 1
        self.given.add(spot)


class Calls:
    """A random sequence of calls for both consumers, and the model of comparable results."""

    def __init__(self, protocol: str, twins: Twins, source: random.Random, mode: str) -> None:
        self.protocol, self.twins, self.source = protocol, twins, source
        self.committed: dict[Spot, int] = {}
        self.paused: dict[Spot, bool] = {}
        """Every partition that was ever assigned, with True if it is paused."""
        self.mode = mode
        self.done: list[object] = []
        """The last steps, shown with an error."""
        group = f"random-{source.getrandbits(60)}"
        common = {
            "bootstrap.servers": twins.server.bootstrap_servers, "auto.offset.reset": "earliest", "log_level": 0,
            "enable.auto.commit": False, "fetch.wait.max.ms": 10, **PROTOCOLS[protocol],
        }  # fmt: skip
        own = {
            "tiered.storage.settings": twins.tiered.store | {"chunk.size": "8192"}, "tiered.storage.mode": mode,
            "tiered.storage.refresh.ms": 200,
        }  # fmt: skip
        told: list[str] = []
        watched = {"statistics.interval.ms": 10, "stats_cb": told.append}
        consumers = {
            "plain": _library.Consumer({**common, **watched, "group.id": f"{group}-plain"}),
            "ours": Consumer({**common, **own, "group.id": f"{group}-ours"}),
        }
        self.sides = [Side(name, consumer, twins, self.committed, told) for name, consumer in consumers.items()]
        for side in self.sides:
            side.is_eager = protocol == "eager"
            side.wait_for_the_coordinator()
        self.plain, self.ours = self.sides
        self.subscribed: tuple[str, ...] = ()

    def close(self) -> None:
        for side in self.sides:
            side.consumer.close()

    # ---- comparisons

    def same(self, call: Callable[[Side], object], *what: object) -> object:
        """Call both consumers, assert equal outcomes, and return the outcome."""
        self.done.append(what)
        # Call our consumer at once, in any state.
        ours = self._settled(self.ours, partial(call, self.ours))
        self.plain.settle(self.source)
        plain = self._settled(self.plain, partial(call, self.plain))
        assert plain == ours, (plain, ours)
        return plain

    def _settled(self, side: Side, call: Callable[[], object]) -> object:
        """Repeat the call while a rebalance interferes; return the outcome."""
        end = time.monotonic() + DEADLINE_S
        while (outcome := side.outcome(call)) in ("ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "STALE_MEMBER_EPOCH"):
            assert time.monotonic() < end, outcome
            side.read(1, 0.02, self.source)
        return outcome

    def serve(self, is_done: Callable[[Side], bool]) -> None:
        """Read with each consumer until ``is_done`` holds for it."""
        end = time.monotonic() + DEADLINE_S
        for side in self.sides:
            while not is_done(side):
                side.read(self.source.choice([1, 3, 50]), 0.02, self.source)
                assert time.monotonic() < end, (side.name, side.nexts, self.paused, self.committed)

    def drain(self) -> None:
        """Read everything from both consumers, and assert that nothing follows."""
        self.done.append("drain")
        self.serve(lambda side: all(side.nexts[spot] == self.twins.ends[spot] for spot in self._running(side)))
        for side in self.sides:
            side.read(50, 0, self.source)

    def _running(self, side: Side) -> list[Spot]:
        return [spot for spot in side.nexts if not self.paused.get(spot)]

    @property
    def assigned(self) -> list[Spot]:
        return sorted(self.plain.nexts)

    @property
    def is_comparable(self) -> bool:
        """True if both consumers have the same offsets to commit. After a seek, they differ until the next record."""
        plain, ours = self.sides
        return ours.nexts == plain.nexts and ours.given == plain.given == set(ours.nexts)

    # ---- steps

    def step(self) -> None:
        steps: list[Callable[[], None]] = [
            self.drain, self.drain, self.some, self.produce, self.pause, self.resume, self.resume, self.seek,
            self.seek_refused, self.commit, self.commit_offsets, self.questions, self.refused,
        ]  # fmt: skip
        by_hand = [self.assign, self.unassign, self.add, self.remove]
        in_group = [self.subscribe, self.unsubscribe, self.refused_by_the_group]
        self.source.choice(steps + 2 * (by_hand if self.protocol == "by hand" else in_group))()

    def some(self) -> None:
        for side in self.sides:
            side.read(self.source.choice([1, 2, 7]), 0.02, self.source)

    def produce(self) -> None:
        # A start relative to the log's end must be resolved before the end moves, even for paused partitions.
        self.plain.settle(self.source)
        self.serve(lambda side: side is self.plain or side.is_located)
        self.twins.produce(self.source.choice(SPOTS), self.source.randrange(1, 6))

    def pause(self) -> None:
        # The plain client may also pause other partitions, if it happens to know the topic.
        known = sorted(self.paused)
        if not known:
            return
        chosen = self.source.sample(known, self.source.randrange(1, min(3, len(known) + 1)))
        self.same(lambda side: side.consumer.pause([side.place(spot) for spot in chosen]), "pause", chosen)
        self.paused.update(dict.fromkeys(chosen, True))

    def resume(self) -> None:
        chosen = self.source.sample(SPOTS, self.source.randrange(1, 4))
        self.same(lambda side: side.consumer.resume([side.place(spot) for spot in chosen]), "resume", chosen)
        self.paused.update({spot: False for spot in chosen if spot in self.paused})

    def _offset(self, spot: Spot) -> int:
        """Return a start offset."""
        end = self.twins.ends[spot]
        logical = [OFFSET_BEGINNING, OFFSET_END, TAIL_BASE - self.source.choice([0, 1, 9, 1000])]
        return self.source.choice([self.source.randrange(end + 1), *logical])

    def seek(self) -> None:
        if not self.assigned:
            return
        spot = self.source.choice(self.assigned)
        offset = self.source.choice([self._offset(spot), self._offset(spot), OFFSET_INVALID])
        call = "seek", spot, offset
        assert self.same(lambda side: side.consumer.seek(side.place(spot, offset)), *call) is None
        for side in self.sides:
            side.begin(spot, OFFSET_BEGINNING if offset == OFFSET_INVALID else offset)

    def seek_refused(self) -> None:
        others = [spot for spot in SPOTS if spot not in self.assigned and spot in self.paused]
        if others:
            spot = self.source.choice(others)
            assert self.same(lambda side: side.consumer.seek(side.place(spot, 3)), "seek", spot) == "_STATE"
        if self.assigned:
            spot = self.source.choice(self.assigned)
            call = "seek", spot, OFFSET_STORED
            assert self.same(lambda side: side.consumer.seek(side.place(spot, OFFSET_STORED)), *call) == "_INVALID_ARG"
            # After a refused seek, the plain client returns nothing of the partition until another seek.
            for side in self.sides:
                side.consumer.seek(side.place(spot, side.nexts[spot]))
                side.begin(spot, side.nexts[spot])

    def commit(self) -> None:
        self.plain.settle(self.source)
        if self.is_comparable:
            # Never commit a lower offset, because the consumers differ there, as docs/how-to/consumer.md says.
            if any(self.committed.get(spot, 0) > self.plain.nexts[spot] for spot in self.assigned):
                return
            outcome = self.same(lambda side: side.consumer.commit(asynchronous=False), "commit")
            if outcome != "_NO_OFFSET":
                self.committed |= self.plain.nexts

    def commit_offsets(self) -> None:
        # For other partitions, the consumer may still wait for the group's committed offset.
        known = sorted(self.plain.given & self.ours.given)
        if known:
            spot = self.source.choice(known)
            offset = self.source.randrange(self.twins.ends[spot] + 1)

            def call(side: Side) -> Any:
                return side.consumer.commit(offsets=[side.place(spot, offset)], asynchronous=False)

            if isinstance(self.same(call, "commit", spot, offset), list):
                self.committed[spot] = offset

    def questions(self) -> None:
        self.same(lambda side: side.consumer.assignment() and side.assigned(), "assignment")
        asked = self.source.sample(SPOTS, 2)
        self.same(lambda side: side.consumer.committed([side.place(spot) for spot in asked], DEADLINE_S), "committed")
        known = sorted(self.plain.given & self.ours.given)
        for side in self.sides:
            places = side.consumer.position([side.place(spot) for spot in known])
            assert [place.offset for place in places] == [side.nexts[spot] for spot in known]
        self.same(lambda side: side.consumer.get_watermark_offsets(side.place(("tiered", 1)), DEADLINE_S), "extent")
        # All records have the same time, so ask only for times before and after it.
        for moment in (0, MAX_OFFSET):
            self.same(partial(self._times, asked, moment), "times", moment)

    def _times(self, spots: Sequence[Spot], moment: int, side: Side) -> Any:
        return side.consumer.offsets_for_times([side.place(spot, moment) for spot in spots], DEADLINE_S)

    def refused(self) -> None:
        calls: list[Callable[[Side], Any]] = [
            lambda side: side.consumer.assign(3),
            lambda side: side.consumer.pause((side.place(SPOTS[0]),)),
            lambda side: side.consumer.seek(None),
            lambda side: side.consumer.store_offsets(),
            lambda side: side.consumer.store_offsets(offsets=[side.place(SPOTS[0], 3)]),
            lambda side: side.consumer.commit(message=3),
            lambda side: side.consumer.commit(offsets=[side.place(SPOTS[0])], asynchronous=False),
            lambda side: side.consumer.subscribe("tiered"),
            lambda side: side.consumer.subscribe([]),
            lambda side: side.consumer.subscribe(side.topics(["live"]), on_assign=3),
            lambda side: side.consumer.consume(-1),
            lambda side: side.consumer.consume(10_000_000),
            lambda side: side.consumer.position(None),
            lambda side: side.consumer.offsets_for_times((), 1),
        ]
        number = self.source.randrange(len(calls))
        outcome = self.same(calls[number], "refused", number)
        assert isinstance(outcome, str), (number, outcome)

    # ---- assigned by hand

    def _places(self, spots: Sequence[Spot]) -> list[tuple[Spot, int]]:
        return [(spot, self.source.choice([self._offset(spot), OFFSET_STORED, OFFSET_INVALID])) for spot in spots]

    def _begin(self, places: Sequence[tuple[Spot, int]]) -> None:
        for side in self.sides:
            for spot, offset in places:
                side.begin(spot, offset)
        for spot, _ in places:
            self.paused.setdefault(spot, False)

    def assign(self) -> None:
        chosen = self._places(self.source.sample(SPOTS, self.source.randrange(1, 4)))
        if self.source.random() < 0.2:
            twice = [*chosen, self.source.choice([chosen[0], (chosen[0][0], -3)])]
            outcome = self.same(lambda side: side.consumer.assign([side.place(*one) for one in twice]), "assign", twice)
            assert outcome == "_INVALID_ARG"
            # The refused call has dropped the plain client's assignment.
            self.unassign()
            return
        self.same(lambda side: side.consumer.assign([side.place(*one) for one in chosen]), "assign", chosen)
        for side in self.sides:
            side.end_all()
        self._begin(chosen)

    def unassign(self) -> None:
        self.same(lambda side: side.consumer.unassign(), "unassign")
        for side in self.sides:
            side.end_all()

    def add(self) -> None:
        chosen = self._places(self.source.sample(SPOTS, self.source.randrange(1, 3)))
        call = "incremental_assign", chosen
        outcome = self.same(lambda side: side.consumer.incremental_assign([side.place(*one) for one in chosen]), *call)
        if outcome is None:
            self._begin(chosen)

    def remove(self) -> None:
        chosen = self.source.sample(SPOTS, self.source.randrange(1, 3))
        call = "incremental_unassign", chosen
        outcome = self.same(lambda side: side.consumer.incremental_unassign([side.place(s) for s in chosen]), *call)
        if outcome is None:
            for side in self.sides:
                for spot in chosen:
                    side.end(spot)

    # ---- by a group

    def subscribe(self) -> None:
        """Subscribe and wait for the assignment; sometimes right after leaving."""
        names = self.source.choice([("tiered",), ("live",), ("tiered", "live")])
        starts_at = self.source.choice([None, None, OFFSET_BEGINNING, 7, TAIL_BASE - 4])
        commits, before = self._prepare_revocation(), set(self.assigned)
        if self.subscribed and self.source.random() < 0.3:
            self.same(lambda side: side.consumer.unsubscribe(), "unsubscribe")
            self.subscribed, before = (), set[Spot]()
        for side in self.sides:
            side.starts_at, side.commits_revoked = starts_at, commits
        self.same(lambda side: side.subscribe(names), "subscribe", names, starts_at)
        self.subscribed = names
        wanted = {spot for spot in SPOTS if spot[0] in names}
        # Eager groups always reassign everything. Other groups assign only new partitions.
        known = set() if self.protocol == "eager" else wanted & before
        self.serve(
            lambda side: (
                set(side.nexts) == wanted == side.assigned()
                and known | {spot for kind, spot in side.heard if kind == "assigned"} == wanted
            )
        )
        self._compare_callbacks()
        self.paused.update({spot: self.paused.get(spot, False) for spot in wanted})

    def unsubscribe(self) -> None:
        commits = self._prepare_revocation()
        for side in self.sides:
            side.commits_revoked = commits
        self.same(lambda side: side.consumer.unsubscribe(), "unsubscribe")
        self.same(lambda side: side.assigned(), "assignment")
        self.subscribed = ()
        self.serve(lambda side: not side.nexts and not side.assigned())
        self._compare_callbacks()

    def _prepare_revocation(self) -> bool:
        """Return True if the callback should commit: only if that gives the same result on both sides."""
        if not self.assigned or self.source.random() < 0.5:
            return False
        self.drain()
        is_behind = any(self.committed.get(spot, 0) > self.plain.nexts[spot] for spot in self.assigned)
        return self.is_comparable and not is_behind

    def _compare_callbacks(self) -> None:
        plain, ours = self.sides
        assert sorted(plain.heard) == sorted(ours.heard)
        assert plain.outcomes == ours.outcomes
        for side in self.sides:
            side.heard.clear()
            side.outcomes.clear()

    def refused_by_the_group(self) -> None:
        """Assert that assignments of another kind than the group's are refused without effect."""
        if not self.assigned:
            return
        spot = self.source.choice(SPOTS)
        if self.protocol == "eager":
            add, remove = (
                self.same(lambda side: side.consumer.incremental_assign([side.place(spot)]), "add"),
                self.same(lambda side: side.consumer.incremental_unassign([side.place(spot)]), "remove"),
            )
            assert add == remove == "_STATE"
            return
        assert self.same(lambda side: side.consumer.assign([side.place(spot)]), "assign") == "_STATE"
        assert self.same(lambda side: side.consumer.unassign(), "unassign") == "_STATE"
        assigned = self.assigned[0]
        outcome = self.same(lambda side: side.consumer.incremental_assign([side.place(assigned)]), "add again")
        assert outcome == "_CONFLICT"


@pytest.fixture
def twins(kafka: KafkaServer, tmp_path: Path) -> Iterator[Twins]:
    pair = Twins(kafka, tmp_path)
    yield pair
    pair.tiered.close()


def compare(protocol: str, twins: Twins, seed: str, steps: int) -> None:
    """Make ``steps`` random calls on both consumers, in sequences of at most 150."""
    source, compared = random.Random(f"{protocol} {seed}"), 0
    while compared < steps:
        calls = Calls(protocol, twins, source, source.choice(["kafka_preferred", "remote_preferred"]))
        try:
            for _ in range(min(150, steps - compared)):
                calls.step()
                compared += 1
            calls.drain()
        except BaseException as error:
            error.add_note(f"{protocol}, seed {seed!r}, {calls.mode}, call {compared}: {calls.done[-25:]}")
            raise
        finally:
            calls.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_random_calls_are_taken_as_by_the_library(twins: Twins, protocol: str) -> None:
    compare(protocol, twins, "1", 50)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_thousands_of_random_calls_are_taken_as_by_the_library(twins: Twins, protocol: str) -> None:
    compare(protocol, twins, f"soak {os.environ.get('SEED', '')}", 1500)
