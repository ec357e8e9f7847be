"""The decoder on damaged logs."""

from __future__ import annotations

import re
import struct

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fresh_python import run_fresh
from tests.support.records.record_batches import (
    CODECS,
    COMPRESS,
    compressed_batch,
    message,
    message_set,
    rows,
    rows_of,
    with_body,
    with_field,
)
from tieredstore.errors import BatchCorruptError
from tieredstore.kafka.batches import CompressionType
from tieredstore.kafka.records import RecordDecoder
from tieredstore.testing.batches import Record, build_batch

RECORDS = [Record(b"first", b"k", 1_000, (("h", b"x"),)), Record(b"second", None, 1_007)]
BATCH = build_batch(RECORDS, 7)
BEFORE = build_batch([Record(b"before")], 2)
AFTER = build_batch([Record(b"after")], 30)

# Offsets of a batch's fields: base offset 0, length 8, magic 16, attributes 21, last delta 23, count 57.
FRAMES = [
    (with_field(BATCH, 8, ">i", 0, seal=False), "impossible length 0"),
    (with_field(BATCH, 8, ">i", 13, seal=False), "impossible length 13"),
    (with_field(BATCH, 8, ">i", -1, seal=False), "impossible length -1"),
    (with_field(BATCH, 8, ">i", 2**31 - 1, seal=False), "has 2147483659 bytes, but max_batch_bytes allows"),
    (with_field(BATCH, 16, ">b", 3, seal=False), "unknown magic 3"),
    (with_field(BATCH, 16, ">b", -1, seal=False), "unknown magic -1"),
]
CONTENTS = [
    (with_field(BATCH, 0, ">q", -1), "base offset -1"),
    (with_field(BATCH, 0, ">q", 2**63 - 1), "range of offsets|its log ends"),
    (with_field(BATCH, 0, ">q", 2), "begins at offset 2, but the batch before it ends at offset 2"),
    (with_field(BATCH, 23, ">i", -1), "base offset 7"),
    (with_field(BATCH, 57, ">i", 3), "3 records, but spans 2 offsets"),
    (with_field(BATCH, 57, ">i", -1), "-1 records, but spans 2 offsets"),
    (with_field(with_field(BATCH, 23, ">i", 99), 57, ">i", 100), "100 records, which do not fit into"),
    (with_field(with_field(BATCH, 23, ">i", 9), 57, ">i", 3), "record, number 2 of 3"),
    (with_field(BATCH, 57, ">i", 1), "left after its 1 records"),
    (with_field(BATCH, 21, ">h", 5), "unknown compression type 5"),
    (BATCH[:30] + b"\xff" + BATCH[31:], "is damaged: its bytes have the CRC"),
    (with_field(BATCH[:61] + bytes([2]) + BATCH[62:], 23, ">i", 1), "record, number 0"),
]


def record(*varints: int, size: int | None = None) -> bytes:
    """Return record bytes of small zig-zag numbers, preceded by their size."""
    body = bytes(number << 1 if number >= 0 else ~(number << 1) for number in varints)
    return bytes([(len(body) if size is None else size) << 1]) + body


# Attributes, timestamp delta, offset delta, key size, value size, count of headers.
RECORD_FAULTS = [
    (record(0, 0, 0, -1, -1, 0, size=7), "number 0 of 1"),
    (record(0, 0, 0, -1, -1, 0, size=5), "number 0 of 1"),
    (record(0, 0, 0, -1, -1, 0, 0), "number 0 of 1"),
    (record(0, 0, 0, 5, -1, 0), "number 0 of 1"),
    (record(0, 0, 0, -1, 63, 0), "number 0 of 1"),
    (record(0, 0, 1, -1, -1, 0), "offset delta 1"),
    (record(0, 0, -1, -1, -1, 0), "offset delta -1"),
    (record(0, 0, 0, -1, -1, -1), "headers are malformed"),
    (record(0, 0, 0, -1, -1, 60), "headers are malformed"),
    (record(0, 0, 0, -1, -1, 1, -1, -1), "headers are malformed"),
    (record(0, 0, 0, -1, -1, 1, 0, 9), "headers are malformed"),
    (record(0, 0, 0, -1, -1, 0)[:-1] + b"\xff", "number 0 of 1"),
    (bytes([40 << 1, 0]) + b"\xff" * 10 + b"\x01" + bytes(29), "number 0 of 1"),
    (b"\xff\xff\xff\xff\xff\x01" + bytes(30), "number 0 of 1"),
    (b"\xfe\xff\xff\xff\x0f" + bytes(30), "number 0 of 1"),
]


@pytest.mark.parametrize(("batch", "words"), FRAMES + CONTENTS)
@pytest.mark.parametrize("piece", [1, 1_000])
def test_a_damaged_batch_is_named_after_the_records_before_it(batch: bytes, words: str, piece: int) -> None:
    log = BEFORE + batch + AFTER
    batches = RecordDecoder().decode([log[at : at + piece] for at in range(0, len(log), piece)], position=1_000)
    assert next(batches).column("value").to_pylist() == [b"before"]
    with pytest.raises(BatchCorruptError, match=words) as caught:
        next(batches)
    assert f"at byte {1_000 + len(BEFORE)}" in str(caught.value)


@pytest.mark.parametrize(("batch", "words"), CONTENTS)
def test_a_damaged_batch_is_skipped_with_a_report(batch: bytes, words: str) -> None:
    decoder = RecordDecoder(on_corrupt="skip")
    decoded = rows_of(decoder.decode([BEFORE + batch + AFTER], position=1_000))
    assert [row["value"] for row in decoded] == [b"before", b"after"]
    (skipped,) = decoder.skipped
    assert (skipped.position, skipped.size_in_bytes) == (1_000 + len(BEFORE), len(batch))
    assert skipped.base_offset == struct.unpack(">q", batch[:8])[0]
    assert re.search(words, skipped.reason)


@pytest.mark.parametrize(("batch", "words"), FRAMES)
def test_nothing_can_be_skipped_without_a_frame(batch: bytes, words: str) -> None:
    with pytest.raises(BatchCorruptError, match=words):
        rows(BEFORE + batch + AFTER, on_corrupt="skip")


@pytest.mark.parametrize(("body", "words"), RECORD_FAULTS)
@pytest.mark.parametrize("codec", CODECS)
def test_every_field_of_a_record_is_bounded(body: bytes, words: str, codec: CompressionType) -> None:
    batch = with_body(build_batch([Record(b"v")]), COMPRESS[codec](body), codec)
    with pytest.raises(BatchCorruptError, match=words):
        rows(batch)
    assert rows(batch + AFTER, on_corrupt="skip") == rows(AFTER)


def test_any_negative_size_of_a_key_or_value_is_a_null_as_in_java() -> None:
    batch = with_body(build_batch([Record(b"v")]), record(0, 0, 0, -9, -2, 1, 0, -7), CompressionType.NONE)
    (row,) = rows(batch)
    assert (row["key"], row["value"], row["headers"]) == (None, None, [{"key": "", "value": None}])


def test_offset_deltas_must_increase() -> None:
    body = record(0, 0, 1, -1, -1, 0) + record(0, 0, 1, -1, -1, 0)
    with pytest.raises(BatchCorruptError, match="offset delta 1"):
        rows(with_body(build_batch([Record(b"v")] * 2), body, CompressionType.NONE))


@pytest.mark.parametrize("codec", CODECS)
def test_a_fault_in_the_last_record_takes_none_of_its_batch_along(codec: CompressionType) -> None:
    batch = compressed_batch([Record(b"v", headers=(("h", None),))] * 9, 10, codec)
    short = with_field(with_field(batch, 23, ">i", 9), 57, ">i", 10)
    assert rows(BEFORE + short + AFTER, on_corrupt="skip") == rows(BEFORE + AFTER)


def test_a_fault_late_in_a_large_batch_takes_none_of_it_along() -> None:
    for records, target in (([Record(b"v")] * 20_000, 4 << 20), ([Record(bytes(5_000))] * 100, 10_000)):
        batch = build_batch(records, 10)
        short = with_field(with_field(batch, 23, ">i", len(records)), 57, ">i", len(records) + 1)
        after = build_batch([Record(b"after")], 100_000)
        assert rows(BEFORE + short + after, on_corrupt="skip", target_bytes=target) == rows(BEFORE + after)


@given(st.integers(1, len(BATCH) - 1), st.integers(1, 80))
def test_a_log_that_ends_inside_a_batch_is_named(missing: int, piece: int) -> None:
    log = (BEFORE + BATCH)[:-missing]
    batches = RecordDecoder(on_corrupt="skip").decode([log[at : at + piece] for at in range(0, len(log), piece)])
    assert next(batches).column("value").to_pylist() == [b"before"]
    with pytest.raises(
        BatchCorruptError, match=f"ends {len(BATCH) - missing} bytes into the record batch at byte {len(BEFORE)}"
    ):
        next(batches)


@pytest.mark.parametrize("tail", [bytes(11), bytes(17) + b"x", bytes(30) + BATCH, bytes(5_000) + b"\1"])
@pytest.mark.parametrize("piece", [1, 16, 20, 10_000])
def test_only_zeros_of_twelve_bytes_or_more_end_a_log(tail: bytes, piece: int) -> None:
    log = BEFORE + tail
    with pytest.raises(BatchCorruptError):
        rows([log[at : at + piece] for at in range(0, len(log), piece)])


def test_an_unchecked_crc_is_not_looked_at() -> None:
    batch = with_field(BATCH, 17, ">i", 12345, seal=False)
    assert rows(batch, check_crc=False) == rows(BATCH)


@given(st.integers(0, len(BATCH) * 8 - 1))
def test_a_flipped_bit_is_never_taken_for_the_truth(bit: int) -> None:
    changed = bytearray(BATCH)
    changed[bit // 8] ^= 1 << bit % 8
    # The CRC covers only bytes after its own field: not offset, length, epoch and magic.
    if 12 <= bit // 8 < 16 or bit // 8 < 8:
        return
    with pytest.raises(BatchCorruptError):
        rows(bytes(changed))


def test_a_stored_batch_over_the_limit_is_refused_before_it_is_whole() -> None:
    batch = build_batch([Record(bytes(5_000))])
    with pytest.raises(BatchCorruptError, match="max_batch_bytes allows only 4999"):
        rows([batch[:100]], max_batch_bytes=4_999)


BAD_SETS = [
    (message(1, 9, b"v")[:-1] + b"x", "CRC"),
    (message_set(1, 9, message(0, 0, b"v"), CompressionType.GZIP), "not of magic 1"),
    (
        message_set(1, 9, message_set(1, 0, message(1, 0, b"v"), CompressionType.GZIP), CompressionType.GZIP),
        "compressed",
    ),
    (message_set(1, 9, b"", CompressionType.GZIP), "without messages"),
    (
        message_set(1, 9, message(1, 3, b"v") + message(1, 3, b"v"), CompressionType.GZIP),
        "inner message with the offset",
    ),
    (
        message_set(1, 9, message(1, 0, b"v") + message(1, 10, b"v"), CompressionType.GZIP),
        "inner message with the offset",
    ),
    (
        message_set(0, 9, message(0, 2, b"v") + message(0, 9, b"v"), CompressionType.GZIP),
        "inner message with the offset 2",
    ),
    (message_set(0, 9, message(0, 9, b"v")[:-1], CompressionType.GZIP), "inner message, number 0"),
    (message_set(0, 9, message(0, 9, b"v")[:-1] + b"x", CompressionType.GZIP), "number 0, that is damaged"),
    (message(0, 9, None, None, attributes=1), "malformed gzip|without messages"),
]


@pytest.mark.parametrize(("batch", "words"), BAD_SETS)
def test_damaged_message_sets_are_named_and_can_be_skipped(batch: bytes, words: str) -> None:
    with pytest.raises(BatchCorruptError, match=words):
        rows(BEFORE + batch)
    assert rows(BEFORE + batch + AFTER, on_corrupt="skip") == rows(BEFORE + AFTER)


def test_a_damaged_offset_does_not_pass_for_the_end_of_the_range() -> None:
    log = BEFORE + with_field(BATCH, 0, ">q", 7 + 2**40, seal=False) + AFTER
    with pytest.raises(BatchCorruptError, match="which ends before offset 31"):
        rows(log, stop_offset=20, end_offset=31)
    assert rows(log, stop_offset=31, end_offset=31, on_corrupt="skip") == rows(BEFORE + AFTER)
    assert rows(BEFORE + BATCH + AFTER, stop_offset=31, end_offset=31) == rows(BEFORE + BATCH + AFTER)


def headers_batch(count: int, header: bytes = b"\0\0") -> bytes:
    """Return a compressed batch of one record with ``count`` headers, by default with empty keys and values."""
    body = b"\0\0\0\1\1" + unsigned_varint(2 * count) + header * count
    return with_body(
        build_batch([Record(b"")]), zstandard.compress(unsigned_varint(2 * len(body)) + body), CompressionType.ZSTD
    )


def unsigned_varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


COLUMN_SETS = [("offset",), ("headers",), ("key", "value")]


@pytest.mark.parametrize("columns", COLUMN_SETS)
def test_headers_count_against_what_a_batch_may_expand_to(columns: tuple[str, ...]) -> None:
    bomb, limit = headers_batch(300_000), 4 << 20
    with pytest.raises(
        BatchCorruptError, match=r"has at least 300000 record headers, but max_batch_bytes leaves room for only 149"
    ):
        rows(bomb, max_batch_bytes=limit, columns=columns)
    (row,) = rows(bomb, max_batch_bytes=300_000 * 26 + 100, columns=columns)
    assert len(row.get("headers") or [None] * 300_000) == 300_000


@pytest.mark.slow
def test_headers_that_nobody_asks_for_take_no_memory() -> None:
    """Measure the process's memory, because the compiled code does not allocate its tables through Python."""
    code = """
import resource
from tests.kafka.test_records_damage import headers_batch
from tieredstore.kafka.records import RecordDecoder
bomb = headers_batch(5_000_000)
decoder = RecordDecoder(("offset",))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(batch,) = decoder.decode([bomb])
assert batch.num_rows == 1
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
    # The body takes 10 MB, and its buffer doubles until the body fits. The decoded headers would take 120 MB.
    assert int(run_fresh(code)) < 60


@pytest.mark.parametrize("size", [1, 9])
def test_malformed_header_keys_are_replaced_as_java_does_however_many(size: int) -> None:
    key = b"\xff" * size
    header = bytes([2 * size]) + key + b"\1"
    (row,) = rows(headers_batch(50_000, header))
    assert row["headers"] == [{"key": "\ufffd" * size, "value": None}] * 50_000
