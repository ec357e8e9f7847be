"""Offsets by time, against a Java consumer's records."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.golden.catalogs import opened
from tests.support.golden.segments import CASES, case_path, segments
from tests.support.records.record_batches import with_field
from tests.support.records.small_segments import memory_settings
from tests.support.stores.doubles import CountingStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.lineage import Lineage, trace_lineage
from tieredstore.catalog.log_sections import time_index_of
from tieredstore.catalog.timestamps import OffsetAndTimestamp, offset_for_time
from tieredstore.errors import BatchCorruptError, ConfigError
from tieredstore.kafka.batches import CompressionType, read_batch_headers
from tieredstore.model import RemoteLogSegmentMetadata, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import Record, build_batch, write_segment


@cache
def times_of(case: str, partition: int) -> list[tuple[int, int]]:
    """Return offset and timestamp of every record; those of control records come from batch headers of the broker's
    files.
    """
    with gzip.open(case_path(case) / f"records-{partition}.jsonl.gz", "rt") as lines:
        records = [(record["offset"], record["timestamp"]) for record in map(json.loads, lines)]
    control = [
        (header.base_offset, header.max_timestamp)
        for segment in segments(case)
        if segment.partition == partition
        for header in read_batch_headers(segment.original("log").read_bytes())
        if header.is_control
    ]
    return sorted(records + control)


def first_from(times: list[tuple[int, int]], timestamp: int) -> OffsetAndTimestamp | None:
    return next((OffsetAndTimestamp(*record) for record in times if record[1] >= timestamp), None)


def log_of(case: str) -> tuple[RemoteStorageManager, Lineage]:
    manager, catalog = opened(case)
    return manager, catalog.lineage(segments(case)[0].topic, 0)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_time_gives_the_first_record_at_it_or_later(case: str, data: st.DataObject) -> None:
    manager, lineage = log_of(case)
    times = times_of(case, 0)
    known = [timestamp for _, timestamp in times]
    timestamp = data.draw(
        st.one_of(
            st.sampled_from(known).flatmap(lambda t: st.integers(t - 2, t + 2)),
            st.integers(min(known) - 10, max(known) + 10),
        )
    )
    assert offset_for_time(manager, lineage, timestamp) == first_from(times, timestamp)


def test_times_before_and_after_all_records_give_the_first_and_none() -> None:
    manager, lineage = log_of("01-none")
    times = times_of("01-none", 0)
    assert offset_for_time(manager, lineage, -1) == OffsetAndTimestamp(*times[0])
    assert offset_for_time(manager, lineage, max(t for _, t in times) + 1) is None


@pytest.fixture
def manager(store: CountingStore) -> Iterator[RemoteStorageManager]:
    with RemoteStorageManager(memory_settings(64 * 1024), store=store) as manager:
        yield manager


def copied(
    manager: RemoteStorageManager, folder: Path, times: list[int], *, base_offset: int = 0, batch: int = 10
) -> RemoteLogSegmentMetadata:
    """Store a segment of 1 KB records with these timestamps, ``batch`` of them per batch."""
    batches = [
        build_batch(
            [Record(b"v" * 1000, timestamp_ms=time) for time in times[at : at + batch]],
            base_offset + at,
            compression=CompressionType.GZIP,
        )
        for at in range(0, len(times), batch)
    ]
    segment = write_segment(folder, batches, base_offset=base_offset)
    metadata = segment.to_metadata(Uuid.random())
    manager.copy_log_segment_data(metadata, segment.files)
    return metadata


@given(times=st.lists(st.integers(0, 50), min_size=1, max_size=120), timestamp=st.integers(-1, 51), data=st.data())
@settings(max_examples=30, deadline=None)
def test_timestamps_in_any_order_and_cut_segments(
    times: list[int], timestamp: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with RemoteStorageManager(memory_settings(300), store=MemoryObjectStore()) as manager:
        folder = tmp_path_factory.mktemp("log")
        metadata = copied(manager, folder, times, base_offset=7, batch=data.draw(st.integers(1, 30)))
        lineage = trace_lineage([metadata], metadata, None)
        start = data.draw(st.integers(7, 6 + len(times)))
        stop = data.draw(st.integers(start + 1, 7 + len(times)))
        cut = Lineage(lineage.partition, lineage.epochs, lineage.spans_between(start, stop))
        expected = [record for record in enumerate(times, 7) if start <= record[0] < stop]
        assert offset_for_time(manager, cut, timestamp) == first_from(expected, timestamp)


def test_a_look_up_reads_one_segments_indexes_and_one_chunk(
    store: CountingStore, manager: RemoteStorageManager, tmp_path: Path
) -> None:
    metadata = [
        copied(manager, tmp_path / str(i), list(range(i * 1000, i * 1000 + 1000)), base_offset=i * 1000)
        for i in range(4)
    ]
    lineage = trace_lineage(metadata, metadata[-1], None)
    store.reset()
    assert offset_for_time(manager, lineage, 2755) == OffsetAndTimestamp(2755, 2755)
    touched = {key.rpartition(".")[0] for operation in store.operations for key in operation.keys}
    assert len(touched) == 1
    logs = [o for o in store.operations if o.name in ("get", "get_into") and o.keys[0].endswith(".log")]
    assert len(logs) <= 1


def test_a_damaged_batch_is_an_error(store: CountingStore, manager: RemoteStorageManager, tmp_path: Path) -> None:
    metadata = copied(manager, tmp_path, [5, 6, 7, 8])
    (key,) = [info.key for info in store.list() if info.key.endswith(".log")]
    damaged = bytearray(store.get(key))
    damaged[-5] ^= 1
    store.put(key, bytes(damaged))
    with pytest.raises(BatchCorruptError):
        offset_for_time(manager, trace_lineage([metadata], metadata, None), 7)


def test_damage_before_the_record_is_an_error(
    store: CountingStore, manager: RemoteStorageManager, tmp_path: Path
) -> None:
    metadata = copied(manager, tmp_path, [5, 6, 7, 8, 9, 10], batch=2)
    lineage = trace_lineage([metadata], metadata, None)
    (key,) = [info.key for info in store.list() if info.key.endswith(".log")]
    damaged = bytearray(store.get(key))
    damaged[list(read_batch_headers(damaged))[2].position - 1] ^= 1
    store.put(key, bytes(damaged))
    with pytest.raises(BatchCorruptError):
        offset_for_time(manager, lineage, 7)


def test_a_log_is_read_no_further_than_its_indexes_leave_open(store: CountingStore, tmp_path: Path) -> None:
    with RemoteStorageManager(memory_settings(1024), store=store) as manager:
        metadata = copied(manager, tmp_path, [10 * (at // 50) for at in range(1000)], batch=1)
        lineage = trace_lineage([metadata], metadata, None)
        store.reset()
        assert offset_for_time(manager, lineage, 1) == OffsetAndTimestamp(50, 10)
        assert store.bytes_down < metadata.segment_size_in_bytes // 4


@pytest.mark.parametrize("attributes", [0, 0x30], ids=["records", "marker"])
def test_a_batch_that_compaction_emptied_hides_no_later_record(
    attributes: int, manager: RemoteStorageManager, tmp_path: Path
) -> None:
    """Compaction keeps a producer's last batch without records, with its greatest timestamp, also in the time index."""
    records = [build_batch([Record(b"v" * 3000, timestamp_ms=at)], at) for at in range(20)]
    records[5] = with_field(with_field(build_batch([], 5), 21, ">h", attributes), 35, ">q", 1000)
    segment = write_segment(tmp_path, records)
    metadata = segment.to_metadata(Uuid.random())
    manager.copy_log_segment_data(metadata, segment.files)
    lineage = trace_lineage([metadata], metadata, None)
    assert time_index_of(manager, metadata)[-1].timestamp == 1000
    for timestamp in range(20):
        found = timestamp + (timestamp == 5)
        assert offset_for_time(manager, lineage, timestamp) == OffsetAndTimestamp(found, found)
    assert offset_for_time(manager, lineage, 20) is None


def test_without_the_decoder_the_extra_is_named(
    manager: RemoteStorageManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = copied(manager, tmp_path, [5, 6, 7, 8])
    lineage = trace_lineage([metadata], metadata, None)
    for name in [name for name in sys.modules if name.startswith("tieredstore.kafka.records")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert offset_for_time(manager, lineage, 5) == OffsetAndTimestamp(0, 5)  # the batch header is sufficient
    with pytest.raises(ConfigError, match=r"pip install .*\[arrow\]"):
        offset_for_time(manager, lineage, 6)
