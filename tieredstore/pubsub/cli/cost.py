"""What ``tieredstore pubsub cost`` shows: topics' amounts of a month beside Kafka's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from tieredstore.cli.terminal.output import JsonValue, complain, human_amount, human_count, print_json_line, print_table
from tieredstore.cli.terminal.tables import Column, number, text
from tieredstore.errors import ConfigError
from tieredstore.model import human_bytes
from tieredstore.ops.cost.prices import read_prices
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.pubsub.upkeep.cost import TopicCost, TopicFacts, topic_assumptions, topic_cost, topic_facts

_COLUMNS: Final[tuple[Column, ...]] = (
    text("TOPIC"), number("STORED", rank=3), number("PUBLISHED", rank=2), number("WRITES", rank=4),
    number("READS", rank=4), number("STORAGE", rank=5), number("REQUESTS", rank=5), number("TRANSFER", rank=5),
    number("BATCHES"), number("DISKS", rank=6), number("CROSS-ZONE", rank=6), number("KAFKA"), number("SAVED", rank=1),
)  # fmt: skip


def show_cost(topics: Topics, name: str | None, prices_path: Path | None, *, as_json: bool) -> None:
    """The command, for one topic or all of them, the dearest first."""
    if prices_path is None:
        raise ConfigError("no prices are given: write a price file (docs/cost.md), and name it by --prices FILE")
    prices, now_ms = read_prices(prices_path), time.time_ns() // 1_000_000
    chosen = [topics.get(name)] if name is not None else list(topics.list())
    rows: list[tuple[str, TopicFacts, TopicCost]] = []
    for topic in chosen:
        facts = topic_facts(topics, topic, now_ms)
        rows.append((topic.name, facts, topic_cost(facts, prices, now_ms, topics.batches.batch_bytes)))
    rows.sort(key=lambda row: (-row[2].batches, row[0]))
    assumed = topic_assumptions(prices)
    if as_json:
        for topic_name, facts, cost in rows:
            print_json_line({"topic": topic_name, **_fields(facts, cost)})
        print_json_line(
            {
                "summary": {
                    "currency": prices.currency, "prices": prices.name, "as_of": prices.as_of,
                    "assumptions": list(assumed),
                }
            }
        )  # fmt: skip
    elif not rows:
        complain(f"no topics in cluster {topics.batches.cluster}")
    else:
        print_table(_COLUMNS, ([topic_name, *_cells(facts, cost)] for topic_name, facts, cost in rows))
        for sentence in (f"a month by {prices.title}", *(f"assumed: {one}" for one in assumed)):
            complain(sentence)


def _cells(facts: TopicFacts, cost: TopicCost) -> list[str]:
    share = cost.saved_share
    return [
        human_bytes(facts.stored_size),
        human_bytes(round(cost.published_size)),
        human_count(round(cost.writes)),
        human_count(round(cost.reads)),
        *map(human_amount, (cost.storage, cost.requests, cost.transfer, cost.batches)),
        *map(human_amount, (cost.disks, cost.cross_zone, cost.kafka)),
        "-" if share is None else f"{share:.0%}",
    ]


def _fields(facts: TopicFacts, cost: TopicCost) -> dict[str, JsonValue]:
    return {
        "partitions": facts.partitions,
        "stored_batches": facts.batches,
        "stored_size": facts.stored_size,
        "published_size": round(cost.published_size),
        "kept_size": round(cost.kept_size),
        "writes": round(cost.writes, 2),
        "reads": round(cost.reads, 2),
        "storage_cost": round(cost.storage, 6),
        "request_cost": round(cost.requests, 6),
        "transfer_cost": round(cost.transfer, 6),
        "batches_cost": round(cost.batches, 6),
        "disk_cost": _rounded(cost.disks),
        "cross_zone_cost": _rounded(cost.cross_zone),
        "kafka_cost": _rounded(cost.kafka),
        "saved_share": _rounded(cost.saved_share),
    }


def _rounded(amount: float | None) -> float | None:
    return None if amount is None else round(amount, 6)
