"""Sources of a restore: what they leave out, and what no client can write. No broker is needed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.restore.produce.restores import SourceBucket, mixed_topics
from tests.support.records.topic_buckets import Bucket
from tieredstore.errors import ConfigError, DataLossError
from tieredstore.kafka.checkpoints import ProducerState
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.restore.produce.runs import ProduceOptions, SourceRange
from tieredstore.restore.produce.source import BucketTopics
from tieredstore.restore.produce.time_cut import PartitionCut, TimeCut
from tieredstore.testing.segments import Producer, Record, build_batch

ID = Uuid(b"orders".ljust(16))
WHERE = TopicIdPartition(ID, "orders", 0)


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path)


def topics_of(source: Bucket | SourceBucket, **options: Any) -> BucketTopics:
    bucket = source if isinstance(source, Bucket) else source.bucket
    return BucketTopics(bucket.manager, ProduceOptions(topics={"orders": "new"}, **options))


def cut_at(offset: int) -> TimeCut:
    return TimeCut(0, (PartitionCut("orders", str(ID), 0, offset),))


def test_records_after_an_open_transaction_are_named(bucket: Bucket) -> None:
    hung = Producer(7, 0, 0, transactional=True)
    batches = [
        build_batch([Record(b"a")], 0),
        build_batch([Record(b"hung")], 1, producer=hung),
        build_batch([Record(b"c")], 2),
    ]
    bucket.copy(WHERE, batches, range(3), producers=[ProducerState(7, 0, 0, 1, 0, 0, 0, 1)])
    with topics_of(bucket) as topics:
        assert topics.ranges() == {("orders", 0): SourceRange(0, 0, 1)}
        sentence = (
            "left out: offsets 1 to 2 of orders-0, held back by a transaction that has no outcome in the segments, "
            "which end at offset 2"
        )
        assert topics.lacks == [sentence]
        topics.end_at(cut_at(1))
        assert topics.lacks == [sentence]
        topics.end_at(cut_at(0))
        assert topics.lacks == []


def test_a_header_name_with_nul_is_refused(bucket: Bucket) -> None:
    """librdkafka would write the name of a header only up to the NUL."""
    headers = (("ok", b"\0"), ("a\0b", b"x"))
    bucket.copy(WHERE, [build_batch([Record(b"v"), Record(b"v", headers=headers)], 4)], range(4, 6))
    with (
        topics_of(bucket) as topics,
        pytest.raises(ConfigError, match="the record at offset 5 of orders-0 has a header name with a NUL"),
    ):
        list(topics.batches(topics.ranges()))


def test_a_partition_that_disappeared_is_a_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The bucket had partition 1 when the run began, and has only partition 0 now."""
    source = mixed_topics(tmp_path, "orders", partitions=1)
    left = {("orders", 0): SourceRange(5, 65, 185), ("orders", 1): SourceRange(0, 30, 90)}
    done = {("orders", 1): SourceRange(0, 90, 90)}
    lost = "offsets 30 to 89 of orders-1 are missing in the bucket"
    with topics_of(source) as topics:
        topics.check(done)
        assert topics.losses(("orders", 1), 30, 90) == [(30, 90)]
        with pytest.raises(DataLossError, match=f"{lost}: bring them back, or use --on-loss report"):
            topics.check(left)
    with topics_of(source, on_data_loss="report") as topics, caplog.at_level(logging.WARNING):
        topics.check(left)
        batches = list(topics.batches(left))
    assert f"{lost}, and are left out" in caplog.text
    assert sum(map(len, batches)) == sum(record[0] >= 65 for record in source.committed["orders", 0])
    assert [batch.next for batch in batches if batch.records is None] == [90, 185]
