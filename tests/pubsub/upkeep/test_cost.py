"""Costs of a topic: facts from its queue, amounts that can be checked by hand, and a total below a fifth of Kafka's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.support.cli.cli_process import tieredstore
from tests.support.paths import REPOSITORY
from tests.support.pubsub.pubsub_topics import topics_in, topics_on
from tieredstore.ops.cost.prices import KafkaPrices, PriceFile, PubsubUse, StorePrices, read_prices
from tieredstore.ops.cost.usage import GIB
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.topics import BatchLog
from tieredstore.pubsub.upkeep.cost import TopicFacts, topic_assumptions, topic_cost, topic_facts

DAY_MS = 86_400_000
NOW_MS = 100 * DAY_MS
MONTH_S = 30 * 86_400
STORE = StorePrices(storage_gib_month=2.0, write_1000=10.0, list_1000=20.0, read_1000=5.0, write_gib=0.5, read_gib=0.25)
KAFKA = KafkaPrices(
    disk_gib_month=1.0, disk_fill=0.5, replication_factor=3, zones=3, cross_zone_gib=0.3, moved_per_month=0.5,
    local_days=0,
)  # fmt: skip
QUIET = PubsubUse(readers=2, group_members=0, busy_share=0)
PRICES = PriceFile("made up", "EUR", "today", STORE, KAFKA, pubsub=QUIET)
FACTS = TopicFacts(
    partitions=1, batches=20, stored_size=2 * GIB, new_batches=10, new_size=GIB, new_writes=10,
    oldest_ms=NOW_MS - 10 * DAY_MS,
)  # fmt: skip


def test_amounts_by_hand() -> None:
    """The facts of ten days are projected to thirty: 30 batches, 3 GiB."""
    cost = topic_cost(FACTS, PRICES, NOW_MS, 1)
    assert (cost.published_size, cost.kept_size) == (3 * GIB, 2 * GIB)
    looks = 0.5 * MONTH_S * 2
    assert cost.writes == 30 + 30
    assert cost.reads == 30 + (30 + 30) * 2 + looks
    assert cost.storage == pytest.approx(4.0)
    assert cost.requests == pytest.approx((60 * 10 + (150 + looks) * 5) / 1000)
    assert cost.transfer == pytest.approx(3 * (0.5 + 2 * 0.25))
    assert cost.disks == pytest.approx(2 * 3 / 0.5)
    assert cost.cross_zone == pytest.approx((3 * (2 / 3 * 3 + 2) + 2 * 3 * 0.5 * 2 / 3) * 0.3)
    assert cost.saved_share == pytest.approx(1 - cost.batches / (cost.kafka or 0))


def test_another_throughput_and_retention_and_a_queue_in_kafka() -> None:
    use = dataclasses.replace(QUIET, throughput_mib_s=1.0, retention_days=3.0, group_members=5, busy_share=1.0)
    prices = dataclasses.replace(PRICES, pubsub=use, kafka=None)
    cost = topic_cost(TopicFacts(partitions=2), prices, NOW_MS, 16 << 20)
    assert cost.published_size == MONTH_S << 20
    assert cost.kept_size == pytest.approx((MONTH_S << 20) / 10)
    assert cost.writes == 2 * MONTH_S / 16 + MONTH_S / 5 * 5
    assert cost.reads == MONTH_S / 16 * (1 + 2 * 2) + 5 * MONTH_S * 2 * 2
    assert (cost.disks, cost.cross_zone, cost.kafka, cost.saved_share) == (None, None, None, None)
    in_kafka = topic_cost(TopicFacts(partitions=2, is_queue_stored=False), prices, NOW_MS, 16 << 20)
    assert (in_kafka.writes, in_kafka.reads) == (MONTH_S / 16, MONTH_S / 16 * 2)


def test_a_topic_that_is_empty_costs_its_readers_looks_alone() -> None:
    topics = topics_on()
    facts = topic_facts(BatchLog(topics, topics.create("orders")), NOW_MS)
    cost = topic_cost(facts, PRICES, NOW_MS, 1)
    assert (cost.storage, cost.transfer, cost.writes) == (0, 0, 0)
    assert cost.reads == 0.5 * MONTH_S * 2
    assert any("3 replicas" in sentence for sentence in topic_assumptions(PRICES))


@pytest.mark.parametrize("throughput_mib_s", [1, 20, 200])
@pytest.mark.parametrize("readers", [1, 3])
def test_four_fifths_below_kafka_by_the_prices_that_are_shipped(throughput_mib_s: float, readers: float) -> None:
    prices = read_prices(REPOSITORY / "examples" / "prices.toml")
    use = dataclasses.replace(
        prices.pubsub, throughput_mib_s=throughput_mib_s, retention_days=3, readers=readers, group_members=readers
    )
    cost = topic_cost(TopicFacts(partitions=1), dataclasses.replace(prices, pubsub=use), NOW_MS, 16 << 20)
    assert cost.saved_share is not None
    assert cost.saved_share >= 0.8


def test_the_command(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    topics.create("orders", 2)
    topics.create("empty")
    with BatchProducer(topics, "orders") as producer:
        producer.send(bytes(1000))
    prices = str(REPOSITORY / "examples" / "prices.toml")
    command = ("pubsub", "topics", "--store", str(tmp_path), "--prices", prices)
    shown = tieredstore(*command)
    assert shown.code == 0
    assert "KAFKA" in shown.text
    rows, summary = tieredstore(*command, "--json").rows
    assert {row["topic"]: row["stored_batches"] for row in rows} == {"orders": 1, "empty": 0}
    assert (summary["currency"], summary["topics"]) == ("USD", 2)
    (one,), _ = tieredstore(*command, "orders", "--json").rows
    assert (one["partitions"], one["queue"]) == (2, "store")
    (unpriced,), _ = tieredstore("pubsub", "topics", "ord*", "--store", tmp_path, "--json").rows
    assert unpriced.keys() < one.keys()
    refused = tieredstore(*command[:-1], tmp_path / "none.toml")
    assert (refused.code, "none.toml" in refused.stderr) == (2, True)
