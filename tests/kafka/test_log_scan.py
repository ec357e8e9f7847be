"""A scan of an open log gives the same as reading its headers one by one, and fails where that reading fails."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.damage.record_mutations import mutations
from tests.support.golden.segments import ALL_SEGMENTS, GoldenSegment
from tests.support.records.record_batches import message, random_log
from tieredstore.errors import BatchCorruptError, InvalidSegmentError
from tieredstore.kafka._header_walk import HeaderWalk
from tieredstore.kafka.batches import BatchHeader, read_batch_headers
from tieredstore.kafka.log_scan import LogSummary, scan_log
from tieredstore.testing.batches import Record, build_batch, seal_batch


def scanned(path: Path, log: bytes, base_offset: int = 0, *, check_crcs: bool = False) -> LogSummary | str:
    """Return the extent that a scan of the log finds, or the error message."""
    path.write_bytes(log)
    with path.open("rb") as file:
        try:
            return scan_log(file.fileno(), len(log), base_offset, "orders-0", check_crcs=check_crcs)
        except (BatchCorruptError, InvalidSegmentError) as error:
            return str(error)


def read(log: bytes, *, check_crcs: bool = False) -> LogSummary | str:
    """Return what :func:`scanned` must return. Read the headers of a log in memory, of a segment that begins at 0."""
    try:
        headers = list(read_batch_headers(log, check_crc=check_crcs))
    except BatchCorruptError as error:
        return str(error)
    end = headers[-1].position + headers[-1].size_in_bytes if headers else 0
    if end != len(log):
        return f"segment orders-0 is closed, but its log ends with {len(log) - end} bytes of zeros"
    return extent_of(headers)


def extent_of(headers: Iterable[BatchHeader], base_offset: int = 0) -> LogSummary:
    epochs: list[tuple[int, int]] = []
    last, latest, missing, following = -1, -1, 0, base_offset
    for header in headers:
        if header.record_count is not None:
            missing += header.last_offset + 1 - following - header.record_count
        following = header.last_offset + 1
        last, latest = header.last_offset, max(latest, header.max_timestamp)
        if header.partition_leader_epoch > (epochs[-1][0] if epochs else -1):
            epochs.append((header.partition_leader_epoch, header.base_offset))
    return LogSummary(last, latest, tuple(epochs), last >= 0 and not missing)


@pytest.mark.parametrize("check_crcs", [False, True])
@pytest.mark.parametrize("segment", ALL_SEGMENTS, ids=str)
def test_golden_logs(segment: GoldenSegment, check_crcs: bool) -> None:
    path = segment.original("log")
    expected = extent_of(read_batch_headers(path.read_bytes()), segment.base_offset)
    with path.open("rb") as file:
        size, base = path.stat().st_size, segment.base_offset
        assert scan_log(file.fileno(), size, base, "orders-0", check_crcs=check_crcs) == expected


@pytest.mark.slow
def test_the_scan_fails_where_the_reader_does(tmp_path: Path) -> None:
    outcomes = {False: 0, True: 0}
    source = random.Random(11)
    for mutation in mutations(7, 600):
        # Prefix half of the logs, because the longer ones have batches of which the scan reads only headers.
        before = b"".join(random_log(source, 3)) if source.random() < 0.5 else b""
        log = before + mutation.damaged
        for check_crcs in (False, True):
            outcome = scanned(tmp_path / "log", log, check_crcs=check_crcs)
            assert outcome == read(log, check_crcs=check_crcs)
            outcomes[check_crcs] += isinstance(outcome, str)
    assert 50 < outcomes[False] < outcomes[True] < 600


@pytest.mark.parametrize("check_crcs", [False, True])
@pytest.mark.parametrize("size", [10, 3_000, 5_000, 70_000, 1_100_000])
def test_batches_of_any_size_leaders_and_old_messages_in_between(tmp_path: Path, size: int, check_crcs: bool) -> None:
    epochs = (0, 0, 3, -1, 2, 3, 5)
    batches = [
        build_batch([Record(bytes(size), timestamp_ms=100 - at)], at, leader_epoch=epoch)
        for at, epoch in enumerate(epochs)
    ]
    batches += [message(1, 7, b"old"), build_batch([Record(b"new")], 8, leader_epoch=5)]
    log = b"".join(batches)
    extent = scanned(tmp_path / "log", log, check_crcs=check_crcs)
    assert extent == read(log, check_crcs=check_crcs)
    assert isinstance(extent, LogSummary)
    assert (extent.last_offset, extent.leader_epochs) == (8, ((0, 0), (3, 2), (5, 6)))
    for cut in (1, 60, 61, 200):
        assert scanned(tmp_path / "log", log[:-cut], check_crcs=check_crcs) == read(log[:-cut], check_crcs=check_crcs)
    flipped = bytearray(log)
    flipped[len(batches[0]) + 70] ^= 1
    assert isinstance(scanned(tmp_path / "log", bytes(flipped), check_crcs=check_crcs), str) is check_crcs


def test_a_batch_before_the_segments_base_is_named(tmp_path: Path) -> None:
    log = build_batch([Record(b"v")], 9) + build_batch([Record(b"v")], 10)
    assert scanned(tmp_path / "log", log, 9) == LogSummary(10, 0, ((0, 9),), is_contiguous=True)
    assert scanned(tmp_path / "log", log, 10) == "segment orders-0 holds a batch at offset 9, before its base offset"
    assert scanned(tmp_path / "log", b"", 10) == LogSummary(9, -1, (), is_contiguous=False)


@pytest.mark.parametrize("kept", [[0, 1, 2, 3], [1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
@pytest.mark.parametrize("size", [10, 70_000])
def test_offsets_that_compaction_removed_show_in_the_headers(tmp_path: Path, kept: list[int], size: int) -> None:
    whole = [build_batch([Record(bytes(size))] * 2, 8 + 2 * number) for number in range(4)]
    extent = scanned(tmp_path / "log", b"".join(whole[number] for number in kept), 8)
    assert isinstance(extent, LogSummary)
    assert (extent.last_offset, extent.is_contiguous) == (9 + 2 * kept[-1], kept == list(range(len(kept))))


def test_a_batch_without_one_of_its_records_was_compacted(tmp_path: Path) -> None:
    thinned = bytearray(build_batch([Record(b"v")] * 3, 4))
    thinned[57:61] = (2).to_bytes(4, "big")
    seal_batch(thinned)
    extent = scanned(tmp_path / "log", build_batch([Record(b"v")] * 4) + thinned)
    assert isinstance(extent, LogSummary)
    assert (extent.last_offset, extent.is_contiguous) == (6, False)


def test_ordinary_batches_are_left_to_the_compiled_walk(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(build_batch([Record(bytes(100))] * 5, 5 * at, leader_epoch=at // 3) for at in range(600)))
    with path.open("rb") as file:
        size = path.stat().st_size
        walk = HeaderWalk(file.fileno(), size, 0, True)
        walk.pass_ordinary()
    assert (walk.position, walk.last_offset) == (size, 2_999)
    assert walk.leader_epochs == [(epoch, 15 * epoch) for epoch in range(200)]


def test_a_log_that_shrinks_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(build_batch([Record(bytes(100_000))], at) for at in range(5)))
    size = path.stat().st_size
    os.truncate(path, size // 2)
    for check_crcs in (False, True):
        with path.open("rb") as file, pytest.raises(InvalidSegmentError, match="shrank"):
            scan_log(file.fileno(), size, 0, "orders-0", check_crcs=check_crcs)
