"""Backfills of topics that may have the name of another topic, or of only some partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipelines.upkeep.test_backfill import ALL, RIGHT, backfill, clean, from_files, offsets, wrong
from tests.support.pipelines.pipeline_runs import NUMBER, TOPIC, pipeline_of
from tests.support.pipelines.secor_files import sequence_file
from tests.support.records.hourly_topics import hourly_topic
from tests.support.records.stored_records import StoredTopic, plain_batch
from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ConfigError
from tieredstore.model import Uuid
from tieredstore.pipelines import Parts, Runner, with_generation
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.upkeep.record_sources import Selected
from tieredstore.remote.layout import KeyLayout
from tieredstore.testing.segments import PARTITION


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    with hourly_topic(tmp_path, [0, 0, 1], [2, 4]) as topic:
        yield topic


def test_a_generation_of_files_does_not_go_on_from_a_log_that_may_be_of_another_topic(
    topic: StoredTopic, store: ObjectStore
) -> None:
    """Names of Secor's files do not show the topic's id."""
    secor = pipeline_of(pipeline__name="secor", output__key__prefix="secor/", secor__generation="7")
    store.put(f"secor/{TOPIC}/dt=1/7_{NUMBER}_{0:020}", sequence_file({0: b"v", 1: b"v"}))
    from_files(store, secor, ALL)
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"{TOPIC}-{NUMBER} of another topic .* set another --generation"):
            backfill(topic, store)
    assert backfill(topic, store, Selected(TOPIC, 0, 2)) == []


def test_a_bucket_without_topic_ids_is_backfilled_as_what_a_broker_named(topic: StoredTopic) -> None:
    """In the raw layout, the bucket's topic id is derived from the topic's name. The commit log has the broker's id."""

    class RawLayout(KeyLayout):
        def derived_id(self, topic: str) -> Uuid | None:
            return PARTITION.topic_id

    store, brokers_id = wrong(topic), str(Uuid.random())
    backfill(topic, store, Selected(TOPIC, 0, 2))
    for key in [info.key for info in store.list("out/_tieredstore/kept/")]:
        store.put(key, store.get(key).replace(str(PARTITION.topic_id).encode(), brokers_id.encode()))
    for replaces in (-1, 1):
        with pytest.raises(ConfigError, match=r"another topic|re-created"):
            backfill(topic, store, generation=2 + (replaces > 0), replaces=replaces)
    topic.manager.layout = RawLayout()
    backfill(topic, store)
    backfill(topic, store, generation=3, replaces=1)
    assert (offsets(store, 1), offsets(store, 2), offsets(store, 3)) == ([], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    assert clean(store, 2, 3)


def test_a_backfill_that_is_finalized_begins_no_other_partition(topic: StoredTopic, store: ObjectStore) -> None:
    backfill(topic, store)
    topic.copy(0, [plain_batch(range(5))], partition=replace(PARTITION, partition=NUMBER + 1))
    filled = with_generation(RIGHT, 2)
    with Runner(filled, Parts(store, topic.manager)) as runner:
        runner.finalize()
    assert [*commit_log_of(filled, store).read().positions] == [(TOPIC, NUMBER)]
