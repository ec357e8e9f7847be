"""Tests of cuts within logs, of packing splits, and of the costs of planning and reading."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.golden.records import rows_of
from tests.support.records.small_segments import ZSTD, memory_settings
from tests.support.records.split_reads import (
    broker_index,
    check_window,
    copy_with_index,
    lineage_of,
    plan_splits,
    read_of,
)
from tests.support.records.stored_records import StoredTopic, plain_batch
from tests.support.stores.doubles import CountingStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.lineage import Lineage
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import ConfigError
from tieredstore.model import Uuid
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import SplitPlan, read_split
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import Record, build_batch, build_segment
from tieredstore.transform import chunks
from tieredstore.transform.chunks import decompress_into as decompress_plainly

pytestmark = pytest.mark.slow

KIB = 1024
PLAIN = ReadSettings(isolation="read_uncommitted", on_data_loss="report")
COMMITTED = ReadSettings(isolation="read_committed", on_data_loss="report")


def whole(topic: StoredTopic, lineage: Lineage, max_split_bytes: int, records: int | None = None) -> SplitPlan:
    return check_window(
        topic.manager,
        lineage,
        (lineage.earliest_offset, lineage.end_offset),
        PLAIN,
        max_split_bytes=max_split_bytes,
        max_split_records=records,
    )


def test_a_segment_feeds_many_tasks_that_fetch_their_bytes_and_no_more_than_two_chunks(tmp_path: Path) -> None:
    chunk, size = 64 * KIB, 8 * KIB * KIB
    segment = build_segment(tmp_path, size)
    store = CountingStore(MemoryObjectStore())
    with RemoteStorageManager(memory_settings(chunk), store=store) as manager:
        metadata = segment.to_metadata(Uuid.random())
        manager.copy_log_segment_data(metadata, segment.files)
        lineage = load_catalog(manager).lineage("events", 0)
    with RemoteStorageManager(memory_settings(chunk), store=store) as manager:
        store.reset()
        plan = plan_splits(manager, lineage, 0, lineage.end_offset, PLAIN, max_split_bytes=512 * KIB)
        assert sum(store.requests.values()) == 2
        assert store.bytes_down < 200_000
    sizes = [split.size_in_bytes for split in plan.splits]
    assert sum(sizes) == metadata.segment_size_in_bytes
    assert 16 <= len(sizes) <= 17
    assert 0.8 * 512 * KIB < min(sizes) <= max(sizes) <= 512 * KIB
    for split in plan.splits:
        with RemoteStorageManager(memory_settings(chunk), store=store) as manager:
            store.reset()
            assert sum(batch.num_rows for batch in read_split(manager, split, PLAIN)) > 0
        asked = [operation for operation in store.operations if operation.name in ("get", "get_into")]
        assert sum(operation.keys[0].endswith(".rsm-manifest") for operation in asked) == 1
        assert not any(operation.keys[0].endswith(".indexes") for operation in asked)
        manifest = 4096
        assert store.bytes_down <= split.size_in_bytes + 2 * chunk + manifest


@pytest.mark.parametrize(("chunk", "split"), [(256, 1000), (256, 520), (100, 700)])
def test_splits_begin_where_chunks_do_so_that_none_is_decompressed_twice(
    chunk: int, split: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decompressed: list[int] = []

    def noting(frame: memoryview, out: memoryview, wanted: int | None = None) -> None:
        decompressed.append(len(out) if wanted is None else wanted)
        decompress_plainly(frame, out, wanted)

    monkeypatch.setattr(chunks, "decompress_into", noting)
    segment = build_segment(tmp_path, 4 * KIB * KIB)
    with RemoteStorageManager(memory_settings(chunk * KIB, mode=ZSTD), store=MemoryObjectStore()) as manager:
        metadata = segment.to_metadata(Uuid.random())
        manager.copy_log_segment_data(metadata, segment.files)
        lineage = load_catalog(manager).lineage("events", 0)
        plan = plan_splits(manager, lineage, 0, lineage.end_offset, PLAIN, max_split_bytes=split * KIB)
        decompressed.clear()
        for one in plan.splits:
            for _ in read_split(manager, one, PLAIN):
                pass
    size = metadata.segment_size_in_bytes
    # A batch may reach into the first chunk of the next split. Both splits then decompress it.
    assert size <= sum(decompressed) <= size + len(plan.splits) * 40 * KIB
    assert len(plan.splits) <= 1.5 * size / (split * KIB)
    assert max(one.size_in_bytes for one in plan.splits) <= split * KIB


def test_whole_segments_are_planned_without_a_request_and_packed_up_to_the_size(topic: StoredTopic) -> None:
    for base in range(0, 1000, 100):
        topic.copy_plain(base, 100, size=100)
    lineage = lineage_of(topic)
    size = topic.copied[0].segment_size_in_bytes
    plan = plan_splits(topic.manager, lineage, 0, 1000, PLAIN, max_split_bytes=3 * size + 2000)
    assert sum(topic.store.requests.values()) == 0
    assert [[part.segment.start_offset for part in split.sections] for split in plan.splits] == [
        [0, 100, 200], [300, 400, 500], [600, 700, 800], [900]
    ]  # fmt: skip
    assert [(split.start_offset, split.stop_offset) for split in plan.splits[:2]] == [(0, 300), (300, 600)]
    whole(topic, lineage, 3 * size + 2000)


def test_read_committed_asks_for_the_last_segments_indexes_alone_where_nothing_was_aborted(topic: StoredTopic) -> None:
    for base in range(0, 1000, 100):
        topic.copy_plain(base, 100, size=10)
    lineage = lineage_of(topic)
    plan_splits(topic.manager, lineage, 0, 1000, COMMITTED, max_split_bytes=1 << 20)
    assert (topic.requests(".rsm-manifest"), topic.requests(".indexes"), topic.requests(".log")) == (1, 1, 0)


def test_a_hole_is_no_reason_not_to_pack(topic: StoredTopic) -> None:
    topic.copy_plain(0, 50)
    topic.copy_plain(80, 50)
    lineage = lineage_of(topic)
    plan = whole(topic, lineage, 1 << 20)
    (split,) = plan.splits
    assert [(part.start_offset, part.stop_offset) for part in split.sections] == [(0, 50), (80, 130)]
    assert plan_splits(topic.manager, lineage, 10, 60, PLAIN, max_split_bytes=1 << 20).stop == 60


@pytest.mark.parametrize("window", [(0, 0), (7, 7), (100, 100), (100, 900), (800, 900)])
def test_an_empty_window_and_one_behind_the_end_have_no_splits(topic: StoredTopic, window: tuple[int, int]) -> None:
    topic.copy_plain(0, 100)
    lineage = lineage_of(topic)
    plan = check_window(topic.manager, lineage, window, COMMITTED, max_split_bytes=1)
    assert (plan.splits, plan.stop) == ((), window[0])


def test_a_stop_behind_the_end_is_lowered_to_it(topic: StoredTopic) -> None:
    topic.copy_plain(0, 100)
    lineage = lineage_of(topic)
    assert check_window(topic.manager, lineage, (40, 2**63 - 1), PLAIN, max_split_bytes=9000).stop == 100


def test_an_empty_index_is_made_up_for_by_the_batches_own_headers(topic: StoredTopic) -> None:
    batches = [plain_batch(range(at, at + 5), 300) for at in range(0, 1000, 5)]
    copy_with_index(topic, batches, [])
    lineage = lineage_of(topic)
    plan = whole(topic, lineage, 20_000)
    assert max(split.size_in_bytes for split in plan.splits) <= 20_000
    assert len(plan.splits) <= 1.25 * sum(map(len, batches)) / 20_000
    for one, other in zip(plan.splits, plan.splits[1:], strict=False):
        assert one.stop_offset == other.start_offset  # headers have exact offsets


def test_only_the_stretch_of_an_index_without_entries_is_read_at_planning(tmp_path: Path) -> None:
    with closing(StoredTopic(tmp_path, chunk_size=4096)) as topic:
        batches = [plain_batch(range(at, at + 5), 300) for at in range(0, 2000, 5)]
        entries = broker_index(batches)
        kept = [entry for entry in entries if not 200_000 < entry[1] < 300_000]
        copy_with_index(topic, batches, kept)
        lineage = lineage_of(topic)
        plan = plan_splits(topic.manager, lineage, 0, 2000, PLAIN, max_split_bytes=30_000)
        # The read fetches its part of the log, rounded to chunks and with read-ahead, the manifest, and the index.
        assert topic.store.bytes_down < 100_000 + 4 * 4096 + 20_000
        assert max(split.size_in_bytes for split in plan.splits) <= 30_000
        whole(topic, lineage, 30_000)


def test_a_giant_batch_is_a_split_of_its_own_and_planning_reads_no_byte_twice(tmp_path: Path) -> None:
    with closing(StoredTopic(tmp_path, chunk_size=4096)) as topic:
        small = [plain_batch(range(at, at + 2), 100) for at in range(0, 100, 2)]
        giant = plain_batch(range(100, 110), 100_000)
        after = [plain_batch(range(at, at + 2), 100) for at in range(110, 210, 2)]
        copy_with_index(topic, [*small, giant, *after], [])
        lineage = lineage_of(topic)
        plan = plan_splits(topic.manager, lineage, 0, 210, PLAIN, max_split_bytes=10_000)
        assert topic.store.bytes_down < sum(map(len, [*small, giant, *after])) + 10_000
        sizes = [split.size_in_bytes for split in plan.splits]
        assert max(sizes) == len(giant)
        assert sorted(sizes)[-2] <= 10_000
        whole(topic, lineage, 10_000)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_log_with_any_part_of_its_index_gives_every_record_once(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lengths = data.draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2000)), min_size=1, max_size=40))
    batches: list[bytes] = []
    offset = 100
    for count, size in lengths:
        batches.append(plain_batch(range(offset, offset + count), size))
        offset += count + data.draw(st.integers(0, 2))  # compacted offsets
    entries = broker_index(batches, 100)
    kept = data.draw(st.lists(st.booleans(), min_size=len(entries), max_size=len(entries)))
    with closing(StoredTopic(tmp_path_factory.mktemp("log"), chunk_size=data.draw(st.integers(200, 9000)))) as topic:
        copy_with_index(topic, batches, [e for e, stays in zip(entries, kept, strict=True) if stays], 100)
        lineage = lineage_of(topic)
        start = data.draw(st.integers(100, offset))
        check_window(
            topic.manager,
            lineage,
            (start, data.draw(st.integers(start, offset))),
            ReadSettings(piece_bytes=data.draw(st.integers(10, 5000)), isolation="read_committed"),
            max_split_bytes=data.draw(st.integers(1, 20_000)),
            max_split_records=data.draw(st.one_of(st.none(), st.integers(1, 50))),
        )


def test_no_split_covers_more_offsets_than_allowed(topic: StoredTopic) -> None:
    for base, count in ((0, 300), (300, 20), (320, 20), (340, 20), (400, 5)):
        topic.copy_plain(base, count, batch=7, size=200)
    plan = whole(topic, lineage_of(topic), 1 << 20, 50)
    assert [(split.start_offset, split.stop_offset) for split in plan.splits] == [
        *((at, at + 50) for at in range(0, 300, 50)), (300, 340), (340, 360), (400, 405)
    ]  # fmt: skip


@pytest.mark.parametrize(("size", "records"), [(0, None), (-1, None), (1000, 0), (1000, -5)])
def test_sizes_that_cannot_be_are_refused(topic: StoredTopic, size: int, records: int | None) -> None:
    topic.copy_plain(0, 10)
    lineage = lineage_of(topic)
    with pytest.raises(ConfigError, match="both must be at least 1"):
        plan_splits(topic.manager, lineage, 0, 10, PLAIN, max_split_bytes=size, max_split_records=records)


@pytest.mark.parametrize("window", [(-1, 5), (6, 5)])
def test_an_invalid_window_is_refused(topic: StoredTopic, window: tuple[int, int]) -> None:
    topic.copy_plain(0, 10)
    lineage = lineage_of(topic)
    with pytest.raises(ConfigError, match="no offsets from"):
        plan_splits(topic.manager, lineage, *window, PLAIN, max_split_bytes=1)


def test_more_than_a_million_splits_are_refused_before_any_is_made(topic: StoredTopic) -> None:
    topic.copy(0, [plain_batch(range(10))], end_offset=2**31 - 2)
    lineage = lineage_of(topic)
    with pytest.raises(ConfigError, match="1000000: allow more"):
        plan_splits(topic.manager, lineage, 0, 2**31 - 1, PLAIN, max_split_bytes=1 << 20, max_split_records=100)
    assert sum(topic.store.requests.values()) == 0


def test_since_a_time_leaves_out_what_is_proven_earlier_and_nothing_else(topic: StoredTopic) -> None:
    for base in (0, 500, 1000):
        topic.copy_plain(base, 500, batch=5, size=500)  # timestamps equal the offsets
    lineage = lineage_of(topic)
    plan = plan_splits(topic.manager, lineage, 0, 1500, PLAIN, max_split_bytes=1 << 20, since_ms=700)
    assert topic.requests(".log") == 0
    offsets = [row["offset"] for split in plan.splits for row in read_of(topic.manager, split, PLAIN)]
    assert offsets == list(range(offsets[0], 1500))
    assert 680 < offsets[0] <= 700
    assert plan.stop == 1500
    assert sum(split.size_in_bytes for split in plan.splits) < 0.56 * sum(s.segment_size_in_bytes for s in topic.copied)


def test_since_a_time_is_exact_where_the_time_index_is(topic: StoredTopic) -> None:
    topic.copy_plain(0, 500, batch=1, size=5000)  # the index has an entry for each record except the first
    lineage = lineage_of(topic)
    for since in range(2, 500, 7):
        plan = plan_splits(topic.manager, lineage, 0, 500, PLAIN, max_split_bytes=1 << 30, since_ms=since)
        assert plan.splits[0].start_offset == since


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_times_in_any_order_lose_no_record_that_is_late_enough(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    times = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=60))
    since = data.draw(st.integers(-1, 32))
    with closing(StoredTopic(tmp_path_factory.mktemp("log"))) as topic:
        half = len(times) // 2
        for base, part in ((0, times[:half]), (half, times[half:])):
            if part:
                topic.copy(base, [timed_batch(base + at, time) for at, time in enumerate(part)])
        lineage = lineage_of(topic)
        plan = plan_splits(topic.manager, lineage, 0, len(times), PLAIN, max_split_bytes=4000, since_ms=since)
        rows = [row for split in plan.splits for row in read_of(topic.manager, split, PLAIN)]
    late = [offset for offset, time in enumerate(times) if time >= since]
    assert [row["offset"] for row in rows if row["timestamp"] >= since] == late


def timed_batch(offset: int, timestamp_ms: int) -> bytes:
    return build_batch([Record(b"v" * 1500, timestamp_ms=timestamp_ms)], offset)


def test_closing_a_split_early_ends_its_requests(topic: StoredTopic) -> None:
    topic.copy_plain(0, 1000)
    lineage = lineage_of(topic)
    (split,) = plan_splits(topic.manager, lineage, 0, 1000, PLAIN, max_split_bytes=1 << 30).splits
    reading = read_split(topic.manager, split, ReadSettings(piece_bytes=2000, target_bytes=2000))
    assert rows_of([next(reading)])[0]["offset"] == 0
    with closing(reading):  # type: ignore[type-var]  # a generator
        pass
    assert list(reading) == []
