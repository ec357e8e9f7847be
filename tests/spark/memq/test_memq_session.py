"""Topics of batches in a real Spark session: found by name, written, read, and streamed from one topic to another."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

from tests.project.test_docs import blocks
from tests.support.paths import REPOSITORY
from tests.support.pubsub.pubsub_topics import topics_in, values_of
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROWS = 40


def topics_of(folder: Path, *names: str) -> tuple[Topics, dict[str, str]]:
    """Create topics with two read partitions; return them, and the options of their store."""
    folder.mkdir()
    topics = topics_in(folder)
    for name in names:
        topics.create(name, 2)
    return topics, {"storage.backend.class": "filesystem", "storage.root": str(folder)}


def copy_by_stream(spark: SparkSession, store: dict[str, str], checkpoint: Path) -> None:
    """Copy the records of ``orders`` that the checkpoint lacks into ``copies``."""
    query = (
        spark.readStream.format("memq")
        .options(**store, topic="orders", startingOffsets="earliest", maxBatchesPerTrigger=2)
        .load()
        .select("key", "value", "timestamp")
        .writeStream.format("memq")
        .options(**store, topic="copies", checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)


def values_in(topics: Topics, topic: str) -> list[bytes]:
    with BatchConsumer(topics, topic) as consumer:
        return sorted(values_of(consumer))


def test_the_example_of_the_docs_and_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    topics, store = topics_of(tmp_path / "store", "orders", "copies")
    values = sorted(b"%d" % number for number in range(ROWS))
    with BatchProducer(topics, "orders") as producer:
        for value in values:
            producer.send(value)
    settings = tmp_path / "store.properties"
    settings.write_text("".join(f"{name}={text}\n" for name, text in store.items()) + "chunk.size=4096\n")
    (code,) = (code for code in blocks(REPOSITORY / "docs/how-to/batches.md", "python") if "spark" in code)
    code = code.replace('"store.properties"', repr(str(settings))).replace("partition = 0", "partition < 2")
    exec(compile(code, "docs/how-to/batches.md", "exec"), {"spark": spark})
    assert values_in(topics, "copies") == values
    copy_by_stream(spark, store, tmp_path / "checkpoint")
    assert values_in(topics, "copies") == sorted(2 * values)


@pytest.mark.soak
def test_streams_that_go_on_and_batches_that_fail(spark: SparkSession, tmp_path: Path) -> None:
    topics, store = topics_of(tmp_path / "store", "orders", "copies")
    rows = spark.range(ROWS).select(
        functions.concat(functions.lit("k"), functions.col("id") % 3).alias("key"),
        functions.col("id").cast("string").alias("value"),
    )
    values = sorted(b"%d" % number for number in range(ROWS))
    for run in range(1, 3):
        rows.repartition(4).write.format("memq").options(**store, topic="orders").mode("append").save()
        for _ in range(2):
            copy_by_stream(spark, store, tmp_path / "checkpoint")
            assert values_in(topics, "copies") == sorted(run * values)
    nothing = rows.select(functions.lit(None).cast("string").alias("value"))
    with pytest.raises(PySparkException) as raised:
        nothing.write.format("memq").options(**store, topic="orders").mode("append").save()
    assert "InvalidRecordError: a row has a null value" in str(raised.value)
    read = spark.read.format("memq").options(**store, topic="orders", minPartitions="2", includeHeaders="true").load()
    assert sorted(bytes(row.value) for row in read.collect()) == sorted(2 * values)
    written = [info.key for info in topics.store.list("") if "/topics/orders/" in info.key]
    assert read.select("partition", "offset").distinct().count() == len(written)
