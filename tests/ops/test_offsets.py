"""Tests of the offsets of a partition: those in the bucket, on the broker, and in neither."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import pytest

import tieredstore as ts
from tests.support.records.disk_segments import write_segments
from tieredstore.api.rows import Partition
from tieredstore.catalog.watermark import Hole, Watermark, watermark_key
from tieredstore.errors import ConfigError
from tieredstore.live import LiveCluster, LiveTopic
from tieredstore.model import AtTime, OffsetSpan, TopicId, TopicPartition, Uuid
from tieredstore.ops.offsets import Bounds, BrokerLog, ask_broker, why_missing
from tieredstore.testing.segments import PARTITION

Extents = tuple[OffsetSpan, ...]

OTHER_ID = Uuid(bytes(range(16, 32)))


def partition(stored: Extents, broker: BrokerLog | None) -> Partition:
    if not stored:
        return Partition(0, None, None, broker=broker)
    gaps = tuple((before[1], after[0]) for before, after in itertools.pairwise(stored))
    return Partition(0, stored[0][0], stored[-1][1], gaps, broker=broker)


@pytest.mark.parametrize(
    ("stored", "broker", "lost", "not_stored"),
    [
        (((0, 10),), None, (), ()),
        (((0, 10), (15, 20)), None, ((10, 15),), ()),
        (((5, 10),), (8, 30), (), ((10, 30),)),
        (((5, 10),), (10, 30), (), ((10, 30),)),
        (((5, 10),), (12, 30), ((10, 12),), ((12, 30),)),
        (((5, 10),), (0, 8), (), ((0, 5),)),
        (((0, 10), (15, 20), (21, 30)), (40, 40), ((10, 15), (20, 21), (30, 40)), ()),
        (((0, 10), (15, 20)), (5, 30), (), ((10, 15), (20, 30))),  # the broker has the offsets that the bucket lost
        ((), (7, 9), (), ((7, 9),)),
    ],
)
def test_offsets_that_neither_holds_are_lost(
    stored: Extents, broker: OffsetSpan | None, lost: Extents, not_stored: Extents
) -> None:
    known = partition(stored, None if broker is None else BrokerLog(*broker))
    assert known.stored == stored
    assert known.lost == lost
    assert known.not_stored == not_stored


@pytest.mark.parametrize(
    ("stored", "until", "missing"),
    [
        (((5, 20),), 20, ()),
        (((5, 20),), 25, ((20, 25),)),
        (((5, 10), (12, 20)), 11, ((10, 11),)),
        (((5, 10), (12, 20)), 10, ()),
        (((9, 20),), 15, ((8, 9),)),  # the broker still has it: it was never copied, or was deleted from the bucket
        ((), 8, ()),
        ((), 12, ((8, 12),)),
        (((0, 5),), 12, ((5, 12),)),
    ],
)
def test_a_partition_is_complete_up_to_a_time_if_all_before_it_is_stored(
    stored: Extents, until: int, missing: Extents
) -> None:
    assert partition(stored, BrokerLog(8, 30, until)).missing_until == missing


@pytest.mark.parametrize("broker", [None, BrokerLog(8, 30)])
def test_without_a_brokers_answer_it_is_not_known(broker: BrokerLog | None) -> None:
    assert partition(((0, 10),), broker).missing_until is None


ALONE = "on the broker alone; a segment is stored once it is closed"
IDLE = "no record is younger than segment.ms=9, and only another record closes it"
MARK = Watermark(PARTITION, 20, 0, holes=(Hole(12, 14, "the log is damaged", 0),))


@pytest.mark.parametrize(
    ("missing", "broker", "mark", "sentences"),
    [
        ((30, 31), BrokerLog(8, 40), None, [f"offset 30 is {ALONE} (segment.ms)"]),
        (
            (30, 40),
            BrokerLog(8, 40, segment_ms=9),
            None,
            [f"offsets 30 to 39 are {ALONE}: the first record after segment.ms=9 closes it at the latest"],
        ),
        (
            (30, 40),
            BrokerLog(8, 40, segment_ms=9, is_idle=True),
            MARK,
            [f"offsets 30 to 39 are {ALONE}, and the active one is idle: {IDLE}"],
        ),
        (
            (5, 30),
            BrokerLog(25, 40),
            None,
            ["offsets 5 to 29 are not in the bucket, and not all of them on the broker either"],
        ),
        (
            (10, 30),
            BrokerLog(8, 40),
            MARK,
            [
                "the uploader could not store offsets 12 to 14: the log is damaged",
                "the uploader stored offsets 10 to 11, and the bucket does not have them now",
                "the uploader stored offsets 15 to 19, and the bucket does not have them now",
                f"offsets 20 to 29 are {ALONE} (segment.ms)",
            ],
        ),
    ],
)
def test_why_the_bucket_lacks_offsets(
    missing: OffsetSpan, broker: BrokerLog, mark: Watermark | None, sentences: list[str]
) -> None:
    lost = partition(((0, 5),), broker).lost
    assert list(why_missing([missing], lost, broker, mark)) == sentences


class Cluster:
    """A broker with partitions 1 and 2 of the topic, and a third one that has no leader yet.

    It also has the topic ``tiered`` with tiered storage, and ``local`` without. No record of partition 2 is at or after
    15 ms.
    """

    def __init__(self, topic_id: Uuid | None) -> None:
        self.topic_id = topic_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def topics(self) -> tuple[str, ...]:
        return PARTITION.topic, "local", "tiered"

    def effective_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        settings = {
            PARTITION.topic: {"segment.ms": "1000"},
            "tiered": {"remote.storage.enable": "true"},
            "local": {"remote.storage.enable": "false"},
        }
        return {topic: settings[topic] for topic in topics if topic in settings}

    def describe(self, topics: Iterable[str]) -> dict[str, LiveTopic]:
        ids = {PARTITION.topic: self.topic_id, "tiered": OTHER_ID}
        return {topic: LiveTopic(topic, topic_id, (1, 2, 3)) for topic in topics if (topic_id := ids[topic])}

    def earliest_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: 8 for place in places if place[1] < 3}

    def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 20)

    def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {place: 15 if place[1] == 1 else None for place in times}


def asked(
    topic_id: Uuid | None,
    *known: TopicId,
    until: AtTime | None = None,
    others: Iterable[str] = (),
    window: Bounds = (None, None),
) -> dict[Uuid, dict[int, BrokerLog]]:
    cluster = cast("LiveCluster", cast("Any", Cluster(topic_id)))
    lives = [(PARTITION.topic, one) for one in known or (TopicId(PARTITION.topic_id),)]
    logs = ask_broker(cluster, lives, until, now_ms=5000, others=others, window=window)
    return {life: of_topic for (_, life), of_topic in logs.items()}


def test_partitions_of_the_broker_are_told() -> None:
    log = BrokerLog(8, 20)
    assert asked(PARTITION.topic_id) == {PARTITION.topic_id: {1: log, 2: log}}


def test_where_no_record_is_so_late_all_is_earlier() -> None:
    logs = asked(PARTITION.topic_id, until=AtTime(7))[PARTITION.topic_id]
    assert {number: log.until for number, log in logs.items()} == {1: 15, 2: 20}
    # No record of partition 2 is younger than segment.ms.
    assert {number: (log.segment_ms, log.is_idle) for number, log in logs.items()} == {
        1: (1000, False),
        2: (1000, True),
    }


@pytest.mark.parametrize(
    ("window", "first", "second"),
    [
        ((10, 15), (10, 15), (10, 15)),
        ((10, None), (10, 20), (10, 20)),
        ((20, None), (20, 20), (20, 20)),
        ((None, 5), (5, 5), (5, 5)),
        ((AtTime(7), None), (15, 20), (20, 20)),
        ((None, AtTime(7)), (8, 15), (8, 20)),
        ((18, AtTime(7)), (18, 18), (18, 20)),
    ],
)
def test_a_window_cuts_the_brokers_logs(window: Bounds, first: OffsetSpan, second: OffsetSpan) -> None:
    logs = asked(PARTITION.topic_id, window=window)[PARTITION.topic_id]
    assert {number: log.span for number, log in logs.items()} == {1: first, 2: second}


def test_a_window_beyond_the_ends_of_the_brokers_logs_is_refused() -> None:
    with pytest.raises(ConfigError, match=rf"offset 21 is beyond the end of {PARTITION.topic}-1 \(20\)"):
        asked(PARTITION.topic_id, window=(21, None))


@pytest.mark.parametrize(
    ("count", "removed", "window", "stored", "not_stored", "lost"),
    [
        (1, (), (None, None), ((0, 10),), ((10, 20),), ()),
        (1, (), (12, 15), (), ((12, 15),), ()),  # the bucket has nothing of the window
        (1, (), (12, 25), (), ((12, 20),), ()),
        (1, (), (None, 6), ((0, 10),), (), ()),
        (1, (), (AtTime(5_000), None), (), ((15, 20),), ()),
        (2, (), (None, 3), ((0, 10),), (), ()),  # offsets 10 to 19, beyond the window, are in the bucket
        (2, (), (None, AtTime(1_003)), ((0, 10),), (), ()),
        (3, (10,), (None, None), ((0, 10), (20, 30)), ((10, 20),), ()),
        (3, (10,), (12, 25), ((20, 30),), ((12, 20),), ()),
        (3, (10,), (21, 25), ((20, 30),), (), ()),
        (3, (0,), (None, 15), ((10, 20),), ((8, 10),), ()),
    ],
)
def test_a_window_is_compared_with_the_broker(
    count: int, removed: Iterable[int], window: Bounds, stored: Extents, not_stored: Extents, lost: Extents,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    where = replace(PARTITION, partition=1)
    write_segments(tmp_path / "kafka", count, where)
    monkeypatch.setattr("tieredstore.live.LiveCluster", lambda *_, **__: Cluster(PARTITION.topic_id))
    (tmp_path / "store").mkdir()
    with ts.open(tmp_path / "store") as alone, ts.open(tmp_path / "store", broker="localhost:9092") as bucket:
        alone.upload(tmp_path / "kafka")
        for offset in removed:
            alone.remove(where.topic, partitions=1, segment=offset).apply()
        ((one,),) = (
            topic.partitions for topic in bucket.topics(where.topic, partitions=1, start=window[0], stop=window[1])
        )
        assert (one.stored, one.not_stored, one.lost) == (stored, not_stored, lost)


def test_topics_that_brokers_tier_are_compared_even_if_the_bucket_lacks_them() -> None:
    logs = asked(PARTITION.topic_id, others=[PARTITION.topic, "tiered", "local"])
    assert set(logs) == {PARTITION.topic_id, OTHER_ID}
    assert set(asked(PARTITION.topic_id)) == {PARTITION.topic_id}


def test_a_broker_without_the_topic_adds_nothing() -> None:
    assert asked(None) == {}


def test_another_topic_of_the_name_is_not_compared() -> None:
    with pytest.raises(ConfigError, match=f"was created again: its id is {OTHER_ID} on the broker"):
        asked(OTHER_ID)


def test_of_several_lives_the_brokers_own_is_compared() -> None:
    assert set(asked(OTHER_ID, TopicId(PARTITION.topic_id), TopicId(OTHER_ID))) == {OTHER_ID}


def test_a_derived_id_is_compared_with_no_other() -> None:
    assert set(asked(OTHER_ID, TopicId(PARTITION.topic_id, is_real=False))) == {PARTITION.topic_id}


@pytest.mark.parametrize("has_mark", [True, False])
def test_a_bucket_is_compared_with_a_broker_and_the_uploaders_watermark(
    has_mark: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = replace(PARTITION, partition=1)
    write_segments(tmp_path / "kafka", 3, where)
    monkeypatch.setattr("tieredstore.live.LiveCluster", lambda *_, **__: Cluster(PARTITION.topic_id))
    (tmp_path / "store").mkdir()
    with ts.open(tmp_path / "store") as alone, ts.open(tmp_path / "store", broker="localhost:9092") as bucket:
        alone.upload(tmp_path / "kafka")
        first, second, _ = alone.segments(where.topic)
        alone.remove(where.topic, partitions=1, segment=second.base_offset).apply()
        hole = Hole(second.base_offset, second.last_offset or 0, "it is damaged", 0)
        if has_mark:
            alone.opened().store.put(watermark_key("", where), Watermark(where, 15, 0, holes=(hole,)).to_bytes())
        events, tiered = bucket.topics(until=AtTime(2_000))
        # A topic that the broker tiers counts even if the bucket has nothing of it.
        assert [one.missing_until for one in tiered.partitions] == [((8, 15),), ((8, 20),)]
        assert [one.complete_up_to for one in tiered.partitions] == [None, None]
        one, other = events.partitions
        assert (one.number, one.complete_up_to, other.complete_up_to) == (1, first.last_time, None)
        could_not = "the uploader could not store offsets 10 to 14: it is damaged"
        by_segment_ms = f"offsets 10 to 14 are {ALONE}: the first record after segment.ms=1000 closes it at the latest"
        assert one.why_missing == (could_not if has_mark else by_segment_ms,)
        # All before the last record of the first segment is stored, wherever the broker's own log begins.
        (events,) = bucket.topics(where.topic, partitions=1, until=first.last_time)
        assert [(one.number, one.missing_until) for one in events.partitions] == [(1, ())]
