"""Tests of read_committed: it omits aborted records, and ends before a transaction whose outcome is not in the
bucket.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.golden.records import expected_rows, rows_of
from tests.support.golden.segments import case_path, segments
from tests.support.golden.stored import settings_of
from tests.support.records.record_reader import RecordReader, read_records
from tests.support.records.stored_records import StoredTopic
from tests.support.records.transaction_scripts import STEPS, Step, store
from tieredstore.errors import IndexesCorruptError
from tieredstore.format.keys import Suffix
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.records.settings import ReadSettings
from tieredstore.remote import RemoteStorageManager

COMMITTED = ReadSettings(isolation="read_committed")
TXN_CASES = ["07-txn", "07-zstd-enc-txn"]
SHORTENED = [(case, left) for case in TXN_CASES for left in range(1, len(segments(case)))]


def first_open(case: str, left: int) -> int | None:
    """Return the start of the earliest transaction that is open after the first segments, from the broker's batch
    headers.
    """
    begun: dict[int, int] = {}
    for segment in segments(case)[:left]:
        for header in read_batch_headers(segment.original("log").read_bytes()):
            if header.is_control:
                begun.pop(header.producer_id, None)
            elif header.is_transactional:
                begun.setdefault(header.producer_id, header.base_offset)
    return min(begun.values(), default=None)


def shortened_store(case: str, left: int, folder: Path) -> RemoteStorageManager:
    root = shutil.copytree(case_path(case) / "store", folder / "store")
    for segment in segments(case)[left:]:
        for suffix in Suffix:
            (root / f"{segment.main_path}.{suffix.value}").unlink()
    return RemoteStorageManager(settings_of(case, root=root))


@pytest.mark.parametrize(("case", "left"), SHORTENED)
def test_with_its_last_segments_gone_a_topic_is_read_up_to_the_first_undecided_transaction(
    case: str, left: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    end, open_at = segments(case)[left - 1].end_offset + 1, first_open(case, left)
    limit = end if open_at is None else open_at
    with shortened_store(case, left, tmp_path) as manager, caplog.at_level(logging.WARNING):
        read = read_records(manager, segments(case)[0].topic, 0, isolation="read_committed")
        committed = rows_of(read)
        everything = rows_of(read_records(manager, segments(case)[0].topic, 0, isolation="read_uncommitted"))
    assert committed == [row for row in expected_rows(case, 0, "read_committed") if row["offset"] < limit]
    assert everything == [row for row in expected_rows(case, 0) if row["offset"] < end]
    assert read.report.next_offset == limit
    if open_at is None:
        assert (read.report.undecided, caplog.messages) == (None, [])
    else:
        assert read.report.undecided is not None
        assert (read.report.undecided.first_offset, read.report.undecided.segments_end) == (open_at, end)
        assert caplog.messages == [str(read.report.undecided)]


def test_the_golden_topics_have_transactions_open_at_a_segments_end() -> None:
    assert sum(first_open(case, left) is not None for case, left in SHORTENED) >= 3


@settings(max_examples=25, deadline=None)
@given(plan=st.lists(st.lists(STEPS, min_size=1, max_size=12), min_size=1, max_size=5), data=st.data())
def test_any_interleaving_is_read_as_a_consumer_of_the_whole_log_would(
    plan: list[list[Step]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with closing(StoredTopic(tmp_path_factory.mktemp("log"), chunk_size=300)) as topic:
        partition, ends = store(topic, plan)
        start = data.draw(st.integers(0, ends[-1]))
        stop = data.draw(st.integers(start, ends[-1]))
        sizes = data.draw(st.sampled_from([(40, 1), (1 << 20, 1 << 20)]))
        chosen = ReadSettings(isolation="read_committed", piece_bytes=sizes[0], target_bytes=sizes[1])
        read = topic.reader(chosen).read("events", 0, start, stop)
        rows = rows_of(read)
    seen, limit = partition.visible(ends[-1], stop)
    assert [row["offset"] for row in rows] == [offset for offset in seen if offset >= start]
    if rows and limit < stop:
        assert read.report.undecided is not None
    if read.report.undecided is not None:
        assert read.report.undecided.first_offset == limit
        assert read.report.next_offset == max(limit, start)


def test_an_undecided_transaction_ends_the_read_within_a_record_batch(topic: StoredTopic) -> None:
    store(topic, [[("plain", 0, 3), ("send", 1, 2), ("plain", 0, 3)]])
    read = topic.reader(COMMITTED).read("events", 0)
    assert [row["offset"] for row in rows_of(read)] == [0, 1, 2]
    assert read.report.undecided is not None
    assert (read.report.undecided.producer_id, read.report.undecided.first_offset) == (1, 3)
    assert read.report.next_offset == 3


def test_a_read_that_begins_behind_an_undecided_transaction_gives_nothing(topic: StoredTopic) -> None:
    store(topic, [[("send", 1, 2), ("plain", 0, 3), ("send", 1, 1)]])
    read = topic.reader(COMMITTED).read("events", 0, 3)
    assert rows_of(read) == []
    assert read.report.undecided is not None
    assert read.report.next_offset == 3


def test_a_transaction_open_across_a_segment_hides_what_follows_though_nothing_of_it_is_there(
    topic: StoredTopic,
) -> None:
    store(topic, [[("send", 1, 2), ("plain", 0, 3)], [("plain", 0, 5)], [("plain", 0, 5)]])
    for start in (4, 5, 7, 10, 12):
        read = topic.reader(COMMITTED).read("events", 0, start)
        assert rows_of(read) == []
        assert read.report.undecided is not None
        assert read.report.next_offset == start
    assert topic.requests(".indexes") == 2 - (start >= 10)  # indexes of the first and the last segment


def test_following_transaction_indexes_are_read_until_the_last_stable_offset_passes_the_end(
    topic: StoredTopic,
) -> None:
    short: list[Step] = [("send", 2, 1), ("abort", 2, 1)]
    plain: list[Step] = [("plain", 0, 5)]
    store(topic, [[("send", 1, 2), *short], plain, short, [("abort", 1, 1)], short, short])
    reader = topic.reader(COMMITTED)
    assert rows_of(reader.read("events", 0, 0, 4)) == []
    asked = {key.rpartition("/")[2][:20] for key in topic.store.keys_of("get") if key.endswith(".indexes")}
    starts = [f"{segment.start_offset:020}" for segment in topic.copied]
    # The index of a segment without aborts is not read, nor that of a segment after the outcome.
    assert asked == {starts[0], starts[2], starts[3]}


def test_committed_transactions_cost_one_look_at_the_last_segment(topic: StoredTopic) -> None:
    store(topic, [[("send", 1, 5), ("commit", 1, 1)] for _ in range(4)])
    reader = topic.reader(COMMITTED)
    assert len(rows_of(reader.read("events", 0))) == 20
    assert topic.requests(".indexes") == 1


def test_read_uncommitted_asks_for_no_transaction_index(topic: StoredTopic) -> None:
    store(topic, [[("send", 1, 5), ("abort", 1, 1), ("plain", 0, 1)]])
    reader = topic.reader(ReadSettings(isolation="read_uncommitted"))
    assert [row["offset"] for row in rows_of(reader.read("events", 0))] == [0, 1, 2, 3, 4, 6]
    assert topic.requests(".indexes") == 0


def test_a_hole_hides_outcomes_so_that_the_read_ends_before_it(topic: StoredTopic) -> None:
    store(topic, [[("plain", 0, 2), ("send", 1, 2)], [("commit", 1, 1)], [("plain", 0, 4)]])
    topic.manager.delete_log_segment_data(topic.copied[1])
    reporting = ReadSettings(isolation="read_committed", on_data_loss="report")
    read = topic.reader(reporting).read("events", 0)
    assert [row["offset"] for row in rows_of(read)] == [0, 1]
    assert read.report.undecided is not None


@pytest.mark.parametrize("suffix", [b".txnindex", b".snapshot"])
def test_damaged_indexes_are_named(suffix: bytes, topic: StoredTopic) -> None:
    store(topic, [[("send", 1, 5), ("abort", 1, 1), ("send", 1, 1)]])
    catalog = topic.catalog()
    manifest = topic.manager.fetch_manifest(topic.copied[0]).segment_indexes
    entry = manifest.transaction if suffix == b".txnindex" else manifest.producer_snapshot
    assert entry is not None
    stored = topic.store.get(topic.keys(".indexes")[0])
    topic.overwrite(".indexes", bytes([stored[entry.position + 1] ^ 0x7F]), entry.position + 1)
    with pytest.raises(IndexesCorruptError, match="events-0"):
        rows_of(RecordReader(topic.manager, catalog, COMMITTED).read("events", 0))


def test_the_indexes_of_a_later_segment_do_not_pass_for_an_earlier_ones(topic: StoredTopic) -> None:
    store(topic, [[("send", 1, 3), ("abort", 1, 1), ("plain", 0, 2)] for _ in range(2)])
    first, later = topic.keys(".indexes")
    topic.store.put(first, topic.store.get(later))
    with pytest.raises(IndexesCorruptError, match="has a marker at offset 9, beyond its end"):
        rows_of(topic.reader(COMMITTED).read("events", 0))
