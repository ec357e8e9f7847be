"""Tests of topics of one name in bucket and broker: some are one log, others are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest

from tests.support.records.topic_buckets import FIRST_ID, SECOND_ID, Bucket
from tieredstore.errors import DataLossError
from tieredstore.live import LiveCluster, LiveEnd, LiveTopic
from tieredstore.model import TopicPartition, Uuid
from tieredstore.partitions.selections import Subscribe
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.query import LogQuery
from tieredstore.reading.survey import survey_logs


class Broker:
    """A broker that has ``orders`` under one id, with the offsets 5 to 49."""

    def __init__(self, topic_id: Uuid | None) -> None:
        self._topic_id = topic_id

    def topics(self) -> tuple[str, ...]:
        return () if self._topic_id is None else ("orders",)

    def describe(self, topics: Iterable[str]) -> dict[str, LiveTopic]:
        names = set(topics) & set(self.topics())
        return {} if self._topic_id is None else {name: LiveTopic(name, self._topic_id, (0,)) for name in names}

    def earliest_offsets(self, places: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(places, 5)

    def ends(self, places: Iterable[TopicPartition]) -> Mapping[TopicPartition, LiveEnd]:
        return dict.fromkeys(places, LiveEnd(50))


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    """Yield a bucket that has ``orders`` with the offsets 0 to 19."""
    orders = Bucket(tmp_path)
    orders.write(20)
    yield orders
    orders.close()


def taken(bucket: Bucket, on_broker: Uuid | None, named: Uuid | None = None, *, lenient: bool = False) -> LogSnapshot:
    query = LogQuery(
        Subscribe(("orders",)),
        on_data_loss="report" if lenient else "fail",
        topic_ids={} if named is None else {"orders": named},
    )
    return survey_logs(bucket.manager, query, cluster=cast("LiveCluster", Broker(on_broker)))


def extent(snapshot: LogSnapshot, where: TopicPartition = ("orders", 0)) -> tuple[Uuid, int, int, int]:
    log = snapshot.logs[where]
    return log.topic_id, log.earliest, log.seam, log.end


@pytest.mark.parametrize("named", [None, FIRST_ID])
def test_one_id_is_one_log(bucket: Bucket, named: Uuid | None) -> None:
    assert extent(taken(bucket, FIRST_ID, named)) == (FIRST_ID, 0, 20, 50)


def test_another_id_on_the_broker_is_data_loss_or_the_brokers_log_alone(bucket: Bucket) -> None:
    with pytest.raises(
        DataLossError, match=f"created again: its id is {SECOND_ID} on the broker and {FIRST_ID} in the bucket"
    ):
        taken(bucket, SECOND_ID)
    assert extent(taken(bucket, SECOND_ID, lenient=True)) == (SECOND_ID, 5, 5, 50)


def test_who_names_the_brokers_id_knows_that_the_bucket_has_another(bucket: Bucket) -> None:
    assert extent(taken(bucket, SECOND_ID, SECOND_ID)) == (SECOND_ID, 5, 5, 50)


def test_who_names_the_buckets_id_does_not_get_the_brokers_topic(bucket: Bucket) -> None:
    with pytest.raises(
        DataLossError, match=f"topic orders has id {SECOND_ID} on the broker, but topic_ids names {FIRST_ID}"
    ):
        taken(bucket, SECOND_ID, FIRST_ID)
    snapshot = taken(bucket, SECOND_ID, FIRST_ID, lenient=True)
    assert extent(snapshot) == (FIRST_ID, 0, 20, 20)
    assert not snapshot.logs["orders", 0].on_broker


def test_a_topic_that_the_broker_does_not_have(bucket: Bucket) -> None:
    with pytest.raises(DataLossError, match="topic orders is in the bucket, but the broker has no such topic"):
        taken(bucket, None)
    assert extent(taken(bucket, None, lenient=True)) == (FIRST_ID, 0, 20, 20)
