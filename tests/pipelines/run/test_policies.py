"""When records are written: by size, age, number and minute, with any clocks."""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.pipelines.pipeline_runs import NUMBER, TOPIC, listed_offsets, pipeline_of, run_once, verify_output
from tests.support.records.stored_records import StoredTopic, plain_batch
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.partitions.log import PartitionLog
from tieredstore.pipelines import Parts, Pipeline, Runner
from tieredstore.pipelines.log.commit_log import Progress
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.planner import Planner, look_s, policy_of
from tieredstore.pipelines.run.windows import Policy
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION

ID = Uuid(bytes(16))


class Clocked:
    """Partition that only the broker has, with a policy that tells when it is due, and a clock that the test sets."""

    def __init__(self, policy: Policy) -> None:
        self.now_s, self.wall_s = 0.0, 0.0
        clocks = {"clock": lambda: self.now_s, "wall_clock": lambda: self.wall_s}
        self.planner = Planner(pipeline_of(), cast("RemoteStorageManager", None), **clocks)
        self.planner.policy = policy

    def due(
        self, end: int, now_s: float, *, start: int = 0, wall_s: float = 0.0, progress: Progress | None = None
    ) -> list[tuple[int, int]]:
        log = PartitionLog("orders", 0, ID, None, 0, start, end, live_start=0)
        snapshot = LogSnapshot({("orders", 0): log})
        positions = {("orders", 0): progress or Progress(str(ID), start)}
        self.now_s, self.wall_s = now_s, wall_s
        windows = self.planner.find_due(snapshot, positions, is_last=False)
        return [(window.start, window.stop) for window in windows]


def test_the_age_is_that_of_the_first_unwritten_record_since_it_was_seen() -> None:
    clocked = Clocked(Policy(1 << 30, 0, 60))
    assert clocked.due(10, 100) == []
    assert clocked.due(20, 159) == []
    assert clocked.due(30, 160) == [(0, 30)]
    # Records after the first window are still young.
    assert clocked.due(40, 161, start=30) == []
    assert clocked.due(40, 300, start=30) == [(30, 40)]
    assert clocked.due(40, 301, start=40) == []


def test_a_backlog_becomes_many_windows_and_the_rest_waits() -> None:
    clocked = Clocked(Policy(10 * 1024, 0, 60))
    assert clocked.due(35, 0) == [(0, 10), (10, 20), (20, 30)]
    clocked = Clocked(Policy(1 << 30, 8, 60))
    assert clocked.due(20, 0) == [(0, 8), (8, 16)]


def test_windows_of_the_broker_are_as_large_as_those_before_tell() -> None:
    clocked, small = (
        Clocked(Policy(10 * 1024, 0, 60)),
        Progress(str(ID), 0, -1, 1, 9, recent_bytes=900, recent_offsets=9),
    )
    assert clocked.due(250, 0, progress=small) == [(0, 103), (103, 206)]
    # The average counts offsets without records too.
    assert clocked.due(250, 0, progress=replace(small, recent_offsets=90)) == []
    # A window without records gives no estimate of bytes.
    assert clocked.due(25, 0, progress=replace(small, recent_bytes=0, recent_offsets=0)) == [(0, 10), (10, 20)]


def test_a_truncated_partition_does_not_hide_the_lag_of_others() -> None:
    logs = [PartitionLog("orders", number, ID, None, 0, 0, 10, live_start=0) for number in range(2)]
    positions = {("orders", 0): Progress(str(ID), 11), ("orders", 1): Progress(str(ID), 4)}
    planner = Clocked(Policy(1 << 30, 0, 60)).planner
    assert planner.find_lag(LogSnapshot({log.where: log for log in logs}), positions).offsets == 6


def test_how_much_a_window_read_is_committed_and_known_after_a_restart(topic: StoredTopic) -> None:
    store, pipeline = MemoryObjectStore(), pipeline_of(max__file__records="100")
    entries = run_once(topic, store, pipeline)
    read = [window.read_bytes for entry in entries for window in entry.windows]
    # Each value has 100 bytes; the key is the record's number in decimal.
    assert read == [100 * 100 + 190, 100 * 100 + 300, 100 * 100 + 300]
    progress = commit_log_of(pipeline, store).read().positions[TOPIC, NUMBER]
    assert progress.recent_bytes // progress.recent_offsets == 102
    # Entries of earlier versions lack the field ``read_bytes``.
    key = f"out/_tieredstore/kept/1/commits/{1:020}.json"
    content = json.loads(store.get(key))
    for window in content["windows"]:
        del window["read_bytes"]
    store.put(key, json.dumps(content).encode())
    assert commit_log_of(pipeline, store).read().positions[TOPIC, NUMBER].recent_offsets == 0
    topic.copy_plain(300, 100, size=50)
    run_once(topic, store, pipeline)
    progress = commit_log_of(pipeline, store).read().positions[TOPIC, NUMBER]
    assert (progress.recent_bytes, progress.recent_offsets) == (5300, 100)


def test_a_backlog_holds_up_no_other_partition() -> None:
    """A batch has at most 64 windows. The first partition has records for many windows, all others for one each."""
    clocked = Clocked(Policy(1 << 30, 1, 60))
    numbers = range(70)
    ends = {number: 1000 if number == 0 else 1 for number in numbers}
    written = dict.fromkeys(numbers, 0)
    for look in range(2):
        logs = {
            ("orders", number): PartitionLog("orders", number, ID, None, 0, written[number], ends[number], live_start=0)
            for number in numbers
        }
        positions = {("orders", number): Progress(str(ID), written[number]) for number in numbers}
        clocked.now_s = look
        for window in clocked.planner.find_due(LogSnapshot(logs), positions, is_last=False):
            assert window.start == written[window.partition]
            written[window.partition] = window.stop
    assert [written[number] for number in numbers[1:]] == [1] * 69
    assert written[0] == 2 * 64 - 69


@pytest.mark.parametrize(("topics", "windows"), [("orders|x", [(0, 9)]), ("order", []), ("", [])])
def test_the_minute_mark_writes_what_was_seen_before_it(topics: str, windows: list[tuple[int, int]]) -> None:
    clocked = Clocked(Policy(1 << 30, 0, 36_000, minute_mark=15, marked=topics))
    hour = 1_700_000_000 // 3600 * 3600
    assert clocked.due(5, 0, wall_s=hour + 14 * 60 + 30) == []
    # The pipeline need not look exactly at the mark. Its first look after the mark suffices.
    assert clocked.due(9, 40, wall_s=hour + 15 * 60 + 10) == windows
    assert clocked.due(12, 50, start=9, wall_s=hour + 15 * 60 + 20) == []


def test_windows_leave_room_for_secors_limits_which_pass_over_the_mark() -> None:
    mark = {"secor__upload__minute_mark": "7", "secor__kafka__upload_at_minute_mark__topic_filter": ".*"}
    assert policy_of(pipeline_of(**mark).own.limits) == Policy(200_000_000, 0, 3600, 7, ".*")
    limits = {"secor__upload__deterministic": "true", "secor__max__input__payload__size__bytes": "1000000000"}
    assert policy_of(pipeline_of(**mark, **limits).own.limits) == Policy(1_000_000_000, 0, 3600, 7, "")
    # Secor ignores this age limit, so it must not end a window in the middle of a time range.
    limits |= {"secor__max__file__timestamp__range__millis": "7200000", "secor__max__file__age__seconds": "60"}
    assert policy_of(pipeline_of(**limits).own.limits).age_s == 7200


def test_looks_are_as_rare_as_the_age_allows() -> None:
    ages = {age: look_s(pipeline_of(secor__max__file__age__seconds=age).own.limits) for age in ("0", "5", "50", "3600")}
    assert ages == {"0": 1.0, "5": 1.0, "50": 5.0, "3600": 30.0}


HOUR_S = 3600
LOOK_S = 30
"""Minimum seconds between two listings of the source."""
NOON_S = 1_700_000_000 // HOUR_S * HOUR_S
MARKED = {
    "secor__max__file__age__seconds": str(HOUR_S),
    "secor__upload__minute_mark": "10",
    "secor__kafka__upload_at_minute_mark__topic_filter": TOPIC,
}


class ClockedRunner:
    """Running pipeline; ``now_s`` only increases, the time of day may jump."""

    def __init__(self, topic: StoredTopic, pipeline: Pipeline) -> None:
        self.store, self.now_s, self.wall_s = MemoryObjectStore(), 0.0, float(NOON_S)
        self.pipeline = pipeline
        self._runner = Runner(
            pipeline, Parts(self.store, topic.manager), threads=1,
            clock=lambda: self.now_s, wall_clock=lambda: self.wall_s,
        )  # fmt: skip

    def step(self) -> int:
        """Return the number of windows written now."""
        entry = self._runner.step()
        return 0 if entry is None else sum(window.start < window.stop for window in entry.windows)

    def close(self) -> None:
        self._runner.close()


def test_partitions_that_are_idle_are_written_by_age_and_no_look_after_that_writes_anything(tmp_path: Path) -> None:
    idle = TopicIdPartition(PARTITION.topic_id, TOPIC, NUMBER + 1)
    with closing(StoredTopic(tmp_path)) as topic, closing(ClockedRunner(topic, pipeline_of())) as clocked:
        topic.copy(0, [plain_batch(range(3), 20)], partition=idle)
        assert clocked.step() == 0
        clocked.now_s = HOUR_S / 2
        topic.copy_plain(0, 20, size=20)
        assert clocked.step() == 0
        clocked.now_s = HOUR_S - 1
        assert clocked.step() == 0
        clocked.now_s = HOUR_S
        # Only the idle topic is written, because the other topic's records are only half an hour old.
        assert clocked.step() == 1
        clocked.now_s = HOUR_S * 3 / 2
        assert clocked.step() == 1
        entries = commit_log_of(clocked.pipeline, clocked.store).read().number
        for _ in range(3):
            clocked.now_s += HOUR_S
            assert clocked.step() == 0
        assert commit_log_of(clocked.pipeline, clocked.store).read().number == entries
        assert len(listed_offsets(clocked.store)) == 23


@settings(max_examples=examples(50))
@given(
    st.lists(
        st.tuples(
            st.integers(0, 30), st.sampled_from([0, 1, 600, 4000]),
            st.sampled_from([0, 60, 700, -60, -HOUR_S, -90 * 86_400, 400 * 86_400]),
        ),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_a_time_of_day_that_jumps_decides_when_records_are_written_and_nothing_else(
    steps: list[tuple[int, int, int]],
) -> None:
    """Test the minute mark, because no other policy needs the time of day."""
    pipeline = pipeline_of(**MARKED)
    with tempfile.TemporaryDirectory() as folder, closing(StoredTopic(Path(folder))) as topic:
        written = 0
        with closing(ClockedRunner(topic, pipeline)) as clocked:
            for count, passed_s, jumped_s in steps:
                if count:
                    topic.copy_plain(written, count, size=20)
                    written += count
                clocked.now_s += LOOK_S
                clocked.step()
                clocked.now_s += passed_s
                clocked.wall_s += passed_s + jumped_s
                clocked.step()
                offsets = listed_offsets(clocked.store)
                assert offsets == list(range(len(offsets)))
                if passed_s >= HOUR_S:
                    # The records are written whatever the time of day, because they are old.
                    assert offsets == list(range(written))
            store = clocked.store
        if written:
            run_once(topic, store, pipeline)
        assert listed_offsets(store) == list(range(written))
        assert list(verify_output(pipeline, store)) == []
