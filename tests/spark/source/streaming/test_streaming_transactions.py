"""Streams over topics with transactions: records are read only when their transaction is decided."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.golden.records import expected_rows, partitions_of
from tests.support.golden.segments import case_info, settings_text
from tests.support.records.topic_buckets import FIRST_ID
from tests.support.records.transaction_scripts import Partition, Segment, Step
from tests.support.spark.spark_stream_topics import Bucket, Clock, Query
from tieredstore.model import TopicIdPartition
from tieredstore.spark.source.options import parse_options
from tieredstore.spark.source.streaming import StreamReader

pytestmark = pytest.mark.slow

WHERE = TopicIdPartition(FIRST_ID, "orders", 0)
ISOLATIONS = ["read_committed", "read_uncommitted"]

acts = st.sampled_from(["send", "send", "commit", "abort", "plain"])
steps = st.tuples(acts, st.integers(1, 3), st.integers(1, 3))
plans = st.lists(st.lists(steps, min_size=1, max_size=5), min_size=1, max_size=5)


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("case", ["07-txn", "07-zstd-enc-txn"])
@pytest.mark.parametrize("limit", ["1000000", "77"])
def test_batches_of_golden_transactions_make_up_what_a_consumer_reads(case: str, isolation: str, limit: str) -> None:
    options = settings_text(case) | {
        "subscribe": case_info(case)["topic"],
        "startingOffsets": "earliest",
        "isolationLevel": isolation,
        "maxOffsetsPerTrigger": limit,
    }
    query = Query(StreamReader(parse_options(options, streaming=True), clock=Clock(step=0.001)))
    query.run()
    expected = [row["value"] for partition in partitions_of(case) for row in expected_rows(case, partition, isolation)]
    assert sorted(query.rows, key=repr) == sorted(expected, key=repr)


@given(plans, st.sampled_from(ISOLATIONS), st.integers(1, 9), st.booleans())
@settings(max_examples=examples(40))
@example([[("send", 1, 2)], [("plain", 2, 1)], [("commit", 1, 1)]], "read_committed", 9, False)
@example([[("send", 1, 2), ("plain", 2, 2)], [("abort", 1, 1), ("plain", 2, 1)]], "read_committed", 1, True)
def test_each_record_is_read_once_when_its_transaction_is_decided(
    plan: Sequence[Sequence[Step]], isolation: str, limit: int, restart: bool
) -> None:
    """Run all batches after each segment. With ``restart``, a new reader continues from the checkpoint each time."""
    with tempfile.TemporaryDirectory() as folder:
        bucket, partition = Bucket(Path(folder)), Partition()
        options = {"isolationLevel": isolation, "maxOffsetsPerTrigger": str(limit)}
        query = Query(bucket.reader(**options))
        for wanted in plan:
            _copy(bucket, partition, wanted)
            if restart:
                query.reader = bucket.reader(**options)
            query.run()
            assert query.rows == _expected(partition, isolation)
        bucket.close()


def _copy(bucket: Bucket, partition: Partition, wanted: Sequence[Step]) -> None:
    segment = Segment(partition.offset)
    for step in wanted:
        partition.play(step, segment)
    offsets = range(segment.base, partition.offset)
    bucket.copy(WHERE, segment.batches, offsets, producers=partition.snapshot(), aborted=segment.aborted)


def _expected(partition: Partition, isolation: str) -> list[bytes]:
    if isolation == "read_committed":
        offsets, _ = partition.visible(partition.offset, partition.offset)
    else:
        offsets = sorted({*partition.outcome, *partition.first_of})
    return [b"%d" % offset for offset in offsets]
