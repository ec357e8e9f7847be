"""What ``tieredstore pubsub cost`` shows: topics' amounts of a month beside Kafka's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from tieredstore.cli.terminal.output import complain, human_amount, print_json_line, print_table
from tieredstore.cli.terminal.rows import Row, field, rounded_bytes, rounded_count
from tieredstore.cli.terminal.tables import number, text
from tieredstore.errors import ConfigError
from tieredstore.model import human_bytes
from tieredstore.ops.cost.prices import read_prices
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.pubsub.upkeep.cost import TopicCost, TopicFacts, topic_assumptions, topic_cost, topic_facts

_FACTS: Final[Row[TopicFacts]] = Row(
    field("partitions", lambda facts: facts.partitions),
    field("stored_batches", lambda facts: facts.batches),
    field("stored_size", lambda facts: facts.stored_size, number("STORED", rank=3), human_bytes),
)
_COST: Final[Row[TopicCost]] = Row(
    field("published_size", lambda of: of.published_size, number("PUBLISHED", rank=2), rounded_bytes, digits=0),
    field("kept_size", lambda of: of.kept_size, digits=0),
    field("writes", lambda of: of.writes, number("WRITES", rank=4), rounded_count, digits=2),
    field("reads", lambda of: of.reads, number("READS", rank=4), rounded_count, digits=2),
    field("storage_cost", lambda of: of.storage, number("STORAGE", rank=5), human_amount, digits=6),
    field("request_cost", lambda of: of.requests, number("REQUESTS", rank=5), human_amount, digits=6),
    field("transfer_cost", lambda of: of.transfer, number("TRANSFER", rank=5), human_amount, digits=6),
    field("batches_cost", lambda of: of.batches, number("BATCHES"), human_amount, digits=6),
    field("disk_cost", lambda of: of.disks, number("DISKS", rank=6), human_amount, digits=6),
    field("cross_zone_cost", lambda of: of.cross_zone, number("CROSS-ZONE", rank=6), human_amount, digits=6),
    field("kafka_cost", lambda of: of.kafka, number("KAFKA"), human_amount, digits=6),
    field("saved_share", lambda of: of.saved_share, number("SAVED", rank=1), "{:.0%}".format, digits=6),
)
_ROW: Final[Row[tuple[str, TopicFacts, TopicCost]]] = Row(
    field("topic", lambda row: row[0], text("TOPIC")),
    _FACTS.of(lambda row: row[1]),
    _COST.of(lambda row: row[2]),
)


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
        for row in rows:
            print_json_line(_ROW.json(row))
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
        print_table(_ROW.columns, map(_ROW.cells, rows))
        for sentence in (f"a month by {prices.title}", *(f"assumed: {one}" for one in assumed)):
            complain(sentence)
