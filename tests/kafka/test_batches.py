from __future__ import annotations

import io
import mmap
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden.segments import ALL_SEGMENTS, GoldenSegment
from tieredstore.errors import BatchCorruptError
from tieredstore.kafka.batches import (
    FRAME_SIZE,
    BatchHeader,
    CompressionType,
    TimestampType,
    first_batch_compression,
    first_batch_size,
    read_batch_headers,
    read_first_compression,
    walk_batch_headers,
)
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker

RECORDS = [Record(b"first", b"k", 1_000), Record(b"second", None, 1_007)]
BATCH = build_batch(RECORDS, 7)
LOG = BATCH + build_batch(RECORDS, 9) + build_batch(RECORDS, 20)


def read_from(log: bytes, start: int) -> Iterator[BatchHeader]:
    return walk_batch_headers(lambda position: memoryview(log)[position:], len(log), start)


def message(
    offset: int, magic: int, *, attributes: int = 0, timestamp: int = 55, body: bytes = b"\xff\xff\xff\xff\0\0\0\1v"
) -> bytes:
    """Return a message of magic 0 or 1 without a key."""
    covered = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"") + body
    return struct.pack(">qiI", offset, len(covered) + 4, zlib.crc32(covered)) + covered


def patched(batch: bytes, at: int, new: bytes, *, seal: bool = True) -> bytes:
    """Return ``batch`` with other bytes at one place, and a valid CRC nevertheless."""
    out = bytearray(batch)
    out[at : at + len(new)] = new
    if seal:
        out[17:21] = crc32c.crc32c(bytes(out[21:])).to_bytes(4, "big")
    return bytes(out)


@pytest.mark.parametrize("segment", ALL_SEGMENTS, ids=str)
def test_every_golden_log_is_read_to_its_end_with_valid_crcs(segment: GoldenSegment) -> None:
    log = segment.original("log").read_bytes()
    headers = list(read_batch_headers(log, check_crc=True))
    assert headers[0].base_offset == segment.base_offset
    assert headers[-1].last_offset == segment.end_offset
    assert headers[-1].position + headers[-1].size_in_bytes == len(log)
    assert all(one.last_offset + 1 == two.base_offset for one, two in pairwise(headers))
    assert first_batch_compression(log) is headers[0].compression


def test_every_field_of_a_header_is_read() -> None:
    batch = build_batch(
        RECORDS, 7, producer=Producer(9, 3, 41, transactional=True), leader_epoch=5, log_append_time_ms=2_000
    )
    (header,) = read_from(b"x" * 3 + batch, 3)
    assert header == BatchHeader(
        position=3, size_in_bytes=len(batch), base_offset=7, last_offset=8, magic=2,
        crc=int.from_bytes(batch[17:21], "big"), attributes=0b11000, base_timestamp=1_000, max_timestamp=2_000,
        partition_leader_epoch=5, producer_id=9, producer_epoch=3, base_sequence=41, record_count=2,
    )  # fmt: skip
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (header.is_transactional, header.is_control, header.has_delete_horizon) == (True, False, False)


def test_a_control_batch_is_known_as_one() -> None:
    (header,) = read_batch_headers(build_end_marker(4, Producer(9, 3), commit=True), check_crc=True)
    assert (header.is_control, header.is_transactional, header.record_count) == (True, True, 1)


def test_the_delete_horizon_bit_is_known() -> None:
    (header,) = read_batch_headers(patched(BATCH, 22, b"\x40"), check_crc=True)
    assert header.has_delete_horizon
    assert header.timestamp_type is TimestampType.CREATE_TIME


@pytest.mark.parametrize("compression", CompressionType)
def test_the_codec_is_known(compression: CompressionType) -> None:
    batch = build_batch(RECORDS, compression=compression)
    assert next(read_batch_headers(batch, check_crc=True)).compression is compression
    assert first_batch_compression(batch) is compression


@pytest.mark.parametrize("codec", [5, 6, 7])
@pytest.mark.parametrize("seal", [True, False])
def test_a_codec_unknown_to_kafka_is_corruption_whether_or_not_the_crc_holds(codec: int, seal: bool) -> None:
    batch = patched(BATCH, 22, bytes([codec]), seal=seal)
    with pytest.raises(BatchCorruptError, match=f"compression type {codec}"):
        first_batch_compression(batch)
    with pytest.raises(BatchCorruptError, match=f"compression type {codec}"):
        list(read_batch_headers(batch))


def test_old_messages_have_the_fields_that_their_magic_has() -> None:
    old, newer = read_batch_headers(message(3, 0) + message(4, 1, attributes=8), check_crc=True)
    assert (old.timestamp_type, old.max_timestamp, old.record_count) == (TimestampType.NO_TIMESTAMP, -1, 1)
    assert (newer.timestamp_type, newer.max_timestamp) == (TimestampType.LOG_APPEND_TIME, 55)
    assert (newer.base_offset, newer.last_offset, newer.producer_id, newer.is_control) == (4, 4, -1, False)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_compressed_message_set_has_an_unknown_count(magic: int) -> None:
    batch = message(12, magic, attributes=1)
    (header,) = read_batch_headers(batch, check_crc=True)
    assert (header.compression, header.record_count, header.last_offset) == (CompressionType.GZIP, None, 12)
    assert first_batch_compression(batch) is CompressionType.GZIP


@pytest.mark.parametrize("magic", [0, 1])
def test_a_damaged_old_message_fails_its_crc(magic: int) -> None:
    batch = patched(message(12, magic), 20, b"!", seal=False)
    with pytest.raises(BatchCorruptError, match="damaged"):
        list(read_batch_headers(batch, check_crc=True))
    assert first_batch_compression(batch) is None


def test_a_first_batch_that_claims_more_than_the_log_is_not_read() -> None:
    log = io.BytesIO(bytes(8) + b"\x7f\xff\xff\xff" + bytes(1000))
    assert read_first_compression(log.read, 1012) is None
    assert log.tell() == FRAME_SIZE


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_with_a_negative_offset_or_too_few_bytes_is_corrupt(magic: int) -> None:
    with pytest.raises(BatchCorruptError, match="offset -5"):
        list(read_batch_headers(message(-5, magic)))
    short = message(5, magic, body=b"")
    with pytest.raises(BatchCorruptError, match=r"impossible length|too few for its header"):
        list(read_batch_headers(short + bytes(40)))


@given(data=st.data())
def test_any_changed_byte_under_the_crc_is_found(data: st.DataObject) -> None:
    at = data.draw(st.integers(17, len(BATCH) - 1))
    flipped = patched(BATCH, at, bytes([BATCH[at] ^ data.draw(st.integers(1, 255))]), seal=False)
    with pytest.raises(BatchCorruptError):
        list(read_batch_headers(flipped, check_crc=True))


@pytest.mark.parametrize(
    ("at", "new", "said"),
    [
        (0, struct.pack(">q", -1), "base offset -1"),
        (0, struct.pack(">q", 2**63 - 1), "offsets"),
        (8, struct.pack(">i", -1), "impossible length -1"),
        (8, struct.pack(">i", 13), "impossible length 13"),
        (8, struct.pack(">i", 14), "too few for its header"),
        (8, struct.pack(">i", 48), "too few for its header"),
        (8, struct.pack(">i", 2**31 - 1), "truncated"),
        (16, b"\3", "magic 3"),
        (16, b"\xff", "magic -1"),
        (23, struct.pack(">i", -1), "base offset 7"),
        (57, struct.pack(">i", -1), "-1 records"),
        (57, struct.pack(">i", 3), "3 records, but spans 2 offsets"),
    ],
)
def test_a_header_that_contradicts_itself_is_corrupt_and_the_error_says_where(at: int, new: bytes, said: str) -> None:
    with pytest.raises(BatchCorruptError, match=said) as caught:
        list(read_from(bytes(5) + patched(BATCH, at, new), 5))
    assert "byte 5 " in f"{caught.value} "


def test_compaction_may_leave_fewer_records_than_offsets_and_holes_between_batches() -> None:
    emptied = patched(BATCH, 57, struct.pack(">i", 0))
    headers = list(read_batch_headers(emptied + build_batch(RECORDS, 100), check_crc=True))
    assert [header.record_count for header in headers] == [0, 2]


@pytest.mark.parametrize("second", [0, 7, 8])
def test_offsets_must_increase(second: int) -> None:
    with pytest.raises(BatchCorruptError, match="before it ends at offset 8"):
        list(read_batch_headers(BATCH + build_batch(RECORDS, second)))


@given(st.integers(1, len(LOG) - 1))
def test_a_log_cut_anywhere_but_at_a_border_is_corrupt(length: int) -> None:
    borders = {header.position for header in read_batch_headers(LOG)}
    if length in borders:
        assert sum(header.size_in_bytes for header in read_batch_headers(LOG[:length])) == length
    else:
        with pytest.raises(BatchCorruptError):
            list(read_batch_headers(LOG[:length]))


@pytest.mark.parametrize("zeros", [12, 16, 17, 18, 4096, 200_000])
def test_a_tail_of_zeros_is_the_end(zeros: int) -> None:
    assert len(list(read_batch_headers(LOG + bytes(zeros)))) == 3


@pytest.mark.parametrize("zeros", [1, 7, 11])
def test_a_few_zeros_may_be_a_batch_that_was_cut_off(zeros: int) -> None:
    with pytest.raises(BatchCorruptError, match=f"the log ends {zeros} bytes into"):
        list(read_batch_headers(LOG + bytes(zeros)))


@pytest.mark.parametrize("zeros", [17, 5000, 200_000])
def test_zeros_with_something_after_them_are_corruption(zeros: int) -> None:
    with pytest.raises(BatchCorruptError, match="length 0"):
        list(read_batch_headers(LOG + bytes(zeros) + b"\1"))


def test_no_bytes_are_no_batches() -> None:
    assert list(read_batch_headers(b"")) == []
    assert list(read_from(LOG, len(LOG))) == []


def test_reading_can_start_at_any_batch_border() -> None:
    headers = list(read_batch_headers(LOG))
    assert list(read_from(LOG, headers[1].position)) == headers[1:]


def test_all_kinds_of_buffers_give_the_same_headers() -> None:
    expected = list(read_batch_headers(LOG))
    assert list(read_batch_headers(bytearray(LOG))) == expected
    assert list(read_batch_headers(memoryview(LOG))) == expected
    padded = memoryview(LOG + bytes(16 - len(LOG) % 4)).cast("I")
    assert list(read_batch_headers(padded)) == expected


def test_a_mapped_file_can_be_closed_after_an_error_is_caught(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(LOG[:-1])
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        pytest.raises(BatchCorruptError, match="truncated") as caught,
    ):
        list(read_batch_headers(mapped, check_crc=True))
    assert caught.value.__traceback__ is not None


def test_a_mapped_file_can_be_closed_once_the_iterator_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(LOG)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        headers = read_batch_headers(mapped, check_crc=True)
        assert next(headers).base_offset == 7
        del headers


def test_a_window_of_the_least_size_is_enough() -> None:
    calls: list[int] = []

    def window(position: int) -> memoryview:
        calls.append(position)
        return memoryview(LOG)[position : position + 61]

    assert list(walk_batch_headers(window, len(LOG))) == list(read_batch_headers(LOG))
    assert calls == [header.position for header in read_batch_headers(LOG)]


@given(st.binary(max_size=200))
def test_the_first_batch_of_arbitrary_bytes_is_none_or_corrupt(junk: bytes) -> None:
    try:
        codec = first_batch_compression(junk)
    except BatchCorruptError:
        assert len(junk) >= 26
        return
    assert codec is None or zlib.crc32(junk[16 : first_batch_size(junk)]) == int.from_bytes(junk[12:16], "big")


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_nothing_but_corruption(junk: bytes) -> None:
    try:
        headers = list(read_batch_headers(junk, check_crc=True))
    except BatchCorruptError:
        return
    assert not any(junk[sum(header.size_in_bytes for header in headers) :])


@pytest.mark.parametrize(
    "head",
    [
        b"",
        BATCH[:11],
        BATCH[:-1],
        patched(BATCH, 30, b"\x99", seal=False),
        patched(BATCH, 8, struct.pack(">i", 13)),
        patched(BATCH, 8, struct.pack(">i", -2)),
        patched(BATCH, 8, struct.pack(">i", 48)),
        patched(BATCH, 8, struct.pack(">i", 2**31 - 1)),
        patched(BATCH, 16, b"\3"),
        patched(BATCH, 16, b"\xff"),
        bytes(100),
    ],
    ids=[
        "absent",
        "no-length",
        "cut",
        "crc",
        "length-13",
        "negative",
        "size-60",
        "huge",
        "magic-3",
        "magic--1",
        "zeros",
    ],
)
def test_without_a_whole_and_valid_first_batch_there_is_no_codec(head: bytes) -> None:
    assert first_batch_compression(head) is None


def test_a_first_batch_of_60_bytes_is_invalid_even_if_its_crc_holds() -> None:
    short = bytearray(patched(BATCH, 8, struct.pack(">i", 48))[:60])
    short[17:21] = crc32c.crc32c(bytes(short[21:])).to_bytes(4, "big")
    assert first_batch_compression(bytes(short)) is None


def test_bytes_after_the_first_batch_do_not_matter() -> None:
    assert first_batch_compression(BATCH + b"anything") is CompressionType.NONE
    assert first_batch_compression(mapped_like(BATCH)) is CompressionType.NONE


def mapped_like(data: bytes) -> memoryview:
    return memoryview(bytearray(data))


def test_a_control_batch_counts_as_uncompressed() -> None:
    assert first_batch_compression(build_end_marker(0, Producer(1, 0), commit=False)) is CompressionType.NONE


@given(st.binary(min_size=8, max_size=8), st.integers(-(2**31), 2**31 - 1), st.integers(0, 12))
def test_the_first_batch_size_is_told_by_twelve_bytes(offset: bytes, length: int, available: int) -> None:
    head = (offset + struct.pack(">i", length))[:available]
    assert first_batch_size(head) == (length + 12 if available == 12 and length >= 14 else None)
