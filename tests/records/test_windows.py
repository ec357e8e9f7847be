"""Tests of the cost and the place of a window, and of arguments that are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden.records import rows_of
from tests.support.records.record_reader import RecordReader, read_records
from tests.support.records.small_segments import memory_settings
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import CountingStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import ConfigError, ResourceNotFoundError
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.model import AtTime, Isolation, TopicIdPartition, Uuid
from tieredstore.records.settings import ReadSettings
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION, build_segment

MIB = 1 << 20
OFFSETS = ReadSettings(columns=("offset",))


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_one_percent_of_a_segments_time_costs_at_most_three_percent_of_its_bytes(
    tmp_path: Path, isolation: Isolation
) -> None:
    segment = build_segment(tmp_path, 64 * MIB)
    store = CountingStore(MemoryObjectStore())
    with RemoteStorageManager(memory_settings(256 * 1024), store=store) as manager:
        manager.copy_log_segment_data(segment.to_metadata(Uuid.random()), segment.files)
        with segment.files.log_segment.open("rb") as log:
            first = next(read_batch_headers(log.read(MIB // 4)[: 16 * 1024])).base_timestamp
        span = segment.max_timestamp_ms - first
        start, stop = first + span // 2, first + span // 2 + span // 100
        catalog = load_catalog(manager)
    with RemoteStorageManager(memory_settings(256 * 1024), store=store) as manager:
        store.reset()
        chosen = ReadSettings(isolation=isolation)
        rows = rows_of(RecordReader(manager, catalog, chosen).read("events", 0, AtTime(start), AtTime(stop)))
    assert [row["timestamp"] for row in rows if not start <= row["timestamp"] < stop] == []
    assert len(rows) > 0.008 * (segment.end_offset + 1)
    assert store.bytes_down <= 0.03 * segment.size_in_bytes


def test_a_window_within_a_segment_takes_two_requests_beside_its_chunks(topic: StoredTopic) -> None:
    topic.copy_plain(0, 1000)
    catalog = topic.catalog()
    rows = rows_of(RecordReader(topic.manager, catalog, ReadSettings()).read("events", 0, 503, 507))
    assert [row["offset"] for row in rows] == [503, 504, 505, 506]
    assert [topic.requests(suffix) for suffix in (".rsm-manifest", ".indexes", ".log")] == [1, 1, 1]
    assert topic.store.bytes_down < 80_000


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_whole_segments_without_transactions_are_read_without_any_index(
    topic: StoredTopic, isolation: Isolation
) -> None:
    for base in (0, 100, 200):
        topic.copy_plain(base, 100)
    catalog = topic.catalog()
    chosen = ReadSettings(isolation=isolation)
    assert len(rows_of(RecordReader(topic.manager, catalog, chosen).read("events", 0))) == 300
    assert (topic.requests(".indexes"), topic.requests(".rsm-manifest")) == (0, 3)


def test_an_empty_window_and_one_behind_the_end_ask_for_nothing(topic: StoredTopic) -> None:
    topic.copy_plain(0, 100)
    reader = topic.reader(ReadSettings())
    for start, stop in ((5, 5), (100, 200), (100, None), (1000, None)):
        read = reader.read("events", 0, start, stop)
        assert list(read) == []
        assert read.report.next_offset == start
    assert sum(topic.store.requests.values()) == 0


def test_offsets_and_times_may_be_mixed(topic: StoredTopic) -> None:
    topic.copy_plain(0, 100)
    topic.copy_plain(100, 100)
    assert topic.offsets(OFFSETS, 95, AtTime(105)) == list(range(95, 105))
    assert topic.offsets(OFFSETS, AtTime(95), 105) == list(range(95, 105))
    assert topic.offsets(OFFSETS, AtTime(195)) == [195, 196, 197, 198, 199]
    assert topic.offsets(OFFSETS, AtTime(200)) == topic.offsets(OFFSETS, AtTime(150), AtTime(149)) == []
    assert topic.offsets(OFFSETS, None, AtTime(3)) == [0, 1, 2]


def test_closing_a_read_early_ends_it(topic: StoredTopic) -> None:
    topic.copy_plain(0, 1000)
    chosen = ReadSettings(target_bytes=2000, piece_bytes=2000)
    with topic.reader(chosen).read("events", 0) as read:
        first: Any = next(iter(read))
        assert first.column("offset")[0].as_py() == 0
    assert list(read) == []


@pytest.mark.parametrize(
    "wrong",
    [{"isolation": "serializable"}, {"on_data_loss": "x"}, {"on_corrupt": "x"}, {"piece_bytes": 0}, {"columns": ["x"]}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ReadSettings(**wrong)  # type: ignore[arg-type]  # that is the test


def test_topics_and_partitions_that_are_not_there_are_named(topic: StoredTopic) -> None:
    topic.copy_plain(0, 10)
    with pytest.raises(ResourceNotFoundError, match="nothing"):
        read_records(topic.manager, "nothing", 0)
    with pytest.raises(ResourceNotFoundError, match="9"):
        topic.reader(ReadSettings()).read("events", 9)


def test_of_a_topic_that_was_created_again_the_newer_is_read_and_the_older_by_its_id(topic: StoredTopic) -> None:
    newer = TopicIdPartition(Uuid(bytes(range(16))), "events", 0)
    topic.copy_plain(0, 30)
    topic.copy(0, [], end_offset=4, partition=newer)
    assert topic.offsets(OFFSETS) == []
    old = read_records(topic.manager, "events", 0, topic_id=PARTITION.topic_id)
    assert [row["offset"] for row in rows_of(old)] == list(range(30))


@given(st.datetimes(min_value=datetime(1900, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - hypothesis adds the zone
def test_a_moment_is_the_first_millisecond_that_is_not_before_it(moment: datetime) -> None:
    at = AtTime.of(moment).timestamp_ms
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert (at - 1) * timedelta(milliseconds=1) < moment - epoch <= at * timedelta(milliseconds=1)


def test_a_moment_needs_a_time_zone() -> None:
    east = timezone(timedelta(hours=2))
    assert AtTime.of(datetime(1970, 1, 1, 2, 0, 1, tzinfo=east)) == AtTime(1000)
    with pytest.raises(ConfigError, match="time zone"):
        AtTime.of(datetime(2026, 1, 1))  # noqa: DTZ001 - the test needs a time without a zone
