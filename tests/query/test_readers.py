"""Tests of the readers of one topic, which share bytes and processors."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.records.small_segments import ZSTD, memory_settings
from tests.support.records.topic_reads import read_topic
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.model import Earliest, Latest, Uuid
from tieredstore.query.topic_columns import TOPIC_COLUMNS, ColumnTypes, TopicColumns
from tieredstore.query.topic_scan import TopicScan
from tieredstore.reading.query import LogQuery
from tieredstore.reading.reader import TopicReader
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import build_segment
from tieredstore.transform.chunks import ChunkDecoder

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("processors", "decoder"), [(2, "tieredstore-fan-in"), (3, "tieredstore-transform")])
def test_readers_that_have_all_processors_decode_their_chunks_themselves(
    processors: int, decoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()
    decode_into = ChunkDecoder.decode_into

    def noting(self: ChunkDecoder, *arguments: Any) -> None:
        threads.add(threading.current_thread().name.rpartition("_")[0])
        decode_into(self, *arguments)

    monkeypatch.setattr(ChunkDecoder, "decode_into", noting)

    def affinity(_: int) -> set[int]:
        return set(range(processors))

    monkeypatch.setattr(os, "sched_getaffinity", affinity)
    segment = build_segment(tmp_path, 6 << 20)
    with RemoteStorageManager(memory_settings(1 << 19, mode=ZSTD), store=MemoryObjectStore()) as manager:
        metadata = segment.to_metadata(Uuid.random(), event_timestamp_ms=0)
        manager.copy_log_segment_data(metadata, segment.files)
        with read_topic(manager, "events", columns=["offset"], parallelism=2) as read:
            offsets: Any = read.reader().read_all().column("offset")
    assert offsets.to_pylist() == list(range(metadata.end_offset + 1))
    assert threads == {decoder}


@pytest.mark.parametrize(("max_mib", "least", "most"), [(64, 8, 10), (4, 12, 14)])
def test_a_split_of_each_reader_fits_into_what_may_wait_to_be_taken(
    max_mib: int, least: int, most: int, tmp_path: Path
) -> None:
    mib, readers = 1 << 20, 2
    segment = build_segment(tmp_path, 24 * mib)
    with RemoteStorageManager(memory_settings(mib // 16), store=MemoryObjectStore()) as manager:
        metadata = segment.to_metadata(Uuid.random(), event_timestamp_ms=0)
        manager.copy_log_segment_data(metadata, segment.files)
        reader, snapshot = TopicReader(lambda: manager, LogQuery.of_topic("events")).begin()
        columns = TopicColumns(TOPIC_COLUMNS, ColumnTypes(), "events", [0])
        scan = TopicScan(reader, snapshot, columns, columns.schema, None, readers, max_mib * mib)
        streams = list(scan.narrow(reader.lookup(snapshot).clamp(Earliest(), Latest())).streams())
        records = sum(batch.num_rows for stream in streams for batch in stream())
    assert records == metadata.end_offset + 1
    assert least <= len(streams) <= most


def test_topic_and_partition_are_those_of_each_batch_whatever_came_before() -> None:
    columns = TopicColumns(("topic", "partition", "offset"), ColumnTypes(), "events", [3, 5, 8])
    schema = pa.schema([("offset", pa.int64())])
    for partition, count in ((5, 3), (5, 2), (5, 40), (8, 7), (3, 0), (3, 9), (5, 9), (8, 8)):
        records = pa.RecordBatch.from_pydict({"offset": list(range(count))}, schema=schema)
        batch: Any = columns.convert(records, ("events", partition))
        batch.validate(full=True)
        assert batch.to_pylist() == [
            {"topic": "events", "partition": partition, "offset": offset} for offset in range(count)
        ]
