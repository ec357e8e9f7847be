"""Tests of a follower after errors: it returns the records before the error, and fetches the others again."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from tests.kafka.test_batches import message as old_message
from tieredstore.errors import AlreadyClosedError, BatchCorruptError, BrokerDeniedError, BrokerError, TieredStoreError
from tieredstore.kafka.records import RecordDecoder
from tieredstore.live import LiveFollower
from tieredstore.live.faults import Trouble
from tieredstore.live.messages import MessageColumns
from tieredstore.model import TopicPartition

FIRST, SECOND = ("orders", 0), ("orders", 1)


class ScriptedConsumer:
    """A substitute for librdkafka's consumer: it returns all messages of each partition from the assigned offset at
    once.
    """

    logs: dict[TopicPartition, list[Message]]

    def __init__(self, configuration: object) -> None:
        self.trouble = Trouble()
        self.next_offsets: dict[TopicPartition, int] = {}
        self.checked: list[tuple[TopicPartition, int, int]] = []

    def incremental_assign(self, partitions: Sequence[KafkaPartition]) -> None:
        self.next_offsets |= {(assigned.topic, assigned.partition): assigned.offset for assigned in partitions}

    def incremental_unassign(self, partitions: Sequence[KafkaPartition]) -> None:
        for assigned in partitions:
            del self.next_offsets[assigned.topic, assigned.partition]

    def consume(self, rows: int, timeout: float) -> list[Message]:
        messages: list[Message] = []
        for where, next_offset in self.next_offsets.items():
            came = [message for message in self.logs[where] if (message.offset() or 0) >= next_offset]
            if came:
                self.next_offsets[where] = (came[-1].offset() or 0) + 1
            messages += came
        return messages

    def seek(self, place: KafkaPartition) -> None:
        """Make the leader check the offset, and fetch from there."""
        self.checked.append(((place.topic, place.partition), place.offset, place.leader_epoch))
        self.next_offsets[place.topic, place.partition] = place.offset

    def close(self) -> None: ...


@pytest.fixture
def logs() -> Iterator[dict[TopicPartition, list[Message]]]:
    ScriptedConsumer.logs = {FIRST: [], SECOND: []}
    yield ScriptedConsumer.logs
    del ScriptedConsumer.logs


def message(where: TopicPartition, offset: int, **more: Any) -> Message:
    return Message(topic=where[0], partition=where[1], offset=offset, value=b"%d" % offset, **more)


def refusal(where: TopicPartition, offset: int, code: int) -> Message:
    return Message(topic=where[0], partition=where[1], offset=offset, error=KafkaError(code))


def follow_all(
    polls: int, *partitions: TopicPartition
) -> tuple[dict[TopicPartition, list[int]], list[TieredStoreError]]:
    """Poll, and poll again after each error; return the records and errors by partition."""
    offsets: dict[TopicPartition, list[int]] = {where: [] for where in partitions}
    errors: list[TieredStoreError] = []
    make: Any = ScriptedConsumer
    with LiveFollower(
        {"bootstrap.servers": "localhost:1"},
        isolation="read_committed",
        columns=("offset", "headers"),
        make_consumer=make,
    ) as live:
        live.add(dict.fromkeys(partitions, 0))
        for _ in range(polls):
            try:
                event = live.poll(0)
            except TieredStoreError as error:
                errors.append(error)
                continue
            if event is not None and event.records is not None:
                columns: Any = event.records
                offsets[event.where] += columns.to_pydict()["offset"]
                assert live.positions[event.where] == event.next_offset == offsets[event.where][-1] + 1
    return offsets, errors


@pytest.mark.parametrize(
    ("code", "kind"),
    [(KafkaError.TOPIC_AUTHORIZATION_FAILED, BrokerDeniedError), (KafkaError._BAD_MSG, BatchCorruptError),
     (KafkaError.INVALID_REQUEST, BrokerError)],
)  # fmt: skip
@pytest.mark.parametrize("failing", [FIRST, SECOND])
def test_records_that_came_with_an_error_are_given(
    logs: dict[TopicPartition, list[Message]], failing: TopicPartition, code: int, kind: type[TieredStoreError]
) -> None:
    well = SECOND if failing == FIRST else FIRST
    logs[well] = [message(well, offset) for offset in range(5)]
    logs[failing] = [message(failing, 0), message(failing, 1), refusal(failing, 2, code)]
    offsets, errors = follow_all(6, FIRST, SECOND)
    assert offsets == {well: [0, 1, 2, 3, 4], failing: [0, 1]}
    # The same error comes again, because the follower never skips the record.
    assert len(errors) > 1
    assert {type(error) for error in errors} == {kind}


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_records_that_an_interrupted_call_drops_are_given(
    logs: dict[TopicPartition, list[Message]], monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """If a signal arrives during a call, confluent-kafka drops the messages of the call."""
    logs[FIRST] = [message(FIRST, offset) for offset in range(5)]
    consume, numbers = ScriptedConsumer.consume, itertools.count(1)

    def interrupted(consumer: ScriptedConsumer, *given: Any) -> list[Message]:
        messages = consume(consumer, *given)
        if next(numbers) == failing:
            raise KeyboardInterrupt
        return messages

    monkeypatch.setattr(ScriptedConsumer, "consume", interrupted)
    make, offsets = cast("Any", ScriptedConsumer), list[int]()
    with LiveFollower({"bootstrap.servers": "localhost:1"}, isolation="read_committed", make_consumer=make) as live:
        live.add({FIRST: 0})
        for number in range(10):
            if number == 4:
                logs[FIRST] += [message(FIRST, offset) for offset in range(5, 9)]
            with contextlib.suppress(KeyboardInterrupt):
                event = live.poll(0)
                if event is not None and event.records is not None:
                    offsets += event.records.column("offset").to_pylist()
    assert offsets == list(range(9))


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), KafkaException(KafkaError(KafkaError._STATE))])
@pytest.mark.parametrize("first", [KeyboardInterrupt, BrokerDeniedError])
def test_partitions_that_cannot_be_restarted_end_the_follower(
    logs: dict[TopicPartition, list[Message]],
    monkeypatch: pytest.MonkeyPatch,
    first: type[BaseException],
    failure: BaseException,
) -> None:
    logs[FIRST] = [refusal(FIRST, 0, KafkaError.TOPIC_AUTHORIZATION_FAILED)]
    assign, consume, numbers = ScriptedConsumer.incremental_assign, ScriptedConsumer.consume, itertools.count(1)

    def failing(consumer: ScriptedConsumer, partitions: Sequence[KafkaPartition]) -> None:
        if next(numbers) == 2:
            raise failure
        assign(consumer, partitions)

    def interrupted(consumer: ScriptedConsumer, *given: Any) -> list[Message]:
        if first is KeyboardInterrupt:
            raise KeyboardInterrupt
        return consume(consumer, *given)

    monkeypatch.setattr(ScriptedConsumer, "incremental_assign", failing)
    monkeypatch.setattr(ScriptedConsumer, "consume", interrupted)
    make = cast("Any", ScriptedConsumer)
    with LiveFollower({"bootstrap.servers": "localhost:1"}, isolation="read_committed", make_consumer=make) as live:
        live.add({FIRST: 0})
        with pytest.raises((KeyboardInterrupt, TieredStoreError)):
            live.poll(60)
        with pytest.raises(AlreadyClosedError):
            live.poll(0)


def test_a_record_that_cannot_be_given_is_not_skipped(
    logs: dict[TopicPartition, list[Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs[FIRST] = [message(FIRST, offset) for offset in range(3)]
    logs[SECOND] = [message(SECOND, offset) for offset in range(3)]
    build = MessageColumns.build

    def refusing(columns: MessageColumns, messages: Sequence[Message]) -> Any:
        if messages[0].partition() == FIRST[1]:
            raise BatchCorruptError("a header whose key is not UTF-8")
        return build(columns, messages)

    monkeypatch.setattr(MessageColumns, "build", refusing)
    offsets, errors = follow_all(5, FIRST, SECOND)
    assert offsets == {FIRST: [], SECOND: [0, 1, 2]}
    assert len(errors) > 1
    monkeypatch.setattr(MessageColumns, "build", build)
    assert follow_all(3, FIRST)[0] == {FIRST: [0, 1, 2]}


def test_records_before_one_that_cannot_be_given_are_given(
    logs: dict[TopicPartition, list[Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs[FIRST] = [message(FIRST, offset) for offset in range(5)]
    build = MessageColumns.build

    def refusing(columns: MessageColumns, messages: Sequence[Message]) -> Any:
        if any(one.offset() == 3 for one in messages):
            raise BatchCorruptError("a header whose key is not UTF-8")
        return build(columns, messages)

    monkeypatch.setattr(MessageColumns, "build", refusing)
    offsets, errors = follow_all(5, FIRST)
    assert offsets == {FIRST: [0, 1, 2]}
    assert len(errors) > 1


def test_what_librdkafka_says_of_holes_is_no_error(logs: dict[TopicPartition, list[Message]]) -> None:
    """If compaction has emptied a batch at a segment's end, librdkafka reports a too large record, and continues."""
    hole = refusal(FIRST, 2, KafkaError.MSG_SIZE_TOO_LARGE)
    logs[FIRST] = [message(FIRST, 0), message(FIRST, 1), hole, message(FIRST, 5), message(FIRST, 6)]
    assert follow_all(6, FIRST) == ({FIRST: [0, 1, 5, 6]}, [])


def test_a_partition_that_begins_again_after_an_error_is_checked_for_a_cut(
    logs: dict[TopicPartition, list[Message]],
) -> None:
    """The log of a new leader may have other records below the offset."""
    refused = refusal(FIRST, 2, KafkaError.INVALID_REQUEST)
    logs[FIRST] = [message(FIRST, 0, leader_epoch=3), message(FIRST, 1, leader_epoch=4), refused]
    made: list[ScriptedConsumer] = []

    def make(configuration: object) -> Any:
        made.append(ScriptedConsumer(configuration))
        return made[0]

    with LiveFollower({"bootstrap.servers": "localhost:1"}, isolation="read_committed", make_consumer=make) as live:
        live.add({FIRST: 0}, {FIRST: 2})
        for _ in range(5):
            with contextlib.suppress(BrokerError):
                live.poll(0)
        assert made[0].checked[:2] == [(FIRST, 0, 2), (FIRST, 2, 4)]
        live.add({FIRST: 7})
        live.wait(0)
        assert (FIRST, 7, 4) not in made[0].checked  # this offset does not follow the last record


def test_messages_with_large_headers_are_requested_in_small_numbers(logs: dict[TopicPartition, list[Message]]) -> None:
    """Headers count like keys and values, so that records in memory have a limit."""
    asked: list[int] = []

    class Noting(ScriptedConsumer):
        def consume(self, rows: int, timeout: float) -> list[Message]:
            asked.append(rows)
            return super().consume(rows, timeout)

    header = b"h" * 2**20
    make: Any = Noting
    with LiveFollower({"bootstrap.servers": "none:9"}, isolation="read_committed", make_consumer=make) as follower:
        follower.add({FIRST: 0})
        for end in (10, 20):
            logs[FIRST] = [message(FIRST, at, headers=[("h", header), ("none", None)]) for at in range(end)]
            event = follower.poll(1)
            assert event is not None
            assert event.records is not None
        assert asked == [256, 3]


def test_the_end_of_a_partition_does_not_raise_the_number_of_requested_messages(
    logs: dict[TopicPartition, list[Message]],
) -> None:
    asked: list[int] = []

    class Noting(ScriptedConsumer):
        def consume(self, rows: int, timeout: float) -> list[Message]:
            asked.append(rows)
            return super().consume(rows, timeout)

    make: Any = Noting
    with LiveFollower({"bootstrap.servers": "none:9"}, isolation="read_committed", make_consumer=make) as follower:
        follower.add({FIRST: 0, SECOND: 0})
        logs[FIRST] = [message(FIRST, at, key=b"k" * 2**20) for at in range(3)]
        logs[SECOND] = [refusal(SECOND, at, KafkaError._PARTITION_EOF) for at in range(10)]
        assert follower.poll(1) is not None
        logs[FIRST] = [refusal(FIRST, 3, KafkaError._PARTITION_EOF)]
        assert follower.poll(0) is None
        logs[FIRST] = [message(FIRST, 4)]
        assert follower.poll(1) is not None
        assert asked == [256, 3, 3]


def test_a_record_without_a_timestamp_is_as_in_the_bucket() -> None:
    """Records that were written before Kafka 0.10 have none. librdkafka returns the type 0 and the time 0."""
    columns = MessageColumns(("timestamp", "timestampType"))
    records = columns.build(
        [Message(topic="orders", partition=0, offset=0, timestamp=stamp) for stamp in ((0, 0), (1, 5))]
    )
    (stored,) = RecordDecoder(columns.schema.names).decode([old_message(0, 0)])
    assert records.to_pylist() == [*stored.to_pylist(), {"timestamp": 5, "timestampType": 0}]
