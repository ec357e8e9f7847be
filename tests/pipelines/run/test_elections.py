"""A pipeline whose log was cut by an election below what it has written: the commit log's epochs tell it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pipelines.pipeline_runs import listed_offsets, pipeline_of
from tests.support.records.topic_buckets import FIRST_ID, Bucket
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import DataLoss
from tieredstore.live import EpochEnd
from tieredstore.model import Uuid
from tieredstore.partitions import PartitionLog
from tieredstore.partitions.history import Cut, History
from tieredstore.pipelines import Parts, Runner
from tieredstore.pipelines.log.commit_log import Progress
from tieredstore.pipelines.log.entries import Entry, WrittenWindow
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.starts import mark
from tieredstore.pipelines.run.windows import position_of

ORDERS = ("orders", 0)
PIPELINE = pipeline_of(secor__kafka__topic_filter="orders")
OLD = ((0, 0), (5, 20))


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    topics = Bucket(tmp_path)
    yield topics
    topics.close()


def written(bucket: Bucket, store: MemoryObjectStore) -> list[int]:
    with Runner(PIPELINE, Parts(store, bucket.manager), threads=1) as runner:
        list(runner.run_once())
    return listed_offsets(store)


def test_a_later_epoch_below_what_is_written_stops_the_pipeline(bucket: Bucket) -> None:
    """The new log is longer than the old one, so that offsets alone would tell nothing."""
    store = MemoryObjectStore()
    bucket.write(60, epochs=OLD)
    assert written(bucket, store) == list(range(60))
    assert commit_log_of(PIPELINE, store).read().positions[ORDERS].leader_epoch == 5
    bucket.ends["orders", 0, FIRST_ID] = 60
    bucket.write(10, epochs=(*OLD, (6, 60)))
    assert written(bucket, store) == list(range(70))
    bucket.ends["orders", 0, FIRST_ID] = 25
    bucket.write(90, epochs=((0, 0), (5, 20), (7, 25)))
    with pytest.raises(DataLoss, match="is written up to offset 69, and from offset 25 on a later leader epoch"):
        written(bucket, store)
    assert listed_offsets(store) == list(range(70))


LOG = PartitionLog("orders", 0, FIRST_ID, None, 0, 0, 900, live_start=0, live_epoch=6)
CUT = PartitionLog(
    "orders", 0, FIRST_ID, None, 0, 0, 900, live_start=0, live_epoch=6,
    history=History(5, 60, 6, Cut(25, 5, "broker")),
)  # fmt: skip


def at(offset: int, epoch: int = -1, topic_id: Uuid = FIRST_ID) -> Progress:
    return Progress(str(topic_id), offset, -1, 0, 0, leader_epoch=epoch)


def test_the_brokers_answer_tells_it_before_anything_is_stored() -> None:
    assert position_of(LOG, at(60, 5), "earliest", EpochEnd(5, 60)) == 60
    with pytest.raises(DataLoss, match="from offset 25 on a later leader epoch"):
        position_of(LOG, at(60, 5), "earliest", EpochEnd(5, 25))


def test_what_was_written_before_there_were_epochs_is_stopped_as_long_as_the_cut_is_seen() -> None:
    assert position_of(LOG, at(60), "earliest") == 60
    with pytest.raises(DataLoss, match="from offset 25 on a later leader epoch"):
        position_of(CUT, at(60), "earliest")
    assert position_of(CUT, at(60, 6), "earliest") == 60


def test_a_pipeline_that_begins_at_the_end_stands_in_the_log_as_it_is() -> None:
    window = mark(CUT, 900)
    assert position_of(CUT, at(window.stop, window.leader_epoch), "chosen") == 900


def test_an_entry_without_epochs_is_read_and_written_as_before() -> None:
    window = WrittenWindow("orders", str(FIRST_ID), 0, 0, 10, 10, 0, 0, ())
    entry = Entry(1, "batch", "w", "f", (window,))
    assert "leader_epoch" not in json.loads(entry.to_bytes())["windows"][0]
    assert Entry.from_bytes(entry.to_bytes(), "key") == entry
    known = Entry(1, "batch", "w", "f", (WrittenWindow("orders", str(FIRST_ID), 0, 0, 10, 10, 0, 0, (), 7, 5),))
    assert Entry.from_bytes(known.to_bytes(), "key") == known
