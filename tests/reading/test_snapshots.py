"""Tests of consecutive snapshots: facts that cannot change are requested once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from tests.support.records.stored_records import StoredTopic
from tieredstore.catalog.lineage import Lineage
from tieredstore.kafka.checkpoints import ProducerState
from tieredstore.partitions.selections import Subscribe
from tieredstore.reading import survey
from tieredstore.reading.query import LogQuery
from tieredstore.reading.snapshots import LogSnapshots
from tieredstore.records.splits import find_stable_end
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION, Producer, Record, build_batch, build_end_marker

QUERY = LogQuery(Subscribe((PARTITION.topic,)))
WHO = Producer(7, 0, 0, transactional=True)


@pytest.fixture
def topic(topic: StoredTopic) -> StoredTopic:
    """Return a topic: ten records in partition 0, the last five in an open transaction, and five in partition 1."""
    records = [Record(b"v") for _ in range(5)]
    is_open = ProducerState(7, 0, 4, 9, 4, 0, 0, 5)
    topic.copy(0, [build_batch(records, 0), build_batch(records, 5, producer=WHO)], producers=[is_open])
    topic.copy(0, [build_batch(records, 0)], partition=replace(PARTITION, partition=1))
    return topic


@pytest.fixture
def snapshots(topic: StoredTopic) -> Iterator[LogSnapshots]:
    with closing(LogSnapshots(lambda: topic.manager, QUERY, fresh_s=0)) as snapshots:
        yield snapshots


def ends(snapshots: LogSnapshots) -> list[int]:
    logs = snapshots.current().logs
    return [logs[PARTITION.topic, number].end for number in (0, 1)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each read of a partition's last segment adds the partition. Even with full caches, such a
    read costs requests.
    """
    partitions = list[int]()

    def noted(source: RemoteStorageManager, lineage: Lineage, stop: int) -> int:
        partitions.append(lineage.partition.partition)
        return find_stable_end(source, lineage, stop)

    monkeypatch.setattr(survey, "find_stable_end", noted)
    return partitions


def test_a_partition_that_is_as_it_was_is_not_asked_again(snapshots: LogSnapshots, asked: list[int]) -> None:
    assert ends(snapshots) == [5, 5]
    assert sorted(asked) == [0, 1]
    assert ends(snapshots) == [5, 5]
    assert len(asked) == 2


def test_one_that_went_on_is_asked_again(topic: StoredTopic, snapshots: LogSnapshots, asked: list[int]) -> None:
    assert ends(snapshots) == [5, 5]
    topic.copy(10, [build_end_marker(10, Producer(7, 0), commit=True)])
    asked.clear()
    assert ends(snapshots) == [11, 5]
    assert asked == [0]


def test_one_that_lost_its_last_segment_is_asked_again(topic: StoredTopic, snapshots: LogSnapshots) -> None:
    last = topic.copy(10, [build_end_marker(10, Producer(7, 0), commit=True)])
    assert ends(snapshots) == [11, 5]
    topic.manager.delete_log_segment_data(last)
    assert ends(snapshots) == [5, 5]
