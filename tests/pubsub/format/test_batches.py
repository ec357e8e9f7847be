"""What a batch may be, and what is refused: the index, each field of a Message, each field of a record."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable
from zlib import crc32

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.pubsub.memq_batches import REQUEST, Row, message_of, random_record, row_of, rows_of
from tieredstore.errors import ConfigError, InvalidRange
from tieredstore.pubsub.errors import MessageCorrupt
from tieredstore.pubsub.format.batches import BatchIndex, build_batch, index_size, parse_index_size
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.format.messages import (
    Compression,
    MessageHeader,
    MessagePlace,
    RecordFields,
    parse_message_header,
)

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
    """A batch of one Message of a body as it is stored."""
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
    with pytest.raises(InvalidRange, match="no Message 3"):
        index.byte_range(3)


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
        (b"", "0 bytes are no batch"),
        (struct.pack(">ii", 4, 0), "does not go with 0 Messages"),
        (struct.pack(">ii", 17, 1), "an index of 17 bytes does not go with 1 Messages"),
        (struct.pack(">ii", -4, -1), "does not go with -1 Messages"),
        (struct.pack(">ii", 4 + 12 * (2**27), 2**27), "no object holds 134217728 Messages"),
        (struct.pack(">ii", 16, 1), "ends within its index"),
        (patched(8, b"\0\0\0\1"), "byte 8: the index has Message 1"),
        (patched(12, b"\0\0\0\x15"), "at 21 where Message 0 at 20"),
        (patched(16, b"\0\0\0\x46"), "its Messages end here, and the object has 91 bytes"),
        (patched(16, b"\xff\xff\xff\xff"), "of -1 bytes"),
        (patched(20, b"\0\x29"), "its header says 41 bytes, 21 of them"),
        (patched(22, b"\0\x65"), "its version is 101"),
        (patched(24, b"\x80\0"), "-32768 of them the producer's"),
        (patched(26, b"\5"), "21 bytes with an address of 5"),
        (patched(47, b"\0"), "has the CRC-32"),
        (patched(51, b"\3"), "compression 3 is not known"),
        (patched(52, b"\x80"), "it says to have -2147483647 records"),
        (patched(56, b"\0\0\0\x1e"), "its body says 30 bytes, and there are 31"),
        (patched(90, b"w"), "has the CRC-32"),
    ],
)
def test_an_index_or_a_header_that_disagrees_is_refused(batch: bytes, sentence: str) -> None:
    with pytest.raises(MessageCorrupt, match=sentence) as raised:
        rows_of(batch)
    assert "batch" in str(raised.value)


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        (patched_body(0, b"\x80\0"), "record 0 has a field of a negative length"),
        (patched_body(0, b"\0\x0a"), "does not agree with its message id"),
        (patched_body(0, b"\0\x14"), "does not agree with its message id"),
        (patched_body(0, b"\x7f\xff"), "ends behind the body"),
        (patched_body(10, b"\xff"), "does not agree with its message id"),
        (patched_body(19, b"\x80\0"), "negative length"),
        (patched_body(21, b"\x80\0\0\0"), "negative length"),
        (patched_body(21, b"\0\0\1\0"), "ends behind the body"),
        (patched_body(31 + 26, b"\x7f\xff\xff\xff"), "record 1 has a field that ends behind the body"),
        (with_body(message_of([RECORD])[40:], 2), "the body ends after 1 of 2 records"),
        (with_body(message_of([RECORD, RECORD])[40:], 1), "bytes are left behind the last of 1 records"),
        (with_body(b"", 1), "the body ends after 0 of 1 records"),
        (with_body(b"\0", 0), "bytes are left behind the last of 0"),
        (with_body(b"not zstd", 1, Compression.ZSTD), "malformed zstd"),
        (with_body(gzip.compress(b"", mtime=0)[:-3], 0, Compression.GZIP), "malformed gzip"),
    ],
)
def test_records_that_do_not_hold_together_are_refused(batch: bytes, sentence: str) -> None:
    with pytest.raises(MessageCorrupt, match=f"batch: Message 0, byte .*{sentence}"):
        rows_of(batch)


@pytest.mark.parametrize("headers", [b"\0\1a", b"\0\1a\0\2b", b"\0\5a\0\0", b"\x80\0\0\0"])
def test_headers_that_do_not_fill_their_length_are_refused(headers: bytes) -> None:
    fields = struct.pack(">qBh", 0, 0, len(headers)) + headers
    body = struct.pack(">h", len(fields)) + fields + struct.pack(">ii", 0, 0)
    with pytest.raises(MessageCorrupt, match="record 0 has"):
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
def test_what_expands_beyond_the_limit_is_refused(compression: Compression) -> None:
    records: list[RecordFields] = [(bytes(100_000), None, None, None, 0)] * 20
    batch = build_batch([message_of(records, compression)])
    with pytest.raises(MessageCorrupt, match=r"max\.expanded\.bytes"):
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
    assert next(rows).num_rows == 2  # what came before the damage is given
    with pytest.raises(MessageCorrupt):
        next(rows)


def test_the_size_of_an_index_is_known_from_its_first_bytes() -> None:
    assert parse_index_size(build_batch([message_of([RECORD])] * 3)[:8], "batch") == index_size(3) == 44
