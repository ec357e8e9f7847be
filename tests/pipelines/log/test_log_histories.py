"""Logs as brokers leave them: aborted and open transactions, markers, compaction, retention that passes by."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pipelines.pipeline_runs import (
    NUMBER,
    TOPIC,
    listed,
    listed_offsets,
    offsets_of,
    pipeline_of,
    run_once,
)
from tests.support.records.stored_records import StoredTopic, plain_batch
from tests.support.records.transaction_scripts import STEPS, Partition, Segment, Step
from tests.support.stores.doubles import FaultyStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, DataLoss, StoreError
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.upkeep.inspection import verify_output


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


@given(
    logs=st.lists(
        st.lists(st.tuples(st.integers(1, 4), st.integers(0, 40)), min_size=1, max_size=4), min_size=1, max_size=4
    ),
    most=st.integers(1, 30),
)
def test_offsets_that_compaction_took_are_no_loss_and_windows_of_nothing_else_are_committed(
    logs: list[list[tuple[int, int]]], most: int
) -> None:
    """Of each segment the last batch stays, as a broker's cleaner leaves it."""
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


def test_what_retention_takes_before_it_is_written_is_a_loss_that_names_it(topic: StoredTopic) -> None:
    store, pipeline = MemoryObjectStore(), pipeline_of()
    run_once(topic, store, pipeline)
    topic.copy_plain(300, 100, size=100)
    topic.copy_plain(400, 100, size=100)
    for metadata in topic.copied[:-1]:
        topic.manager.delete_log_segment_data(metadata)
    with pytest.raises(DataLoss, match=r"offsets 300 to 399 of .*-\d+"):
        run_once(topic, store, pipeline)
    # What is written stays, and nothing behind the hole is taken for what comes next.
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
    with pytest.raises(DataLoss, match=r"secor\.kafka\.topic_blacklist, or begin another secor\.generation") as raised:
        run_once(topic, store, pipeline)
    assert "on_data_loss" not in str(raised.value)
    run_once(topic, store, pipeline_of(secor__kafka__topic_blacklist=TOPIC))
    # What lies before a hole is written.
    assert {key.split("/")[1] for key in listed(store)} == {"other"} | ({TOPIC} if damage == "hole" else set())
    assert listed_offsets(store) == sorted([*range(10), *(range(100) if damage == "hole" else ())])


def test_what_is_to_be_written_again_and_ends_behind_the_log_by_now_is_a_loss_that_names_it(topic: StoredTopic) -> None:
    store, pipeline = MemoryObjectStore(), pipeline_of()
    with pytest.raises(StoreError):
        run_once(topic, FaultyStore(store, lambda operation: operation.name == "publish"), pipeline)
    log = commit_log_of(pipeline, store)
    for file in log.entry(log.read().written).files:
        store.discard(file.prepared)
    topic.manager.delete_log_segment_data(topic.copied[-1])
    with pytest.raises(DataLoss, match=r"offsets 200 to 299 of .*-\d+"):
        run_once(topic, store, pipeline)
    assert listed(store) == []


def test_what_retention_takes_once_it_is_written_is_no_loss(topic: StoredTopic) -> None:
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
    with pytest.raises(ConfigError, match=rf"the topic {TOPIC} was created again.*secor\.generation"):
        run_once(topic, store, pipeline_of())
    assert listed_offsets(store) == list(range(300))
    run_once(topic, store, pipeline_of(secor__generation="2", output__key__prefix="second/"))
    assert sum(len(offsets_of(store, key)) for key in listed(store, "second/")) == 400
