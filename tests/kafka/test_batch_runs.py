"""The compiled walk over ordinary batches against the reader in Python: it skips only batches that the reader
accepts.
"""

from __future__ import annotations

import contextlib
import random
from array import array

import pytest

from tests.support.damage.record_mutations import mutations
from tests.support.golden.segments import ALL_SEGMENTS, GoldenSegment
from tests.support.records.record_batches import random_log
from tieredstore.errors import BatchCorruptError
from tieredstore.kafka._runs import BatchRun
from tieredstore.kafka.batches import BatchHeader, read_batch_headers
from tieredstore.kafka.indexes import read_offset_index, read_time_index
from tieredstore.limits import MAX_OFFSET
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker

NONE = read_offset_index(b"", 0).columns
RECORDS = [Record(b"value", b"key", 1_000 + at) for at in range(3)]


def run_without_indexes() -> BatchRun:
    run = BatchRun(0, *NONE, array("q"), array("i"))
    run.epoch_stop = MAX_OFFSET
    return run


def sound_batches(log: bytes) -> list[BatchHeader]:
    """Return the batches before the first damage."""
    headers: list[BatchHeader] = []
    with contextlib.suppress(BatchCorruptError):
        for header in read_batch_headers(log, check_crc=True):
            headers.append(header)  # noqa: PERF402 - keeps headers before an error
    return headers


def end_of(headers: list[BatchHeader]) -> int:
    return headers[-1].position + headers[-1].size_in_bytes if headers else 0


@pytest.mark.parametrize("segment", ALL_SEGMENTS, ids=str)
def test_golden_logs_are_one_run_that_agrees_with_their_indexes(segment: GoldenSegment) -> None:
    log = segment.original("log").read_bytes()
    headers = list(read_batch_headers(log))
    offsets = read_offset_index(segment.original("index").read_bytes(), segment.base_offset)
    times = read_time_index(segment.original("timeindex").read_bytes(), segment.base_offset)
    run = BatchRun(segment.base_offset, *offsets.columns, *times.columns)
    run.epoch_stop = MAX_OFFSET
    assert run.walk(log, 0, -1, None) == len(log)
    assert BatchHeader(*run.header) == headers[-1]
    assert run.last_offset == headers[-1].last_offset
    assert run.max_timestamp == max(header.max_timestamp for header in headers)
    # A run settles an index entry only when it reaches the next batch, so entries of the last batch are unsettled.
    unsettled = [entry for entry in offsets if entry.offset == headers[-1].last_offset]
    assert run.next_entry == len(offsets) - len(unsettled)


def test_a_run_ends_where_the_reader_finds_damage() -> None:
    stopped = 0
    for mutation in mutations(5, 1_500):
        log = mutation.damaged
        expected = sound_batches(log)
        run = run_without_indexes()
        walked = run.walk(log, 0, -1, None)
        stopped += walked < len(log)
        if all(header.magic == 2 for header in expected):
            assert walked == end_of(expected)
        # In a message of an old format, a run also checks key and value, so it may stop before the reader does.
        assert walked == end_of([header for header in expected if header.position < walked])
        if walked:
            assert BatchHeader(*run.header) in expected
    assert 500 < stopped < 1_500


@pytest.mark.parametrize("seed", range(5))
def test_pieces_of_any_size_are_walked_over_as_one(seed: int) -> None:
    source = random.Random(seed)
    log = b"".join(random_log(source, 40))
    borders = [0, *(header.position + header.size_in_bytes for header in read_batch_headers(log))]
    run, at, last_offset = run_without_indexes(), 0, -1
    while at < len(log):
        piece = memoryview(log)[at : at + source.choice((100, 1_000, 100_000))]
        walked = run.walk(piece, at, last_offset, None)
        assert at + walked == max(border for border in borders if border <= at + len(piece))
        if not walked:  # load the rest of the batch, as a caller does
            walked = borders[borders.index(at) + 1] - at
            assert run.walk(log[at : at + walked], at, last_offset, None) == walked
        at, last_offset = at + walked, run.last_offset
        assert BatchHeader(*run.header).position == borders[borders.index(at) - 1]


def test_a_run_of_nothing_stays_where_it_is() -> None:
    run = run_without_indexes()
    for piece in (b"", bytes(10), bytes(200), b"\xff" * 200):
        assert run.walk(piece, 0, -1, None) == 0
    assert run.last_offset == run.max_timestamp == -1


def test_a_batch_that_ends_a_transaction_or_begins_one_is_left_to_a_closer_look() -> None:
    producers = [Producer(number, 0, 0, transactional=True) for number in range(40)]
    log = b"".join(build_batch(RECORDS, 3 * at, producer=who) for at, who in enumerate(producers))
    size = len(log) // 40
    again = b"".join(build_batch(RECORDS, 120 + 3 * at, producer=who) for at, who in enumerate(producers))
    run = run_without_indexes()
    run.follows_transactions = True
    assert run.walk(log, 0, -1, None) == 0
    for at, _ in enumerate(producers):
        run.begin_transaction(at)
        assert run.walk(log[size * at :], size * at, 3 * at - 1, None) == size
    # The run remembers only the last of many open transactions, and never takes an unknown producer for a known one.
    assert run.walk(again, len(log), 119, None) == 0
    assert run.walk(again[-16 * size :], len(log) + 24 * size, 119, None) == 16 * size
    marker = build_end_marker(240, producers[39], commit=True, timestamp_ms=1)
    assert run.walk(marker, 2 * len(log), 239, None) == 0
    run.end_transactions()
    assert run.walk(again[-size:], len(log) + 39 * size, 119, None) == 0


def test_columns_of_one_index_have_one_length() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        BatchRun(0, array("i", [1]), array("i"), array("q"), array("i"))


@pytest.mark.parametrize(
    ("entry", "time", "walked"),
    [
        ((5, 1), (1_002, 2), 3),
        ((5, 1), (1_002, 5), 2),  # the second batch does not have the greatest timestamp
        ((5, 1), (1_001, 2), 1),
        ((4, 1), (1_002, 2), 2),  # no batch ends there
        ((8, 1), (1_002, 2), 3),  # batches 2 and 3 were appended together; the third ends there
        ((8, 0), (1_002, 2), 3),
        ((2, 1), (1_002, 2), 2),
    ],
)
def test_a_batch_the_indexes_contradict_is_where_a_run_ends(
    entry: tuple[int, int], time: tuple[int, int], walked: int
) -> None:
    earlier = [Record(b"value", b"key", 900 + at) for at in range(3)]
    batches = [build_batch(RECORDS, 0), build_batch(earlier, 3), build_batch(earlier, 6)]
    size = len(batches[0])
    run = BatchRun(0, array("i", entry[:1]), array("i", [entry[1] * size]), array("q", time[:1]), array("i", time[1:]))
    run.epoch_stop = MAX_OFFSET
    assert run.walk(b"".join(batches), 0, -1, None) == walked * size
