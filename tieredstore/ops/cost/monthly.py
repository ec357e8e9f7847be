"""The monthly cost of a bucket, and of keeping the same log on brokers' disks.

:func:`cost_sums` sums a listing with manifests, and :func:`monthly_cost` calculates amounts from the sums and a price
file. A month has 30 days. A listing does not show how often data are read, so the price file gives these numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tieredstore.ops.cost.usage import Usage, UsageBy, UsageKey

if TYPE_CHECKING:
    from tieredstore.config import Settings
    from tieredstore.format.chunk_index import ChunkIndex
    from tieredstore.ops.cost.prices import KafkaPrices, PriceFile
    from tieredstore.ops.listing import ListedSegment

GIB: Final = 1 << 30
MONTH_DAYS: Final = 30
LISTING_PAGE: Final = 1000
"""Objects that one listing request returns."""

_DAY_MS: Final = 86_400_000
_MONTH_MS: Final = MONTH_DAYS * _DAY_MS
_SMALL_READS: Final = 2
"""The number of requests that read the manifest and the indexes of a segment."""


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
