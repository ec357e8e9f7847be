"""Valid and invalid batches: index, each field of a Message and of a record, bodies by other compressors, checksums."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.pubsub.memq_batches import (
    REQUEST,
    RecordFields,
    Row,
    build_batch,
    message_of,
    random_record,
    row_of,
    rows_of,
)
from tieredstore.errors import ConfigError, InvalidRangeError
from tieredstore.pubsub.broker.processor import check_message
from tieredstore.pubsub.errors import MessageCorruptError
from tieredstore.pubsub.format.batches import (
    BatchIndex,
    batch_checksum,
    index_size,
    parse_index_size,
    split_checksums,
)
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.format.messages import (
    Compression,
    MessageHeader,
    MessagePlace,
    joined_crc,
    message_checksum,
    parse_message_header,
    split_checksum,
)
from tieredstore.pubsub.format.packets import WriteRequest

RECORD: RecordFields = (b"v", b"k", None, b"\0\0\0\0\0\0\0\7", 1_700_000_000_000)
BINARY = st.binary(max_size=40)
RECORDS = st.lists(
    st.tuples(
        BINARY,
        st.none() | BINARY,
        st.none() | st.lists(st.tuples(st.text(max_size=5), BINARY), max_size=3, unique_by=lambda pair: pair[0]),
        st.none() | BINARY,
        st.integers(-(2**63), 2**63 - 1),
    ),
    max_size=8,
)


def with_body(body: bytes, count: int, compression: Compression = Compression.NONE) -> bytes:
    """Return a batch of one Message with this stored body."""
    header = MessageHeader(REQUEST, crc32(body), compression, count, len(body))
    return build_batch([header.to_bytes() + body])


def patched(at: int, content: bytes) -> bytes:
    batch = bytearray(build_batch([message_of([RECORD])]))
    batch[at : at + len(content)] = content
    return bytes(batch)


def patched_body(at: int, content: bytes) -> bytes:
    body = bytearray(message_of([RECORD, RECORD])[40:])
    body[at : at + len(content)] = content
    return with_body(bytes(body), 2)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(RECORDS, st.sampled_from(Compression)), min_size=1, max_size=4), st.integers(1, 400))
def test_records_come_back_as_they_were_written(
    messages: list[tuple[list[RecordFields], Compression]], target: int
) -> None:
    batch = build_batch([message_of(records, compression) for records, compression in messages])
    expected = [
        row_of(record, message, number)
        for message, (records, _) in enumerate(messages)
        for number, record in enumerate(records)
    ]
    assert rows_of(batch, BatchDecoder(target_bytes=target)) == expected


def test_a_message_is_read_by_itself() -> None:
    source = random.Random(5)
    contents = [[random_record(source) for _ in range(3)] for _ in range(3)]
    batch = build_batch([message_of(records, Compression.ZSTD) for records in contents])
    index = BatchIndex(batch[: index_size(3)], "batch")
    start, stop = index.byte_range(2)
    rows: list[Row] = [
        row for rows in BatchDecoder().decode_message(batch[start:stop], index.place(2)) for row in rows.to_pylist()
    ]
    assert rows == [row_of(record, 2, number) for number, record in enumerate(contents[2])]
    with pytest.raises(InvalidRangeError, match="no Message 3"):
        index.byte_range(3)


@pytest.mark.parametrize("begin", [0, 1])
def test_chosen_messages_of_a_whole_object_or_of_a_part(begin: int) -> None:
    damaged = bytearray(build_batch([message_of([RECORD, RECORD], compression) for compression in Compression] * 2))
    index = BatchIndex(damaged, "batch")
    for number in (2, 4):
        damaged[index.byte_range(number)[1] - 1] ^= 1
    start = index.byte_range(1)[0] if begin else 0
    chosen = index.messages(bytes(damaged[start:]), [1, 2, 3, 4], start)
    decoder = BatchDecoder(on_corrupt="skip")
    assert [row["message"] for rows in decoder.decode_messages(chosen) for row in rows.to_pylist()] == [1, 1, 3, 3]
    assert [why.partition(",")[0] for why in decoder.skipped] == ["batch: Message 2", "batch: Message 4"]


def test_a_large_message_comes_in_parts_and_small_ones_together() -> None:
    large = [(b"x" * 1000, None, None, None, place) for place in range(1000)]
    sizes = [rows.num_rows for rows in BatchDecoder(target_bytes=100_000).decode(build_batch([message_of(large)]))]
    assert sum(sizes) == 1000
    assert max(sizes) <= 200
    many = build_batch([message_of([RECORD])] * 500)
    assert [rows.num_rows for rows in BatchDecoder().decode(many)] == [500]


def test_only_the_columns_that_were_asked_for() -> None:
    batch = build_batch([message_of([random_record(random.Random(1)) for _ in range(5)])])
    whole = rows_of(batch)
    for names in (["value"], ["record", "message_id"], ["headers", "timestamp"], ["message", "key"]):
        decoder = BatchDecoder(names)
        assert decoder.schema.names == names
        assert rows_of(batch, decoder) == [{name: row[name] for name in names} for row in whole]
    with pytest.raises(ConfigError, match="offset"):
        BatchDecoder(["offset"])


@pytest.mark.parametrize(
    "expand",
    [
        lambda body: zstandard.ZstdCompressor(write_content_size=True, write_checksum=True).compress(body),
        lambda body: b"".join(zstandard.ZstdCompressor().compress(part) for part in (body[:20], body[20:])),
        lambda body: zstandard.ZstdCompressor().compressobj().compress(b"") + zstandard.ZstdCompressor().compress(body),
    ],
)
def test_zstd_of_other_writers(expand: Callable[[bytes], bytes]) -> None:
    body = message_of([RECORD] * 3)[40:]
    assert len(rows_of(with_body(expand(body), 3, Compression.ZSTD))) == 3


def test_other_addresses_and_none_at_all() -> None:
    for request in (None, REQUEST._replace(address=bytes(16)), REQUEST._replace(address=b""), REQUEST):
        message = message_of([RECORD], request=request)
        assert parse_message_header(message, MessagePlace("batch", 0, 0)).request == request
        assert len(rows_of(build_batch([message]))) == 1


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        (b"", "0 bytes are too few for a batch"),
        (struct.pack(">ii", 4, 0), "does not match 0 Messages"),
        (struct.pack(">ii", 17, 1), "an index of 17 bytes does not match 1 Messages"),
        (struct.pack(">ii", -4, -1), "does not match -1 Messages"),
        (struct.pack(">ii", 4 + 12 * (2**27), 2**27), "134217728 Messages do not fit an object"),
        (struct.pack(">ii", 16, 1), "ends within its index"),
        (patched(8, b"\0\0\0\1"), "byte 8: the index lists Message 1"),
        (patched(12, b"\0\0\0\x15"), r"at byte 21\) instead of Message 0 at byte 20"),
        (patched(16, b"\0\0\0\x46"), "its Messages end here, but the object has 91 bytes"),
        (patched(16, b"\xff\xff\xff\xff"), r"\(-1 bytes at byte 20\)"),
        (patched(20, b"\0\x29"), "its header has an impossible size: 41 bytes, with 21 bytes of fields"),
        (patched(22, b"\0\x65"), "its version is 101"),
        (patched(24, b"\x80\0"), "with -32768 bytes of fields of the producer"),
        (patched(26, b"\5"), "21 bytes, which does not match an address of 5 bytes"),
        (patched(47, b"\0"), "has CRC-32"),
        (patched(51, b"\3"), "unknown compression 3"),
        (patched(52, b"\x80"), "its number of records is negative: -2147483647"),
        (patched(56, b"\0\0\0\x1e"), "the body has 30 bytes, but 31 bytes follow"),
        (patched(90, b"w"), "has CRC-32"),
    ],
)
def test_an_index_or_a_header_that_disagrees_is_refused(batch: bytes, sentence: str) -> None:
    with pytest.raises(MessageCorruptError, match=sentence) as raised:
        rows_of(batch)
    assert "batch" in str(raised.value)


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        (patched_body(0, b"\x80\0"), "record 0 has a field of a negative length"),
        (patched_body(0, b"\0\x0a"), "does not agree with its message id"),
        (patched_body(0, b"\0\x14"), "does not agree with its message id"),
        (patched_body(0, b"\x7f\xff"), "ends after the body"),
        (patched_body(10, b"\xff"), "does not agree with its message id"),
        (patched_body(19, b"\x80\0"), "negative length"),
        (patched_body(21, b"\x80\0\0\0"), "negative length"),
        (patched_body(21, b"\0\0\1\0"), "ends after the body"),
        (patched_body(31 + 26, b"\x7f\xff\xff\xff"), "record 1 has a field that ends after the body"),
        (with_body(message_of([RECORD])[40:], 2), "the body ends after 1 of 2 records"),
        (with_body(message_of([RECORD, RECORD])[40:], 1), "bytes are left after the last of 1 records"),
        (with_body(b"", 1), "the body ends after 0 of 1 records"),
        (with_body(b"\0", 0), "bytes are left after the last of 0"),
        (with_body(b"not zstd", 1, Compression.ZSTD), "malformed zstd"),
        (with_body(gzip.compress(b"", mtime=0)[:-3], 0, Compression.GZIP), "malformed gzip"),
    ],
)
def test_records_that_do_not_hold_together_are_refused(batch: bytes, sentence: str) -> None:
    with pytest.raises(MessageCorruptError, match=f"batch: Message 0, byte .*{sentence}"):
        rows_of(batch)


@pytest.mark.parametrize("headers", [b"\0\1a", b"\0\1a\0\2b", b"\0\5a\0\0", b"\x80\0\0\0"])
def test_headers_that_do_not_fill_their_length_are_refused(headers: bytes) -> None:
    fields = struct.pack(">qBh", 0, 0, len(headers)) + headers
    body = struct.pack(">h", len(fields)) + fields + struct.pack(">ii", 0, 0)
    with pytest.raises(MessageCorruptError, match="record 0 has"):
        rows_of(with_body(body, 1))


def test_names_that_are_no_utf_8_read_as_memqs_client_shows_them() -> None:
    packed = b"\0\2\xff\xfe\0\1v" + b"\0\3\xe2\x82\xac\0\0"
    fields = struct.pack(">qBh", 0, 0, len(packed)) + packed
    body = struct.pack(">h", len(fields)) + fields + struct.pack(">ii", 0, 0)
    (row,) = rows_of(with_body(body, 1))
    assert row["headers"] == [{"key": "\ufffd\ufffd", "value": b"v"}, {"key": "€", "value": b""}]


def test_a_record_without_its_fields_has_no_timestamp() -> None:
    body = struct.pack(">hi1si1s", 0, 1, b"k", 1, b"v")
    (row,) = rows_of(with_body(body, 1))
    assert (row["timestamp"], row["message_id"], row["key"], row["value"]) == (None, None, b"k", b"v")


@pytest.mark.parametrize("compression", Compression)
def test_messages_that_expand_beyond_the_limit_are_refused(compression: Compression) -> None:
    records: list[RecordFields] = [(bytes(100_000), None, None, None, 0)] * 20
    batch = build_batch([message_of(records, compression)])
    with pytest.raises(MessageCorruptError, match=r"max\.expanded\.bytes"):
        rows_of(batch, BatchDecoder(max_expanded_bytes=1_000_000))
    assert len(rows_of(batch, BatchDecoder(max_expanded_bytes=3_000_000))) == 20


def test_a_damaged_message_alone_is_left_out_and_counted() -> None:
    messages = [message_of([RECORD, RECORD], compression) for compression in Compression]
    damaged = bytearray(build_batch(messages))
    index = BatchIndex(damaged, "batch")
    damaged[index.byte_range(1)[1] - 1] ^= 1
    decoder = BatchDecoder(on_corrupt="skip")
    assert [row["message"] for row in rows_of(bytes(damaged), decoder)] == [0, 0, 2, 2]
    (skipped,) = decoder.skipped
    assert skipped.startswith("batch: Message 1, byte")
    assert "CRC-32" in skipped
    rows = BatchDecoder().decode(bytes(damaged), "batch")
    assert next(rows).num_rows == 2  # records before the damage are returned
    with pytest.raises(MessageCorruptError):
        next(rows)


def test_the_size_of_an_index_is_known_from_its_first_bytes() -> None:
    assert parse_index_size(build_batch([message_of([RECORD])] * 3)[:8], "batch") == index_size(3) == 44


RECORD_BYTES: Final = 31
zstd: Any = zstandard


def compress_flushing(body: bytes, compressor: Any, mode: int) -> bytes:
    """Compress a body with a flush after each record, like MemQ's writers."""
    parts: list[bytes] = []
    for at in range(0, len(body), RECORD_BYTES):
        parts += (compressor.compress(body[at : at + RECORD_BYTES]), compressor.flush(mode))
    return b"".join([*parts, compressor.flush()])


def zstd_flushed(body: bytes) -> bytes:
    return compress_flushing(body, zstd.ZstdCompressor().compressobj(), zstd.COMPRESSOBJ_FLUSH_BLOCK)


def zstd_behind_what_is_skipped(body: bytes) -> bytes:
    return b"\x50\x2a\x4d\x18\4\0\0\0skip" + zstandard.ZstdCompressor().compress(body)


def zstd_of_a_large_window(body: bytes) -> bytes:
    """Compress with a window of 128 MiB, the largest that Java's reader accepts."""
    whole: bytes = zstd.ZstdCompressor(
        compression_params=zstd.ZstdCompressionParameters.from_level(3, window_log=27)
    ).compress(body)
    return whole


def gzip_flushed(body: bytes) -> bytes:
    return compress_flushing(body, zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS), zlib.Z_SYNC_FLUSH)


def gzip_in_members(body: bytes) -> bytes:
    return gzip.compress(body[:20]) + gzip.compress(body[20:])


def gzip_with_a_name(body: bytes) -> bytes:
    return b"\x1f\x8b\x08\x08" + bytes(6) + b"name\0" + gzip.compress(body)[10:]


@pytest.mark.parametrize(
    "compress",
    [
        zstd_flushed, zstd_behind_what_is_skipped, zstd_of_a_large_window, gzip_flushed, gzip_in_members,
        gzip_with_a_name,
    ],
)  # fmt: skip
def test_bodies_of_other_compressors(compress: Callable[[bytes], bytes]) -> None:
    compression = Compression.ZSTD if "zstd" in compress.__name__ else Compression.GZIP
    stored = compress(message_of([RECORD] * 3)[40:])
    header = MessageHeader(REQUEST, crc32(stored), compression, 3, len(stored))
    batch = build_batch([header.to_bytes() + stored])
    assert rows_of(batch) == [row_of(RECORD, 0, number) for number in range(3)]


@pytest.mark.parametrize("compression", Compression)
def test_a_message_without_records_and_without_a_body_is_read(compression: Compression) -> None:
    """MemQ's producer sends Messages that consist only of the header of 40 bytes, with and without compression."""
    empty = MessageHeader(REQUEST, 0, compression, 0, 0).to_bytes()
    assert len(empty) == 40
    batch = build_batch([message_of([RECORD]), empty, message_of([RECORD])])
    assert [row["message"] for row in rows_of(batch)] == [0, 2]


@pytest.mark.parametrize("has_isal", [True, False])
@given(first=st.binary(max_size=300), second=st.binary(max_size=300), zeros=st.integers(0, 1 << 18))
def test_the_crc_of_both_parts_is_that_of_the_whole(first: bytes, second: bytes, zeros: int, has_isal: bool) -> None:
    second += bytes(zeros)
    with pytest.MonkeyPatch.context() as patch:
        if not has_isal:
            patch.setattr("tieredstore.pubsub.format.messages.crc32_combine", None)
        assert joined_crc(zlib.crc32(first), zlib.crc32(second), second) == zlib.crc32(first + second)


@pytest.mark.parametrize("size", [0, 100, 50_000])
def test_a_message_and_a_batch_have_the_crc_of_their_bytes(size: int) -> None:
    sealed = [message_of([(bytes([number]) * size, b"k", None, None, 0)]) for number in range(3)]
    assert [message_checksum(each) for each in sealed] == [zlib.crc32(each) for each in sealed]
    assert message_checksum(sealed[1], zlib.crc32(sealed[0])) == zlib.crc32(sealed[0] + sealed[1])
    batch = build_batch(sealed)
    assert batch_checksum(batch, sealed) == zlib.crc32(batch)


@given(data=st.binary(max_size=100))
def test_a_split_believes_nothing(data: bytes) -> None:
    whole, body = split_checksum(data)
    assert whole == zlib.crc32(data)
    assert body in {zlib.crc32(data[at:]) for at in range(len(data) + 1)}


def test_each_damaged_byte_of_a_message_is_seen() -> None:
    message = message_of([(b"value", b"k", None, None, 0)])
    assert check_message(WriteRequest("orders", zlib.crc32(message), message), 1000).record_count == 1
    for at in range(len(message)):
        damaged = message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]
        with pytest.raises(MessageCorruptError, match="the request says"):
            check_message(WriteRequest("orders", zlib.crc32(message), damaged), 1000)
    body = bytearray(message)
    body[-1] ^= 1
    with pytest.raises(MessageCorruptError, match="its body has CRC-32"):
        check_message(WriteRequest("orders", zlib.crc32(body), bytes(body)), 1000)


@pytest.mark.parametrize("size", [0, 100, 100_000])
def test_an_object_is_split_into_what_a_reader_checks(size: int) -> None:
    sealed = [message_of([(bytes([number]) * size, b"k", None, None, 0)]) for number in range(3)]
    batch = build_batch(sealed)
    whole, bodies = split_checksums(batch, "a batch")
    assert whole == zlib.crc32(batch)
    if size < 65_536:
        assert bodies is None
    else:
        headers = [int.from_bytes(message[:2]) for message in sealed]
        assert bodies == [zlib.crc32(message[header:]) for message, header in zip(sealed, headers, strict=True)]
    assert split_checksums(batch[:-1], "a batch") == (zlib.crc32(batch[:-1]), None)
