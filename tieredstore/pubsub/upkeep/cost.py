"""Monthly costs of a topic of batches, compared with Kafka. Kafka's costs are for the same records, with replicas in
other zones.

The published bytes come from the queue. The prices and the number of readers come from the price file. No object is
read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.ops.cost.usage import GIB, MONTH_DAYS, RequestSizes, growth_days
from tieredstore.pubsub.consume.partition_state import BUSY_LOOK_S, IDLE_LOOK_S
from tieredstore.pubsub.queue.groups import BEAT_S
from tieredstore.pubsub.queue.queues import STORE
from tieredstore.pubsub.queue.topics import BatchLog

if TYPE_CHECKING:
    from tieredstore.ops.cost.prices import KafkaPrices, PriceFile

_DAY_MS: Final = 86_400_000
_MONTH_S: Final = MONTH_DAYS * 86_400


@dataclass(slots=True)
class TopicFacts:
    """Facts from a topic's queue: in total, and for the last 30 days."""

    partitions: int = 0
    batches: int = 0
    stored_size: int = 0
    new_batches: int = 0
    new_size: int = 0
    new_writes: int = 0
    oldest_ms: int | None = None
    is_queue_stored: bool = True


def topic_facts(log: BatchLog, now_ms: int) -> TopicFacts:
    """Return the facts of a topic, by walking its queue."""
    sizes = RequestSizes.of(log.topics.settings)
    facts = TopicFacts(log.queue.partitions, is_queue_stored=log.topic.queue == STORE)
    for partition in range(facts.partitions):
        for batch in log.walk(partition):
            facts.batches += 1
            facts.stored_size += batch.size
            facts.oldest_ms = min(batch.appended_ms, facts.oldest_ms or batch.appended_ms)
            if batch.appended_ms > now_ms - MONTH_DAYS * _DAY_MS:
                facts.new_batches += 1
                facts.new_size += batch.size
                facts.new_writes += sizes.writes([batch.size])
    return facts


@dataclass(frozen=True, slots=True)
class TopicCost:
    """Amounts per month in the price file's currency. Bytes and requests are per month too.

    ``disks`` and ``cross_zone`` are Kafka's costs; None if the price file has no prices of Kafka.
    """

    published_size: float
    kept_size: float
    writes: float
    reads: float
    storage: float
    requests: float
    transfer: float
    disks: float | None
    cross_zone: float | None

    @property
    def batches(self) -> float:
        """Total cost of the batches."""
        return self.storage + self.requests + self.transfer

    @property
    def kafka(self) -> float | None:
        """Total cost of Kafka."""
        return None if self.disks is None or self.cross_zone is None else self.disks + self.cross_zone

    @property
    def saved_share(self) -> float | None:
        """Savings by batches as a share of Kafka's costs; None if Kafka's costs are unknown."""
        kafka = self.kafka
        return None if not kafka else 1 - self.batches / kafka


def topic_cost(facts: TopicFacts, prices: PriceFile, now_ms: int, batch_bytes: int) -> TopicCost:
    """Return the topic's costs; ``batch_bytes`` is the assumed size of a batch if the topic has no recent batches."""
    store, use = prices.store, prices.pubsub
    published, batches, puts = _estimate_published(facts, prices, now_ms, batch_bytes)
    kept = published / MONTH_DAYS * use.retention_days if use.retention_days else float(facts.stored_size)
    looks_a_second = use.busy_share / BUSY_LOOK_S + (1 - use.busy_share) / IDLE_LOOK_S
    looks = looks_a_second * _MONTH_S * facts.partitions * use.readers if facts.is_queue_stored else 0.0
    entries = batches if facts.is_queue_stored else 0.0
    beats = use.group_members * _MONTH_S / BEAT_S if facts.is_queue_stored else 0.0
    writes = puts + entries + beats
    # Count GETs. A writer reads the queue's start after each entry. Each reader gets every entry and every object.
    reads = entries + (entries + batches) * use.readers + looks
    kafka = None if prices.kafka is None else _kafka_cost(published, kept, prices.kafka, use.readers)
    return TopicCost(
        published_size=published,
        kept_size=kept,
        writes=writes,
        reads=reads,
        storage=kept / GIB * store.storage_gib_month,
        requests=(writes * store.write_1000 + reads * store.read_1000) / 1000,
        transfer=published / GIB * (store.write_gib + use.readers * store.read_gib),
        disks=None if kafka is None else kafka[0],
        cross_zone=None if kafka is None else kafka[1],
    )


def _estimate_published(
    facts: TopicFacts, prices: PriceFile, now_ms: int, batch_bytes: int
) -> tuple[float, float, float]:
    """Return a month's bytes, batches and PUTs, from the throughput in the price file. If the file gives none,
    extrapolate the recent days of the queue."""
    throughput = prices.pubsub.throughput_mib_s
    if not throughput:
        factor = MONTH_DAYS / growth_days(facts.oldest_ms, now_ms)
        return facts.new_size * factor, facts.new_batches * factor, facts.new_writes * factor
    size = throughput * (1 << 20) * _MONTH_S
    mean = facts.new_size / facts.new_batches if facts.new_batches else float(batch_bytes)
    batches = math.ceil(size / mean)
    return size, batches, batches * (facts.new_writes / facts.new_batches if facts.new_batches else 1.0)


def _kafka_cost(published: float, kept: float, prices: KafkaPrices, readers: float) -> tuple[float, float]:
    """Return the costs of disks and of cross-zone traffic, for brokers with replicas in other zones."""
    disks = kept / GIB * prices.replication_factor / prices.disk_fill * prices.disk_gib_month
    # Assume that producers and readers choose leaders regardless of zones, and that each zone holds at most one
    # replica.
    elsewhere = (prices.zones - 1) / prices.zones
    replicas = min(prices.replication_factor, prices.zones) - 1
    crossing = published / GIB * (elsewhere * (1 + readers) + replicas)
    moved = kept / GIB * prices.replication_factor * prices.moved_per_month * elsewhere
    return disks, (crossing + moved) * prices.cross_zone_gib


def topic_assumptions(prices: PriceFile) -> list[str]:
    """Return the assumptions behind the amounts, one sentence each."""
    use = prices.pubsub
    rate = f"{use.throughput_mib_s:g} MiB/s" if use.throughput_mib_s else "as much as in the last 30 days"
    kept = f"what was published in {use.retention_days:g} days" if use.retention_days else "as much as now"
    looks = (
        f"{1 / BUSY_LOOK_S:g} times per second {use.busy_share:.0%} of the time, otherwise {1 / IDLE_LOOK_S:g} times"
    )
    sentences = [
        f"published: {rate}; stored: {kept}; each record is read {use.readers:g} times",
        f"readers poll {looks}; {use.group_members:g} members of groups send a heartbeat every {BEAT_S:g} s",
        "machines of brokers, producers and readers are not counted",
    ]
    if prices.kafka is not None:
        kafka = prices.kafka
        sentences.append(
            f"Kafka would keep the same bytes in {kafka.replication_factor:g} replicas on disks that are "
            f"{kafka.disk_fill:.0%} full, in {kafka.zones:g} zones. One in {kafka.zones:g} producers and readers has "
            f"its leader in its own zone. A replica moves to another broker {kafka.moved_per_month:g} times per "
            "month"
        )
    return [*sentences, *prices.assumptions]
