"""Comparison of an output with its source log: differences are reported."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipelines.run.test_groups import FromBroker
from tests.pipelines.upkeep.test_upkeep import LENIENT, STRICT
from tests.support.kafka.kafka_topics import delete_records
from tests.support.pipelines.pipeline_runs import (
    NUMBER,
    TOPIC,
    listed,
    pipeline_of,
    redrive,
    run_once,
    texts,
    verify_output,
)
from tests.support.records.stored_records import StoredTopic
from tests.support.servers.kafka import KafkaServer
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError
from tieredstore.model import Uuid
from tieredstore.pipelines import Pipeline, with_generation
from tieredstore.pipelines.run.source import open_parts
from tieredstore.pipelines.upkeep.backfill import Backfill
from tieredstore.pipelines.upkeep.comparison import Against, keep_side
from tieredstore.pipelines.upkeep.inspection import PartitionStatus
from tieredstore.pipelines.upkeep.output_files import OutputProblem
from tieredstore.pipelines.upkeep.record_sources import LogSource, Selected
from tieredstore.remote.layout import KeyLayout
from tieredstore.testing.segments import PARTITION

SMALL = pipeline_of(max__file__records="100")
THIRD = pipeline_of(secor__message__transformer__class="tests.pipelines.files.test_transforming:third")


def against(topic: StoredTopic, store: MemoryObjectStore, pipeline: Pipeline) -> tuple[list[OutputProblem], int, int]:
    comparison = Against(keep_side(pipeline, "bucket"), store, topic.manager)
    return list(comparison.problems()), comparison.compared, comparison.gone


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"secor.file.reader.writer.factory": "json"},
        {"secor.file.reader.writer.factory": "text", "secor.compression.codec": "gzip"},
        {"secor.file.reader.writer.factory": "sequencefile"},
        {"secor.file.reader.writer.factory": "orc"},
        {"name.offset": "window", "secor.s3.prefix.md5hash": "true"},
    ],
)
def test_what_was_written_of_a_log_is_all_of_it(topic: StoredTopic, changes: dict[str, str]) -> None:
    store, pipeline = MemoryObjectStore(), pipeline_of(**texts({"secor.max.file.size.bytes": "9000", **changes}))
    assert against(topic, store, pipeline) == ([], 0, 0)
    run_once(topic, store, pipeline)
    assert against(topic, store, pipeline) == ([], 300, 0)


def test_a_bucket_without_topic_ids_is_compared_with_what_was_written_beside_a_broker(topic: StoredTopic) -> None:
    """In the raw layout, the bucket's topic id is derived from the topic's name. The commit log has the broker's id."""

    class RawLayout(KeyLayout):
        def derived_id(self, topic: str) -> Uuid | None:
            return PARTITION.topic_id

    store, brokers_id = MemoryObjectStore(), str(Uuid.random())
    run_once(topic, store, SMALL)
    for key in [info.key for info in store.list("out/_tieredstore/kept/")]:
        store.put(key, store.get(key).replace(str(PARTITION.topic_id).encode(), brokers_id.encode()))
    assert against(topic, store, SMALL) == ([], 0, 300)
    topic.manager.layout = RawLayout()
    assert against(topic, store, SMALL) == ([], 300, 0)


def test_quarantined_omitted_redriven_or_replaced_records_are_no_fault(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, STRICT)
    assert against(topic, store, STRICT) == ([], 300, 0)
    redrive(topic, store, LENIENT)
    assert against(topic, store, LENIENT) == ([], 300, 0)
    with closing(LogSource(with_generation(LENIENT, 2), topic.manager, TOPIC)) as source:
        list(Backfill(with_generation(LENIENT, 2), store, source, replaces=1, threads=1).run(Selected(TOPIC)))
    assert against(topic, store, with_generation(LENIENT, 2)) == ([], 300, 0)
    assert against(topic, store, LENIENT) == ([], 0, 0)
    other = MemoryObjectStore()
    run_once(topic, other, THIRD)
    assert against(topic, other, THIRD) == ([], 300, 0)
    redrive(topic, other, THIRD)
    assert against(topic, other, THIRD)[0] == []


def rewritten(change: Callable[[Any], Any]) -> Callable[[MemoryObjectStore], None]:
    """Return a fault that applies ``change`` to the second file, which has the offsets 100 to 199."""

    def plant(store: MemoryObjectStore) -> None:
        key = listed(store)[1]
        file = io.BytesIO()
        pq.write_table(change(pq.read_table(io.BytesIO(store.get(key)))), file)
        store.put(key, file.getvalue())

    return plant


def other_value(table: Any) -> Any:
    values = table.column("value").to_pylist()
    return table.set_column(1, "value", pa.array([*values[:7], b"another", *values[8:]], pa.binary()))


def other_offset(table: Any) -> Any:
    offsets = table.column("offset").to_pylist()
    return table.set_column(4, table.schema.field("offset"), [pa.array([*offsets[:-1], 777])])


def from_third(table: Any) -> Any:
    return table.slice(3)


def sixth_again(table: Any) -> Any:
    return pa.concat_tables([table, table.slice(5, 1)])


def without_offsets(table: Any) -> Any:
    return table.select(["key", "value"])


def every_other(table: Any) -> Any:
    return table.take(list(range(0, 100, 2)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (from_third, {"lost": "offsets 100 to 102 in no file"}),
        (sixth_again, {"twice": "offsets 105 in several files"}),
        (other_value, {"changed": "other keys or values at offsets 107"}),
        (other_offset, {"invented": "offsets 777 in files", "lost": "offsets 199 in no file"}),
        (without_offsets, {"unread": "does not hold the offsets"}),
    ],
    ids=["lost", "twice", "changed", "invented", "unread"],
)
def test_a_planted_fault_is_named(topic: StoredTopic, change: Callable[[Any], Any], said: dict[str, str]) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, SMALL)
    rewritten(change)(store)
    problems, compared, gone = against(topic, store, SMALL)
    assert {one.kind for one in problems} == said.keys()
    for one in problems:
        assert said[one.kind] in one.words
        assert one.subject in {f"{TOPIC}-{NUMBER}", listed(store)[1]}
    # The records of all three windows are compared, except those of a window whose file cannot be read.
    assert (compared, gone) == (200 if "unread" in said else 300, 0)


def test_runs_of_offsets_are_shown_the_first_of_them(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, SMALL)
    rewritten(every_other)(store)
    ((problem,), _, _) = against(topic, store, SMALL)
    assert problem.words == "has offsets 101, 103, 105, 107, 109 and 45 more in no file"


def test_records_that_the_source_no_longer_has_are_counted(topic: StoredTopic, tmp_path: Path) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, SMALL)
    with closing(StoredTopic(tmp_path / "later")) as later:
        later.copy_plain(100, 200, size=100)
        later.copy_plain(300, 10, size=100)
        assert against(later, store, SMALL) == ([], 200, 100)


def secors(topic: StoredTopic) -> tuple[MemoryObjectStore, Pipeline]:
    """Return an output like Secor's, without a commit log: SequenceFiles of offsets and values, named by window."""
    names = {
        "secor.file.reader.writer.factory": "sequencefile", "name.offset": "window", "max.file.records": "100",
        "secor.offsets.per.partition": "50",
    }  # fmt: skip
    pipeline, written, store = pipeline_of(**texts(names)), MemoryObjectStore(), MemoryObjectStore()
    run_once(topic, written, pipeline)
    for key in listed(written):
        if not key.rpartition("/")[2].startswith("."):
            store.put(key, written.get(key))
    return store, pipeline


def test_secors_files_are_verified_by_their_names_and_beside_the_log(topic: StoredTopic) -> None:
    store, pipeline = secors(topic)
    assert len(listed(store)) == 6
    assert list(verify_output(pipeline, store)) == []
    assert against(topic, store, pipeline) == ([], 300, 0)
    first, second = (f"out/{TOPIC}/base_offset={at}/1_{NUMBER}_{0:020}.seq" for at in (0, 50))
    # The output looks as if the windows of a retry began at other offsets. Only the source's log shows missing records.
    elsewhere = first.replace("base_offset=0", "base_offset=9")
    store.put(elsewhere, store.get(first))
    (problem,) = verify_output(pipeline, store)
    assert (problem.kind, problem.subject) == ("twice", elsewhere)
    assert {one.kind for one in against(topic, store, pipeline)[0]} == {"twice"}
    store.delete([first, elsewhere])
    assert list(verify_output(pipeline, store)) == []
    ((problem,), compared, _) = against(topic, store, pipeline)
    assert (problem.kind, problem.words, compared) == ("lost", "has offsets 0 to 49 in no file", 300)
    later = second.replace(f"{0:020}", f"{100:020}")
    store.put(later, store.get(second))
    store.put(second, store.get(second)[:-5])
    assert {(one.kind, one.subject) for one in verify_output(pipeline, store)} == {
        ("offsets", later),
        ("content", second),
    }


def test_an_output_whose_log_is_gone_is_not_taken_for_secors(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, SMALL)
    store.delete([info.key for info in store.list("out/_tieredstore/kept/")])
    (problem,) = verify_output(SMALL, store)
    assert (problem.kind, problem.subject) == ("missing", "out/_tieredstore/generations/1.json")


@pytest.mark.broker
def test_the_broker_is_compared_with_as_far_as_it_has_it(kafka: KafkaServer) -> None:
    kept = FromBroker(kafka)
    for partition in (0, 1):
        kept.produce(20, partition)
    kept.run(startingOffsets="")
    kept.produce(5, 1)
    pipeline = keep_side(kept.pipeline(startingOffsets=""), "broker")

    def compared() -> tuple[list[str], int, int]:
        with open_parts(pipeline) as parts:
            comparison = Against(pipeline, kept.store, parts.source)
            return [one.kind for one in comparison.problems()], comparison.compared, comparison.gone

    assert compared() == ([], 40, 0)
    delete_records(kafka, kept.topic, 6)
    assert compared() == ([], 34, 6)
    kept.store.delete([listed(kept.store)[-1]])
    assert compared() == (["unread"], 14, 6)


def test_a_side_that_the_pipeline_does_not_read_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"set kafka\.bootstrap\.servers"):
        keep_side(pipeline_of(), "broker")
    live = pipeline_of(kafka__bootstrap__servers="h:1")
    assert keep_side(live, "broker").source is None
    with pytest.raises(ConfigError, match=r"set storage\.backend\.class"):
        keep_side(keep_side(live, "broker"), "bucket")


def test_lags_are_as_old_as_the_latest_written_record() -> None:
    status = PartitionStatus("t", 0, 5, 9, 40_000, 1, 5)
    assert (status.lag, status.lag_s(42_500)) == (4, 2.5)
    assert PartitionStatus("t", 0, 9, 9, 40_000, 1, 5).lag_s(99_000) == 0.0
    assert PartitionStatus("t", 0, 0, 9, -1, 0, 0).lag_s(99_000) is None
    assert PartitionStatus("t", 0, 9, None, 40_000, 1, 5).lag_s(99_000) is None
