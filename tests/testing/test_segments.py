from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden.segments import ALL_SEGMENTS, GoldenSegment, case_path
from tests.support.records.record_batches import lz4_library
from tieredstore.kafka.batches import BatchHeader, CompressionType, TimestampType, read_batch_headers
from tieredstore.kafka.checkpoints import parse_producer_snapshot
from tieredstore.kafka.indexes import (
    AbortedTransaction,
    is_trimmed,
    read_offset_index,
    read_time_index,
    read_txn_index,
)
from tieredstore.kafka.logdir import describe, discover
from tieredstore.model import TopicIdPartition
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker
from tieredstore.testing.segments import PARTITION, IndexBuilder, build_segment, write_segment

BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3).map(tuple)
RECORDS = st.lists(st.builds(Record, BYTES, BYTES, st.integers(0, 2**42), HEADERS), min_size=1, max_size=8)

# All segments but one. While this one was written, the broker restarted, which changed the spacing of the index
# entries, but not the log.
UNINTERRUPTED = [s for s in ALL_SEGMENTS if (s.case, s.base_offset) != ("08-keyring", 1243)]


class Cursor:
    """Reads the records of a batch back, independently of the code that writes them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number // 2 if number % 2 == 0 else -(number + 1) // 2

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def sized(self) -> bytes | None:
        count = self.varint()
        return None if count < 0 else self.take(count)

    def record(self, base_timestamp: int) -> tuple[int, Record]:
        length = self.varint()
        end = self.at + length
        assert self.take(1) == b"\0"
        timestamp, offset_delta = base_timestamp + self.varint(), self.varint()
        key, value = self.sized(), self.sized()
        headers = tuple(((self.sized() or b"").decode(), self.sized()) for _ in range(self.varint()))
        assert self.at == end
        return offset_delta, Record(value, key, timestamp, headers)


def records_of(batch: bytes, header: BatchHeader, body: bytes) -> Iterator[Record]:
    cursor = Cursor(body)
    for i in range(header.record_count or 0):
        delta, record = cursor.record(header.base_timestamp)
        assert delta == i
        yield record
    assert cursor.at == len(body)


DECOMPRESS: dict[CompressionType, Callable[[bytes], bytes]] = {
    CompressionType.NONE: bytes,
    CompressionType.GZIP: gzip.decompress,
    CompressionType.SNAPPY: lambda body: bytes(cramjam.snappy.decompress_raw(body)),
    CompressionType.LZ4: lz4_library.decompress,
    CompressionType.ZSTD: zstandard.decompress,
}


@given(RECORDS, st.sampled_from(CompressionType), st.integers(0, 2**62))
def test_records_come_back_from_a_built_batch(records: list[Record], compression: CompressionType, offset: int) -> None:
    batch = build_batch(records, offset, compression=compression)
    (header,) = read_batch_headers(batch, check_crc=True)
    assert list(records_of(batch, header, DECOMPRESS[compression](batch[61:]))) == records
    assert (header.base_offset, header.last_offset) == (offset, offset + len(records) - 1)
    assert header.max_timestamp == max(record.timestamp_ms for record in records)


def consumed(segment: GoldenSegment) -> dict[int, Record]:
    """Return the Java consumer's records, by offset."""
    with gzip.open(case_path(segment.case) / f"records-{segment.partition}.jsonl.gz", "rt") as lines:
        return {row["offset"]: as_record(row) for row in map(json.loads, lines)}


def as_record(row: dict[str, Any]) -> Record:
    def data(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    headers = tuple(((data(name) or b"").decode(), data(value)) for name, value in row["headers"])
    return Record(data(row["value"]), data(row["key"]), row["timestamp"], headers)


@pytest.mark.slow
@pytest.mark.parametrize(
    "segment", [s for s in ALL_SEGMENTS if s.case in ("01-none", "06-codec-none-createtime", "07-txn")], ids=str
)
def test_built_batches_are_the_brokers_byte_for_byte(segment: GoldenSegment) -> None:
    log = segment.original("log").read_bytes()
    records = consumed(segment)
    compared = 0
    for header in read_batch_headers(log):
        wanted = log[header.position : header.position + header.size_in_bytes]
        offsets = range(header.base_offset, header.last_offset + 1)
        if header.compression is CompressionType.NONE and all(offset in records for offset in offsets):
            producer = Producer(
                header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional
            )
            batch = build_batch(
                [records[offset] for offset in offsets],
                header.base_offset,
                producer=producer,
                leader_epoch=header.partition_leader_epoch,
            )
            assert batch == wanted
            compared += 1
    assert compared > 0


@pytest.mark.parametrize("segment", [s for s in ALL_SEGMENTS if s.case == "07-txn"][:4], ids=str)
def test_end_markers_are_the_brokers_byte_for_byte(segment: GoldenSegment) -> None:
    log = segment.original("log").read_bytes()
    markers = [header for header in read_batch_headers(log) if header.is_control]
    assert markers
    for header in markers:
        wanted = log[header.position : header.position + header.size_in_bytes]
        _, marker = Cursor(wanted[61:]).record(header.base_timestamp)
        end_marker = build_end_marker(
            header.base_offset,
            Producer(header.producer_id, header.producer_epoch),
            commit=marker.key == b"\0\0\0\1",
            timestamp_ms=header.max_timestamp,
            coordinator_epoch=int.from_bytes((marker.value or b"")[2:], "big"),
        )
        assert end_marker == wanted


@pytest.mark.parametrize("segment", UNINTERRUPTED, ids=str)
def test_built_indexes_are_the_brokers_byte_for_byte(segment: GoldenSegment) -> None:
    indexes = IndexBuilder(segment.base_offset)
    for header in read_batch_headers(segment.original("log").read_bytes()):
        indexes.add(header.position, header.size_in_bytes, header.last_offset, header.max_timestamp)
    assert indexes.offset_index == segment.original("index").read_bytes()
    assert indexes.close() == segment.original("timeindex").read_bytes()


@pytest.mark.parametrize("compression", CompressionType)
def test_a_built_segment_is_whole_and_as_big_as_asked_for(tmp_path: Path, compression: CompressionType) -> None:
    target = 600_000
    built = build_segment(tmp_path, target, base_offset=1000, compression=compression, leader_epochs=((2, 10),))
    log = built.files.log_segment.read_bytes()
    headers = list(read_batch_headers(log, check_crc=True))
    assert target - 20_000 < len(log) == built.size_in_bytes <= target
    assert (headers[0].base_offset, headers[-1].last_offset) == (1000, built.end_offset)
    assert all(one.last_offset + 1 == two.base_offset for one, two in pairwise(headers))
    assert {header.compression for header in headers} == {compression}
    assert built.segment_leader_epochs == ((2, 1000),)
    assert not built.active


def test_the_files_of_a_built_segment_fit_each_other(tmp_path: Path) -> None:
    built = build_segment(tmp_path, 300_000, base_offset=50)
    log = built.files.log_segment.read_bytes()
    starts = {header.position: header.last_offset for header in read_batch_headers(log)}
    index = read_offset_index(built.files.offset_index.read_bytes(), 50)
    assert len(index) == len(starts) - 1
    assert all(starts[entry.position] == entry.offset for entry in index)
    assert read_time_index(built.files.time_index.read_bytes(), 50)[-1].timestamp == built.max_timestamp_ms
    assert is_trimmed(built.files.offset_index.read_bytes(), 8)
    assert built.files.leader_epoch_index == b"0\n1\n0 0\n"
    assert describe(discover(tmp_path).segments[0]) == built


def test_records_look_like_a_log_and_compress_like_one(tmp_path: Path) -> None:
    built = build_segment(tmp_path, 6 * 1024 * 1024)
    log = built.files.log_segment.read_bytes()
    headers = list(read_batch_headers(log))
    first = next(records_of(log, headers[0], log[61 : headers[0].size_in_bytes]))
    assert json.loads(first.value or b"")["timestamp"] == first.timestamp_ms
    assert 460 < len(log) / sum(header.record_count or 0 for header in headers) < 510
    assert max(abs(header.size_in_bytes - 16_384) for header in headers) < 1024
    assert 3.0 < len(log) / len(zstandard.compress(log, 3)) < 4.0


def test_batches_that_repeat_go_on_in_offset_time_and_sequence(tmp_path: Path) -> None:
    built = build_segment(tmp_path, 20 * 1024 * 1024)
    log = built.files.log_segment.read_bytes()
    headers = list(read_batch_headers(log, check_crc=True))
    assert all(one.max_timestamp <= two.base_timestamp for one, two in pairwise(headers))
    assert all(header.base_sequence == header.base_offset for header in headers)
    assert headers[0].timestamp_type is TimestampType.CREATE_TIME


def test_the_same_seed_gives_the_same_files_and_another_one_others(tmp_path: Path) -> None:
    built = [build_segment(tmp_path / str(i), 100_000, seed=seed) for i, seed in enumerate((1, 1, 2))]
    first, again, other = (segment.files.log_segment.read_bytes() for segment in built)
    assert first == again
    assert first != other


def test_the_smallest_segment_has_one_batch(tmp_path: Path) -> None:
    built = build_segment(tmp_path, 0, batch_size=1000)
    assert len(list(read_batch_headers(built.files.log_segment.read_bytes()))) == 1


def test_segments_of_one_partition_follow_each_other(tmp_path: Path) -> None:
    first = build_segment(tmp_path, 50_000)
    second = build_segment(tmp_path, 50_000, base_offset=first.end_offset + 1, seed=1)
    assert [describe(segment) for segment in discover(tmp_path).segments] == [first, second]


def test_a_written_segment_has_the_transaction_index_and_producers_it_was_given(tmp_path: Path) -> None:
    producer = Producer(7, 1, 0, transactional=True)
    aborted = AbortedTransaction(7, 0, 1, 0)
    batches = [build_batch([Record(b"v")], 0, producer=producer), build_end_marker(1, producer, commit=False)]
    built = write_segment(tmp_path, batches, aborted=[aborted])
    assert built.files.transaction_index is not None
    assert read_txn_index(built.files.transaction_index.read_bytes(), 0) == (aborted,)
    assert not built.txn_idx_empty
    assert parse_producer_snapshot(built.files.producer_snapshot_index.read_bytes()) == ()


def test_a_segment_without_batches_holds_the_offsets_it_is_told_to(tmp_path: Path) -> None:
    elsewhere = TopicIdPartition(PARTITION.topic_id, "other", 3)
    assert write_segment(tmp_path, [], base_offset=4).end_offset == 4
    assert write_segment(tmp_path, [], partition=elsewhere, end_offset=9).end_offset == 9
