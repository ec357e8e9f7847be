"""Topics that ``pubsub gc`` refuses, because it cannot tell which batches are orphans; it goes on with other topics."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import pytest

from tests.support.pubsub.pubsub_topics import (
    batch_keys,
    orders_on,
    publish,
    read_values,
    sealed_message,
    topics_on,
    values_of,
)
from tests.support.stores.doubles import ScriptedStore
from tieredstore.api.outcomes import Outcome
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, CorruptDataError, DataLossError
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.cli.upkeep import collect_garbage
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.errors import NotificationCorruptError
from tieredstore.pubsub.format.messages import ProducerRequest
from tieredstore.pubsub.produce.batch_writer import BatchWriter
from tieredstore.pubsub.queue.store_queue import StoreQueue
from tieredstore.pubsub.queue.topics import BatchLog, Topics
from tieredstore.pubsub.upkeep.garbage import GarbageCollection, plan_gc
from tieredstore.versions import TOPIC


@pytest.fixture
def return_to_now(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Set the clock of this process and of its stores back by three days, until the test calls the returned function.
    Batches of the test are then old enough for gc."""
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() - 3 * 86_400 * 10**9)
    return lambda: monkeypatch.setattr(time, "time_ns", now_ns)


def copy_definitions(topics: Topics, cluster: str) -> Topics:
    """Return another cluster of the same store, which has a copy of all definitions."""
    other = topics_on(topics.store, cluster=cluster)
    for name in topics.names():
        definition = topics.store.get(topics.folder.key("topics", f"{name}.json"))
        topics.store.put(other.folder.key("topics", f"{name}.json"), definition)
    return other


def leave_orphan(topics: Topics) -> str:
    with closing(BatchWriter(BatchLog(topics, topics.get("orders")))) as writer:
        return writer.store([sealed_message(ProducerRequest(b"\1\2\3\4", 1, 0), b"v")], Deadline.after(60.0)).key


def test_a_store_that_does_not_tell_its_time_is_refused() -> None:
    topics = orders_on(ScriptedStore(MemoryObjectStore()).change("now_ms", change=lambda _: None))
    with pytest.raises(ConfigError, match="has no clock"):
        list(GarbageCollection(BatchLog(topics, topics.get("orders"))).run())


def test_a_copied_topic_writes_no_batches_that_gc_of_the_original_would_delete() -> None:
    prod = orders_on(cluster="prod/eu")
    publish(prod, [b"a"])
    other = copy_definitions(prod, "test")
    with pytest.raises(ConfigError, match=r"prod/eu/topics/orders\.json defines a topic of another cluster"):
        publish(other, [b"b"])
    assert len(batch_keys(prod)) == 1
    assert read_values(other) == []
    # Once the original is gone, the copy owns the path.
    prod.store.delete([prod.folder.key("topics", "orders.json")])
    publish(other, [b"b"])
    assert read_values(other, 1) == [b"b"]


def test_objects_without_hashes_never_lie_among_those_of_a_hash() -> None:
    with pytest.raises(ConfigError, match=r"28/default/topics/orders begins like a hash.* the topic default/topics/o"):
        orders_on(cluster="28/default", hashing="false")
    assert orders_on(cluster="28/default").get("orders").is_hashed
    assert not orders_on(cluster="2/default", hashing="false").get("orders").is_hashed


def test_gc_goes_on_after_refused_topics_and_names_them_at_the_end(return_to_now: Callable[[], None]) -> None:
    prod = topics_on(cluster="prod")
    for name in ("a", "b"):
        prod.create(name)
    other = copy_definitions(prod, "test")
    other.create("orders")
    orphan = leave_orphan(other)
    return_to_now()
    plan, seen = plan_gc(other), list[Outcome]()
    for act, status in ((plan.show, "planned"), (plan.apply, "done")):
        with pytest.raises(ConfigError, match=r"prod/topics/a\.json defines .*; .*prod/topics/b\.json defines"):
            act(seen.append)
        assert [(one.name, one.status) for one in seen] == [(orphan, status)]
        seen.clear()
    assert batch_keys(other) == []


def test_a_damaged_queue_stops_gc_of_no_other_topic(return_to_now: Callable[[], None]) -> None:
    topics = orders_on()
    with topics.queue(topics.create("a")) as queue:
        queue.append(0, [b"no notification"], Deadline.after(60.0))
    leave_orphan(topics)
    return_to_now()
    with pytest.raises(NotificationCorruptError, match="queue a/0"):
        plan_gc(topics).apply()
    assert batch_keys(topics) == []


@pytest.mark.parametrize("names", [[], ["*"], ["z", "orders", "a"]])
def test_a_bad_definition_stops_gc_of_no_other_topic(return_to_now: Callable[[], None], names: list[str]) -> None:
    topics = orders_on()
    leave_orphan(topics)
    bad_path = TOPIC.to_bytes({"topic": "z", "partitions": 1, "path": "a//b", "hashed": True})
    for name, body in (("a", b"{"), ("a b", b"{"), ("newer", b'{"version":99}'), ("z", bad_path)):
        topics.store.put(topics.folder.key("topics", f"{name}.json"), body)
    return_to_now()
    with pytest.raises(CorruptDataError, match=r"topics/[az]\.json .*; .*topics/[az]\.json"):
        plan_gc(topics, names).apply()
    assert batch_keys(topics) == []


def test_batches_of_a_lost_last_entry_are_kept_until_they_are_adopted(return_to_now: Callable[[], None]) -> None:
    """A group that has read beyond the queue's end proves the loss."""
    topics = orders_on()
    for value in (b"a", b"b"):
        publish(topics, [value])
    with BatchConsumer(topics, "orders", group="readers") as consumer:
        assert values_of(consumer, at_least=2) == [b"a", b"b"]
        consumer.commit()
    keys = batch_keys(topics)
    topics.store.delete([topics.folder.key("queues", "orders", "0", f"{1:020}")])
    return_to_now()
    with pytest.raises(DataLossError, match=r"queue orders/0 ends at offset 256, .* group readers has read up to 512"):
        plan_gc(topics).apply()
    assert batch_keys(topics) == keys
    plan_gc(topics, adopt=True).apply()
    assert list(plan_gc(topics)) == []
    assert read_values(topics, 2) == [b"a", b"b"]


def test_the_ends_of_queues_are_looked_up_once_for_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = orders_on(partitions=2)
    publish(topics, [b"a"])
    for group in ("one", "two", "three"):
        with BatchConsumer(topics, "orders", group=group) as consumer:
            assert values_of(consumer, at_least=1) == [b"a"]
            consumer.commit()
    asked, find_end = list[int](), StoreQueue.end

    def end(queue: StoreQueue, partition: int) -> int:
        asked.append(partition)
        return find_end(queue, partition)

    monkeypatch.setattr(StoreQueue, "end", end)
    assert list(plan_gc(topics)) == []
    assert sorted(asked) == [0, 0, 1, 1], "retention asks too"


def test_warnings_are_shown_even_if_a_topic_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prod = topics_on(cluster="prod")
    prod.create("a")
    other = copy_definitions(prod, "test")
    other.create("orders")
    monkeypatch.setattr(StoreQueue, "forgets_ms", lambda _: 1)
    with pytest.raises(ConfigError, match=r"prod/topics/a\.json defines"):
        collect_garbage(other, [], timedelta(days=1), adopt=False, yes=False, as_json=True)
    assert "the queue of orders forgets notifications after 1 ms" in capsys.readouterr().err
