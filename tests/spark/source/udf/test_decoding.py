"""Tasks of decode_segments, without Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.golden.records import Row, expected_rows
from tests.support.golden.segments import CASES, GoldenSegment, segments
from tests.support.golden.stored import settings_of
from tests.support.records.stored_records import StoredTopic, plain_batch
from tests.support.records.transaction_scripts import Step, store
from tieredstore.errors import BatchCorruptError, ConfigError, ManifestCorruptError, SegmentNotFoundError
from tieredstore.format.keys import ObjectKey, Suffix, main_path
from tieredstore.model import Isolation, Uuid
from tieredstore.model import RemoteLogSegmentMetadata as Metadata
from tieredstore.records.settings import ReadSettings
from tieredstore.remote import RemoteStorageManager
from tieredstore.spark.source.rows import KAFKA_ROWS, RowShape
from tieredstore.spark.source.udf import LogName, StoredSegments, key_of_path, rows_of_logs, segment_keys
from tieredstore.testing.batches import Record, build_batch
from tieredstore.testing.segments import write_segment

pytestmark = pytest.mark.slow

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BATCH = build_batch([Record(b"a", b"k", 7, (("h", b"1"), ("h", None))), Record(None)], 10)


def golden_rows(rows: Sequence[Row], topic: str | None, partition: int | None) -> list[Row]:
    """Return the expected records in the source's columns."""
    return [
        {
            "key": row["key"],
            "value": row["value"],
            "topic": topic,
            "partition": partition,
            "offset": row["offset"],
            "timestamp": EPOCH + timedelta(milliseconds=row["timestamp"]),
            "timestampType": row["timestampType"],
            "headers": [{"key": key, "value": value} for key, value in row["headers"]] or None,
        }
        for row in rows
    ]


def rows_of_segment(segment: GoldenSegment, isolation: Isolation = "read_uncommitted") -> list[Row]:
    rows = expected_rows(segment.case, segment.partition, isolation)
    own = [row for row in rows if segment.base_offset <= row["offset"] <= segment.end_offset]
    return golden_rows(own, segment.topic, segment.partition)


def collect(batches: Iterator[pa.RecordBatch]) -> list[Row]:
    rows: list[Row] = []
    for batch in batches:
        assert batch.num_rows
        rows += batch.to_pylist()
    return rows


def logs(contents: Sequence[bytes | None], **columns: Sequence[object]) -> list[pa.RecordBatch]:
    batch: pa.RecordBatch = pa.RecordBatch.from_pydict({"content": contents, **columns})
    return [batch]


def raw_rows(contents: Sequence[bytes | None], **columns: Sequence[object]) -> list[Row]:
    return collect(rows_of_logs(logs(contents, **columns), RowShape(KAFKA_ROWS.columns)))


def offsets_of(rows: Sequence[Row]) -> list[int]:
    return [row["offset"] for row in rows]


@pytest.mark.parametrize("case", CASES)
def test_the_logs_of_a_broker_give_the_records_that_a_consumer_read(case: str) -> None:
    stored = segments(case)
    contents = [segment.original("log").read_bytes() for segment in stored]
    paths = [f"file:{segment.original('log')}" for segment in stored]
    expected = [row for segment in stored for row in rows_of_segment(segment)]
    assert raw_rows(contents, path=paths) == expected


@pytest.mark.parametrize("columns", [("topic",), ("partition", "timestamp"), ("headers", "value"), KAFKA_ROWS.columns])
def test_rows_have_exactly_the_columns_asked_for(columns: tuple[str, ...]) -> None:
    shape = RowShape(columns)
    (rows,) = rows_of_logs(logs([BATCH], path=["t-3/00000000000000000010.log"]), shape)
    assert (rows.num_rows, rows.schema) == (2, shape.arrow_schema)
    rows.validate(full=True)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("file:/var/kafka/orders-0/00000000000000000017.log", ("orders", 0, 17)),
        ("s3://b/a-topic.with_all-3-7/00000000000000000000.log", ("a-topic.with_all-3", 7, 0)),
        ("orders-12/00000000000000000000.log", ("orders", 12, 0)),
        ("orders-2147483648/00000000000000000000.log", (None, None, None)),
        ("orders/00000000000000000000.log", (None, None, None)),
        ("orders-0/0.log", (None, None, None)),
        ("orders-0/00000000000000000000.log.deleted", (None, None, None)),
        ("orders-0/٠0000000000000000000.log", (None, None, None)),
        ("", (None, None, None)),
        (None, (None, None, None)),
    ],
)
def test_a_path_tells_topic_partition_and_base_offset_if_it_ends_as_a_brokers(
    path: str | None, expected: tuple[str | None, int | None, int | None]
) -> None:
    name = LogName.of(path)
    assert (name.topic, name.partition, name.base_offset) == expected


def test_records_without_headers_can_be_sent_by_arrow() -> None:
    (rows,) = rows_of_logs(logs([build_batch([Record(b"a")] * 50)]), RowShape(["headers"]))
    headers: Any = rows.column(0)
    # Arrow reads the first offset even of empty arrays. Without a buffer it would read foreign memory.
    assert min(buffer.size for buffer in headers.values.field(0).buffers()[1:]) >= 4
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    assert pa.ipc.open_stream(sink.getvalue()).read_all().to_pylist() == [{"headers": None}] * 50


def test_a_log_without_a_telling_path_has_no_topic_and_no_partition() -> None:
    for rows in (raw_rows([BATCH]), raw_rows([BATCH], path=["x/some.log"]), raw_rows([BATCH], path=[None])):
        assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [(None, None, 10), (None, None, 11)]


def test_null_and_empty_logs_have_no_rows() -> None:
    assert raw_rows([None, b"", bytes(100), BATCH]) == raw_rows([BATCH])


def test_a_damaged_log_fails_with_its_path_after_the_records_before_the_damage() -> None:
    damaged = bytearray(BATCH + build_batch([Record(b"b")], 20))
    damaged[-1] ^= 1
    rows = rows_of_logs(logs([bytes(damaged)], path=["/k/t-0/00000000000000000010.log"]), RowShape(["offset"]))
    assert next(rows).num_rows == 2
    with pytest.raises(
        BatchCorruptError, match=r"^/k/t-0/00000000000000000010\.log: the record batch at byte \d+ .*CRC"
    ):
        next(rows)


def test_a_log_that_ends_within_a_batch_fails() -> None:
    with pytest.raises(BatchCorruptError, match="a log without a path: the log ends"):
        raw_rows([BATCH[:-1]])


def test_a_log_under_another_ones_name_fails() -> None:
    with pytest.raises(BatchCorruptError, match="begins at offset 10, but its name says 11"):
        raw_rows([BATCH], path=["t-0/00000000000000000011.log"])


# Segments of a store


def key_of(segment: GoldenSegment) -> ObjectKey:
    return key_of_path(f"file:/store/{segment.main_path}.log", settings_of(segment.case).key_prefix)


def stored_rows(segment: GoldenSegment, isolation: Isolation) -> list[Row]:
    shape = RowShape(KAFKA_ROWS.columns)
    reading = ReadSettings(columns=shape.decoder_columns, isolation=isolation)
    with RemoteStorageManager(settings_of(segment.case)) as manager:
        return collect(StoredSegments(manager, reading).rows([key_of(segment)], shape))


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("case", CASES)
def test_each_stored_segment_alone_gives_its_records(case: str, isolation: Isolation) -> None:
    for segment in segments(case):
        assert stored_rows(segment, isolation) == rows_of_segment(segment, isolation)


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    with closing(StoredTopic(tmp_path)) as topic:
        yield topic


def key_of_metadata(metadata: Metadata) -> ObjectKey:
    return ObjectKey(metadata.remote_log_segment_id, metadata.start_offset, Suffix.MANIFEST)


def offsets(topic: StoredTopic, *copied: Metadata, isolation: Isolation = "read_committed") -> list[int]:
    reading = ReadSettings(columns=("offset",), isolation=isolation)
    keys = [key_of_metadata(metadata) for metadata in copied]
    return offsets_of(collect(StoredSegments(topic.manager, reading).rows(keys, RowShape(["offset"]))))


def test_an_abort_in_a_later_segment_hides_the_records_of_an_earlier_one(topic: StoredTopic) -> None:
    plan: list[list[Step]] = [[("send", 1, 2), ("plain", 0, 1)], [("plain", 0, 2)], [("abort", 1, 1), ("plain", 0, 1)]]
    store(topic, plan)
    assert offsets(topic, topic.copied[0]) == [2]
    assert offsets(topic, topic.copied[0], isolation="read_uncommitted") == [0, 1, 2]


def test_a_segment_is_read_up_to_the_first_undecided_transaction(
    topic: StoredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    store(topic, [[("plain", 0, 2), ("send", 1, 2), ("plain", 0, 1)], [("plain", 0, 3)]])
    with caplog.at_level(logging.WARNING):
        assert offsets(topic, topic.copied[0]) == [0, 1]
        assert offsets(topic, topic.copied[1]) == []
    assert all("has no outcome" in message for message in caplog.messages)


def test_a_hole_behind_a_segment_does_not_fail_its_read(topic: StoredTopic) -> None:
    for base in (0, 10, 20):
        topic.copy_plain(base, 10)
    topic.manager.delete_log_segment_data(topic.copied[1])
    assert offsets(topic, topic.copied[0], topic.copied[2]) == [*range(10), *range(20, 30)]


def test_segments_are_read_in_the_order_they_are_named_and_as_often(topic: StoredTopic) -> None:
    for base in (0, 10):
        topic.copy_plain(base, 10)
    first, second = topic.copied
    assert offsets(topic, second, first, second) == [*range(10, 20), *range(10), *range(10, 20)]


def test_a_partition_is_listed_once_for_all_of_its_segments_and_not_at_all_for_uncommitted_reads(
    topic: StoredTopic,
) -> None:
    for base in (0, 10, 20):
        topic.copy_plain(base, 10)
    topic.store.reset()
    offsets(topic, *topic.copied, isolation="read_uncommitted")
    assert topic.store.keys_of("list") == []
    offsets(topic, *topic.copied)
    assert len(topic.store.keys_of("list")) == 1


def copy_epochs(topic: StoredTopic, base: int, count: int, epochs: tuple[tuple[int, int], ...]) -> None:
    batches = [plain_batch(range(base, base + count))]
    segment = write_segment(
        topic.folder / str(len(topic.copied)), batches, base_offset=base, leader_epochs=epochs
    )  # fmt: skip
    metadata = segment.to_metadata(Uuid.random(), event_timestamp_ms=1000 + len(topic.copied))
    topic.manager.copy_log_segment_data(metadata, segment.files)
    topic.copied.append(metadata)


def test_a_segment_that_the_log_left_behind_is_read_uncommitted_only(topic: StoredTopic) -> None:
    copy_epochs(topic, 0, 20, ((0, 0),))
    copy_epochs(topic, 10, 20, ((0, 0), (2, 10)))
    left = topic.copied[0]
    with pytest.raises(ConfigError, match=r"offsets 10 to 19 of .* superseded leader epoch: .*read_uncommitted"):
        offsets(topic, left)
    assert offsets(topic, left, isolation="read_uncommitted") == [*range(20)]
    assert offsets(topic, topic.copied[1]) == [*range(10, 30)]


def test_a_segment_that_another_one_covers_is_still_read(topic: StoredTopic) -> None:
    topic.copy_plain(0, 10)
    topic.copy_plain(0, 30)
    assert offsets(topic, topic.copied[0]) == [*range(10)]


def test_a_segment_that_is_not_there_is_named(topic: StoredTopic) -> None:
    topic.copy_plain(0, 10)
    topic.manager.delete_log_segment_data(topic.copied[0])
    with pytest.raises(SegmentNotFoundError, match=f"segment {main_path(topic.copied[0].remote_log_segment_id, 0)}"):
        offsets(topic, topic.copied[0])


def test_a_damaged_segment_is_named(topic: StoredTopic) -> None:
    topic.copy_plain(0, 10)
    key = key_of_metadata(topic.copied[0])
    topic.store.put(f"{key.main_path}.rsm-manifest", b"{}")
    with pytest.raises(ManifestCorruptError, match=str(key.segment_id.id)):
        offsets(topic, topic.copied[0])


PATH = "orders-AAECAwQFBgcICQoLDA0ODw/3/00000000000000000017-VGVzdFRvcGljSWRlbnRpZg"


@pytest.mark.parametrize("before", ["", "kafka/", "s3://bucket/a/b/"])
@pytest.mark.parametrize("after", ["", ".log", ".indexes", ".rsm-manifest"])
def test_a_path_names_a_segment_with_or_without_prefix_and_suffix(before: str, after: str) -> None:
    key = key_of_path(before + PATH + after)
    assert (key.main_path, key.start_offset, key.segment_id.topic_id_partition.partition) == (PATH, 17, 3)


def test_a_prefix_that_is_no_folder_is_part_of_an_objects_path_only() -> None:
    assert key_of_path("bucket/a/p-" + PATH, "a/p-").main_path == PATH
    assert key_of_path(PATH, "a/orders-").main_path == PATH
    assert key_of_path("a/" + PATH, "a/").main_path == PATH


@pytest.mark.parametrize("path", [None, "", "orders", PATH[:-1], PATH + ".txt", PATH.partition("/")[2]])
def test_what_is_no_path_of_a_segment_is_said_so(path: str | None) -> None:
    with pytest.raises(ConfigError, match="in the column segment is not a segment"):
        key_of_path(path)


PARTS = {
    "topic": "orders",
    "topic_id": "AAECAwQFBgcICQoLDA0ODw",
    "partition": 3,
    "base_offset": 17,
    "segment_id": "VGVzdFRvcGljSWRlbnRpZg",
}


def named(**changed: object) -> list[ObjectKey]:
    batch: Any = pa.RecordBatch.from_pylist([PARTS | changed])
    return list(segment_keys([batch], by_path=False))


def test_the_columns_of_a_listing_name_a_segment() -> None:
    assert [key.main_path for key in named()] == [PATH]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"topic": None}, "a segment has no topic"),
        ({"base_offset": None}, "a segment has no base_offset"),
        ({"topic": "a/b"}, "not a topic name"),
        ({"topic_id": "short"}, "not a Kafka uuid"),
        ({"segment_id": ""}, "not a Kafka uuid"),
        ({"partition": -1}, "partition -1"),
        ({"base_offset": -1}, "start offset -1"),
    ],
)
def test_columns_that_name_no_segment_are_said_so(changed: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        named(**changed)
