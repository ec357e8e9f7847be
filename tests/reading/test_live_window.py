"""Tests of a read from a broker while retention deletes the records. A fake broker makes the timing exact."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.support.records.topic_buckets import FIRST_ID, Bucket
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import CorruptDataError, DataLossError
from tieredstore.live import EpochEnd, LiveEnd, LiveReader, LiveTopic
from tieredstore.model import TopicIdPartition, TopicPartition, Uuid
from tieredstore.partitions.history import Cut
from tieredstore.partitions.log import PartitionLog
from tieredstore.partitions.selections import Subscribe
from tieredstore.reading import split_reads
from tieredstore.reading.query import LogQuery, QueryWords
from tieredstore.reading.reader import TopicReader
from tieredstore.reading.split_reads import LiveSplit, StoredRead
from tieredstore.records.settings import ReadSettings

ORDERS = TopicIdPartition(FIRST_ID, "orders", 0)
QUERY = LogQuery(Subscribe(("orders",)), client={"bootstrap.servers": "localhost:1"}, on_data_loss="report")
OFFSETS = ReadSettings(columns=("offset",))


class HurriedBroker:
    """Reader and cluster of a broker that deletes records up to offset 7 at a read, and up to offset 9 at a look-up."""

    def __init__(self) -> None:
        self.cluster = self

    def read(self, topic: str, partition: int, start: int, stop: int, **more: Any) -> Iterator[pa.RecordBatch]:
        if start < 9:
            raise DataLossError(f"offsets {start} to 6 are gone from {topic}-{partition}, which begins at offset 7 now")
        untyped: Any = pa
        yield untyped.record_batch({"offset": untyped.array(range(start, stop), untyped.int64())})

    def topic(self, topic: str) -> LiveTopic:
        return LiveTopic(topic, FIRST_ID, (0,))

    def earliest_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 9)


def broker() -> LiveReader:
    return cast("LiveReader", HurriedBroker())


@pytest.mark.slow
def test_a_loss_is_told_as_far_as_it_goes(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    split = LiveSplit(ORDERS, 3, 12)
    with caplog.at_level(logging.WARNING):
        batches: list[Any] = list(TopicReader(lambda: bucket.manager, QUERY, OFFSETS, live=broker()).read_split(split))
    assert [batch.to_pydict()["offset"] for batch in batches] == [[9, 10, 11]]
    assert "offsets 3 to 8 of orders-0 are lost" in caplog.text


def test_a_loss_ends_where_the_bucket_goes_on(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    """The bucket lacks offsets 3 and 4. The broker has deleted the offsets up to 8."""
    bucket.write(3)
    bucket.write(7, skip=2)
    split = LiveSplit(ORDERS, 3, 12)
    with caplog.at_level(logging.WARNING):
        batches: list[Any] = list(TopicReader(lambda: bucket.manager, QUERY, OFFSETS, live=broker()).read_split(split))
    assert [offset for batch in batches for offset in batch.to_pydict()["offset"]] == list(range(5, 12))
    assert "offsets 3 to 4 of orders-0 are lost" in caplog.text


def test_a_loss_that_fails_names_the_way_on_of_whoever_asks(bucket: Bucket) -> None:
    query = replace(QUERY, on_data_loss="fail", words=QueryWords(accept_loss="let it be"))
    with pytest.raises(DataLossError, match="begins at offset 7 now; let it be to continue"):
        list(TopicReader(lambda: bucket.manager, query, live=broker()).read_split(LiveSplit(ORDERS, 3, 12)))


def test_late_copies_are_read_as_the_rest_of_the_bucket_is(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_of_reads: list[ReadSettings] = []

    class Watched(StoredRead):
        def __init__(self, *arguments: Any) -> None:
            settings_of_reads.append(arguments[0].settings)
            super().__init__(*arguments)

    monkeypatch.setattr(split_reads, "StoredRead", Watched)
    bucket.write(12)
    log = PartitionLog("orders", 0, FIRST_ID, None, seam=0, earliest=0, end=12, live_start=0)
    settings = ReadSettings(columns=("offset",), on_corrupt="skip", piece_bytes=1 << 20, target_bytes=5)
    batches: list[Any] = list(TopicReader(lambda: bucket.manager, QUERY, settings, live=broker()).read(log, 3, 12))
    assert [offset for batch in batches for offset in batch.to_pydict()["offset"]] == list(range(3, 12))
    (chosen,) = settings_of_reads
    assert (chosen.on_corrupt, chosen.piece_bytes, chosen.target_bytes) == ("skip", 1 << 20, 5)


class ElectedBroker(HurriedBroker):
    """A broker whose leader of epoch 6 truncated the log at offset 7, and then wrote up to offset 20."""

    def read(self, topic: str, partition: int, start: int, stop: int, **more: Any) -> Iterator[pa.RecordBatch]:
        untyped: Any = pa
        yield untyped.record_batch({"offset": untyped.array(range(start, stop), untyped.int64())})

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LiveEnd]:
        return dict.fromkeys(partitions, LiveEnd(20, 6))

    def epoch_ends(self, epochs: dict[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        assert set(epochs.values()) == {5}
        return dict.fromkeys(epochs, EpochEnd(5, 7))


@pytest.mark.parametrize(("epoch", "stop", "is_cut"), [(5, 12, True), (5, 7, False), (6, 12, False), (None, 12, False)])
def test_a_log_that_was_cut_since_it_was_planned_is_told(
    bucket: Bucket, epoch: int | None, stop: int, is_cut: bool, caplog: pytest.LogCaptureFixture
) -> None:
    split = LiveSplit(ORDERS, 3, stop, epoch=epoch)
    reader = cast("LiveReader", ElectedBroker())
    strict, sentence = (
        replace(QUERY, on_data_loss="fail"),
        r"offsets 7 to 11 of orders-0 .* truncated the log at offset 7",
    )
    if is_cut:
        with pytest.raises(DataLossError, match=sentence):
            list(TopicReader(lambda: bucket.manager, strict, OFFSETS, live=reader).read_split(split))
    with caplog.at_level(logging.WARNING):
        batches: list[Any] = list(TopicReader(lambda: bucket.manager, QUERY, OFFSETS, live=reader).read_split(split))
    assert [offset for batch in batches for offset in batch.to_pydict()["offset"]] == list(range(3, stop))
    assert (re.search(sentence, caplog.text) is not None) == is_cut


def test_late_copies_of_a_log_that_was_left_are_none(bucket: Bucket) -> None:
    """The broker has deleted its records. The bucket's records at these offsets are from before the election."""
    bucket.write(12, epochs=((0, 0), (5, 2)))
    split = LiveSplit(ORDERS, 7, 12, cut=Cut(7, 5, "broker"))
    query = replace(QUERY, on_data_loss="fail")
    with pytest.raises(DataLossError, match="begins at offset 7 now"):
        list(TopicReader(lambda: bucket.manager, query, live=broker()).read_split(split))
    # Now the bucket has the records of the later epoch.
    bucket.ends["orders", 0, FIRST_ID] = 7
    bucket.write(5, epochs=((0, 0), (5, 2), (6, 7)))
    batches = list(TopicReader(lambda: bucket.manager, query, OFFSETS, live=broker()).read_split(split))
    assert sum(batch.num_rows for batch in batches) == 5


class ShortBroker(HurriedBroker):
    """A broker whose log lost its records from offset 5 on, without a new leader epoch. At a read, the client finds the
    next offset out of range.
    """

    epoch: int | None = None
    topic_id = FIRST_ID

    def read(self, topic: str, partition: int, start: int, stop: int, **more: Any) -> Iterator[pa.RecordBatch]:
        if more["topic_id"] != self.topic_id:
            raise DataLossError(f"topic {topic} was created again")
        untyped: Any = pa
        if start < 7:
            yield untyped.record_batch({"offset": untyped.array(range(start, 7), untyped.int64())})
        raise DataLossError(f"{topic}-{partition} now ends before offset 5, but was read from offset 7 on")

    def topic(self, topic: str) -> LiveTopic:
        return LiveTopic(topic, self.topic_id, (0,))

    def earliest_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def ends(self, partitions: Iterable[TopicPartition], isolation: str | None = None) -> dict[TopicPartition, LiveEnd]:
        # The last stable offset may be earlier than the end of the log.
        return dict.fromkeys(partitions, LiveEnd(5 if isolation == "read_uncommitted" else 3, self.epoch))

    def epoch_ends(self, epochs: dict[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        del epochs
        return {}


@pytest.mark.parametrize(("epoch", "now_epoch", "is_loss"), [(None, None, True), (4, 4, True), (4, 3, False)])
def test_a_log_that_ends_before_the_next_offset_ends_only_a_strict_read(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, epoch: int | None, now_epoch: int | None, *, is_loss: bool
) -> None:
    short = ShortBroker()
    short.epoch = now_epoch

    def offsets(query: LogQuery) -> list[int]:
        reader = TopicReader(lambda: bucket.manager, query, OFFSETS, live=cast("LiveReader", short))
        batches: list[Any] = list(reader.read_split(LiveSplit(ORDERS, 3, 12, epoch=epoch)))
        return [offset for batch in batches for offset in batch.to_pydict()["offset"]]

    with pytest.raises(DataLossError, match="now ends before offset 5"):
        offsets(replace(QUERY, on_data_loss="fail"))
    if not is_loss:  # a deposed leader answers: the records may still exist
        with pytest.raises(DataLossError, match="now ends before offset 5"):
            offsets(QUERY)
        return
    with caplog.at_level(logging.WARNING):
        assert offsets(QUERY) == [3, 4, 5, 6]
    assert "ends at offset 5, but offsets up to 11 were requested" in caplog.text


def test_a_topic_that_was_created_again_after_the_planning_ends_only_a_strict_read(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    again = ShortBroker()
    again.topic_id = Uuid.parse("AAAAAAAAAAAAAAAAAAAAAQ")

    def rows(query: LogQuery) -> list[Any]:
        reader = TopicReader(lambda: bucket.manager, query, OFFSETS, live=cast("LiveReader", again))
        return list(reader.read_split(LiveSplit(ORDERS, 3, 12)))

    with pytest.raises(DataLossError, match="created again"):
        rows(replace(QUERY, on_data_loss="fail"))
    with caplog.at_level(logging.WARNING):
        assert rows(QUERY) == []
    assert "but offsets 3 to 11 were requested" in caplog.text


class CalmBroker(HurriedBroker):
    """A broker that has all records. For any time, it returns offset 3."""

    def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        return dict.fromkeys(times, 3)

    def read(self, topic: str, partition: int, start: int, stop: int, **more: Any) -> Iterator[pa.RecordBatch]:
        untyped: Any = pa
        yield untyped.record_batch({"offset": untyped.array(range(start, stop), untyped.int64())})


def test_a_time_after_the_readable_records_has_no_offset(bucket: Bucket) -> None:
    """The broker has a record of that time below the seam, where the bucket lacks it."""
    reader = TopicReader(lambda: bucket.manager, QUERY, live=cast("LiveReader", CalmBroker()))
    log = PartitionLog("orders", 0, FIRST_ID, None, seam=5, earliest=5, end=5, live_start=0)
    assert [reader.offset_at(replace(log, end=end), 1000) for end in (5, 7)] == [None, 5]


def write_damaged(bucket: Bucket) -> PartitionLog:
    """Write 20 records to the bucket, and damage the second half. The broker's log reaches offset 30."""
    bucket.write(10)
    damaged = bucket.write(10)
    path = next(bucket.root.rglob(f"{damaged.start_offset:020d}-*.log"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    lineage = load_catalog(bucket.manager, topic="orders").lineage("orders", 0, FIRST_ID)
    return PartitionLog("orders", 0, FIRST_ID, lineage, seam=20, earliest=0, end=30, live_start=0)


@pytest.mark.parametrize("live_start", [None, 0, 10, 15])
def test_damaged_records_that_the_broker_has_are_read_there(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, live_start: int | None
) -> None:
    log = replace(write_damaged(bucket), live_start=live_start)
    reader = TopicReader(lambda: bucket.manager, QUERY, OFFSETS, live=cast("LiveReader", CalmBroker()))
    if live_start not in (0, 10):
        with pytest.raises(CorruptDataError):
            list(reader.read(log, 3, 25))
        return
    batches: list[Any] = list(reader.read(log, 3, 25))
    assert [offset for batch in batches for offset in batch.to_pydict()["offset"]] == list(range(3, 25))
    assert caplog.text.count("orders-0 is read from the broker from offset 10 on") == 1


@pytest.mark.parametrize("policy", ["fail", "report"])
@pytest.mark.parametrize("again", [False, True])
def test_damaged_records_that_the_broker_lacks_are_an_error(bucket: Bucket, policy: Any, *, again: bool) -> None:
    """The broker's log ends before the bucket's, or the topic has been re-created."""
    log, short = write_damaged(bucket), ShortBroker()
    if again:
        short.topic_id = Uuid.parse("AAAAAAAAAAAAAAAAAAAAAQ")
    query = replace(QUERY, on_data_loss=policy)
    reader = TopicReader(lambda: bucket.manager, query, OFFSETS, live=cast("LiveReader", short))
    with pytest.raises(CorruptDataError):
        list(reader.read(log, 3, 25))
