"""The decoder against the parsers of aiokafka and kafka-python."""

from __future__ import annotations

import importlib
import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.records.record_batches import CODECS, Row, compressed_batch, message, message_set, random_log, rows
from tieredstore.errors import BatchCorruptError
from tieredstore.kafka.batches import CompressionType
from tieredstore.testing.batches import Record, build_batch

with warnings.catch_warnings():
    # kafka-python calls a deprecated function for its schemas when imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    LegacyRecordBatchBuilder: Any = importlib.import_module("kafka.record.legacy_records").LegacyRecordBatchBuilder
    PythonRecords: Any = importlib.import_module("kafka.record.memory_records").MemoryRecords
AioRecords: Any = importlib.import_module("aiokafka.record.memory_records").MemoryRecords

LEAST, GREATEST = -(2**62), 2**62 - 1
"""Bounds of timestamps. A record stores its difference to the first record's timestamp, which must fit a long."""
DATA = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=5), DATA), max_size=4).map(tuple)
RECORDS = st.builds(Record, value=DATA, key=DATA, timestamp_ms=st.integers(LEAST, GREATEST), headers=HEADERS)
COMPRESSED = CODECS[1:]


def parsed(parser: Any, log: bytes) -> Iterator[Row]:
    """Yield another library's records, converted to ours."""
    parsed = parser(log)
    while (batch := parsed.next_batch()) is not None:
        if getattr(batch, "is_control_batch", False):
            continue
        assert batch.validate_crc()
        for record in batch:
            yield {
                "key": record.key,
                "value": record.value,
                "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
                "offset": record.offset,
                "timestamp": -1 if record.timestamp is None else record.timestamp,
                "timestampType": -1 if record.timestamp_type is None else record.timestamp_type,
            }


def ours(log: bytes) -> list[Row]:
    return [{name: value for name, value in row.items() if name != "leaderEpoch"} for row in rows(log)]


def parsers(codec: CompressionType) -> list[Any]:
    """Return the parsers; kafka-python needs one more library for snappy."""
    return [AioRecords] if codec is CompressionType.SNAPPY else [AioRecords, PythonRecords]


@given(st.lists(RECORDS, min_size=1, max_size=25), st.sampled_from(CODECS), st.integers(0, 2**40), st.booleans())
def test_a_batch_of_any_records(records: list[Record], codec: CompressionType, offset: int, append_time: bool) -> None:
    log = compressed_batch(records, offset, codec, log_append_time_ms=1_800_000_000_000 if append_time else None)
    for parser in parsers(codec):
        assert ours(log) == list(parsed(parser, log))


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_a_log_of_any_batches(seed: int) -> None:
    log = b"".join(random_log(random.Random(seed), 12))
    assert ours(log) == list(parsed(AioRecords, log))


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_a_huge_record_between_empty_ones(codec: CompressionType) -> None:
    huge = random.Random(1).randbytes(3_000_000) + bytes(3_000_000)
    records = [Record(b"", b""), Record(huge, huge[::-1], -5, (("h", huge),)), Record(None)]
    log = compressed_batch(records, 3, codec)
    for parser in parsers(codec):
        assert ours(log) == list(parsed(parser, log))


# LZ4 for magic 0 is left out, because its old header checksum needs another library in kafka-python.
@pytest.mark.parametrize(
    ("magic", "codec"),
    [(0, CODECS[0]), (1, CODECS[0]), (0, CompressionType.GZIP), (1, CompressionType.GZIP), (1, CompressionType.LZ4)],
)
def test_message_sets_that_another_library_wrote(magic: int, codec: CompressionType) -> None:
    builder = LegacyRecordBatchBuilder(magic, codec.value, 100_000)
    for i in range(30):
        assert builder.append(i, 1_000 - i, None if i % 3 == 0 else b"key", None if i % 7 == 0 else b"v" * i)
    written = bytes(builder.build())
    # A broker gives the wrapper the offset of its last message.
    log = written if codec is CompressionType.NONE else (29).to_bytes(8, "big") + written[8:]
    assert len(ours(log)) == 30
    for parser in (AioRecords, PythonRecords):
        assert ours(log) == list(parsed(parser, log))


@pytest.mark.parametrize("codec", [codec for codec in COMPRESSED if codec is not CompressionType.ZSTD])
@pytest.mark.parametrize("attributes", [0, 8])
def test_relative_offsets_and_append_times_of_message_sets(codec: CompressionType, attributes: int) -> None:
    relative = (0, 2, 3, 9)  # compaction removed the others
    inner = b"".join(message(1, offset, b"v%d" % offset, b"k", 50 + offset) for offset in relative)
    log = message(1, 20, b"before") + message_set(1, 109, inner, codec, 7_777, attributes)
    decoded = rows(log)
    assert [row["offset"] for row in decoded] == [20, 100, 102, 103, 109]
    assert [row["timestamp"] for row in decoded[1:]] == ([7_777] * 4 if attributes else [50, 52, 53, 59])
    assert [row["timestampType"] for row in decoded] == [0] + [attributes // 8] * 4
    assert {row["leaderEpoch"] for row in decoded} == {-1}
    for parser in parsers(codec):
        assert ours(log) == list(parsed(parser, log))


# LZ4 for magic 0 is left out, because its frames have another header checksum, and their own test.
@pytest.mark.parametrize(
    ("magic", "codec"),
    [(magic, codec) for magic in (0, 1) for codec in COMPRESSED[: 3 if magic else 2]],
)
def test_message_sets_with_the_offset_0_that_clients_send_count_from_0(codec: CompressionType, magic: int) -> None:
    """Clients send a wrapper with the offset 0, and a broker that stores the message set unchanged keeps this offset.
    Count from 0, as Java's client does.
    """
    inner = b"".join(message(magic, offset, b"v%d" % offset, b"k", 50) for offset in range(4))
    log = message_set(magic, 0, inner, codec) + message(magic, 4, b"after")
    assert [row["offset"] for row in rows(log)] == [0, 1, 2, 3, 4]
    assert [row["offset"] for row in rows(log, start_offset=2)] == [2, 3, 4]
    assert [row["offset"] for row in rows(log, start_offset=1, stop_offset=3)] == [1, 2]
    with pytest.raises(BatchCorruptError, match="which ends before offset 3"):
        rows(log, end_offset=3)
    with pytest.raises(BatchCorruptError, match="but the batch before it ends at offset 3"):
        rows(message_set(magic, 0, inner, codec) + message(magic, 3, b"again"))


def test_magic_0_has_no_timestamps() -> None:
    log = message(0, 5, b"v", None) + message(0, 6, None, b"k") + message_set(0, 8, message(0, 8, b"x"), COMPRESSED[0])
    decoded = rows(log)
    assert [(row["timestamp"], row["timestampType"]) for row in decoded] == [(-1, -1)] * 3
    assert [row["offset"] for row in decoded] == [5, 6, 8]


def test_all_magics_in_one_log() -> None:
    old = message(0, 0, b"a") + message_set(1, 3, message(1, 0, b"b") + message(1, 1, b"c"), CompressionType.GZIP)
    log = old + build_batch([Record(b"d", headers=(("h", b"x"),))], 9)
    assert [row["value"] for row in rows(log)] == [b"a", b"b", b"c", b"d"]
    assert rows([log[at : at + 11] for at in range(0, len(log), 11)]) == rows(log)
    assert [row["offset"] for row in rows(log, start_offset=3, stop_offset=9)] == [3]
    assert ours(log) == list(parsed(PythonRecords, log))
