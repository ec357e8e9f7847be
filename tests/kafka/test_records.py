"""The decoder on valid logs."""

from __future__ import annotations

import gc
import itertools
import mmap
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.records.record_batches import (
    CODECS,
    Row,
    compressed_batch,
    random_log,
    random_records,
    rows,
    rows_of,
    with_field,
)
from tieredstore.errors import ConfigError, InvalidRangeError
from tieredstore.kafka.batches import Buffer, CompressionType, read_batch_headers
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.kafka.records import COLUMNS, RecordDecoder
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker

MANY = [Record(b"v%d" % i, b"k%d" % i, i) for i in range(40_000)]


def offsets(log: bytes | list[bytes], **more: Any) -> list[int]:
    return [row["offset"] for row in rows(log, **more)]


def test_the_schema_is_that_of_the_documented_columns() -> None:
    schema = RecordDecoder().schema
    headers = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    types = [pa.binary(), pa.binary(), headers, pa.int64(), pa.int64(), pa.int8(), pa.int32()]
    assert dict(zip(COLUMNS, types, strict=True)) == {field.name: field.type for field in schema}
    assert all(field.nullable for field in schema)


def test_null_and_empty_stay_apart() -> None:
    records = [Record(None, None), Record(b"", b""), Record(b"v", b"k", headers=(("", None), ("a", b""), ("a", b"x")))]
    none, empty, full = rows(build_batch(records))
    assert (none["key"], none["value"], none["headers"]) == (None, None, None)
    assert (empty["key"], empty["value"], empty["headers"]) == (b"", b"", None)
    expected = [{"key": "", "value": None}, {"key": "a", "value": b""}, {"key": "a", "value": b"x"}]
    assert full["headers"] == expected


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=20), max_size=12))
def test_nulls_are_marked_wherever_the_first_one_comes(present: list[list[bool]]) -> None:
    log, offset = b"", 0
    for batch in present:
        values = [b"v" if there else None for there in batch]
        log += build_batch([Record(value, value, headers=(("h", value),)) for value in values], offset)
        offset += len(batch)
    flat = [b"v" if there else None for batch in present for there in batch]
    decoded = rows(log)
    assert [row["value"] for row in decoded] == flat
    assert [row["key"] for row in decoded] == flat
    assert [row["headers"][0]["value"] for row in decoded] == flat


def test_timestamps_are_those_of_the_producer_or_of_the_append() -> None:
    records = [Record(b"a", timestamp_ms=5_000), Record(b"b", timestamp_ms=1_000), Record(b"c", timestamp_ms=-1)]
    assert [row["timestamp"] for row in rows(build_batch(records))] == [5_000, 1_000, -1]
    appended = rows(build_batch(records, log_append_time_ms=7_777))
    assert [(row["timestamp"], row["timestampType"]) for row in appended] == [(7_777, 1)] * 3


@pytest.mark.parametrize(
    "unusual",
    [
        Record(b"v", b"k", 1, headers=(("name", b"x"),)),
        Record(b"v" * 3_000_000, b"k", 1),
        Record(b"v", b"k" * 3_000_000, 1),
        Record(b"v", b"k", 1 << 40),
    ],
    ids=["headers", "large value", "large key", "late"],
)
def test_an_unusual_record_may_stand_anywhere_among_usual_ones(unusual: Record) -> None:
    usual = [Record(b"v" * (i % 200) if i % 3 else None, b"k" * (i % 40) if i % 5 else None, i) for i in range(40)]
    for place in (0, 1, 17, 39, 40):
        records = [*usual[:place], unusual, *usual[place:]]
        decoded = rows(build_batch(records))
        assert [(row["value"], row["key"], row["timestamp"]) for row in decoded] == [
            (record.value, record.key, record.timestamp_ms) for record in records
        ]
        assert [row["headers"] is not None for row in decoded] == [bool(record.headers) for record in records]


def test_timestamps_wrap_as_in_java() -> None:
    batch = with_field(build_batch([Record(b"a", timestamp_ms=0), Record(b"b", timestamp_ms=5)]), 27, ">q", 2**63 - 3)
    assert [row["timestamp"] for row in rows(batch)] == [2**63 - 3, -(2**63) + 2]


def test_a_base_timestamp_that_is_a_delete_horizon_counts_like_any_other() -> None:
    batch = with_field(build_batch([Record(b"a", timestamp_ms=50)]), 21, ">h", 64)
    assert [row["timestamp"] for row in rows(batch)] == [50]


def test_the_leader_epoch_is_that_of_the_batch() -> None:
    log = b"".join(build_batch([Record(b"v")] * 2, 2 * i, leader_epoch=epoch) for i, epoch in enumerate((-1, 3, 9)))
    assert [row["leaderEpoch"] for row in rows(log)] == [-1, -1, 3, 3, 9, 9]


def test_control_batches_never_appear() -> None:
    producer = Producer(5, 0, 0, transactional=True)
    log = [build_batch([Record(b"v")], 0, producer=producer), build_end_marker(1, producer, commit=True)]
    assert offsets(log) == [0]
    decoder = RecordDecoder()
    assert rows_of(decoder.decode(log)) == rows(log)
    assert decoder.offset_reached == 2


@given(st.integers(0, 80), st.integers(0, 80), st.sampled_from(CODECS))
def test_a_range_cuts_inside_batches(start: int, length: int, codec: CompressionType) -> None:
    log = b"".join(compressed_batch([Record(b"v")] * 7, 10 * i, codec) for i in range(6))
    all_offsets = [10 * i + k for i in range(6) for k in range(7)]
    decoder = RecordDecoder()
    stop = start + length
    decoded = rows_of(decoder.decode([log], start_offset=start, stop_offset=stop))
    assert [row["offset"] for row in decoded] == [offset for offset in all_offsets if start <= offset < stop]
    reached = stop if decoder.stopped_at is not None else min(max(decoder.offset_reached, start), stop)
    assert reached == min(max(57, start), stop)


def test_no_piece_is_asked_for_once_the_stop_offset_is_reached() -> None:
    asked: list[int] = []

    def pieces() -> Iterator[bytes]:
        for i in range(5):
            asked.append(i)
            yield build_batch([Record(b"v")] * 10, 10 * i)

    decoded = rows_of(RecordDecoder().decode(pieces(), stop_offset=20))
    assert [row["offset"] for row in decoded] == list(range(20))
    assert asked == [0, 1]


def test_an_empty_range_asks_for_nothing() -> None:
    asked = (pytest.fail("asked") for _ in range(1))
    decoder = RecordDecoder()
    assert list(decoder.decode(asked, start_offset=7, stop_offset=7)) == []
    assert decoder.offset_reached == 0


def test_aborted_transactions_are_left_out_between_those_of_others() -> None:
    first, second = (Producer(pid, 0, 0, transactional=True) for pid in (1, 2))
    plain = Producer(1, 0, 0)
    log = [
        build_batch([Record(b"aborted")] * 2, 0, producer=first),
        build_batch([Record(b"committed")] * 2, 2, producer=second),
        build_batch([Record(b"not of a transaction")], 4, producer=plain),
        build_batch([Record(b"aborted")] * 2, 5, producer=first),
        build_end_marker(7, first, commit=False),
        build_batch([Record(b"next transaction")] * 2, 8, producer=first),
        build_end_marker(10, first, commit=True),
    ]
    entry = AbortedTransaction(1, 0, 7, 0)
    assert offsets(log, aborted=[entry]) == [2, 3, 4, 8, 9]
    assert offsets(log, aborted=[entry, entry, AbortedTransaction(9, 0, 100, 0)]) == [2, 3, 4, 8, 9]
    assert offsets(log) == [0, 1, 2, 3, 4, 5, 6, 8, 9]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 20)), max_size=12), st.integers(0, 2**32)
)
def test_aborted_ranges_may_overlap_and_repeat(ranges: list[tuple[int, int, int]], seed: int) -> None:
    source = random.Random(seed)
    aborted = [AbortedTransaction(pid, first, first + length, 0) for pid, first, length in ranges]
    log: list[bytes] = []
    expected: list[int] = []
    for base in range(0, 60, 3):
        producer = Producer(source.randrange(4), 0, 0, transactional=True)
        log.append(build_batch([Record(b"v")] * 3, base, producer=producer))
        if not any(
            a.producer_id == producer.id and a.first_offset <= base + 2 and base <= a.last_offset for a in aborted
        ):
            expected += range(base, base + 3)
    assert offsets(log, aborted=aborted) == expected


@given(st.integers(0, 2**32), st.integers(1, 400), st.integers(1, 3_000))
def test_neither_pieces_nor_targets_change_the_records(seed: int, piece: int, target: int) -> None:
    log = b"".join(random_log(random.Random(seed), 6))
    whole = rows(log)
    assert rows([log[at : at + piece] for at in range(0, len(log), piece)], target_bytes=target) == whole


def test_batches_come_in_pieces_of_the_target_size() -> None:
    log = b"".join(build_batch([Record(bytes(1_000))] * 10, 10 * i) for i in range(100))
    batches = list(RecordDecoder(target_bytes=50_000).decode([log]))
    assert [batch.num_rows for batch in batches] == [50] * 20
    assert [batch.num_rows for batch in RecordDecoder().decode([log])] == [1_000]


def test_a_batch_far_over_the_target_comes_in_slices() -> None:
    log = build_batch([Record(bytes(10_000), b"k")] * 200)
    batches = list(RecordDecoder(target_bytes=100_000).decode([log]))
    assert max(batch.nbytes for batch in batches) < 250_000
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(range(200))


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_more_records_than_a_block_holds(codec: CompressionType) -> None:
    log = compressed_batch(MANY, 5, codec)
    decoded = rows(log)
    assert [(row["offset"], row["key"], row["timestamp"]) for row in decoded] == [
        (5 + i, b"k%d" % i, i) for i in range(len(MANY))
    ]


@pytest.mark.slow
def test_rows_of_one_record_batch_are_bounded() -> None:
    log = b"".join(build_batch(MANY, 40_000 * i) for i in range(10))
    sizes = [batch.num_rows for batch in RecordDecoder().decode([log])]
    assert sum(sizes) == 400_000
    assert max(sizes) <= 131_072


def test_small_pieces_are_gathered() -> None:
    log = [build_batch([Record(b"v" * 100)] * 10, 10 * i) for i in range(500)]
    assert [batch.num_rows for batch in RecordDecoder().decode(log)] == [5_000]


def test_a_batch_that_compaction_emptied_gives_nothing() -> None:
    emptied = with_field(with_field(build_batch([], 3), 23, ">i", 6), 21, ">h", CompressionType.ZSTD.value)
    decoder = RecordDecoder()
    assert rows_of(decoder.decode([emptied, build_batch([Record(b"v")], 12)])) == rows(build_batch([Record(b"v")], 12))
    assert rows_of(decoder.decode([emptied])) == []
    assert decoder.offset_reached == 10


def test_an_empty_log_has_no_records() -> None:
    logs: list[list[Buffer]] = [[], [b""], [b"", b"", bytearray()]]
    assert [list(RecordDecoder().decode(log)) for log in logs] == [[], [], []]


@pytest.mark.parametrize("zeros", [12, 13, 16, 17, 61, 5_000])
@pytest.mark.parametrize("piece", [1, 5, 10_000])
def test_zeros_end_a_preallocated_log(zeros: int, piece: int) -> None:
    log = build_batch([Record(b"v")]) + bytes(zeros)
    assert offsets([log[at : at + piece] for at in range(0, len(log), piece)]) == [0]


def test_headers_of_batches_are_kept_when_asked_for() -> None:
    log = b"".join(random_log(random.Random(3), 20))
    decoder = RecordDecoder(keep_headers=True)
    list(decoder.decode([log[:700], log[700:1500], log[1500:]]))
    assert decoder.take_headers() == list(read_batch_headers(log))
    assert decoder.take_headers() == []


def test_positions_are_those_in_the_log() -> None:
    decoder = RecordDecoder(keep_headers=True)
    list(decoder.decode([build_batch([Record(b"v")])], position=12_345))
    assert [header.position for header in decoder.take_headers()] == [12_345]


def test_rows_stay_what_they_are_while_memory_is_used_again() -> None:
    decoder = RecordDecoder(target_bytes=20_000)
    source = random.Random(1)
    log = b"".join(build_batch(random_records(source, 50), 50 * i) for i in range(60))
    expected = rows(log)
    kept: list[pa.RecordBatch] = []
    for number, batch in enumerate(decoder.decode([log])):
        if number % 3 == 0:
            kept.append(batch.slice(1))
        del batch
    for _ in range(3):
        list(decoder.decode([log]))
    by_offset: dict[int, Row] = {row["offset"]: row for row in expected}
    assert all(by_offset[row["offset"]] == row for batch in kept for row in batch.to_pylist())
    assert len(kept) >= 7


def test_decoders_that_follow_each_other_work_in_the_same_memory() -> None:
    log = b"".join(build_batch([Record(bytes(1000))] * 200, 200 * i) for i in range(10))

    def addresses() -> set[int]:
        (batch,) = RecordDecoder(["value"], target_bytes=4_000_000).decode([log])
        # Compare only large buffers, because malloc chooses the addresses of small ones.
        return {buffer.address for buffer in batch.column(0).buffers() if buffer is not None and buffer.size > 100_000}

    another = RecordDecoder()
    # The first decoder's memory grows until everything fits.
    addresses()
    before = addresses()
    # If the decoder had returned its memory to the system, these mappings would take its place.
    others = [mmap.mmap(-1, 1 << 20) for _ in range(32)]
    assert addresses() == before
    del another, others


def test_rows_that_are_kept_are_in_nobody_elses_memory() -> None:
    log = b"".join(build_batch([Record(b"%07d" % i) for i in range(5000)], 5000 * j) for j in range(4))
    kept = [batch for _ in range(5) for batch in RecordDecoder(target_bytes=20_000).decode([log])]
    ranges = sorted(
        (buffer.address, buffer.address + buffer.size)
        for batch in kept
        for column in batch.columns
        for buffer in column.buffers()
        if buffer is not None and buffer.size > 64
    )
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))
    expected = [f"{i:07d}".encode() for i in range(5000)] * 4
    values = [value for batch in kept for value in batch.column("value").to_pylist()]
    assert values == expected * 5


@pytest.mark.slow
def test_rows_outlive_the_decoder_and_the_log() -> None:
    log = bytearray(build_batch([Record(b"value", b"key", headers=(("h", b"x"),))]))
    (batch,) = RecordDecoder().decode([log])
    log[:] = bytes(len(log))
    gc.collect()
    assert batch.to_pylist()[0]["value"] == b"value"
    assert pa.Table.from_batches([batch, batch]).combine_chunks().num_rows == 2


def test_a_map_of_a_file_can_be_closed_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(random_log(random.Random(4), 10)))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
        decoded = rows_of(RecordDecoder().decode([log]))
    assert decoded == rows(path.read_bytes())


@pytest.mark.parametrize("columns", [[], ["value", "value"], ["values"], ["key", "topic"]])
def test_columns_that_are_none_are_refused(columns: list[str]) -> None:
    with pytest.raises(ConfigError, match="leaderEpoch"):
        RecordDecoder(columns)


@pytest.mark.parametrize("limits", [{"target_bytes": 0}, {"target_bytes": 2**30}, {"max_batch_bytes": 2**31}])
def test_limits_that_columns_cannot_hold_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="it must be from 1 to"):
        RecordDecoder(**limits)


@pytest.mark.parametrize(("start", "stop"), [(-1, None), (5, 4), (0, 2**63)])
def test_offsets_that_are_no_range_are_refused(start: int, stop: int | None) -> None:
    with pytest.raises(InvalidRangeError):
        RecordDecoder().decode([], start_offset=start, stop_offset=stop)


def test_malformed_header_names_are_shown_as_java_shows_them() -> None:
    good = build_batch([Record(b"v", headers=(("abcd", b"1"), ("ключ", b"2"), ("efgh", None)))])
    bad = good.replace(b"abcd", b"a\xff\xc3d")
    batch = with_field(bad, 57, ">i", 1)
    assert [pair["key"] for pair in rows(batch)[0]["headers"]] == ["a\ufffd\ufffdd", "ключ", "efgh"]


def test_decoders_work_side_by_side_in_threads() -> None:
    logs = [b"".join(random_log(random.Random(seed), 30)) for seed in range(8)]
    expected = [rows(log) for log in logs]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda log: rows(log, target_bytes=2_000), logs * 3)) == expected * 3


@pytest.mark.parametrize("codec", CODECS)
def test_two_readings_by_one_decoder_do_not_mix(codec: CompressionType) -> None:
    decoder = RecordDecoder(target_bytes=500)
    logs = [compressed_batch(random_records(random.Random(seed), 60), 0, codec) for seed in (5, 6)]
    decoded: list[list[Row]] = [[], []]
    for pair in zip_longest(*(decoder.decode([log]) for log in logs)):
        for rows_found, batch in zip(decoded, pair, strict=True):
            rows_found.extend([] if batch is None else batch.to_pylist())
    assert decoded == [rows(log) for log in logs]
