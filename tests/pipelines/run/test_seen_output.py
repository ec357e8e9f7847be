"""That tests which kill pipelines would notice what they look for."""

from __future__ import annotations

import pytest

from tests.support.pipelines.pipeline_runs import NUMBER, listed, pipeline_of, run_once
from tests.support.pipelines.seen_output import SeenOutput
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import FaultyStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import StoreUnavailable
from tieredstore.pipelines.run.generation import commit_log_of

SMALL = pipeline_of(secor__max__file__size__bytes="9000")


def test_what_is_written_is_seen_once_look_by_look(topic: StoredTopic, store: ObjectStore) -> None:
    seen = SeenOutput(SMALL, store, "out/")
    seen.look()
    for stop in (300, 350):
        run_once(topic, store, SMALL)
        seen.look()
        assert sorted(seen.records[NUMBER]) == list(range(stop))
        topic.copy_plain(stop, 50, size=100)


def test_a_published_file_that_is_gone_is_noticed_even_by_who_saw_it_before(
    topic: StoredTopic, store: ObjectStore
) -> None:
    run_once(topic, store, SMALL)
    before, new = SeenOutput(SMALL, store, "out/"), SeenOutput(SMALL, store, "out/")
    before.look()
    key = listed(store)[1]
    store.delete([key])
    for seen in (before, new):
        with pytest.raises(AssertionError, match=f"{key} is not there"):
            seen.look()


def test_a_file_that_was_seen_before_its_batch_counts_as_published_may_not_go_either(topic: StoredTopic) -> None:
    store = FaultyStore(MemoryObjectStore(), lambda operation: operation.name == "publish", moment="after")
    with pytest.raises(StoreUnavailable):
        run_once(topic, store, SMALL)
    inner = store.inner
    seen = SeenOutput(SMALL, inner, "out/")
    seen.look()
    (key,) = listed(inner)
    inner.delete([key])
    with pytest.raises(AssertionError, match="is not there"):
        seen.look()
    SeenOutput(SMALL, inner, "out/").look()


def test_an_offset_that_is_there_twice_or_is_not_committed_is_noticed(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, SMALL)
    keys = listed(store)
    copy = f"{keys[0].rpartition('/')[0]}/1_{NUMBER}_{7:020}.parquet"
    store.put(copy, store.get(keys[0]))
    with pytest.raises(AssertionError, match="offset 0 once more"):
        SeenOutput(SMALL, store, "out/").look()
    store.delete([copy])
    commits = commit_log_of(SMALL, store).folder + "commits/"
    store.delete([info.key for info in store.list(commits)][1:])
    with pytest.raises(AssertionError, match="offset 0, which is not committed"):
        SeenOutput(SMALL, store, "out/").look()
