"""The time of a segment's first record, which no manifest has."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.golden.segments import CASES, case_path, segments
from tests.support.golden.stored import metadata_of, settings_of
from tests.support.records.record_batches import compressed_batch, message, message_set, with_body, with_field
from tests.support.records.small_segments import ENC, ZSTD, memory_settings, new_metadata, write_segment
from tests.support.stores.doubles import CountingStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.timestamps import first_timestamp
from tieredstore.errors import BatchCorruptError, EncryptionError
from tieredstore.kafka.batches import HEADER_SIZE, CompressionType
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(MemoryObjectStore())


@pytest.mark.parametrize("case", CASES)
def test_it_is_that_of_a_java_consumers_first_record(case: str) -> None:
    with RemoteStorageManager(settings_of(case)) as manager:
        for segment in segments(case):
            with gzip.open(case_path(case) / f"records-{segment.partition}.jsonl.gz", "rt") as lines:
                records = sorted((one["offset"], one["timestamp"]) for one in map(json.loads, lines))
            first = next(time for offset, time in records if offset >= segment.base_offset)
            assert first_timestamp(manager, metadata_of(segment)) == first


def copied(manager: RemoteStorageManager, folder: Path, log: bytes) -> RemoteLogSegmentMetadata:
    metadata = new_metadata(len(log), start=0)
    manager.copy_log_segment_data(metadata, write_segment(folder, log))
    return metadata


LATER: Final = build_batch([Record(b"later", timestamp_ms=9_000)], 50)
TWO: Final = [Record(b"a", timestamp_ms=500), Record(b"b", timestamp_ms=400)]
BASE_TIMESTAMP: Final = 27
HORIZON: Final = 64


def with_horizon(record: Record, horizon_ms: int) -> bytes:
    """Return a batch with a delete horizon, as compaction gives it. The record's timestamp counts from this horizon."""
    whole = build_batch([Record(b"dropped", timestamp_ms=horizon_ms), record], 0)
    first = (whole[HEADER_SIZE] >> 1) + 1  # the record's size is a zigzag varint of one byte
    rest = with_body(whole, whole[HEADER_SIZE + first :], CompressionType.NONE)
    return with_field(with_field(rest, 57, ">i", 1), 21, ">h", HORIZON)


LOGS: Final = {
    "not the smallest": (build_batch(TWO, 0), 500),
    "compressed": (compressed_batch(TWO, 0, CompressionType.ZSTD), 500),
    "append time": (build_batch(TWO, 0, log_append_time_ms=800), 800),
    "delete horizon": (with_horizon(Record(b"a", timestamp_ms=500), 86_400_500), 500),
    "compaction dropped a batch": (with_field(build_batch([], 0), 23, ">i", 9), 9_000),
    "a marker is no record": (build_end_marker(0, Producer(7), commit=True, timestamp_ms=300), 9_000),
    "magic 0": (message(0, 0, b"v"), None),
    "magic 1": (message(1, 0, b"v", timestamp=700), 700),
    "wrapper": (
        message_set(
            1, 1, message(1, 0, b"a", timestamp=600) + message(1, 1, b"b", timestamp=650), CompressionType.GZIP, 650
        ),
        600,
    ),
    "wrapper of append time": (
        message_set(1, 1, message(1, 0, b"a", timestamp=600), CompressionType.GZIP, 990, attributes=8),
        990,
    ),
    "epoch": (build_batch([Record(b"a", timestamp_ms=0)], 0), 0),
}


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("chunk_size", [17, 1 << 20])
def test_it_is_decoded_and_never_guessed_from_a_header(
    name: str, chunk_size: int, store: CountingStore, tmp_path: Path
) -> None:
    log, expected = LOGS[name]
    with RemoteStorageManager(memory_settings(chunk_size), store=store) as manager:
        assert first_timestamp(manager, copied(manager, tmp_path, log + LATER)) == expected


@pytest.mark.parametrize("log", [b"", build_end_marker(0, Producer(7), commit=True, timestamp_ms=300)])
def test_a_segment_without_records_has_none(log: bytes, store: CountingStore, tmp_path: Path) -> None:
    with RemoteStorageManager(memory_settings(), store=store) as manager:
        assert first_timestamp(manager, copied(manager, tmp_path, log)) is None


@pytest.fixture(params=["none", "zstd", "enc"])
def groups(request: pytest.FixtureRequest) -> dict[str, dict[str, str]]:
    return {"none": {}, "zstd": {"transform": ZSTD}, "enc": {"transform": ENC}}[request.param]


def many(count: int = 50) -> bytes:
    return b"".join(build_batch([Record(b"v" * 1000, timestamp_ms=at)], at) for at in range(count))


def logs_read(store: CountingStore) -> Iterator[str]:
    for operation in store.operations:
        yield from (key for key in operation.keys if key.endswith(".log"))


def test_it_costs_a_manifest_and_one_chunk(
    groups: dict[str, dict[str, str]], store: CountingStore, tmp_path: Path
) -> None:
    settings = memory_settings(4096, **groups)
    with RemoteStorageManager(settings, store=store) as manager:
        metadata = copied(manager, tmp_path, many())
    store.reset()
    with RemoteStorageManager(settings, store=store) as manager:
        assert first_timestamp(manager, metadata) == 0
    assert len(store.operations) == 2
    assert len(list(logs_read(store))) == 1
    assert store.bytes_down < 10_000


def test_a_damaged_first_batch_is_named(store: CountingStore, tmp_path: Path) -> None:
    with RemoteStorageManager(memory_settings(4096), store=store) as manager:
        damaged = bytearray(many())
        damaged[BASE_TIMESTAMP + 7] ^= 1
        metadata = copied(manager, tmp_path, bytes(damaged))
        with pytest.raises(
            BatchCorruptError, match=r"at byte 0 \(offset 0\) is damaged: its bytes have the CRC"
        ) as caught:
            first_timestamp(manager, metadata)
        assert str(metadata) in str(caught.value)


def test_without_the_key_there_is_no_answer(store: CountingStore, tmp_path: Path) -> None:
    with RemoteStorageManager(memory_settings(4096, enc=ENC), store=store) as manager:
        metadata = copied(manager, tmp_path, many())
    with RemoteStorageManager(memory_settings(4096), store=store) as manager, pytest.raises(EncryptionError):
        first_timestamp(manager, metadata)
