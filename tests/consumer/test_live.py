"""Bucket and broker as one log, read by a group member: compared with other clients' reads of the whole log."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, TopicPartition

from tests.project.test_docs import blocks
from tests.support.kafka.kafka_topics import (
    Produced,
    add_partitions,
    delete_records,
    delete_topic,
    make_topic,
    producer_of,
    send,
)
from tests.support.kafka.live_topics import SMALL_SEGMENTS, TieredTopic
from tests.support.kafka.scripted_member import parts_of
from tests.support.paths import REPOSITORY
from tests.support.servers.kafka import KafkaServer
from tieredstore.consumer import Consumer
from tieredstore.consumer.client import MemberClient
from tieredstore.errors import DataLossError
from tieredstore.remote import RemoteStorageManager

pytestmark = pytest.mark.slow

DEADLINE_S: Final = 60.0
MODES: Final = ("kafka_preferred", "remote_preferred")
PROTOCOLS: Final[dict[str, dict[str, str]]] = {
    "eager": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "kip848": {"group.protocol": "consumer"},
}
_library: Any = confluent_kafka


@pytest.fixture
def tiered(kafka: KafkaServer, tmp_path: Path) -> Iterator[TieredTopic]:
    """Yield two partitions of 600 records each, whose values are their offsets; the first 200 are only in the
    bucket.
    """
    topic = TieredTopic(kafka, tmp_path, partitions=2)
    for partition in range(2):
        write(topic, [Produced(b"k" * 100, b"%d" % at) for at in range(600)], partition=partition)
    topic.tier(but_last=1)
    for partition in range(2):
        delete_records(kafka, topic.topic, 200, partition=partition)
    yield topic
    topic.close()


def write(topic: TieredTopic, records: list[Produced], *, partition: int = 0, codec: str = "none") -> None:
    """Write in batches that fit a segment. Use one producer, because each takes half a second to end."""
    producer = producer_of(topic.server, **{"compression.type": codec})
    for at in range(0, len(records), 50):
        send(producer, topic.topic, records[at : at + 50], partition=partition)


def properties(tiered: TieredTopic, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": tiered.server.bootstrap_servers, "group.id": f"readers-of-{tiered.topic}",
        "auto.offset.reset": "earliest", "tiered.storage.settings": tiered.store | {"chunk.size": "8192"},
        "tiered.storage.refresh.ms": 200, "log_level": 2,
        **{name.replace("_", "."): value for name, value in more.items()},
    }  # fmt: skip


def gathered(consumers: list[Any], is_enough: Callable[[list[Any]], bool]) -> list[Any]:
    messages: list[Any] = []
    end = time.monotonic() + DEADLINE_S
    while not is_enough(messages):
        assert time.monotonic() < end, sorted((m.partition(), m.offset()) for m in messages)[-3:]
        for consumer in consumers:
            for message in consumer.consume(100, 0.05):
                assert message.error() is None, message.error()
                messages.append(message)
    return messages


def has_as_many(expected: Sized, given: Sized) -> bool:
    return len(given) >= len(expected)


def by_partition(messages: list[Any]) -> dict[int, list[int]]:
    offsets: defaultdict[int, list[int]] = defaultdict(list)
    for message in messages:
        offsets[message.partition()].append(message.offset())
    return dict(offsets)


WHOLE: Final = {0: list(range(600)), 1: list(range(600))}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mode", MODES)
def test_a_member_reads_all_of_both_once(tiered: TieredTopic, mode: str, protocol: str) -> None:
    own = {"tiered.storage.mode": mode, **PROTOCOLS[protocol]}
    with Consumer(properties(tiered) | own) as consumer:
        consumer.subscribe([tiered.topic])
        messages = gathered([consumer], lambda given: len(given) >= 1200)
        assert by_partition(messages) == WHOLE
        assert all(message.value() == b"%d" % message.offset() for message in messages)
        stats = consumer.tiered_stats()
        assert {one["source"] for one in stats.values()} == {"broker"}
        assert {one["side_changes"] for one in stats.values()} == {1}
        positions = consumer.position([TopicPartition(tiered.topic, 0), TopicPartition(tiered.topic, 1)])
        assert [place.offset for place in positions] == [600, 600]
        assert consumer.consumer_group_metadata() is not None


def test_the_next_member_continues_at_the_committed_offset(tiered: TieredTopic) -> None:
    """The committed offset may be in the bucket only. The plain client would skip its record."""
    with Consumer(properties(tiered)) as consumer:
        consumer.subscribe([tiered.topic])
        gathered([consumer], lambda given: len(given) >= 1)
        offsets = [TopicPartition(tiered.topic, 0, 57), TopicPartition(tiered.topic, 1, 599)]
        consumer.commit(offsets=offsets, asynchronous=False)
        assert [place.offset for place in consumer.committed(offsets, DEADLINE_S)] == [57, 599]
        for place in offsets:
            consumer.seek(place)  # so that closing commits the same offset
    with Consumer(properties(tiered)) as consumer:
        consumer.subscribe([tiered.topic])
        messages = gathered([consumer], lambda given: len(given) >= 544)
    assert by_partition(messages) == {0: list(range(57, 600)), 1: [599]}


def test_automatic_commits_have_nothing_that_no_call_has_given(tiered: TieredTopic) -> None:
    """After a crash between a poll and the processing, the messages are returned again."""
    own = {"auto.commit.interval.ms": 0, "tiered.storage.mode": "remote_preferred"}
    with Consumer(properties(tiered) | own) as consumer:
        place = TopicPartition(tiered.topic, 0)
        consumer.assign([place])
        for expected in range(5):
            messages = gathered([consumer], bool) if expected == 0 else consumer.consume(1, DEADLINE_S)
            given = messages[-1].offset() + 1
            consumer.poll_arrow(0, max_rows=1)
            (known,) = _library.Consumer.committed(consumer, [place], timeout=DEADLINE_S)
            assert known.offset <= consumer.position([place])[0].offset
            assert known.offset in {given, -1001} or known.offset < given
    with Consumer(properties(tiered) | own) as consumer:
        (known,) = consumer.committed([place], DEADLINE_S)
        assert known.offset > 0


def test_a_transaction_commits_offsets_of_records_that_come_from_the_bucket(tiered: TieredTopic) -> None:
    """A read-process-write loop gets the member's group metadata, for records of bucket and broker alike."""
    own = {"enable.auto.commit": False, "tiered.storage.mode": "remote_only"}
    # The group fences a transaction of a member that the group does not know.
    producer = producer_of(tiered.server, **{"transactional.id": f"processor-of-{tiered.topic}"})
    producer.init_transactions(DEADLINE_S)
    with Consumer(properties(tiered) | own) as consumer:
        consumer.subscribe([tiered.topic])
        gathered([consumer], lambda given: {message.partition() for message in given} == {0, 1})
        places = consumer.position(consumer.assignment())
        committed: list[list[int]] = []
        for end_transaction in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), DEADLINE_S)
            end_transaction(DEADLINE_S)
            committed.append([place.offset for place in consumer.committed(places, DEADLINE_S)])
        assert committed == [[-1001, -1001], [place.offset for place in places]]
        assert {one["source"] for one in consumer.tiered_stats().values()} == {"bucket"}


def test_stored_offsets_by_hand(tiered: TieredTopic) -> None:
    own = {"enable.auto.offset.store": False, "enable.auto.commit": False}
    place = TopicPartition(tiered.topic, 0)
    with Consumer(properties(tiered) | own) as consumer:
        consumer.assign([TopicPartition(tiered.topic, 0, 10)])
        first = gathered([consumer], bool)[0]
        with pytest.raises(KafkaException) as error:
            consumer.commit(asynchronous=False)
        assert error.value.args[0].code() == confluent_kafka.KafkaError._NO_OFFSET
        consumer.store_offsets(message=first)
        consumer.commit(asynchronous=False)
        assert consumer.committed([place], DEADLINE_S)[0].offset == 11
        with pytest.raises(KafkaException):
            consumer.store_offsets(offsets=[TopicPartition(tiered.topic, 9, 3)])
        consumer.commit(message=first, asynchronous=False)
        assert consumer.committed([place], DEADLINE_S)[0].offset == 11
    with Consumer(properties(tiered)) as consumer, pytest.raises(KafkaException):
        consumer.store_offsets(message=first)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_come_and_go_and_nothing_is_lost(tiered: TieredTopic, protocol: str) -> None:
    """The second member continues at the first member's commits. A revoked partition returns nothing afterwards."""
    own = {"tiered.storage.mode": "remote_preferred", "session.timeout.ms": 6000, **PROTOCOLS[protocol]}
    if protocol == "kip848":
        del own["session.timeout.ms"]
    revoked: list[tuple[int, int]] = []
    with Consumer(properties(tiered) | own) as first:

        def on_revoke(_: Any, places: list[TopicPartition]) -> None:
            revoked.extend((place.partition, len(seen)) for place in places)

        seen: list[Any] = []
        first.subscribe([tiered.topic], on_revoke=on_revoke)
        seen += gathered([first], lambda given: len(given) >= 150)
        with Consumer(properties(tiered) | own) as second:
            second.subscribe([tiered.topic])
            seen += gathered([first, second], lambda _: len(second.assignment()) == 1 and len(first.assignment()) == 1)
        before = tuple(seen)
        seen += gathered([first], lambda given: len({(m.partition(), m.offset()) for m in (*before, *given)}) == 1200)
    assert revoked
    offsets = by_partition(seen)
    assert {partition: sorted(set(given)) for partition, given in offsets.items()} == WHOLE


@pytest.mark.parametrize("protocol", ["eager", "cooperative"])
def test_a_member_that_polls_too_late_returns_nothing_of_lost_partitions(tiered: TieredTopic, protocol: str) -> None:
    """The other member has continued at the group's commits, in the bucket. It loses nothing, and keeps its commits."""
    own = {"tiered.storage.mode": "remote_preferred", "auto.commit.interval.ms": 0, "max.poll.interval.ms": 2000}
    own |= {"session.timeout.ms": 2000, **PROTOCOLS[protocol]}
    with Consumer(properties(tiered) | own) as late, Consumer(properties(tiered) | own) as other:
        lost, seen = list[int](), list[tuple[int, int]]()

        def on_lost(_: Any, places: list[TopicPartition]) -> None:
            lost.extend(place.partition for place in places)

        def take(consumer: Consumer) -> list[int]:
            messages = [one for one in consumer.consume(10, 0.05) if one.error() is None]
            seen.extend((one.partition(), one.offset()) for one in messages)
            return [one.partition() for one in messages]

        late.subscribe([tiered.topic], on_lost=on_lost)
        other.subscribe([tiered.topic])
        end = time.monotonic() + DEADLINE_S
        while not (len(late.assignment()) == len(other.assignment()) == 1 and {1, 0} == {one for one, _ in seen}):
            assert time.monotonic() < end
            take(late)
            take(other)
        (place,) = late.assignment()
        lost.clear()  # on a busy machine, a poll may already have been too late before
        before = max((offset for number, offset in seen if number == place.partition), default=-1)
        while len({offset for number, offset in seen if number == place.partition and offset > before}) < 599 - before:
            assert time.monotonic() < end
            take(other)
        (known,) = other.committed([place], DEADLINE_S)
        while not lost:
            assert time.monotonic() < end
            assert place.partition not in take(late) or lost
        assert lost == [place.partition]
        assert other.committed([place], DEADLINE_S)[0].offset >= known.offset > before


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_partitions_that_are_added_are_read_from_bucket_and_broker(tiered: TieredTopic, protocol: str) -> None:
    own = {"tiered.storage.mode": "remote_preferred", "metadata.max.age.ms": 1000, **PROTOCOLS[protocol]}
    with Consumer(properties(tiered) | own | {"topic.metadata.refresh.interval.ms": 300}) as consumer:
        consumer.subscribe([tiered.topic])
        assert by_partition(gathered([consumer], lambda given: len(given) >= 1200)) == WHOLE
        add_partitions(tiered.server, tiered.topic, 3)
        write(tiered, [Produced(b"k" * 100, b"%d" % at) for at in range(600)], partition=2)
        tiered.tier(but_last=1)
        delete_records(tiered.server, tiered.topic, 200, partition=2)
        assert by_partition(gathered([consumer], lambda given: len(given) >= 600)) == {2: list(range(600))}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_subscribed_topic_is_created_again(tiered: TieredTopic, protocol: str) -> None:
    """All its records are returned, and no record that the bucket has of the earlier topic. The last commit in the
    earlier topic, if the coordinator has kept it, counts as a loss.
    """
    own = {"tiered.storage.mode": "remote_preferred", "metadata.max.age.ms": 1000, **PROTOCOLS[protocol]}
    own |= {"tiered.storage.on.data.loss": "report", "topic.metadata.refresh.interval.ms": 300}
    with Consumer(properties(tiered) | own) as consumer:
        consumer.subscribe([tiered.topic])
        gathered([consumer], lambda given: len(given) >= 1200)
        delete_topic(tiered.server, tiered.topic)
        gathered([consumer], lambda _: not consumer.assignment())
        make_topic(tiered.server, SMALL_SEGMENTS, name=tiered.topic, partitions=2)
        for partition in range(2):
            write(tiered, [Produced(b"k" * 100, b"new")] * 300, partition=partition)
        messages = gathered([consumer], lambda given: len(given) >= 600)
        assert by_partition(messages) == {0: list(range(300)), 1: list(range(300))}
        assert {message.value() for message in messages} == {b"new"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_callback_of_an_assignment_may_make_all_calls(tiered: TieredTopic, protocol: str) -> None:
    own = {"tiered.storage.mode": "remote_preferred", **PROTOCOLS[protocol]}

    def on_assign(consumer: Consumer, places: list[TopicPartition]) -> None:
        times = [TopicPartition(place.topic, place.partition, 0) for place in places]
        assert [place.offset for place in consumer.offsets_for_times(times, DEADLINE_S)] == [0, 0]
        assert consumer.get_watermark_offsets(places[0], DEADLINE_S) == (0, 600)
        starts = [TopicPartition(place.topic, place.partition, 20) for place in places]
        (consumer.assign if protocol == "eager" else consumer.incremental_assign)(starts)
        consumer.seek(TopicPartition(tiered.topic, 0, 550))
        consumer.pause([TopicPartition(tiered.topic, 1)])

    with Consumer(properties(tiered) | own) as consumer:
        consumer.subscribe([tiered.topic], on_assign=on_assign)
        assert by_partition(gathered([consumer], lambda given: len(given) >= 50)) == {0: list(range(550, 600))}
        consumer.resume(consumer.assignment())
        assert by_partition(gathered([consumer], lambda given: len(given) >= 580)) == {1: list(range(20, 600))}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_callback_may_commit_while_the_consumer_closes(tiered: TieredTopic, protocol: str) -> None:
    """The usual way to commit by hand: in ``on_revoke``, before the partitions belong to another member."""
    own = {"enable.auto.commit": False, "tiered.storage.mode": "remote_preferred", **PROTOCOLS[protocol]}
    positions: list[TopicPartition] = []

    def on_revoke(consumer: Consumer, places: list[TopicPartition]) -> None:
        assert consumer.assignment() == sorted(places)
        positions.extend(consumer.position(places))
        consumer.commit(asynchronous=False)
        consumer.close()

    with Consumer(properties(tiered) | own) as consumer:
        consumer.subscribe([tiered.topic], on_revoke=on_revoke)
        offsets = by_partition(gathered([consumer], lambda given: len(by_partition(given)) == 2))
    assert {place.partition: place.offset for place in positions} == {one: at[-1] + 1 for one, at in offsets.items()}
    with pytest.raises(RuntimeError, match="Consumer closed"):
        consumer.poll(0)
    with Consumer(properties(tiered)) as consumer:
        assert [place.offset for place in consumer.committed(positions, DEADLINE_S)] == [
            one.offset for one in positions
        ]


def row_of(message: Any) -> dict[str, Any]:
    kind, moment = message.timestamp()
    headers = [{"key": key, "value": value} for key, value in message.headers() or ()]
    return {
        "key": message.key(), "value": message.value(), "headers": headers or None, "offset": message.offset(),
        "timestamp": moment, "timestampType": kind - 1,
    }  # fmt: skip


def test_paused_in_the_bucket_and_mixed_calls(tiered: TieredTopic) -> None:
    """Records queued at a pause are dropped and read again. Calls for columns and for messages alternate."""
    with Consumer(properties(tiered, enable_partition_eof=True)) as consumer:
        consumer.assign([TopicPartition(tiered.topic, 0, 100)])
        offsets = [message.offset() for message in gathered([consumer], bool)]
        consumer.pause(consumer.assignment())
        consumer.pause(consumer.assignment())
        assert consumer.consume(10, 0.2) == []
        consumer.resume(consumer.assignment())
        consumer.resume(consumer.assignment())
        end = time.monotonic() + DEADLINE_S
        while offsets[-1] < 599:
            assert time.monotonic() < end
            batch = consumer.poll_arrow(0.2, max_rows=7)
            if batch is not None:
                assert batch.start_offset == offsets[-1] + 1
                assert batch.records.num_rows <= 7
                offsets += range(batch.start_offset, batch.next_offset)
            messages = consumer.consume(5, 0.2)
            errors = [error for message in messages if (error := message.error()) is not None]
            assert {error.code() for error in errors} <= {confluent_kafka.KafkaError._PARTITION_EOF}
            offsets += [message.offset() for message in messages if message.error() is None]
    assert offsets == list(range(100, 600))


def test_retention_overtakes_a_live_partition_that_goes_back(tiered: TieredTopic) -> None:
    with Consumer(properties(tiered)) as consumer:
        consumer.assign([TopicPartition(tiered.topic, 0, 250)])
        gathered([consumer], bool)
        consumer.pause(consumer.assignment())
        write(tiered, [Produced(b"k" * 100, b"%d" % at) for at in range(600, 900)])
        tiered.tier(but_last=0)
        delete_records(tiered.server, tiered.topic, 700)
        consumer.seek(TopicPartition(tiered.topic, 0, 210))
        consumer.resume(consumer.assignment())
        messages = gathered([consumer], lambda given: len(given) >= 690)
    assert by_partition(messages) == {0: list(range(210, 900))}


def test_records_that_the_broker_deleted_without_a_copy_are_a_loss(tiered: TieredTopic) -> None:
    end = max(metadata.end_offset + 1 for (partition, _), metadata in tiered.copied.items() if partition == 0)
    delete_records(tiered.server, tiered.topic, end + 20)
    lost: list[Any] = []
    with Consumer(properties(tiered)) as consumer:
        consumer.assign([TopicPartition(tiered.topic, 0, end - 5)])
        gathered([consumer], lambda given: len(given) >= 5)
        with pytest.raises(DataLossError, match=f"offsets {end} to {end + 19} of "):
            consumer.consume(1, DEADLINE_S)
    reporting = {"tiered.storage.on.data.loss": "report", "tiered.storage.loss_cb": lost.append}
    with Consumer(properties(tiered) | reporting) as consumer:
        consumer.assign([TopicPartition(tiered.topic, 0, end - 5)])
        messages = gathered([consumer], lambda given: len(given) >= 600 - end - 15)
    assert by_partition(messages) == {0: [*range(end - 5, end), *range(end + 20, 600)]}
    assert [(extent.start, extent.stop) for extent in lost] == [(end, end + 20)]


def test_callbacks_may_say_where_to_start(tiered: TieredTopic) -> None:
    def on_assign(consumer: Any, places: list[TopicPartition]) -> None:
        consumer.assign([TopicPartition(place.topic, place.partition, 590) for place in places])

    with Consumer(properties(tiered)) as consumer:
        consumer.subscribe([tiered.topic], on_assign=on_assign)
        messages = gathered([consumer], lambda given: len(given) >= 20)
    assert by_partition(messages) == {0: list(range(590, 600)), 1: list(range(590, 600))}


@pytest.mark.parametrize("call", ["poll", "poll_arrow"])
def test_a_record_that_is_ready_waits_ten_milliseconds_for_the_other_source(
    tiered: TieredTopic, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """While a store hangs, each wait for it takes at most ten milliseconds. After the wait, the client is polled
    without waiting.
    """
    answers, steps = threading.Event(), list[tuple[str, float]]()
    fetch, consume = RemoteStorageManager.fetch_log_segment, MemberClient.consume

    def slow(self: RemoteStorageManager, *arguments: Any, **named: Any) -> Any:
        answers.wait(DEADLINE_S)
        return fetch(self, *arguments, **named)

    def noted(self: MemberClient, count: int, wait: float) -> Any:
        steps.append(("client", wait))
        return consume(self, count, wait)

    monkeypatch.setattr(RemoteStorageManager, "fetch_log_segment", slow)
    monkeypatch.setattr(MemberClient, "consume", noted)
    with Consumer(properties(tiered)) as consumer:
        news = parts_of(consumer).news
        wait_for_news = news.wait

        def noted_wait(timeout: float) -> bool:
            steps.append(("bucket", timeout))
            return wait_for_news(timeout)

        monkeypatch.setattr(news, "wait", noted_wait)
        consumer.assign([TopicPartition(tiered.topic, 0, 600), TopicPartition(tiered.topic, 1, 0)])
        end = time.monotonic() + DEADLINE_S
        while {one["phase"] for one in consumer.tiered_stats().values()} != {"live", "bucket"}:
            assert time.monotonic() < end
            consumer.poll(0.05)
        for partition, comes in (
            (0, lambda: write(tiered, [Produced(b"k", b"600")])),
            (1, answers.set),
        ):
            steps.clear()
            timer = threading.Timer(0.3, comes)
            timer.start()
            given = getattr(consumer, call)(DEADLINE_S)
            timer.join()
            given_partition = given.partition() if call == "poll" else given.partition
            assert given_partition == partition
            waits = {name: {wait for step, wait in steps if step == name} for name in ("client", "bucket")}
            assert waits["client"] == {0.0}
            assert max(waits["bucket"]) <= 0.01
            assert all(one[0] != other[0] for one, other in itertools.pairwise(steps))


def test_the_documents_example_runs(
    tiered: TieredTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{name}={value}" for name, value in (tiered.store | {"chunk.size": "8192"}).items()]
    (tmp_path / "store.properties").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(REPOSITORY / "docs" / "how-to" / "consumer.md", "python")
    code = code.replace("127.0.0.1:9092", tiered.server.bootstrap_servers).replace("orders", tiered.topic)
    exec(compile(code.replace("10.0", "60.0"), "<example>", "exec"), {})
    assert capsys.readouterr().out.startswith(tiered.topic)


def test_ends_and_times_of_both(tiered: TieredTopic) -> None:
    place = TopicPartition(tiered.topic, 0)
    with Consumer(properties(tiered)) as consumer:
        assert consumer.get_watermark_offsets(place, DEADLINE_S) == (0, 600)
        early, late = (
            consumer.offsets_for_times([TopicPartition(tiered.topic, 0, moment)], 10)[0].offset
            for moment in (1_600_000_000_000, 1_900_000_000_000)
        )
        assert (early, late) == (0, -1)


def test_a_pattern_finds_topics_that_are_made_later(kafka: KafkaServer, tmp_path: Path) -> None:
    prefix = f"later-{tmp_path.name}".replace("_", "-").lower()
    first = TieredTopic(kafka, tmp_path, name=f"{prefix}-a")
    write(first, [Produced(b"k", b"%d" % at) for at in range(10)])
    own = {"topic.metadata.refresh.interval.ms": 500, "metadata.max.age.ms": 1000}
    with Consumer(properties(first) | own) as consumer:
        consumer.subscribe([f"^{prefix}-.*"])
        gathered([consumer], lambda given: len(given) >= 10)
        second = TieredTopic(kafka, tmp_path, name=f"{prefix}-b")
        write(second, [Produced(b"k", b"%d" % at) for at in range(10)])
        messages = gathered([consumer], lambda given: len(given) >= 10)
        assert {message.topic() for message in messages} == {second.topic}
    first.close()
    second.close()
