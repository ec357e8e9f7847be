"""Commit logs: histories of many generations, lost or late responses to their last entries, and long logs."""

from __future__ import annotations

import hashlib
import tempfile
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.examples import SOAK, examples
from tests.support.pipelines.pipeline_runs import (
    NUMBER,
    TOPIC,
    commit_unpublished,
    listed,
    listed_offsets,
    offsets_of,
    pipeline_of,
    run_once,
    verify_output,
)
from tests.support.records.stored_records import StoredTopic, plain_batch
from tests.support.records.transaction_scripts import STEPS, Partition, Segment, Step
from tests.support.stores.doubles import FaultyStore, LateStore, Operation, ScriptedStore, gather
from tieredstore.backends.base import ObjectStore, Prepared
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, DataLossError, FencedError, StoreUnavailableError
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.pipelines import Parts, Runner
from tieredstore.pipelines.log.commit_log import CommitLog, Life, LogState
from tieredstore.pipelines.log.entries import EntryKind, OutputFile, WrittenWindow
from tieredstore.pipelines.log.holdings import Committed
from tieredstore.pipelines.run.generation import commit_log_of

EXAMPLES: Final = 1000 if SOAK else 40
"""Number of examples of the slowest properties, which run whole pipelines."""


@settings(max_examples=EXAMPLES)
@given(
    plan=st.lists(st.lists(STEPS, min_size=1, max_size=6), min_size=1, max_size=4),
    sizes=st.lists(st.sampled_from(["1", "150", "400", "100000"]), min_size=4, max_size=4),
)
def test_of_transactions_what_is_committed_is_written_once_however_the_log_grows(
    plan: list[list[Step]], sizes: list[str]
) -> None:
    store, partition = MemoryObjectStore(), Partition()
    with tempfile.TemporaryDirectory() as folder, closing(StoredTopic(Path(folder))) as topic:
        for steps, size in zip(plan, sizes, strict=False):
            segment = Segment(partition.offset)
            for step in steps:
                partition.play(step, segment)
            topic.copy(segment.base, segment.batches, producers=partition.snapshot(), aborted=segment.aborted)
            pipeline = pipeline_of(secor__max__file__size__bytes=size)
            run_once(topic, store, pipeline)
            visible, reach = partition.visible(partition.offset, partition.offset)
            assert listed_offsets(store) == visible
            progress = commit_log_of(pipeline, store).read().positions.get((TOPIC, NUMBER))
            assert (0 if progress is None else progress.next_offset) == reach
            assert list(verify_output(pipeline, store)) == []


@settings(max_examples=EXAMPLES)
@given(
    logs=st.lists(
        st.lists(st.tuples(st.integers(1, 4), st.integers(0, 40)), min_size=1, max_size=4), min_size=1, max_size=4
    ),
    most=st.integers(1, 30),
)
def test_offsets_that_compaction_took_are_no_loss_and_windows_of_nothing_else_are_committed(
    logs: list[list[tuple[int, int]]], most: int
) -> None:
    """Each segment keeps its last batch, as after a broker's cleaner."""
    store, offset, left = MemoryObjectStore(), 0, list[int]()
    pipeline = pipeline_of(max__file__records=str(most))
    with tempfile.TemporaryDirectory() as folder, closing(StoredTopic(Path(folder))) as topic:
        for batches in logs:
            base, built = offset, list[bytes]()
            for count, gap in batches:
                offset += gap
                left += range(offset, offset + count)
                built.append(plain_batch(range(offset, offset + count), 20))
                offset += count
            topic.copy(base, built, end_offset=offset - 1)
        run_once(topic, store, pipeline)
        assert listed_offsets(store) == left
        progress = commit_log_of(pipeline, store).read().positions.get((TOPIC, NUMBER))
        assert (0 if progress is None else progress.next_offset) == offset
        assert list(verify_output(pipeline, store)) == []


def test_offsets_that_retention_deletes_before_they_are_written_are_a_named_loss(topic: StoredTopic) -> None:
    store, pipeline = MemoryObjectStore(), pipeline_of()
    run_once(topic, store, pipeline)
    topic.copy_plain(300, 100, size=100)
    topic.copy_plain(400, 100, size=100)
    for metadata in topic.copied[:-1]:
        topic.manager.delete_log_segment_data(metadata)
    with pytest.raises(DataLossError, match=r"offsets 300 to 399 of .*-\d+"):
        run_once(topic, store, pipeline)
    # Written files stay. The pipeline does not skip the hole, so it writes no records from after the hole.
    assert listed_offsets(store) == list(range(300))


@pytest.mark.parametrize("damage", ["hole", "unreadable"])
def test_what_nobody_can_read_is_a_loss_that_names_a_way_on_which_a_pipeline_has(
    topic: StoredTopic, damage: str
) -> None:
    store, pipeline = MemoryObjectStore(), pipeline_of()
    other = TopicIdPartition(Uuid.random(), "other", 0)
    topic.copy(0, [plain_batch(range(10), 20)], partition=other)
    if damage == "hole":
        topic.manager.delete_log_segment_data(topic.copied[1])
    else:
        for info in list(topic.store.list(f"{TOPIC}-")):
            if info.key.endswith(".rsm-manifest"):
                topic.store.put(info.key, b"{")
    with pytest.raises(
        DataLossError, match=r"secor\.kafka\.topic_blacklist, or set another secor\.generation"
    ) as raised:
        run_once(topic, store, pipeline)
    assert "on_data_loss" not in str(raised.value)
    run_once(topic, store, pipeline_of(secor__kafka__topic_blacklist=TOPIC))
    # The records before the hole have been written.
    assert {key.split("/")[1] for key in listed(store)} == {"other"} | ({TOPIC} if damage == "hole" else set())
    assert listed_offsets(store) == sorted([*range(10), *(range(100) if damage == "hole" else ())])


def test_what_is_to_be_written_again_and_ends_behind_the_log_by_now_is_a_loss_that_names_it(topic: StoredTopic) -> None:
    store, pipeline = MemoryObjectStore(), pipeline_of()
    for file in commit_unpublished(topic, store, pipeline):
        store.discard(file.prepared)
    topic.manager.delete_log_segment_data(topic.copied[-1])
    with pytest.raises(DataLossError, match=r"offsets 200 to 299 of .*-\d+"):
        run_once(topic, store, pipeline)
    assert listed(store) == []


def test_offsets_that_retention_deletes_after_they_are_written_are_no_loss(topic: StoredTopic) -> None:
    store, pipeline = MemoryObjectStore(), pipeline_of()
    run_once(topic, store, pipeline)
    topic.copy_plain(300, 100, size=100)
    for metadata in topic.copied[:-1]:
        topic.manager.delete_log_segment_data(metadata)
    run_once(topic, store, pipeline)
    assert listed_offsets(store) == list(range(400))


def test_a_topic_that_was_created_again_gets_a_generation_of_its_own(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, pipeline_of())
    again = TopicIdPartition(Uuid.random(), TOPIC, NUMBER)
    for metadata in topic.copied:
        topic.manager.delete_log_segment_data(metadata)
    topic.copy(0, [plain_batch(range(400), 20)], partition=again)
    with pytest.raises(ConfigError, match=rf"the topic {TOPIC} was re-created.*secor\.generation"):
        run_once(topic, store, pipeline_of())
    assert listed_offsets(store) == list(range(300))
    run_once(topic, store, pipeline_of(secor__generation="2", output__key__prefix="second/"))
    assert sum(len(offsets_of(store, key)) for key in listed(store, "second/")) == 400


SMALL = pipeline_of(secor__max__file__size__bytes="9000")
BATCH = f"out/_tieredstore/kept/1/commits/{1:020}.json"
"""The entry after the driver's ``begin`` entry."""


def test_files_that_are_deleted_after_a_run_are_not_written_again(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, SMALL)
    assert [entry.kind for entry in commit_log_of(SMALL, store).entries()] == ["begin", "batch", "published"]
    store.delete(listed(store))
    run_once(topic, store, SMALL)
    assert listed(store) == []
    # There is no new "published" entry, because nothing was left to publish.
    assert [entry.kind for entry in commit_log_of(SMALL, store).entries()][3:] == ["begin"]
    topic.copy_plain(300, 50, size=100)
    run_once(topic, store, SMALL)
    assert listed_offsets(store) == list(range(300, 350))


def test_a_run_that_died_before_it_had_published_all_is_finished(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    commit_unpublished(topic, store, SMALL)
    assert listed(store) == []
    run_once(topic, store, SMALL)
    assert listed_offsets(store) == list(range(300))


def test_a_commit_that_lost_its_answer_is_found_by_the_same_driver(topic: StoredTopic) -> None:
    store = MemoryObjectStore()

    faulty = FaultyStore(store, lambda operation: (operation.name, operation.keys) == ("put", (BATCH,)), moment="after")
    with Runner(SMALL, Parts(faulty, topic.manager), threads=1) as runner:
        with pytest.raises(StoreUnavailableError):
            list(runner.run_once())
        assert listed(store) == []
        runner.resume()
        assert listed_offsets(store) == list(range(300))
        assert runner.step() is None
        run_once(topic, store, SMALL)
        with pytest.raises(FencedError):
            runner.resume()


def test_a_commit_that_arrives_late_stands_and_the_second_one_is_taken_back(topic: StoredTopic, tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    store = FilesystemObjectStore(tmp_path / "output")
    # The first write takes effect just before the second one.
    late = LateStore(store, BATCH)
    late.on("put", BATCH, lambda _: late.land(), times=1)
    with Runner(SMALL, Parts(late, topic.manager), threads=1) as runner:
        with pytest.raises(StoreUnavailableError):
            list(runner.run_once())
        runner.resume()
        assert listed(store) == []
        entries = list(runner.run_once())
    assert [entry.kind for entry in entries] == ["batch"]
    assert listed_offsets(store) == list(range(300))
    assert not list(store.abandoned_writes("out/"))


def test_who_begins_while_another_ends_begins_behind_it(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, SMALL)
    with Runner(SMALL, Parts(store, topic.manager), threads=1) as ending:
        ending.begin()
        topic.copy_plain(300, 50, size=100)
        assert ending.step() is None

        def end(_: Operation) -> None:
            """Append the ending driver's last entry between the new driver's first read and its first entry."""
            ending.driver.log.append("published", "")

        between = ScriptedStore(store).on("put", "*/commits/*", end, times=1)

        with Runner(SMALL, Parts(between, topic.manager), threads=1) as beginning:
            assert len(list(beginning.run_once())) == 1
    assert listed_offsets(store) == list(range(350))


AT_ONCE = 4


def test_entries_of_a_long_log_are_asked_for_many_at_once_and_come_in_order(
    topic: StoredTopic, store: ObjectStore
) -> None:
    pipeline = pipeline_of()
    run_once(topic, store, pipeline)
    log = commit_log_of(pipeline, store)
    log.read()
    for _ in range(40):
        log.append("begin", "f")
    crowded = ScriptedStore(store).on("get", f"*commits/{'0' * 18}2*", gather(AT_ONCE))
    again = commit_log_of(pipeline, crowded)
    assert again.read() == log.state
    assert [entry.number for entry in again.entries(5)] == list(range(5, log.state.number + 1))


def test_files_are_verified_many_at_once_and_told_in_order(topic: StoredTopic, store: ObjectStore) -> None:
    pipeline = pipeline_of(max__file__records="10")
    run_once(topic, store, pipeline)
    keys = listed(store)
    assert len(keys) == 30
    for key in keys[3::7]:
        size = store.head(key).size
        store.delete([key])
        store.put(key, bytes(size))
    store.delete(keys[5:6])
    crowded = ScriptedStore(store).on("get", "*/base_offset=*", gather(AT_ONCE))
    problems = list(verify_output(pipeline, crowded))
    wrong = [("content", key) for key in keys[3::7]] + [("missing", keys[5])]
    assert [(one.kind, one.subject) for one in problems] == sorted(wrong, key=lambda one: one[1])


def test_verifying_many_files_holds_less_than_a_kilobyte_of_each() -> None:
    pipeline, store, entries, files = pipeline_of(), MemoryObjectStore(), 20, 50
    log = commit_log_of(pipeline, store)
    log.read()
    for number in range(entries):
        made_of = tuple(committed_file(number * files + at) for at in range(files))
        window = WrittenWindow("orders", "VGVzdFRvcGljSWRlbnRpZg", 0, number, number + 1, files, 0, 0, made_of)
        log.append("batch", "f", [window])
    tracemalloc.start()
    try:
        committed = Committed.of(commit_log_of(pipeline, store))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(committed.files) == entries * files
    assert held / len(committed.files) < 1000


def committed_file(number: int) -> OutputFile:
    """Return a file as on S3, whose upload id has more than a hundred characters."""
    key = f"out/orders/dt=2026-01-31/hr=08/1_0_{number:020}.parquet"
    sha256 = hashlib.sha256(key.encode()).hexdigest()
    place, part = f"{number:0128}", f'"{number:032x}"'
    prepared = Prepared(key, number, sha256, place, (part,), f"{number:032x}")
    return OutputFile("data", key, number, sha256, number, number, 1, 1_700_000_000_000, 1_700_000_000_000, prepared)


FOLLOWS: dict[Life, dict[EntryKind, Life]] = {
    Life.FREE: {"begin": Life.FOLLOWING, "take-over": Life.FOLLOWING},
    Life.FOLLOWING: {"backfill": Life.FILLING, "seal": Life.SEALED, "drop": Life.DROPPED},
    Life.FILLING: {"published": Life.FILLED, "seal": Life.SEALED, "drop": Life.DROPPED},
    Life.FILLED: {"backfill": Life.FILLING, "seal": Life.SEALED, "drop": Life.DROPPED},
    Life.SEALED: {"drop": Life.DROPPED},
    Life.DROPPED: {},
}
"""Transitions of :class:`Life` by kind of entry. An entry of any other kind keeps a generation's state."""
STAYS: tuple[EntryKind, ...] = ("begin", "batch", "published", "finalize", "replacing", "replaced")
DIRECTORIES = tuple(f"out/orders/dt={number}" for number in range(3))


class LogMachine(RuleBasedStateMachine):
    """Comparison of a log with a model: the generation's state, its complete and its withheld directories."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryObjectStore()
        self.log = CommitLog(self.store, "out/", "kept", 1)
        self.life, self.stop, self.giving_to = Life.FREE, 0, -1
        self.finalized, self.withheld = set[str](), set[str]()

    @rule(kind=st.sampled_from(["begin", "take-over", "backfill", "published"]))
    def change(self, kind: EntryKind) -> None:
        """Append an entry that changes the state, if ``FOLLOWS`` has this transition."""
        if kind in FOLLOWS[self.life]:
            window = WrittenWindow("orders", "id", 0, self.stop, self.stop + 9, 0, 0, 0, ())
            self.log.append(kind, "f", [window] if kind == "backfill" else ())
            self.life = FOLLOWS[self.life][kind]

    @precondition(lambda self: self.log.state.number >= 6)
    @rule(kind=st.sampled_from(["seal", "drop"]))
    def end(self, kind: EntryKind) -> None:
        """Append an entry that ends the generation."""
        if kind in FOLLOWS[self.life]:
            self.log.append(kind, "f", other=7 if kind == "seal" else -1)
            self.life = FOLLOWS[self.life][kind]

    @rule(kind=st.sampled_from(STAYS), paths=st.sets(st.sampled_from(DIRECTORIES), min_size=1))
    def stay(self, kind: EntryKind, paths: set[str]) -> None:
        """Append an entry that keeps the state, if it is allowed."""
        if self.life in {Life.FREE, Life.DROPPED} or kind in FOLLOWS[self.life]:
            return
        match kind:
            case "batch":
                self.log.append(kind, "f", [WrittenWindow("orders", "id", 0, self.stop, self.stop + 2, 0, 0, 0, ())])
                self.stop += 2
            case "finalize":
                self.log.append(kind, "f", directories=sorted(paths))
                self.finalized |= paths
            case "replacing":
                self.log.append(kind, "f", directories=sorted(paths), other=5)
                self.withheld, self.giving_to = self.withheld | paths, 5
            case "replaced":
                self.log.append(kind, "f", directories=sorted(paths), other=5)
                self.withheld, self.giving_to = self.withheld - paths, -1
            case _:
                self.log.append(kind, "f")

    @invariant()
    def is_what_the_model_says(self) -> None:
        """Assert that the model, the log's state, a fresh read of the log, and a snapshot agree."""
        state = self.log.state
        assert (state.life, state.giving_to) == (self.life, self.giving_to)
        assert (state.finalized, state.withheld) == (self.finalized, self.withheld)
        assert CommitLog(self.store, "out/", "kept", 1).read() == state
        assert LogState.from_bytes(state.to_bytes(), "a snapshot") == state


LogMachine.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=20)
TestLogs = LogMachine.TestCase
