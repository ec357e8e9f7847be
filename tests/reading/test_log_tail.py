"""Tests of a tail. While a caller polls it, the tail returns each record once and in order: from the bucket, from the
broker, and from the bucket again.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.kafka_topics import (
    Produced,
    Transaction,
    delete_records,
    delete_topic,
    make_topic,
    produce,
)
from tests.support.kafka.live_topics import TieredTopic
from tests.support.records.topic_buckets import FIRST_ID, SECOND_ID, Bucket
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.process import unanswered_port
from tieredstore.errors import BrokerUnavailableError, DataLossError
from tieredstore.model import TopicPartition
from tieredstore.partitions.selections import Subscribe
from tieredstore.reading.query import LogQuery
from tieredstore.reading.tail import LogTail, TailRecords
from tieredstore.records.settings import ReadSettings

COUNT = 600
SETTINGS = ReadSettings(columns=("value",))


@pytest.fixture
def tiered(kafka: KafkaServer, tmp_path: Path) -> Iterator[TieredTopic]:
    """Yield a topic with two partitions. The value of each record is its offset."""
    topic = TieredTopic(kafka, tmp_path, partitions=2)
    for partition in range(2):
        topic.produce(numbered(0, COUNT), partition=partition)
    yield topic
    topic.close()


def numbered(start: int, stop: int) -> list[Produced]:
    return [Produced(b"k" * 100, b"%d" % at) for at in range(start, stop)]


def query_of(tiered: TieredTopic, **more: Any) -> LogQuery:
    return LogQuery(Subscribe((tiered.topic,)), client={"bootstrap.servers": tiered.server.bootstrap_servers}, **more)


class Followed:
    """The records of a tail, by partition."""

    def __init__(self, tail: LogTail) -> None:
        self.tail = tail
        self.values: defaultdict[TopicPartition, list[bytes]] = defaultdict(list)
        self.given: list[TailRecords] = []

    def until(self, reached: Callable[[], bool], timeout_s: float = 60.0) -> None:
        end = time.monotonic() + timeout_s
        while not reached():
            assert time.monotonic() < end, self.tail.positions
            records = self.tail.poll(0.5)
            if records is not None:
                assert self.tail.positions[records.where] == records.next_offset
                columns: Any = records.records
                self.values[records.where] += columns.to_pydict()["value"]
                self.given.append(records)

    def until_at(self, **positions: int) -> None:
        """Poll until all partitions have reached these offsets; ``p0`` is the first partition."""
        self.until(
            lambda: all(
                position >= positions[f"p{number}"]
                for (_, number), position in self.tail.positions.items()
                if f"p{number}" in positions
            )
        )


def values(start: int, stop: int) -> list[bytes]:
    return [b"%d" % at for at in range(start, stop)]


def test_bucket_then_broker_then_what_comes(tiered: TieredTopic) -> None:
    seam = tiered.tier(but_last=2)
    assert seam > 0
    first, second = (tiered.topic, 0), (tiered.topic, 1)
    with LogTail(tiered.manager, query_of(tiered), {first: 0, second: 17}, settings=SETTINGS) as tail:
        followed = Followed(tail)
        followed.until_at(p0=COUNT, p1=COUNT)
        assert tail.poll(0.2) is None
        tiered.produce(numbered(COUNT, COUNT + 10), partition=1)
        followed.until_at(p1=COUNT + 10)
        assert followed.values == {first: values(0, COUNT), second: values(17, COUNT + 10)}
        assert not any(records.lost for records in followed.given)


def test_partitions_come_and_go(tiered: TieredTopic) -> None:
    first, second = (tiered.topic, 0), (tiered.topic, 1)
    with LogTail(tiered.manager, query_of(tiered), {}, settings=SETTINGS) as tail:
        followed = Followed(tail)
        assert tail.poll(0) is None
        tail.follow({first: COUNT - 5})
        followed.until_at(p0=COUNT)
        tail.follow({second: COUNT - 3})
        tail.forget([first])
        tiered.produce(numbered(COUNT, COUNT + 10))
        followed.until_at(p1=COUNT)
        tail.follow({first: COUNT + 8})
        followed.until_at(p0=COUNT + 10)
        assert tail.positions == {first: COUNT + 10, second: COUNT}
        assert followed.values[first] == values(COUNT - 5, COUNT) + values(COUNT + 8, COUNT + 10)
        assert followed.values[second] == values(COUNT - 3, COUNT)


def test_records_that_the_broker_deletes_under_the_tail_come_from_the_bucket(tiered: TieredTopic) -> None:
    where = tiered.topic, 0
    with LogTail(tiered.manager, query_of(tiered), {where: 0}, settings=SETTINGS, look_s=0.2) as tail:
        followed = Followed(tail)
        # The tail follows the broker from offset 0 on. Before it has fetched a record, the broker deletes all records
        # that are in the bucket.
        tiered.tier()
        begins = max(m.end_offset for (number, _), m in tiered.copied.items() if number == 0) + 1
        delete_records(tiered.server, tiered.topic, begins)
        followed.until_at(p0=COUNT)
        assert followed.values[where] == values(0, COUNT)


@pytest.mark.parametrize("policy", ["fail", "report"])
def test_lost_records_are_reported(tiered: TieredTopic, policy: Any) -> None:
    where = tiered.topic, 0
    query = query_of(tiered, on_data_loss=policy)
    with LogTail(tiered.manager, query, {where: 5}, settings=SETTINGS, look_s=0.2) as tail:
        followed = Followed(tail)
        delete_records(tiered.server, tiered.topic, 50)
        if policy == "fail":
            for _ in range(2):
                with pytest.raises(DataLossError, match=f"offsets 5 to 49 of {tiered.topic}-0 are not available"):
                    followed.until_at(p0=COUNT)
            assert tail.positions == {where: 5}
            return
        followed.until_at(p0=COUNT)
        assert followed.values[where] == values(50, COUNT)
        assert [(loss.start, loss.stop) for records in followed.given for loss in records.lost] == [(5, 50)]


def test_only_what_is_decided_is_given(tiered: TieredTopic) -> None:
    where = tiered.topic, 0
    with LogTail(tiered.manager, query_of(tiered), {where: COUNT}, settings=SETTINGS) as tail:
        followed = Followed(tail)
        opened = Transaction(tiered.server)
        opened.send(tiered.topic, [Produced(None, b"aborted")])
        produce(tiered.server, tiered.topic, [Produced(None, b"plain")])
        for _ in range(3):
            assert tail.poll(0.3) is None
        opened.end("abort")
        followed.until(lambda: bool(followed.values[where]))
        assert followed.values[where] == [b"plain"]


@pytest.mark.parametrize("policy", ["fail", "report"])
def test_a_topic_that_is_created_again(tiered: TieredTopic, policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    where = tiered.topic, 0

    def fast() -> float:
        """Let a minute pass in each second, because a tail checks a topic's id only every half a minute."""
        return 60 * time.monotonic()

    query = query_of(tiered, on_data_loss=policy)
    with LogTail(tiered.manager, query, {where: COUNT - 2}, settings=SETTINGS, look_s=12, clock=fast) as tail:
        followed = Followed(tail)
        followed.until_at(p0=COUNT)
        delete_topic(tiered.server, tiered.topic)
        make_topic(tiered.server, name=tiered.topic)
        produce(tiered.server, tiered.topic, numbered(0, 3))
        with caplog.at_level(logging.WARNING):
            if policy == "fail":
                with pytest.raises(DataLossError, match=r"was created again as|is gone"):
                    followed.until(lambda: len(followed.values[where]) > 2)
                return
            followed.until(lambda: len(followed.values[where]) == 5)
        assert followed.values[where] == values(COUNT - 2, COUNT) + values(0, 3)
        assert "was created again as" in caplog.text


@pytest.mark.slow
def test_a_broker_that_is_not_there(bucket: Bucket) -> None:
    with unanswered_port() as port:
        client = {"bootstrap.servers": f"127.0.0.1:{port}"}
        query = LogQuery(Subscribe(("orders",)), client=client, timeout_s=1.5)
        with LogTail(bucket.manager, query, {("orders", 0): 0}) as tail, pytest.raises(BrokerUnavailableError):
            tail.poll(60)


def test_the_bucket_alone_is_looked_at_again(bucket: Bucket) -> None:
    bucket.write(20)
    query = LogQuery(Subscribe(("orders",)))
    positions = {("orders", 0): 5, ("orders", 1): 0}
    with LogTail(bucket.manager, query, positions, settings=SETTINGS, look_s=0.05) as tail:
        followed = Followed(tail)
        followed.until_at(p0=20)
        assert tail.poll(0.1) is None
        bucket.write(20)
        bucket.write(10, partition=1)
        followed.until_at(p0=40, p1=10)
        assert followed.values["orders", 0] == [b"orders-0@%d" % at for at in range(5, 40)]
        assert followed.values["orders", 1] == [b"orders-1@%d" % at for at in range(10)]


def test_another_life_of_the_topic_in_the_bucket(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.write(20)
    query = LogQuery(Subscribe(("orders",)), on_data_loss="report")
    with LogTail(bucket.manager, query, {("orders", 0): 0}, settings=SETTINGS, look_s=0.05) as tail:
        followed = Followed(tail)
        followed.until_at(p0=20)
        bucket.write(5, topic_id=SECOND_ID)
        followed.until(lambda: len(followed.values["orders", 0]) == 25)
        assert [records.topic_id for records in followed.given] == [FIRST_ID, SECOND_ID]
        assert f"orders was created again as {SECOND_ID}" in caplog.text
