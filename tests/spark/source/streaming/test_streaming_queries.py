"""Streaming queries in Spark: triggers, sinks, checkpoints, and error messages for users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.support.golden.records import expected_rows, partitions_of
from tests.support.golden.segments import case_info, settings_text
from tests.support.records.topic_buckets import FIRST_ID, SECOND_ID, Bucket, values


class Run:
    """Query that writes files and is run repeatedly with one checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path, options: dict[str, str]) -> None:
        self.spark = spark
        self.sink = str(folder / "sink")
        self.checkpoint = str(folder / "checkpoint")
        self.options = options

    def start(self, **trigger: Any) -> Any:
        frame = self.spark.readStream.format("tieredstore").options(**self.options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", self.checkpoint)
        return writer.trigger(**(trigger or {"availableNow": True})).start(self.sink)

    def to_the_end(self, **trigger: Any) -> list[Any]:
        """Run to the end; return the progress of each non-empty batch."""
        query = self.start(**trigger)
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return [progress for progress in query.recentProgress if progress.numInputRows]

    def rows(self) -> list[bytes]:
        """Return the values in the sink, by topic, partition and offset."""
        sink_rows = self.spark.read.parquet(self.sink).select("value", "topic", "partition", "offset").collect()
        return [bytes(row.value) for row in sorted(sink_rows, key=lambda row: row[1:])]


def test_available_now_takes_several_batches_and_a_later_run_goes_on(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    bucket.write(60)
    bucket.write(20, partition=1)
    options = bucket.options | {
        "subscribePattern": "ord.*",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "30",
    }
    run = Run(spark, tmp_path, options)
    batches = run.to_the_end()
    assert [batch.numInputRows for batch in batches] == [30, 30, 20]
    assert batches[-1].sources[0].endOffset is not None
    bucket.write(10)
    bucket.write(5, partition=2)
    bucket.write(7, "ordinary", topic_id=SECOND_ID)
    assert sum(batch.numInputRows for batch in run.to_the_end()) == 22
    assert run.to_the_end() == []
    orders = values(range(70)) + values(range(20), partition=1) + values(range(5), partition=2)
    assert run.rows() == orders + values(range(7), "ordinary")


def test_a_running_query_sees_what_arrives(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    bucket.write(10)
    run = Run(spark, tmp_path, bucket.options | {"subscribe": "orders", "maxBytesPerTrigger": "1k"})
    query = run.start(processingTime="100 milliseconds")
    try:
        query.processAllAvailable()
        for count in (10, 15):
            bucket.write(count)
            while not any(f'"0": {bucket.ends["orders", 0, FIRST_ID]}' in str(p.sources) for p in query.recentProgress):
                assert query.exception() is None
                query.processAllAvailable()
    finally:
        query.stop()
    assert run.rows() == values(range(10, 35))


def test_once_reads_everything_at_once(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    bucket.write(50)
    options = bucket.options | {"subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "7"}
    assert [batch.numInputRows for batch in Run(spark, tmp_path, options).to_the_end(once=True)] == [50]


@pytest.mark.parametrize("trigger", ["availableNow", "once"])
def test_a_run_that_ends_says_which_topic_is_not_there(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, trigger: str
) -> None:
    bucket.write(5)
    run = Run(spark, tmp_path, bucket.options | {"subscribe": "ordres", "startingOffsets": "earliest"})
    with pytest.raises(StreamingQueryException, match=r"TopicNotFoundError: .*'ordres'.*'orders'") as error:
        run.to_the_end(**{trigger: True})
    assert "Traceback" not in str(error.value)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_golden_transactions(spark: SparkSession, tmp_path: Path, isolation: str) -> None:
    case = "07-txn"
    options = settings_text(case) | {
        "subscribe": case_info(case)["topic"],
        "startingOffsets": "earliest",
        "isolationLevel": isolation,
        "maxOffsetsPerTrigger": "500",
    }
    run = Run(spark, tmp_path, options)
    run.to_the_end()
    expected = [row["value"] for partition in partitions_of(case) for row in expected_rows(case, partition, isolation)]
    assert run.rows() == expected


def test_data_loss_is_a_sentence_and_a_query_without_it_goes_on(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    old = bucket.write(10)
    options = bucket.options | {"subscribe": "orders", "startingOffsets": "earliest"}
    run = Run(spark, tmp_path, options)
    run.to_the_end()
    bucket.delete(old)
    bucket.write(4, topic_id=SECOND_ID)
    with pytest.raises(StreamingQueryException) as error:
        run.to_the_end()
    shown = str(error.value)
    assert f"DataLossError: topic orders was created again as {SECOND_ID}, and {FIRST_ID} was read up to" in shown
    assert "Traceback" not in shown
    run.options = options | {"failOnDataLoss": "false"}
    run.to_the_end()
    assert sorted(run.rows()) == sorted(values(range(10)) + values(range(4)))


def test_a_checkpoint_of_another_source_is_a_sentence(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    bucket.write(10)
    run = Run(spark, tmp_path, bucket.options | {"subscribe": "orders", "startingOffsets": "earliest"})
    run.to_the_end()
    offsets = tmp_path / "checkpoint" / "offsets" / "0"
    text = offsets.read_text().splitlines()
    offsets.write_text("\n".join([*text[:-1], '{"orders":{"0":10}}']))
    (tmp_path / "checkpoint" / "offsets" / ".0.crc").unlink()
    with pytest.raises(StreamingQueryException, match="this source did not write the checkpoint's offsets") as error:
        run.to_the_end()
    assert "Traceback" not in str(error.value)
