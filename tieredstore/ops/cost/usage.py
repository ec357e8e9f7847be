"""Sums over a store's segments (by topic, by partition, or by the day of the newest record), and their monthly cost.

:func:`usage_of` sums a listing. :func:`cost_sums` also sums what costs depend on, and :func:`monthly_cost` calculates
amounts from these sums and a price file: for the bucket, and for keeping the same log on brokers' disks. A month has 30
days. A listing does not show how often data are read, so the price file gives these numbers.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

from tieredstore.format.keys import Suffix
from tieredstore.model import Uuid
from tieredstore.ops.listing import ListedSegment

if TYPE_CHECKING:
    from tieredstore.config import Settings
    from tieredstore.format.chunk_index import ChunkIndex
    from tieredstore.ops.cost.prices import KafkaPrices, PriceFile

GIB: Final = 1 << 30
MONTH_DAYS: Final = 30
LISTING_PAGE: Final = 1000
"""Objects that one listing request returns."""

_DAY_MS: Final = 86_400_000
_MONTH_MS: Final = MONTH_DAYS * _DAY_MS
_EPOCH: Final = date(1970, 1, 1)
_LAST_DAY: Final = (date.max - _EPOCH).days
_SMALL_READS: Final = 2
"""The number of requests that read the manifest and the indexes of a segment."""


class UsageBy(enum.StrEnum):
    """How sums are grouped."""

    TOPIC = "topic"
    PARTITION = "partition"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class UsageKey:
    """The topic, partition or day that a sum covers. Fields that the grouping does not use are None. An unknown ``day``
    is None too.
    """

    topic: str | None = None
    topic_id: Uuid | None = None
    partition: int | None = None
    day: date | None = None

    @classmethod
    def of(cls, segment: ListedSegment, by: UsageBy) -> UsageKey:
        """Return the key of the sum to which the segment is added."""
        if by is UsageBy.DAY:
            return cls(day=_day(segment.max_timestamp_ms))
        where = segment.partition
        return cls(where.topic, where.topic_id, where.partition if by is UsageBy.PARTITION else None)


@dataclass(slots=True)
class Usage:
    """Sums over segments. ``size`` is the size of the logs before compression, for segments with a readable manifest.

    ``sized_stored`` is the stored size of the segments with a readable manifest. ``leftovers`` counts segments without
    a manifest; they are not in ``segments``. Segments with an unreadable manifest are in ``damaged`` and ``segments``.
    """

    segments: int = 0
    leftovers: int = 0
    damaged: int = 0
    objects: int = 0
    stored_size: int = 0
    size: int = 0
    sized_stored: int = 0

    def add(self, segment: ListedSegment) -> None:
        """Count a segment."""
        self.objects += len(segment.objects.objects)
        self.stored_size += segment.objects.stored_size
        if segment.objects.find(Suffix.MANIFEST) is None:
            self.leftovers += 1
        else:
            self.segments += 1
            self.damaged += segment.damage is not None
        if segment.stored is not None:
            self.size += segment.stored.metadata.segment_size_in_bytes
            self.sized_stored += segment.objects.stored_size


def usage_of(listed: Iterable[ListedSegment], by: UsageBy) -> Mapping[UsageKey, Usage]:
    """Sum a listing. Memory holds only the sums."""
    sums: dict[UsageKey, Usage] = {}
    for segment in listed:
        sums.setdefault(UsageKey.of(segment, by), Usage()).add(segment)
    return sums


def _day(timestamp_ms: int | None) -> date | None:
    days = None if timestamp_ms is None else timestamp_ms // _DAY_MS
    # Return None for a time beyond the calendar, because a record's timestamp may be any number.
    return None if days is None or days > _LAST_DAY else _EPOCH + timedelta(days=days)


@dataclass(frozen=True, slots=True)
class RequestSizes:
    """Sizes that decide how many requests a segment costs.

    ``part_size`` is the size of an upload's parts or blocks (None: one request uploads any object). ``around_parts`` is
    the number of requests that begin and complete an upload in parts. One read of adjacent chunks has at most
    ``read_size`` log bytes.
    """

    part_size: int | None
    around_parts: int
    read_size: int

    @classmethod
    def of(cls, settings: Settings) -> RequestSizes:
        """Return the sizes that the settings configure."""
        part_size, around = None, 0
        if settings.s3 is not None:
            # Count two more requests for S3. One begins the multipart upload, and one completes it.
            part_size, around = settings.s3.part_size, 2
        elif settings.azure is not None:
            # Count one more request for Azure, because it sends the list of blocks. Google needs no more, because it
            # bills a resumable upload as one operation.
            part_size, around = settings.azure.part_size, 1
        return cls(part_size, around, settings.fetch.coalesce_max_bytes)

    def writes(self, sizes: Iterable[int]) -> int:
        """Return the number of requests that write objects of these sizes."""
        return sum(self._writes_of(size) for size in sizes)

    def _writes_of(self, size: int) -> int:
        if self.part_size is None or size <= self.part_size:
            return 1
        return math.ceil(size / self.part_size) + self.around_parts

    def direct_reads(self, index: ChunkIndex) -> int:
        """Return the number of requests that read a whole log from the bucket, with several adjacent chunks at once."""
        together = max(1, self.read_size // index.original_chunk_size)
        return math.ceil(index.chunk_count / together) + _SMALL_READS

    @staticmethod
    def broker_reads(index: ChunkIndex) -> int:
        """Return the number of requests by which a broker reads a whole log. The plugin fetches each chunk
        separately.
        """
        return index.chunk_count + _SMALL_READS


def growth_days(oldest_ms: int | None, now_ms: int) -> float:
    """Return the days since ``oldest_ms``, from 1 to 30; 30 if ``oldest_ms`` is None."""
    if oldest_ms is None:
        return MONTH_DAYS
    return max(1.0, min(MONTH_DAYS, (now_ms - oldest_ms) / _DAY_MS))


@dataclass(slots=True)
class CostSums:
    """Facts about a topic or partition from which its cost is calculated.

    ``new`` and ``new_writes`` count only the segments added within 30 days. ``oldest_ms`` is the time of the oldest
    segment of all. ``undated`` is the number of segments without a timestamp or with a future timestamp. If a manifest
    is damaged, only the segment's stored bytes count.
    """

    all: Usage = field(default_factory=Usage)
    new: Usage = field(default_factory=Usage)
    new_writes: int = 0
    undated: int = 0
    direct_reads: int = 0
    broker_reads: int = 0
    oldest_ms: int | None = None

    def add(self, segment: ListedSegment, now_ms: int, sizes: RequestSizes) -> None:
        """Count a segment. Take the time of its newest record as the time of its upload."""
        self.all.add(segment)
        if segment.stored is None:
            return
        index = segment.stored.manifest.chunk_index
        self.direct_reads += sizes.direct_reads(index)
        self.broker_reads += sizes.broker_reads(index)
        added_ms = segment.max_timestamp_ms
        if added_ms is None or added_ms > now_ms:
            self.undated += 1
            return
        self.oldest_ms = added_ms if self.oldest_ms is None else min(self.oldest_ms, added_ms)
        if added_ms > now_ms - _MONTH_MS:
            self.new.add(segment)
            self.new_writes += sizes.writes(info.size for _, info in segment.objects.objects)


def cost_sums(
    listed: Iterable[ListedSegment], sizes: RequestSizes, now_ms: int, *, by: UsageBy = UsageBy.TOPIC
) -> Mapping[UsageKey, CostSums]:
    """Sum a listing by topic or partition. Memory holds only the sums."""
    sums: dict[UsageKey, CostSums] = {}
    for segment in listed:
        sums.setdefault(UsageKey.of(segment, by), CostSums()).add(segment, now_ms, sizes)
    return sums


@dataclass(frozen=True, slots=True)
class MonthlyCost:
    """Cost in the currency of the price file, number of requests, and bytes, all per month.

    ``disks`` and ``cross_zone`` are the costs of the same log on brokers' disks; None if there are no prices for them.
    """

    growth_stored_size: float
    growth_size: float
    growth_segments: float
    writes: float
    lists: float
    reads: float
    storage: float
    requests: float
    transfer: float
    disks: float | None
    cross_zone: float | None

    @property
    def bucket(self) -> float:
        """The total cost of the bucket."""
        return self.storage + self.requests + self.transfer

    @property
    def brokers(self) -> float | None:
        """The total cost on brokers: disks and traffic between zones. None without prices of brokers."""
        return None if self.disks is None or self.cross_zone is None else self.disks + self.cross_zone

    @property
    def saved(self) -> float | None:
        """The cost on brokers minus the bucket's cost. The difference is negative if the bucket costs more. None
        without prices of brokers."""
        return None if self.brokers is None else self.brokers - self.bucket


def monthly_cost(sums: CostSums, prices: PriceFile, now_ms: int) -> MonthlyCost:
    """Calculate the monthly cost of what ``sums`` counts, if usage continues as in the last 30 days."""
    store, use = prices.store, prices.use
    factor = MONTH_DAYS / growth_days(sums.oldest_ms, now_ms)
    growth_stored, growth_size = sums.new.stored_size * factor, sums.new.size * factor
    writes = sums.new_writes * factor
    reads = sums.direct_reads * use.direct_reads_per_month + sums.broker_reads * use.broker_reads_per_month
    # The number of requests is an upper limit, because one page of a listing of the whole bucket may cover several
    # topics.
    lists = sums.all.objects / LISTING_PAGE * use.listings_per_month
    reads_of_all = use.direct_reads_per_month + use.broker_reads_per_month
    kafka = None if prices.kafka is None else _kafka_cost(sums, growth_size, prices.kafka, use.direct_reads_per_month)
    return MonthlyCost(
        growth_stored_size=growth_stored,
        growth_size=growth_size,
        growth_segments=sums.new.segments * factor,
        writes=writes,
        lists=lists,
        reads=reads,
        storage=sums.all.stored_size / GIB * store.storage_gib_month,
        requests=(writes * store.write_1000 + lists * store.list_1000 + reads * store.read_1000) / 1000,
        transfer=(growth_stored * store.write_gib + sums.all.stored_size * reads_of_all * store.read_gib) / GIB,
        disks=None if kafka is None else kafka[0],
        cross_zone=None if kafka is None else kafka[1],
    )


def _kafka_cost(sums: CostSums, growth_size: float, prices: KafkaPrices, direct_reads: float) -> tuple[float, float]:
    """Return the cost of disks and of traffic between zones if brokers held the log instead of the bucket."""
    # Leave out the newest part of the log, which the brokers hold anyway.
    replaced = max(0.0, sums.all.size - growth_size / MONTH_DAYS * prices.local_days)
    replicas = replaced * prices.replication_factor / GIB
    # ``crossing`` is the probability that sender and receiver are in different zones, if replicas are spread evenly.
    crossing = (prices.zones - 1) / prices.zones
    moved = replicas * prices.moved_per_month
    read = sums.all.size / GIB * direct_reads
    return replicas / prices.disk_fill * prices.disk_gib_month, (moved + read) * crossing * prices.cross_zone_gib


def total_of(costs: Sequence[MonthlyCost]) -> MonthlyCost:
    """Sum several costs. An amount is None if it is unknown in all of them."""
    sums: dict[str, Any] = {}
    for one in dataclasses.fields(MonthlyCost):
        amounts = [amount for cost in costs if (amount := getattr(cost, one.name)) is not None]
        sums[one.name] = math.fsum(amounts) if amounts or not costs else None
    return MonthlyCost(**sums)


def assumptions_of(prices: PriceFile, undated: int) -> list[str]:
    """Describe the assumptions behind the amounts, in one sentence each."""
    use = prices.use
    reads = f"{use.direct_reads_per_month:g} × a month from the bucket, {use.broker_reads_per_month:g} × through"
    sentences = [
        "growth continues as in the last 30 days; only stored segments count, each at the time of its newest record",
        f"all data are read {reads} brokers, and listed {use.listings_per_month:g} ×",
    ]
    if undated:
        sentences.append(f"{undated} segments without a time, or with a future one, do not count as growth")
    if prices.kafka is not None:
        kafka = prices.kafka
        sentences.append(
            f"brokers would hold {kafka.replication_factor:g} replicas on disks that are {kafka.disk_fill:.0%} full, "
            f"in {kafka.zones:g} zones, except for the last {kafka.local_days:g} "
            f"day{'s' * (kafka.local_days != 1)}, which brokers hold anyway; each "
            f"replica is copied to another broker {kafka.moved_per_month:g} × a month"
        )
    return [*sentences, *prices.assumptions]
