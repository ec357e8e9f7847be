"""Output of ``pubsub topics``: queues, groups and costs.

This module is separate from ``pubsub``, which imports this module only to run a command.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.cli.terminal.output import JsonValue, complain, human_amount, print_lines
from tieredstore.cli.terminal.rows import Row, field, rounded_bytes, rounded_count
from tieredstore.cli.terminal.tables import number, text, word
from tieredstore.errors import CorruptDataError, ResourceNotFoundError
from tieredstore.model import human_bytes
from tieredstore.ops.cost.prices import read_prices
from tieredstore.pubsub.queue.topics import BatchLog, Topic, Topics
from tieredstore.pubsub.upkeep.cost import TopicCost, TopicFacts, topic_assumptions, topic_cost, topic_facts

if TYPE_CHECKING:
    from pathlib import Path

    from tieredstore.cli.app.options import Output
    from tieredstore.errors import TieredStoreError
    from tieredstore.pubsub.queue.queues import GroupPartition


def show_topics(
    topics: Topics,
    chosen: Sequence[Topic],
    output: Output,
    on_error: Callable[[TieredStoreError], None],
    *,
    with_groups: bool,
) -> None:
    """Show the first and last offsets of topics' queues. If ``with_groups`` is True, also show the groups' positions.
    Call ``on_error`` for a topic whose queue is damaged or gone."""
    states: list[_QueueState] = []
    groups: list[_GroupState] = []
    for topic in chosen:
        try:
            state = _QueueState.of(topics, topic)
            groups += _groups_of(topics, topic) if with_groups else ()
        except (CorruptDataError, ResourceNotFoundError) as error:
            on_error(error)
        else:
            states.append(state)
    as_json = output.as_json
    if not states and not as_json:
        print_lines([] if chosen else [_no_topics(topics)])
        return
    _TOPIC.show(states, as_json=as_json, wide=output.wide)
    if groups and not as_json:
        print_lines([""])
    summary = {"topics": len(states), "groups": len({(row.topic, row.group) for row in groups})}
    if groups or as_json:
        _GROUP.show(groups, as_json=as_json, summary=summary, wide=output.wide)
    if with_groups and not as_json:
        read = {row.topic for row in groups}
        print_lines(f"no group has read topic {state.topic.name}" for state in states if state.topic.name not in read)


def show_costs(
    topics: Topics,
    chosen: Sequence[Topic],
    output: Output,
    on_error: Callable[[TieredStoreError], None],
    *,
    price_file: Path,
) -> None:
    """Show monthly costs of topics compared with Kafka, most expensive first. Call ``on_error`` as
    :func:`show_topics`."""
    prices, now_ms = read_prices(price_file), time.time_ns() // 1_000_000
    rows: list[tuple[_QueueState, TopicFacts, TopicCost]] = []
    for topic in chosen:
        try:
            with BatchLog(topics, topic) as log:
                facts = topic_facts(log, now_ms)
            state = _QueueState.of(topics, topic)
        except (CorruptDataError, ResourceNotFoundError) as error:
            on_error(error)
        else:
            cost = topic_cost(facts, prices, now_ms, topics.batches.batch_bytes)
            rows.append((state, facts, cost))
    rows.sort(key=lambda row: (-row[2].batches, row[0].topic.name))
    assumed: list[JsonValue] = [*topic_assumptions(prices)]
    sources: dict[str, JsonValue] = {
        "currency": prices.currency, "prices": prices.name, "as_of": prices.as_of, "assumptions": assumed
    }  # fmt: skip
    summary = {"topics": len(rows), "groups": 0, **sources}
    _COSTS.show(rows, as_json=output.as_json, summary=summary, empty=_no_topics(topics), wide=output.wide)
    if rows and not output.as_json:
        for sentence in (f"per month, by {prices.title}", *(f"assumed: {one}" for one in assumed)):
            complain(sentence)


def _no_topics(topics: Topics) -> str:
    return f"no topics in cluster {topics.batches.cluster}"


@dataclass(frozen=True, slots=True)
class _QueueState:
    """The least start and the greatest end of the partitions of a topic's queue."""

    topic: Topic
    partitions: int
    start: int
    end: int

    @classmethod
    def of(cls, topics: Topics, topic: Topic) -> _QueueState:
        with topics.queue(topic) as queue:
            partitions = range(queue.partitions)
            return cls(topic, len(partitions), min(map(queue.start, partitions)), max(map(queue.end, partitions)))


_TOPIC: Final[Row[_QueueState]] = Row(
    field("topic", lambda state: state.topic.name, text("TOPIC")),
    field("partitions", lambda state: state.partitions, number("PARTITIONS")),
    field("queue", lambda state: state.topic.queue, word("QUEUE", rank=3)),
    field("start_offset", lambda state: state.start, number("START", rank=2)),
    field("end_offset", lambda state: state.end, number("END", rank=2)),
    field("path", lambda state: state.topic.path, text("PATH", rank=1)),
)


@dataclass(frozen=True, slots=True)
class _GroupState:
    """A group's position in one partition of a topic, and the partition's end."""

    topic: str
    group: str
    read: GroupPartition
    end: int


def _groups_of(topics: Topics, topic: Topic) -> list[_GroupState]:
    with topics.queue(topic) as queue:
        ends = {partition: queue.end(partition) for partition in range(queue.partitions)}
    return [
        _GroupState(topic.name, group, state, ends[state.partition])
        for group, states in topics.groups(topic).items()
        for state in states
    ]


_GROUP: Final[Row[_GroupState]] = Row(
    field("group", lambda row: row.group, text("GROUP")),
    field("topic", lambda row: row.topic, text("TOPIC", rank=4)),
    field("partition", lambda row: row.read.partition, number("PARTITION")),
    field("generation", lambda row: row.read.generation, number("GENERATION", rank=2)),
    field("owner", lambda row: row.read.owner, word("OWNER", rank=3)),
    field(
        "position",
        lambda row: row.read.position and list(row.read.position),
        word("POSITION"),
        lambda position: "/".join(map(str, position)),
    ),
    field("end_offset", lambda row: row.end, number("END", rank=1)),
)


_FACTS: Final[Row[TopicFacts]] = Row(
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
_COSTS: Final[Row[tuple[_QueueState, TopicFacts, TopicCost]]] = Row(
    _TOPIC.in_json("topic").of(lambda row: row[0]),
    _FACTS.of(lambda row: row[1]),
    _COST.of(lambda row: row[2]),
)
