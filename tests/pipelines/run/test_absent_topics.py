"""Topics that a pipeline names and that are nowhere, or a filter that matches none: no run ends well without them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.cli.cli_process import Result, tieredstore
from tests.support.kafka.kafka_topics import make_topic
from tests.support.pipelines.pipeline_runs import TOPIC, listed, listed_offsets, pipeline_of, run_once
from tests.support.records.stored_records import StoredTopic
from tests.support.servers.kafka import KafkaServer
from tests.support.spark.spark_pipelines import ROOT, Kept
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, ResourceNotFound
from tieredstore.pipelines import Pipeline

MISSPELT = f"{TOPIC}x"


def named(*topics: str, **changes: str) -> Pipeline:
    return pipeline_of(kafka__new__consumer__topic__list=",".join(topics), **changes)


def test_a_run_that_ends_fails_for_a_topic_that_is_nowhere_and_names_what_is_like_it(
    topic: StoredTopic, store: ObjectStore
) -> None:
    expected = rf"^there is no topic '{MISSPELT}' in the bucket; did you mean '{TOPIC}'\?$"
    with pytest.raises(ResourceNotFound, match=expected) as raised:
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
    with pytest.raises(ResourceNotFound, match=f"there is no topic '{MISSPELT}' in the bucket"):
        run_once(topic, store, named(TOPIC, MISSPELT))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"secor__kafka__topic_filter": "none.*"}, rf"'none\.\*' matches no topic in the bucket; there is '{TOPIC}'$"),
        (
            {"secor__kafka__topic_blacklist": TOPIC},
            r"'\.\*' matches no topic in the bucket but those that secor\.kafka\.topic_blacklist leaves out",
        ),
    ],
)
def test_a_filter_that_matches_no_topic_fails_a_run_too(
    topic: StoredTopic, store: ObjectStore, changes: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ResourceNotFound, match=sentence):
        run_once(topic, store, pipeline_of(**changes))


def test_a_bucket_without_any_topic_is_perhaps_another_one(tmp_path: Path) -> None:
    with closing(StoredTopic(tmp_path)) as empty, pytest.raises(ResourceNotFound, match=r"none at all: check key\.pre"):
        run_once(empty, MemoryObjectStore(), pipeline_of())


def test_a_list_of_which_all_is_left_out_is_refused(topic: StoredTopic, store: ObjectStore) -> None:
    with pytest.raises(ConfigError, match="leaves out each topic"):
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
        assert f"{there}y' matches no topic in the bucket or on the broker; there " in done.stderr


class TestStatus:
    """``pipeline status``."""

    def shown(self, folder: Path, *options: str, **changes: str) -> Result:
        with closing(Kept(folder)) as kept:
            kept.write(20)
            return tieredstore("pipeline", "status", kept.file(**changes), *options)

    def test_it_names_once_what_of_the_file_has_no_effect(self, tmp_path: Path) -> None:
        idle = {"ostrich__port": "9998", "secor__consumer__threads": "7"}
        done = self.shown(tmp_path, "--json", **idle)
        assert done.stderr.count("accepted without effect: ostrich.port, secor.consumer.threads\n") == 1
        assert "accepted" not in done.text

    def test_it_has_a_row_and_a_sentence_for_a_topic_that_is_nowhere(self, tmp_path: Path) -> None:
        topics = {"kafka__new__consumer__topic__list": "orders,ordrs"}
        done = self.shown(tmp_path / "text", **topics)
        assert done.code == 0
        assert done.text.splitlines()[-1].split() == ["ordrs", *["-"] * 6, *["-"] * 2]
        assert done.stderr == "tieredstore: there is no topic 'ordrs' in the bucket; did you mean 'orders'?\n"
        done = self.shown(tmp_path / "json", "--json", **topics)
        first, *_, last = done.json
        assert last.keys() == first.keys()
        assert last == {**dict.fromkeys(first), "topic": "ordrs"}
        assert "did you mean 'orders'?" in done.stderr

    def test_it_fails_where_there_is_nothing_else(self, tmp_path: Path) -> None:
        done = self.shown(tmp_path / "list", kafka__new__consumer__topic__list="ordrs")
        assert (done.code, done.text) == (3, "")
        assert "did you mean 'orders'?" in done.stderr
        done = self.shown(tmp_path / "filter", "--json", secor__kafka__topic_filter="ordrs")
        assert (done.code, done.text) == (3, "")
        assert "'ordrs' matches no topic in the bucket; there is 'orders'" in done.stderr
        assert not list((tmp_path / "filter" / "output").glob(f"{ROOT}*"))
