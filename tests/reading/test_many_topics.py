"""Tests that topics are looked up together: 500 take as many requests as one, except for a few more pages of
listings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import cast

import pytest

from tests.support.stores.doubles import CountingStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.planning import ValidSegment
from tieredstore.config import settings_from
from tieredstore.live import LiveCluster, LiveEnd, LiveTopic
from tieredstore.model import TopicIdPartition, TopicPartition, Uuid
from tieredstore.partitions.selections import Subscribe
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.query import LogQuery
from tieredstore.reading.survey import survey_logs
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import Record, build_batch, write_segment

MANY = 500
TOPICS = [f"topic-{number:03d}" for number in range(MANY)]


class CountingBroker:
    """A broker that has every topic, each with one partition of the offsets 0 to 9, and counts requests."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def topics(self) -> tuple[str, ...]:
        self.calls["topics"] += 1
        return tuple(TOPICS)

    def describe(self, topics: Iterable[str]) -> dict[str, LiveTopic]:
        names = list(topics)
        self.calls["describe"] += bool(names)
        return {name: LiveTopic(name, topic_id_of(name), (0,)) for name in names}

    def earliest_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        self.calls["earliest_offsets"] += 1
        return dict.fromkeys(partitions, 0)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LiveEnd]:
        self.calls["ends"] += 1
        return dict.fromkeys(partitions, LiveEnd(10))


def topic_id_of(topic: str) -> Uuid:
    return Uuid(topic.encode().ljust(16, b"."))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> CountingStore:
    """Return a store with a segment of each topic, with the offsets 0 to 4."""
    filled = CountingStore(MemoryObjectStore())
    folder = tmp_path_factory.mktemp("logs")
    batches = [build_batch([Record(b"value") for _ in range(5)], 0)]
    with manager_of(filled) as manager:
        for topic in TOPICS:
            where = TopicIdPartition(topic_id_of(topic), topic, 0)
            segment = write_segment(folder / topic, batches, partition=where, base_offset=0)
            manager.copy_log_segment_data(segment.to_metadata(Uuid.random(), event_timestamp_ms=1), segment.files)
    return filled


def manager_of(store: CountingStore) -> RemoteStorageManager:
    settings = settings_from({"storage.backend.class": "memory", "chunk.size": "4096"})
    return RemoteStorageManager(settings, store=store)


def snapshot_of(
    store: CountingStore,
    topics: Iterable[str],
    broker: CountingBroker,
    known: dict[str, ValidSegment] | None = None,
) -> LogSnapshot:
    query = LogQuery(Subscribe(tuple(topics)), isolation="read_uncommitted")
    with manager_of(store) as manager:
        return survey_logs(manager, query, cluster=cast("LiveCluster", broker), known=known)


@pytest.mark.slow
def test_the_broker_is_asked_as_often_for_many_as_for_one(store: CountingStore) -> None:
    one, many = CountingBroker(), CountingBroker()
    assert len(snapshot_of(store, TOPICS[:1], one).logs) == 1
    snapshot = snapshot_of(store, TOPICS, many)
    assert {(log.topic, log.earliest, log.seam, log.end) for log in snapshot.logs.values()} == {
        (topic, 0, 5, 10) for topic in TOPICS
    }
    assert many.calls == one.calls
    assert max(many.calls.values()) == 1


def test_the_bucket_is_listed_as_often_for_many_as_for_one(store: CountingStore) -> None:
    requests: list[tuple[int, int]] = []
    for topics in (TOPICS[:1], TOPICS):
        known: dict[str, ValidSegment] = {}
        snapshot_of(store, topics, CountingBroker(), known)
        store.reset()
        assert len(snapshot_of(store, topics, CountingBroker(), known).logs) == len(topics)
        requests.append((store.requests["list"], store.requests.total()))
    # Segments that a reader already knows cost only the requests that list them.
    assert requests == [(1, 1), (1, 1)]
