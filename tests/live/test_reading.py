"""Tests of bounded reads from a real broker. Each row is compared with that of a consumer in pure Python."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message

from tests.support.kafka.kafka_topics import (
    CODECS,
    TIMEOUT_S,
    Produced,
    Row,
    Transaction,
    consumed,
    make_topic,
    produce,
    produce_transaction,
    producer_of,
    random_produced,
    send,
)
from tests.support.kafka.live_reads import read_live, refuse_message
from tests.support.servers.kafka import KafkaServer
from tests.support.waiting import wait_until
from tieredstore.errors import BatchCorruptError, ConfigError
from tieredstore.kafka.records import COLUMNS
from tieredstore.live import Isolation, LiveCluster
from tieredstore.live.faults import Trouble
from tieredstore.live.messages import MessageColumns
from tieredstore.live.reader import BoundedRead, LiveRange
from tieredstore.records.settings import ReadSettings

ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")


def properties(server: KafkaServer) -> dict[str, str]:
    return {"bootstrap.servers": server.bootstrap_servers}


def read(
    server: KafkaServer, topic: str, start: int, stop: int, isolation: Isolation = "read_uncommitted", **more: Any
) -> list[Row]:
    batches = read_live(properties(server), topic, 0, start, stop, isolation=isolation, timeout_s=TIMEOUT_S, **more)
    return [row for batch in batches for row in batch.to_pylist()]


def without_epoch(rows: list[Row]) -> list[Row]:
    return [{name: row[name] for name in row if name != "leaderEpoch"} for row in rows]


def end_of(server: KafkaServer, topic: str, isolation: Isolation) -> int:
    with LiveCluster(properties(server), isolation=isolation) as cluster:
        return cluster.end_offsets([(topic, 0)])[topic, 0]


@pytest.fixture(scope="module")
def mixed(kafka: KafkaServer) -> str:
    """Return a topic with records in every codec, transactions with every outcome, an open transaction, and later
    records.
    """
    topic, source = make_topic(kafka), random.Random(1)
    for codec in CODECS:
        produce(kafka, topic, random_produced(source, 30), codec=codec)
    for outcome in ("commit", "abort", "commit", "abort"):
        produce_transaction(kafka, topic, random_produced(source, 7), outcome)
    produce(kafka, topic, random_produced(source, 5))
    Transaction(kafka).send(topic, random_produced(source, 5))
    produce(kafka, topic, random_produced(source, 5))
    return topic


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_rows_are_those_of_another_consumer(kafka: KafkaServer, mixed: str, isolation: Isolation) -> None:
    end = end_of(kafka, mixed, isolation)
    rows = read(kafka, mixed, 0, end, isolation)
    assert without_epoch(rows) == consumed(kafka, mixed, 0, end, isolation=isolation)
    assert {row["leaderEpoch"] for row in rows} == {0}
    # The topic has 150 records, 4 transactions of 7 records and a marker each, 5 records, and 10 that read_committed
    # does not see yet.
    assert (end, len(rows)) == ((197, 193) if isolation == "read_uncommitted" else (187, 169))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_any_window_is_that_part_of_the_whole(kafka: KafkaServer, mixed: str, isolation: Isolation) -> None:
    end, source = end_of(kafka, mixed, isolation), random.Random(2)
    whole = read(kafka, mixed, 0, end, isolation)
    # Draw start and stop at random, so that they may be at records, markers, aborted records, or the end.
    for _ in range(25):
        start, stop = sorted(source.randrange(end + 1) for _ in range(2))
        expected = [row for row in whole if start <= row["offset"] < stop]
        assert read(kafka, mixed, start, stop, isolation) == expected, (start, stop)


@pytest.mark.parametrize("codec", CODECS)
def test_each_codec_is_read(kafka: KafkaServer, codec: str) -> None:
    topic = make_topic(kafka)
    values = [b"x" * 1000 + bytes([number]) for number in range(100)]
    produce(kafka, topic, [Produced(None, value) for value in values], codec=codec)
    assert [row["value"] for row in read(kafka, topic, 0, 100)] == values


def test_the_schema_is_that_of_records_from_the_bucket(kafka: KafkaServer, mixed: str) -> None:
    for columns in (
        COLUMNS,
        ("offset",),
        ("value", "timestamp", "key"),
        ("headers", "leaderEpoch"),
        ("timestampType",),
    ):
        batches = list(read_live(properties(kafka), mixed, 0, 0, 50, isolation="read_uncommitted", columns=columns))
        assert batches
        assert {batch.schema for batch in batches} == {ReadSettings(columns=columns).schema}


def test_log_append_time_is_told(kafka: KafkaServer) -> None:
    topic = make_topic(kafka, {"message.timestamp.type": "LogAppendTime"})
    produce(kafka, topic, [Produced(None, b"", timestamp_ms=1_700_000_000_000)])
    (row,) = read(kafka, topic, 0, 1)
    assert row["timestampType"] == 1
    assert row["timestamp"] > 1_700_000_000_000


def test_an_empty_window_reads_nothing_and_asks_nobody() -> None:
    nobody = {"bootstrap.servers": "127.0.0.1:1"}
    assert list(read_live(nobody, "topic", 0, 5, 5, isolation="read_committed", timeout_s=5)) == []


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (-2, -1), (0, 2**63)])
def test_what_is_no_window_is_refused_at_once(start: int, stop: int) -> None:
    with pytest.raises(ConfigError, match=f"there are no offsets from {start} up to {stop} of topic-0"):
        read_live({"bootstrap.servers": "127.0.0.1:1"}, "topic", 0, start, stop, isolation="read_committed")


def test_unknown_columns_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="'topic'"):
        read_live({"bootstrap.servers": "127.0.0.1:1"}, "t", 0, 0, 1, isolation="read_committed", columns=("topic",))


@pytest.mark.parametrize("outcome", ["commit", "abort"])
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_read_ends_at_a_tail_that_never_arrives(kafka: KafkaServer, outcome: Any, isolation: Isolation) -> None:
    topic = make_topic(kafka)
    produce(kafka, topic, [Produced(None, b"1")])
    produce_transaction(kafka, topic, [Produced(None, b"2"), Produced(None, b"3")], outcome)
    is_seen = outcome == "commit" or isolation == "read_uncommitted"
    rows = read(kafka, topic, 0, 4, isolation)
    assert [row["value"] for row in rows] == ([b"1", b"2", b"3"] if is_seen else [b"1"])
    assert read(kafka, topic, 3, 4, isolation) == []


def test_a_log_of_aborted_records_alone_is_read_to_its_end(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    for _ in range(3):
        produce_transaction(kafka, topic, [Produced(None, b"never")] * 50, "abort")
    assert read(kafka, topic, 0, 153, "read_committed") == []


def test_nothing_of_an_open_transaction_is_read_before_its_outcome(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    transaction = Transaction(kafka)
    transaction.send(topic, [Produced(None, b"1")])
    produce(kafka, topic, [Produced(None, b"2")])
    assert end_of(kafka, topic, "read_committed") == 0
    assert end_of(kafka, topic, "read_uncommitted") == 2
    transaction.end("commit")
    assert end_of(kafka, topic, "read_committed") == 3
    assert [row["value"] for row in read(kafka, topic, 0, 3, "read_committed")] == [b"1", b"2"]


def end_beyond(server: KafkaServer, topic: str, isolation: Isolation, start: int) -> int:
    """Return the end of the partition as soon as it is beyond ``start``."""
    wait_until(lambda: end_of(server, topic, isolation) > start)
    return end_of(server, topic, isolation)


@contextmanager
def producing(server: KafkaServer, topic: str) -> Generator[None]:
    """Write records continuously, some in transactions that commit, abort or stay open."""
    done = threading.Event()

    def run() -> None:
        producer, number = producer_of(server, **{"linger.ms": "1"}), 0
        while not done.is_set():
            send(producer, topic, [Produced(None, b"%d" % number)] * 3)
            if number % 5 == 0:
                produce_transaction(server, topic, [Produced(None, b"t")], "abort" if number % 2 else "commit")
            number += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_windows_join_without_loss_or_repetition_while_producing_goes_on(
    kafka: KafkaServer, isolation: Isolation
) -> None:
    topic, start, rows = make_topic(kafka), 0, list[Row]()
    with producing(kafka, topic):
        for _ in range(8):
            stop = end_beyond(kafka, topic, isolation, start)
            rows += read(kafka, topic, start, stop, isolation)
            start = stop
    assert without_epoch(rows) == consumed(kafka, topic, 0, start, isolation=isolation)


def test_batches_are_bounded_in_rows_and_bytes(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    produce(kafka, topic, [Produced(None, b"small")] * 25_000)
    produce(kafka, topic, [Produced(b"k" * 100, b"x" * 400_000)] * 40)
    batches = list(read_live(properties(kafka), topic, 0, 0, 25_040, isolation="read_uncommitted"))
    assert sum(batch.num_rows for batch in batches) == 25_040
    assert max(batch.num_rows for batch in batches) < 20_000
    # The limit is twice the target size plus the other columns.
    assert max(batch.nbytes for batch in batches) < 9 * 2**20


def test_a_read_can_be_left_in_the_middle(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    produce(kafka, topic, [Produced(None, b"small")] * 30_000)
    batches = read_live(properties(kafka), topic, 0, 0, 30_000, isolation="read_uncommitted", columns=("offset",))
    first = next(batches)
    assert first["offset"].to_pylist() == list(range(first.num_rows))
    batches.close()
    assert list(batches) == []


def test_records_before_one_that_the_client_cannot_return_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_message(monkeypatch, 3)
    arrived = [Message(topic="orders", partition=0, offset=offset, value=b"v") for offset in range(5)]
    client: Any = SimpleNamespace(
        trouble=Trouble(), statistics=SimpleNamespace(), assign=lambda _: None, consume=lambda *_: arrived
    )
    read = BoundedRead(client, LiveRange("localhost:1", "orders", 0, 0, 5), MessageColumns(["offset"]), 60.0).batches()
    assert next(read).to_pydict() == {"offset": [0, 1, 2]}
    with pytest.raises(BatchCorruptError):
        next(read)
