from __future__ import annotations

import struct
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden.segments import ALL_SEGMENTS, GoldenSegment
from tieredstore.errors import BatchCorruptError
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.kafka.indexes import (
    AbortedTransaction,
    OffsetIndexEntry,
    TimeIndexEntry,
    is_trimmed,
    read_offset_index,
    read_time_index,
    read_txn_index,
)

Pairs = list[tuple[int, int]]


def increasing(most: int, step: int) -> st.SearchStrategy[list[int]]:
    """Return strictly increasing numbers from 0 or above."""
    return st.lists(st.integers(1, step), max_size=most).map(lambda steps: [n - 1 for n in accumulate(steps)])


@st.composite
def pairs(draw: st.DrawFn) -> Pairs:
    columns = draw(increasing(30, 1000)), draw(increasing(30, 9000))
    return list(zip(*columns, strict=False))


def packed(layout: str, entries: Pairs) -> bytes:
    return b"".join(struct.pack(layout, *entry) for entry in entries)


def txn(*fields: int, version: int = 0) -> bytes:
    return struct.pack(">hqqqq", version, *fields)


@pytest.mark.parametrize("segment", ALL_SEGMENTS, ids=str)
def test_golden_offset_indexes_name_batches_by_their_last_offset(segment: GoldenSegment) -> None:
    raw = segment.original("index").read_bytes()
    starts = {
        header.position: header.last_offset for header in read_batch_headers(segment.original("log").read_bytes())
    }
    index = read_offset_index(raw, segment.base_offset)
    assert len(index) == len(raw) // 8
    assert all(starts[entry.position] == entry.offset for entry in index)
    assert is_trimmed(raw, 8)


@pytest.mark.parametrize("segment", ALL_SEGMENTS, ids=str)
def test_golden_time_indexes_end_with_the_greatest_timestamp(segment: GoldenSegment) -> None:
    raw = segment.original("timeindex").read_bytes()
    index = read_time_index(raw, segment.base_offset)
    newest = max(header.max_timestamp for header in read_batch_headers(segment.original("log").read_bytes()))
    assert len(index) == len(raw) // 12
    assert index[-1].timestamp == newest
    assert all(segment.base_offset <= entry.offset <= segment.end_offset for entry in index)


@pytest.mark.parametrize("segment", [s for s in ALL_SEGMENTS if s.original("txnindex").exists()], ids=str)
def test_golden_transaction_indexes_end_at_abort_markers(segment: GoldenSegment) -> None:
    raw = segment.original("txnindex").read_bytes()
    headers = read_batch_headers(segment.original("log").read_bytes())
    markers = {header.last_offset: header.producer_id for header in headers if header.is_control}
    aborted = read_txn_index(raw, segment.base_offset)
    assert len(aborted) == len(raw) // 34 > 0
    assert all(markers[entry.last_offset] == entry.producer_id for entry in aborted)


@given(pairs(), st.integers(0, 2**62), st.integers(2, 5000))
def test_offset_entries_come_back_absolute_and_padding_is_the_end(entries: Pairs, base: int, padding: int) -> None:
    index = read_offset_index(packed(">ii", entries) + bytes(8 * padding), base)
    expected = [OffsetIndexEntry(base + offset, position) for offset, position in entries]
    assert list(index) == ([] if entries == [(0, 0)] else expected)
    assert index[-2:] == list(index)[-2:]


@given(pairs(), st.integers(0, 2**62))
def test_time_entries_come_back_with_absolute_offsets(entries: Pairs, base: int) -> None:
    index = read_time_index(packed(">qi", entries), base)
    assert list(index) == [TimeIndexEntry(timestamp, base + offset) for timestamp, offset in entries]
    assert index[1:3] == list(index)[1:3]


@given(pairs(), st.integers(0, 1000), st.integers(0, 40_000))
def test_looking_up_an_offset_gives_the_last_batch_that_ends_at_or_before_it(
    entries: Pairs, base: int, relative: int
) -> None:
    index = read_offset_index(packed(">ii", entries), base)
    expected = max((position for offset, position in entries if offset <= relative), default=0)
    assert index.position_for_offset(base + relative) == expected
    assert index.position_for_offset(base - 1) == 0


@given(pairs(), st.integers(0, 1000), st.integers(-1, 40_000))
def test_looking_up_a_time_gives_the_last_entry_at_or_before_it(entries: Pairs, base: int, timestamp: int) -> None:
    index = read_time_index(packed(">qi", entries), base)
    expected = max((offset for time, offset in entries if time <= timestamp), default=0)
    assert index.offset_for_timestamp(timestamp) == base + expected


def test_a_single_entry_of_zeros_is_an_entry_and_several_are_padding() -> None:
    assert list(read_time_index(bytes(12), 5)) == [TimeIndexEntry(0, 5)]
    assert list(read_time_index(bytes(24), 5)) == []
    assert read_time_index(bytes(12) + struct.pack(">qi", 9, 1), 5)[0] == TimeIndexEntry(0, 5)
    assert list(read_offset_index(b"", 5)) == []


@pytest.mark.parametrize("size", [1, 7, 9, 15])
def test_a_size_that_is_no_multiple_of_an_entry_is_corrupt(size: int) -> None:
    with pytest.raises(BatchCorruptError, match="offset index has"):
        read_offset_index(bytes(size), 0)
    with pytest.raises(BatchCorruptError, match="time index has"):
        read_time_index(bytes(size), 0)
    with pytest.raises(BatchCorruptError, match="transaction index has"):
        read_txn_index(bytes(size), 0)


@pytest.mark.parametrize("entries", [[(5, 5), (5, 6)], [(5, 5), (6, 5)], [(5, 5), (4, 9)], [(-1, 3)], [(3, -1)]])
def test_an_offset_index_that_does_not_increase_is_corrupt(entries: Pairs) -> None:
    with pytest.raises(BatchCorruptError, match=f"entry {len(entries) - 1} "):
        read_offset_index(packed(">ii", entries), 0)


@pytest.mark.parametrize("entries", [[(5, 5), (5, 6)], [(5, 5), (6, 4)], [(-1, 3)], [(3, -1)]])
def test_a_time_index_that_does_not_increase_is_corrupt(entries: Pairs) -> None:
    with pytest.raises(BatchCorruptError, match=f"entry {len(entries) - 1} "):
        read_time_index(packed(">qi", entries), 0)


def test_zeros_between_entries_are_corrupt() -> None:
    with pytest.raises(BatchCorruptError, match="entry 1 "):
        read_offset_index(packed(">ii", [(1, 1), (0, 0), (2, 2)]), 0)


def test_aborted_transactions_are_read() -> None:
    raw = txn(7, 100, 110, 90) + txn(8, 95, 120, 95) + bytes(68)
    assert read_txn_index(raw, 50) == (AbortedTransaction(7, 100, 110, 90), AbortedTransaction(8, 95, 120, 95))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (txn(7, 100, 110, 90, version=1), "version 1"),
        (txn(-7, 100, 110, 90), "entry 0"),
        (txn(7, -1, 110, 90), "entry 0"),
        (txn(7, 111, 110, 90), "entry 0"),
        (txn(7, 1, 49, 1), "entry 0"),
        (txn(7, 100, 110, -1), "entry 0"),
        (txn(7, 100, 110, 90) + txn(8, 95, 110, 90), "entry 1"),
    ],
)
def test_an_impossible_aborted_transaction_is_corrupt(raw: bytes, said: str) -> None:
    with pytest.raises(BatchCorruptError, match=said):
        read_txn_index(raw, 50)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_corruption(junk: bytes) -> None:
    for read in (read_offset_index, read_time_index, read_txn_index):
        try:
            index = read(junk, 3)
        except BatchCorruptError:
            continue
        assert len(index) * 8 <= len(junk)


def test_padding_is_told_from_entries() -> None:
    assert is_trimmed(b"", 8)
    assert is_trimmed(bytes(12), 12)
    assert is_trimmed(bytes(8) + b"\0\0\0\1\0\0\0\0", 8)
    assert not is_trimmed(bytes(16), 8)
    assert not is_trimmed(b"\1" * 8 + bytes(8), 8)
