"""Tests of costs from a listing: sums, growth, requests, and amounts that a reader can check by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest

from tests.support.stores.catalog_stores import OTHER_ID, MadeSegment, partition_of
from tieredstore.backends.base import ObjectInfo
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import list_segments
from tieredstore.config import settings_from
from tieredstore.format.chunk_index import FixedChunkIndex
from tieredstore.format.keys import Suffix
from tieredstore.ops.cost.prices import KafkaPrices, PriceFile, StorePrices, Use
from tieredstore.ops.cost.usage import (
    GIB,
    CostSums,
    RequestSizes,
    Usage,
    UsageBy,
    UsageKey,
    assumptions_of,
    cost_sums,
    growth_days,
    monthly_cost,
    total_of,
)
from tieredstore.ops.listing import ListedSegment, load_stream

DAY_MS = 86_400_000
NOW_MS = 100 * DAY_MS
SIZES = RequestSizes(None, 0, 16 << 20)
STORE = StorePrices(storage_gib_month=2.0, write_1000=10.0, list_1000=20.0, read_1000=5.0, write_gib=0.5, read_gib=0.25)
KAFKA = KafkaPrices(
    disk_gib_month=1.0,
    disk_fill=0.5,
    replication_factor=3,
    zones=3,
    cross_zone_gib=0.3,
    moved_per_month=0.5,
    local_days=3,
)
PRICES = PriceFile("made up", "EUR", "today", STORE)


def segment_of(day: float, number: int = 0, topic: str = "events", partition: int = 0) -> MadeSegment:
    """Return a segment whose newest record is from the given day."""
    end = round(day * DAY_MS)
    return MadeSegment(partition_of(topic, partition), end - 9, end, number=number)


def listed(segments: Iterable[MadeSegment], store: MemoryObjectStore | None = None) -> list[ListedSegment]:
    store = store or MemoryObjectStore()
    for segment in segments:
        segment.put(store)
    return list(load_stream(store, list_segments(store)))


def sums_of(segments: Iterable[ListedSegment]) -> CostSums:
    (sums,) = cost_sums(segments, SIZES, NOW_MS).values()
    return sums


def test_growth_is_what_was_added_within_thirty_days() -> None:
    sums = sums_of(listed(segment_of(day, number) for number, day in enumerate((10, 69, 71, 90, 99.5))))
    assert (sums.all.segments, sums.new.segments, sums.all.size, sums.new.size) == (5, 3, 5000, 3000)
    cost = monthly_cost(sums, PRICES, NOW_MS)
    assert (cost.growth_segments, cost.growth_size) == (3.0, 3000.0)


def test_of_a_young_topic_the_growth_is_projected() -> None:
    """Growth is measured over the days that still have segments, so deletions by retention do not change it."""
    sums = sums_of(listed(segment_of(day, number) for number, day in enumerate((90, 92, 94, 96, 98))))
    assert growth_days(sums.oldest_ms, NOW_MS) == 10
    assert monthly_cost(sums, PRICES, NOW_MS).growth_segments == 15
    # Segments of one hour count as a day's growth, because an hour does not predict a month.
    assert growth_days(sums_of(listed([segment_of(99.99)])).oldest_ms, NOW_MS) == 1


def test_times_that_are_none_are_counted_and_in_no_growth() -> None:
    store = MemoryObjectStore()
    timeless = segment_of(50, 1).put(store)
    store.put(timeless.key(), timeless.manifest(max_timestamp_ms=-1))
    sums = sums_of(listed([segment_of(50), segment_of(300)], MemoryObjectStore()))
    assert (sums.undated, sums.new.segments) == (1, 0)
    sums = sums_of(list(load_stream(store, list_segments(store))))
    assert (sums.undated, sums.all.segments, growth_days(sums.oldest_ms, NOW_MS)) == (1, 1, 30)
    assert any("1 segments without a time" in one for one in assumptions_of(PRICES, 1))


def test_damaged_manifests_and_leftovers_cost_their_bytes_alone() -> None:
    store = MemoryObjectStore()
    damaged, left = segment_of(99, 1).put(store), segment_of(99, 2).put(store)
    store.put(damaged.key(), b"{}")
    store.delete([left.key()])
    sums = sums_of(list(load_stream(store, list_segments(store))))
    assert (sums.all.segments, sums.all.damaged, sums.all.leftovers, sums.all.size, sums.new.segments) == (
        1,
        1,
        1,
        0,
        0,
    )
    assert sums.all.stored_size == sum(info.size for info in store.list())
    assert sums.all.objects == 5


def test_rows_are_of_topics_or_partitions_and_of_incarnations() -> None:
    store = MemoryObjectStore()
    segments = [segment_of(99, 1), segment_of(99, 2, partition=1), segment_of(99, 3, "other")]
    again = MadeSegment(partition_of(topic_id=OTHER_ID), 0, 9).put(store)
    every = listed(segments, store)
    assert len(cost_sums(every, SIZES, NOW_MS)) == 3
    by_partition = cost_sums(every, SIZES, NOW_MS, by=UsageBy.PARTITION)
    assert UsageKey("events", again.where.topic_id, 0) in by_partition
    assert len(by_partition) == 4


@pytest.mark.parametrize(
    ("texts", "size", "writes"),
    [
        ({"storage.backend.class": "filesystem"}, 10**12, 1),
        ({"storage.backend.class": "s3", "storage.s3.bucket.name": "b", "storage.s3.region": "r"}, 26214400, 1),
        ({"storage.backend.class": "s3", "storage.s3.bucket.name": "b", "storage.s3.region": "r"}, 26214401, 4),
        (
            {"storage.backend.class": "gcs", "storage.gcs.bucket.name": "b", "storage.gcs.credentials.default": "true"},
            10**9,
            1,
        ),
        (
            {"storage.backend.class": "azure", "storage.azure.container.name": "b", "storage.azure.account.name": "a"},
            3 * 26214400,
            4,
        ),
    ],
)
def test_writes_are_counted_by_the_parts_of_the_settings(texts: dict[str, str], size: int, writes: int) -> None:
    settings = settings_from({**texts, "storage.root": "/", "chunk.size": "4194304"})
    assert RequestSizes.of(settings).writes([size]) == writes
    assert RequestSizes.of(settings).read_size == 16 << 20


def test_reads_are_counted_by_chunks() -> None:
    index = FixedChunkIndex(4 << 20, 1 << 30, 4 << 20, 4 << 20)
    # A broker sends one request for each of the log's 256 chunks, one for the manifest, and one for the indexes.
    assert SIZES.broker_reads(index) == 258
    assert SIZES.direct_reads(index) == 66
    # If the limit is below one chunk, a read takes one chunk.
    assert RequestSizes(None, 0, 1).direct_reads(index) == 258
    assert SIZES.direct_reads(FixedChunkIndex(4 << 20, 1, 4 << 20, 1)) == 3


SUMS = CostSums(
    Usage(stored_size=10 * GIB, size=40 * GIB, segments=40, objects=120),
    Usage(segments=10, stored_size=2 * GIB, size=8 * GIB),
    new_writes=50, direct_reads=700, broker_reads=2_600, oldest_ms=0,
)  # fmt: skip


def test_amounts_of_the_bucket() -> None:
    cost = monthly_cost(SUMS, dataclasses.replace(PRICES, use=Use(2.0, 1.0, 10.0)), NOW_MS)
    assert cost.storage == 20.0
    assert (cost.writes, cost.lists, cost.reads) == (50, 1.2, 4000)
    assert cost.requests == pytest.approx((50 * 10 + 1.2 * 20 + 4000 * 5) / 1000)
    assert cost.transfer == pytest.approx(2 * 0.5 + 10 * 3 * 0.25)
    assert cost.bucket == pytest.approx(cost.storage + cost.requests + cost.transfer)
    assert (cost.disks, cost.brokers, cost.saved) == (None, None, None)


def test_amounts_of_brokers() -> None:
    cost = monthly_cost(SUMS, dataclasses.replace(PRICES, kafka=KAFKA, use=Use(2.0, 5.0, 0.0)), NOW_MS)
    # Brokers need disks for three days' growth in any case. Half of each disk is full.
    replaced = 40 - 8 / 30 * 3
    assert cost.disks == pytest.approx(replaced * 3 / 0.5)
    # Replicas that are moved, and reads that bypass brokers, cause traffic. Two thirds of it go to another zone.
    assert cost.cross_zone == pytest.approx((replaced * 3 * 0.5 + 40 * 2) * 2 / 3 * 0.3)
    assert cost.saved == pytest.approx((cost.disks or 0) + (cost.cross_zone or 0) - cost.bucket)


def test_what_brokers_hold_anyway_is_never_less_than_nothing() -> None:
    kafka = dataclasses.replace(KAFKA, local_days=3000)
    cost = monthly_cost(SUMS, dataclasses.replace(PRICES, kafka=kafka), NOW_MS)
    assert (cost.disks, cost.cross_zone) == (0.0, 0.0)
    assert (cost.saved or 0) == -cost.bucket


def test_nothing_costs_nothing() -> None:
    cost = monthly_cost(CostSums(), dataclasses.replace(PRICES, kafka=KAFKA, use=Use(1.0, 1.0, 1.0)), NOW_MS)
    assert (cost.bucket, cost.brokers, total_of([]).bucket) == (0, 0, 0)


def test_a_total_is_the_sum_of_its_parts() -> None:
    prices = dataclasses.replace(PRICES, kafka=KAFKA, use=Use(1.0, 1.0, 7.0))
    cost = monthly_cost(SUMS, prices, NOW_MS)
    total = total_of([cost, cost, cost])
    assert total.bucket == pytest.approx(3 * cost.bucket)
    assert total.saved == pytest.approx(3 * (cost.saved or 0))
    assert total_of([monthly_cost(SUMS, PRICES, NOW_MS)]).disks is None


def test_one_object_is_not_enough_for_a_segment_to_be_new() -> None:
    """Only the manifest has a segment's time, so a log without a manifest does not count as new."""
    store = MemoryObjectStore()
    segment_of(99).put(store)
    store.delete([segment_of(99).key()])
    (alone,) = load_stream(store, list_segments(store))
    assert isinstance(alone.objects.find(Suffix.LOG), ObjectInfo)
    assert sums_of([alone]).new.segments == 0
