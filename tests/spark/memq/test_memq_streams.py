"""Topics of batches as streams, without a JVM: trigger limits, new records and partitions, checkpoints."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.pubsub.memq_topic import BATCHES, MESSAGES, RECORDS, Topic, rows_of, values, written_topic
from tests.support.simulated_time import SimulatedClock
from tieredstore.errors import ConfigError, DataLossError
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.produce.batch_writer import BatchWriter
from tieredstore.pubsub.queue.topics import BatchLog
from tieredstore.spark.memq.options import parse_options
from tieredstore.spark.memq.readers import MemqStreamReader


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Topic:
    return written_topic(tmp_path_factory.mktemp("memq"))


def stream_of(topic: Topic, clock: Any = None, **options: str) -> MemqStreamReader:
    given = {**topic.options, "startingOffsets": "earliest", **options}
    return MemqStreamReader(parse_options(given, streaming=True), clock=clock or SimulatedClock())


def stream_values(reader: MemqStreamReader, start: Any, end: Any) -> list[bytes]:
    return sorted(row["value"] for row in rows_of(reader, list(reader.partitions(start, end))))


@pytest.mark.parametrize(
    ("options", "counts"),
    [({}, [6]), ({"maxBatchesPerTrigger": "4"}, [4, 2]), ({"maxBytesPerTrigger": "1"}, [1] * 6)],
)
def test_a_stream_takes_what_came_within_its_limits(topic: Topic, options: dict[str, str], counts: list[int]) -> None:
    reader = stream_of(topic, **options)
    limit = reader.getDefaultReadLimit()
    at = reader.initialOffset()
    seen: list[bytes] = []
    for count in counts:
        end = reader.latestOffset(at, limit)
        given = stream_values(reader, at, end)
        # Read the batch again, as Spark does after a restart; for the first batch, Spark also asks for its start again.
        again = pickle.loads(pickle.dumps(reader))
        assert stream_values(again, again.initialOffset() if not seen else at, end) == given
        assert len(given) == count * MESSAGES * RECORDS
        seen += given
        at = end
    assert sorted(seen) == values(range(BATCHES))
    assert reader.latestOffset(at, limit) == at
    reader.stop()


def test_a_stream_looks_once_a_second_and_sees_what_comes_and_new_partitions(tmp_path: Path) -> None:
    topic, clock = Topic(tmp_path), SimulatedClock()
    reader = stream_of(topic, clock, startingOffsets="latest")
    at = reader.initialOffset()
    assert reader.latestOffset(at, reader.getDefaultReadLimit()) == at
    topic.write(range(2))
    assert reader.latestOffset(at, reader.getDefaultReadLimit()) == at
    clock.now = 1.5
    end = reader.latestOffset(at, reader.getDefaultReadLimit())
    assert stream_values(reader, at, end) == values(range(2))
    grown = topic.topics.grow("orders", 3)
    with closing(BatchWriter(BatchLog(topic.topics, grown))) as writer:
        writer.write([topic.message(9, 0)], Deadline.after(60), 2)
    last = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert last["offsets"]["2"] == 256
    assert stream_values(pickle.loads(pickle.dumps(reader)), end, last) == values(range(9, 10), 1)


def test_a_stream_that_has_read_all_that_was_freed_has_lost_nothing(tmp_path: Path) -> None:
    topic = written_topic(tmp_path)
    reader = stream_of(topic)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    for partition in range(2):
        topic.queue.free(partition, topic.queue.end(partition))
    assert stream_of(topic).latestOffset(end, ReadAllAvailable()) == end


def create_again(topic: Topic) -> None:
    """Delete the queue, and write one batch to each partition."""
    topic.topics.store.delete([info.key for info in topic.topics.store.list("") if "/queues/orders/" in info.key])
    topic.queue = topic.topics.queue(topic.topics.get("orders"))
    topic.write(range(2))


@pytest.mark.parametrize("is_up_to_now", [False, True])
def test_a_stream_of_a_topic_that_was_created_again_names_it_or_begins_again(
    tmp_path: Path, *, is_up_to_now: bool
) -> None:
    topic = written_topic(tmp_path)
    before = stream_of(topic)
    at = before.latestOffset(before.initialOffset(), ReadAllAvailable())
    create_again(topic)
    failing, going_on = stream_of(topic), stream_of(topic, failOnDataLoss="false")
    if is_up_to_now:
        failing.prepareForTriggerAvailableNow()
        going_on.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match=r"offset 768 is beyond the end, 256, .*; set failOnDataLoss to false"):
        failing.latestOffset(at, ReadAllAvailable())
    end = going_on.latestOffset(at, ReadAllAvailable())
    assert end["offsets"] == {"0": 256, "1": 256}
    assert stream_values(going_on, at, end) == values(range(2))
    assert stream_values(pickle.loads(pickle.dumps(going_on)), at, end) == values(range(2))
    assert going_on.latestOffset(end, ReadAllAvailable()) == end


def test_a_run_up_to_now_that_begins_at_the_latest_leaves_what_comes_after_its_end(tmp_path: Path) -> None:
    topic = written_topic(tmp_path)
    reader = stream_of(topic, startingOffsets="latest")
    reader.prepareForTriggerAvailableNow()
    topic.write(range(2))
    at = reader.initialOffset()
    topic.write(range(2))
    assert reader.latestOffset(at, ReadAllAvailable()) == at


def test_a_stream_passes_over_a_missing_notification(tmp_path: Path) -> None:
    topic = written_topic(tmp_path)
    (lost,) = (info.key for info in topic.topics.store.list("") if info.key.endswith(f"/orders/1/{1:020}"))
    topic.topics.store.delete([lost])
    failing, going_on = stream_of(topic), stream_of(topic, failOnDataLoss="false")
    at = failing.initialOffset()
    with pytest.raises(
        DataLossError, match=r"offset 256 is missing .*; set failOnDataLoss to false to continue at 512"
    ):
        failing.latestOffset(at, ReadAllAvailable())
    end = going_on.latestOffset(at, ReadAllAvailable())
    assert stream_values(going_on, at, end) == sorted(set(values(range(BATCHES))) - set(values(range(3, 4))))


def test_a_run_up_to_now_and_the_engines_own_limits(topic: Topic) -> None:
    reader = stream_of(topic, maxBatchesPerTrigger="2")
    at = reader.initialOffset()
    counts: list[int] = []
    for limit in (reader.getDefaultReadLimit(), ReadAllAvailable()):
        end = reader.latestOffset(at, limit)
        counts.append(len(stream_values(reader, at, end)) // (MESSAGES * RECORDS))
        at = end
    assert counts == [2, 4]
    reader = stream_of(topic)
    reader.prepareForTriggerAvailableNow()
    at = reader.initialOffset()
    end = reader.latestOffset(at, reader.getDefaultReadLimit())
    assert stream_values(reader, at, end) == values(range(BATCHES))
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


def test_a_checkpoint_of_something_else_is_refused(topic: Topic) -> None:
    reader = stream_of(topic)
    whole = reader.initialOffset()
    for foreign in ({}, whole | {"offsets": {"x": 1}}, whole | {"offsets": {"0": -1}}, whole | {"offsets": None}):
        with pytest.raises(ConfigError, match="this source did not write the checkpoint's offsets"):
            reader.partitions(foreign, whole)
    with pytest.raises(ConfigError, match="the checkpoint belongs to another topic, not to orders"):
        reader.partitions(whole | {"topic": "sales"}, whole)
    for options, sentence in (
        ({"endingOffsets": "latest"}, "is for batch queries"),
        ({"discover": "listing"}, "for batch queries"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            stream_of(topic, **options)
