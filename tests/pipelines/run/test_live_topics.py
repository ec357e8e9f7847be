"""Topics that appear in and disappear from broker and bucket, and configured topics that do not exist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.cli_process import Result, tieredstore
from tests.support.kafka.kafka_topics import Produced, add_partitions, delete_records, delete_topic, make_topic, produce
from tests.support.pipelines.pipeline_runs import (
    TOPIC,
    listed,
    listed_offsets,
    pipeline_of,
    rows_of,
    run_once,
    verify_output,
)
from tests.support.records.stored_records import StoredTopic
from tests.support.servers.kafka import KafkaServer
from tests.support.spark.spark_pipelines import ROOT, Kept
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, DataLossError, ResourceNotFoundError
from tieredstore.pipelines import Parts, Pipeline, Runner, with_generation
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.planner import Planner
from tieredstore.pipelines.run.source import open_parts
from tieredstore.reading.log_snapshot import LogSnapshot

AGE_S = 60
LOOK_S = 30


class Running:
    """Running pipeline over all topics with a prefix, in this process; a test advances its clock."""

    def __init__(self, kafka: KafkaServer) -> None:
        self._kafka = kafka
        self.topic = make_topic(kafka)
        self.store = MemoryObjectStore()
        self.pipeline = pipeline_of(
            kafka__bootstrap__servers=kafka.bootstrap_servers,
            secor__kafka__topic_filter=f"{self.topic}.*",
            secor__max__file__age__seconds=str(AGE_S),
            secor__max__file__size__bytes="1000000",
        )
        self._now_s = 0.0
        self._written: dict[tuple[str, int], list[bytes]] = {}
        self._open = ExitStack()
        source = self._open.enter_context(open_parts(self.pipeline)).source
        self._runner = self._open.enter_context(
            Runner(self.pipeline, Parts(self.store, source), threads=1, clock=lambda: self._now_s)
        )

    def write(self, count: int, topic: str | None = None, *, partition: int = 0) -> None:
        """Produce ``count`` records whose values name their topic, partition and offset."""
        topic = topic or self.topic
        written = self._written.setdefault((topic, partition), [])
        values = [f"{topic}-{partition} {len(written) + number}".encode() for number in range(count)]
        produce(self._kafka, topic, [Produced(None, value) for value in values], partition=partition)
        written += values

    def look(self) -> int:
        """Run once, and again when all records are old enough to write; return the number of batches with files."""
        batches = 0
        # Advance the clock before each run, because the pipeline reuses a recent listing.
        for passed_s in (LOOK_S, AGE_S):
            self._now_s += passed_s
            while (entry := self._runner.step()) is not None:
                batches += bool(entry.files)
        return batches

    def check(self, *, missing: int = 0) -> None:
        """Assert that the output has each record once, except ``missing`` ones at the end of the first topic's
        partition 0.
        """
        rows = [row for key in listed(self.store) for row in rows_of(self.store, key)]
        shown = sorted((row["topic"], row["partition"], row["offset"], row["value"]) for row in rows)
        written = self._written | {(self.topic, 0): self._written[self.topic, 0][: -missing or None]}
        assert shown == sorted(
            (*where, offset, value) for where, values in written.items() for offset, value in enumerate(values)
        )
        assert list(verify_output(self.pipeline, self.store)) == []

    def next_generation(self) -> list[int]:
        """Return the offsets that a new generation writes into an empty store."""
        pipeline, store = with_generation(self.pipeline, 2), MemoryObjectStore()
        with open_parts(pipeline) as parts, Runner(pipeline, Parts(store, parts.source)) as runner:
            list(runner.run_once())
        return listed_offsets(store)

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def running(kafka: KafkaServer) -> Iterator[Running]:
    running = Running(kafka)
    yield running
    running.close()


@pytest.mark.broker
def test_partitions_and_topics_that_come_while_it_runs_are_written_from_their_first_record(
    running: Running, kafka: KafkaServer
) -> None:
    running.write(20)
    assert running.look() == 1
    add_partitions(kafka, running.topic, 3)
    other = make_topic(kafka, name=f"{running.topic}-more")
    running.write(5)
    for topic, partition in ((running.topic, 2), (other, 0)):
        running.write(10, topic, partition=partition)
    assert running.look() == 1
    running.check()
    # Empty partitions and partitions without new records do not cause a batch.
    assert running.look() == 0
    running.write(1, partition=1)
    assert running.look() == 1
    running.check()


@pytest.mark.broker
def test_a_topic_that_is_created_again_while_it_runs_is_no_continuation(running: Running, kafka: KafkaServer) -> None:
    running.write(20)
    running.look()
    delete_topic(kafka, running.topic)
    # The deletion of the topic is no loss, because its records are already written.
    assert running.look() == 0
    make_topic(kafka, name=running.topic)
    produce(kafka, running.topic, [Produced(None, b"of another life")] * 30)
    with pytest.raises(ConfigError, match=rf"the topic {running.topic} was re-created.*secor\.generation"):
        running.look()
    running.check()


@pytest.mark.broker
def test_retention_that_passes_by_is_a_loss_that_names_what_is_gone(running: Running, kafka: KafkaServer) -> None:
    running.write(20)
    running.look()
    # Deleting written records loses nothing.
    delete_records(kafka, running.topic, 20)
    running.write(5)
    running.look()
    running.check()
    running.write(30)
    delete_records(kafka, running.topic, 40)
    with pytest.raises(DataLossError, match=rf"offsets 25 to 39 of {running.topic}-0"):
        running.look()
    running.check(missing=30)
    # A new generation begins with the records that still exist.
    assert running.next_generation() == list(range(40, 55))


@pytest.mark.broker
def test_retention_between_a_plan_and_its_reading_is_a_loss_that_names_what_is_gone(
    running: Running, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.write(20)
    running.look()
    running.write(30)
    due = Planner.find_due

    def overtaken(planner: Planner, snapshot: LogSnapshot, *arguments: Any, **named: Any) -> list[BatchWindow]:
        windows = due(planner, snapshot, *arguments, **named)
        if windows:
            delete_records(kafka, running.topic, 33)
        return windows

    monkeypatch.setattr(Planner, "find_due", overtaken)
    with pytest.raises(DataLossError, match=rf"offsets 20 to 32 .*{running.topic}-0"):
        running.look()
    running.check(missing=30)
    assert commit_log_of(running.pipeline, running.store).read().positions[running.topic, 0].next_offset == 20


MISSPELT = f"{TOPIC}x"


def named(*topics: str, **changes: str) -> Pipeline:
    return pipeline_of(kafka__new__consumer__topic__list=",".join(topics), **changes)


def test_a_run_that_ends_fails_for_a_topic_that_is_nowhere_and_names_what_is_like_it(
    topic: StoredTopic, store: ObjectStore
) -> None:
    expected = rf"^there is no topic '{MISSPELT}' in the bucket; did you mean '{TOPIC}'\?$"
    with pytest.raises(ResourceNotFoundError, match=expected) as raised:
        run_once(topic, store, named(TOPIC, MISSPELT))
    assert raised.value.exit_code == 3
    assert listed(store) == []
    run_once(topic, store, named(TOPIC))
    assert listed_offsets(store) == list(range(300))


def test_a_topic_that_was_written_once_is_none_that_is_misspelt(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, named(TOPIC))
    topic.store.delete([info.key for info in topic.store.list()])
    assert run_once(topic, store, named(TOPIC)) == []
    assert run_once(topic, store, pipeline_of()) == []
    with pytest.raises(ResourceNotFoundError, match=f"there is no topic '{MISSPELT}' in the bucket"):
        run_once(topic, store, named(TOPIC, MISSPELT))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"secor__kafka__topic_filter": "none.*"},
            rf"'none\.\*' matches no topic in the bucket; topics found: '{TOPIC}'$",
        ),
        (
            {"secor__kafka__topic_blacklist": TOPIC},
            r"'\.\*' matches no topic in the bucket besides those that secor\.kafka\.topic_blacklist excludes",
        ),
    ],
)
def test_a_filter_that_matches_no_topic_fails_a_run_too(
    topic: StoredTopic, store: ObjectStore, changes: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ResourceNotFoundError, match=sentence):
        run_once(topic, store, pipeline_of(**changes))


def test_a_bucket_without_any_topic_is_perhaps_another_one(tmp_path: Path) -> None:
    with (
        closing(StoredTopic(tmp_path)) as empty,
        pytest.raises(ResourceNotFoundError, match=r"no topics found: check key\.pre"),
    ):
        run_once(empty, MemoryObjectStore(), pipeline_of())


def test_a_list_of_which_all_is_left_out_is_refused(topic: StoredTopic, store: ObjectStore) -> None:
    with pytest.raises(ConfigError, match="excludes all topics"):
        run_once(topic, store, named(TOPIC, secor__kafka__topic_blacklist=".*"))


@pytest.mark.broker
def test_a_topic_of_a_broker_may_be_empty_and_is_there(kafka: KafkaServer, tmp_path: Path) -> None:
    there = make_topic(kafka)
    broker = {"kafka__bootstrap__servers": kafka.bootstrap_servers}
    with closing(Kept(tmp_path)) as kept:
        once = "pipeline", "run", "--once"
        file = kept.file(kafka__new__consumer__topic__list=there, **broker)
        assert tieredstore(*once, file).code == 0
        file = kept.file(kafka__new__consumer__topic__list=f"{there},{there}x", **broker)
        done = tieredstore(*once, file)
        assert (done.code, done.text) == (3, "")
        assert f"there is no topic '{there}x' in the bucket or on the broker; did you mean" in done.stderr
        file = kept.file(secor__kafka__topic_filter=f"{there}y", **broker)
        done = tieredstore(*once, file)
        assert done.code == 3
        assert f"{there}y' matches no topic in the bucket or on the broker; topics found: " in done.stderr


class TestStatus:
    """The ``pipeline status`` command."""

    def shown(self, folder: Path, *options: str, **changes: str) -> Result:
        with closing(Kept(folder)) as kept:
            kept.write(20)
            return tieredstore("pipeline", "status", kept.file(**changes), *options)

    def test_it_names_once_what_of_the_file_has_no_effect(self, tmp_path: Path) -> None:
        idle = {"ostrich__port": "9998", "secor__consumer__threads": "7"}
        done = self.shown(tmp_path, "--json", **idle)
        assert done.stderr.count("properties without effect here: ostrich.port, secor.consumer.threads\n") == 1
        assert "accepted" not in done.text

    def test_it_has_a_row_and_a_sentence_for_a_topic_that_is_nowhere(self, tmp_path: Path) -> None:
        topics = {"kafka__new__consumer__topic__list": "orders,ordrs"}
        done = self.shown(tmp_path / "text", **topics)
        assert done.code == 0
        assert done.text.splitlines()[-1].split() == ["ordrs", *["-"] * 6, *["-"] * 2]
        assert done.stderr == "tieredstore: there is no topic 'ordrs' in the bucket; did you mean 'orders'?\n"
        done = self.shown(tmp_path / "json", "--json", **topics)
        first, *_, last, summary = done.lines
        assert summary == {"summary": {"partitions": 2, "lag": 40, "commit": -1}}
        assert last.keys() == first.keys()
        assert last == {**dict.fromkeys(first), "topic": "ordrs"}
        assert "did you mean 'orders'?" in done.stderr

    def test_it_fails_where_there_is_nothing_else(self, tmp_path: Path) -> None:
        done = self.shown(tmp_path / "list", kafka__new__consumer__topic__list="ordrs")
        assert (done.code, done.text) == (3, "")
        assert "did you mean 'orders'?" in done.stderr
        done = self.shown(tmp_path / "filter", "--json", secor__kafka__topic_filter="ordrs")
        assert (done.code, done.text) == (3, "")
        assert "'ordrs' matches no topic in the bucket; topics found: 'orders'" in done.stderr
        assert not list((tmp_path / "filter" / "output").glob(f"{ROOT}*"))
