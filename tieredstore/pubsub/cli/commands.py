"""What ``tieredstore pubsub topics``, ``produce``, ``consume`` and ``groups`` do."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tieredstore.cli.app.chosen_bucket import choose_settings, open_chosen_bucket
from tieredstore.cli.records.record_rows import shown_text
from tieredstore.cli.terminal.output import JsonValue, complain, iso_utc, print_lines
from tieredstore.cli.terminal.rows import Row, column, field
from tieredstore.cli.terminal.tables import number, plain, text, word
from tieredstore.config import settings_from
from tieredstore.errors import ConfigError
from tieredstore.process.futures import outcome
from tieredstore.pubsub.errors import InvalidRecord
from tieredstore.pubsub.produce.broker_producer import BrokerProducer
from tieredstore.pubsub.produce.futures import RecordPlace
from tieredstore.pubsub.produce.producer import Producer, RecordProducer
from tieredstore.pubsub.queue.memq_topics import load_topic_config, open_configured_topics, open_topics
from tieredstore.pubsub.queue.topics import Topic, Topics
from tieredstore.pubsub.settings import BatchClientSettings

if TYPE_CHECKING:
    from tieredstore.pubsub.consume.consumer import Consumer, Delivery
    from tieredstore.pubsub.consume.partition_state import ConsumedRecord
    from tieredstore.pubsub.queue.queues import GroupPartition, NotificationQueue

_GROUP_WAIT_S: Final = 30.0
_NO_STORE: Final = {"storage.backend.class": "memory", "chunk.size": "4194304"}


@contextlib.contextmanager
def open_named_topics(settings: Path | None, store: str | None, topic_config: Path | None = None) -> Generator[Topics]:
    """The topics of the bucket that a command's options name, with that of MemQ's topic JSON among them."""
    config = None if topic_config is None else load_topic_config(topic_config)
    if config is not None and settings is None and store is None:
        store = f"s3://{config.bucket}"
    with open_chosen_bucket(settings, store) as bucket:
        if config is None:
            yield open_topics(bucket.store, bucket.settings)
        else:
            yield open_configured_topics(bucket.store, bucket.settings, config)


def change_topic(topics: Topics, name: str | None, *, create: bool, partitions: int | None) -> None:
    """Create the topic, or give it more partitions, if that was asked for."""
    if name is None:
        if create or partitions is not None:
            raise ConfigError("which topic? --create and --partitions need its name")
    elif create:
        topics.create(name, partitions or 1)
    elif partitions is not None:
        topics.grow(name, partitions)


@dataclass(frozen=True, slots=True)
class _QueueState:
    """How far a topic's queue reaches, over all of its partitions."""

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


def show_topics(topics: Topics, name: str | None, *, as_json: bool) -> None:
    """All topics, or one, with how many batches each partition's queue holds."""
    chosen = [topics.get(name)] if name is not None else topics.list()
    rows = [_QueueState.of(topics, topic) for topic in chosen]
    if rows or as_json:
        _TOPIC.show(rows, as_json=as_json)
    else:
        print_lines([f"no topics in cluster {topics.batches.cluster}"])


@contextlib.contextmanager
def open_producer(
    settings: Path | None, store: str | None, topic: str, bootstrap: str | None, topic_config: Path | None = None
) -> Generator[RecordProducer]:
    """A producer of brokers if some are named, else one that writes to the store itself."""
    if bootstrap is not None and store is not None:
        raise ConfigError("--bootstrap writes to brokers and --store to a store: give one of them")
    if topic_config is not None:
        if bootstrap is not None:
            raise ConfigError("--bootstrap writes to brokers, which have the topic's configuration: give one of them")
        with open_named_topics(settings, store, topic_config) as topics, Producer(topics, topic) as producer:
            yield producer
        return
    given = {} if bootstrap is None else {"pubsub.bootstrap": bootstrap}
    if settings is None and bootstrap is not None:
        chosen = settings_from({**_NO_STORE, **given}, source="--bootstrap")
    else:
        chosen = choose_settings(settings, store)
        if bootstrap is not None:
            client = settings_from({**_NO_STORE, **given}, source="--bootstrap").section(BatchClientSettings)
            named = chosen.section(BatchClientSettings).model_copy(update={"bootstrap": client.bootstrap})
            chosen = chosen.with_section(named)
    if chosen.section(BatchClientSettings).bootstrap:
        with BrokerProducer(chosen, topic) as producer:
            yield producer
        return
    with open_named_topics(settings, store) as topics, Producer(topics, topic) as producer:
        yield producer


def produce_lines(producer: RecordProducer, topic: str, separator: str | None) -> None:
    """A record of each line of stdin; says at the end how many are stored."""
    sent: deque[Future[RecordPlace]] = deque()
    count, size = 0, 0
    for line in sys.stdin.buffer:
        value, key = line.removesuffix(b"\n"), None
        if separator is not None:
            head, between, rest = value.partition(separator.encode())
            if not between:
                raise InvalidRecord(f"line {count + 1} has no {separator!r:.20} between key and value")
            key, value = head, rest
        sent.append(producer.send(value, key))
        count, size = count + 1, size + len(value)
        while sent and sent[0].done():
            outcome(sent.popleft())
    producer.flush()
    while sent:
        outcome(sent.popleft())
    print_lines([f"{count} records, {size} bytes of values, stored in topic {topic}"])


def consume_records(
    topics: Topics,
    topic: str,
    *,
    group: str | None,
    latest: bool,
    delivery: Delivery,
    limit: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Records up to the end that the queue has now, or for ever; a group's position is committed as they are shown."""
    from tieredstore.pubsub.consume.consumer import Consumer

    consumer = Consumer(topics, topic, group=group, start="latest" if latest else "earliest", delivery=delivery)
    left = limit
    with topics.queue(topics.get(topic)) as queue, consumer:
        ends = {} if follow else {partition: queue.end(partition) for partition in range(queue.partitions)}
        _join(consumer, group)
        while left != 0 and (follow or _is_before(consumer, queue, ends)):
            for record in consumer.records(0.2):
                sys.stdout.write((_json_line if as_json else _text_line)(record))
                left = None if left is None else left - 1
                if left == 0:
                    break
            sys.stdout.flush()
            if group is not None:
                consumer.commit()


def _join(consumer: Consumer, group: str | None) -> None:
    """Have partitions of the group: those of a member that was killed are free after a while."""
    waited_s = 0.0
    while group is not None and not consumer.assignment() and waited_s < _GROUP_WAIT_S:
        if not waited_s:
            complain(f"group {group}: waiting for a partition that another member has")
        time.sleep(1.0)
        waited_s += 1.0


def _is_before(consumer: Consumer, queue: NotificationQueue, ends: dict[int, int]) -> bool:
    """Whether something lies between what was shown and the ends; offsets are not dense, so that the queue is asked."""
    return any(
        position.offset < ends.get(partition, 0) and bool(queue.read(partition, position.offset))
        for partition, position in consumer.position().items()
    )


def show_groups(topics: Topics, name: str, *, as_json: bool) -> None:
    """How far each group of a topic has come, and who reads."""
    topic = topics.get(name)
    with topics.queue(topic) as queue:
        ends = {partition: queue.end(partition) for partition in range(queue.partitions)}
    rows = [(group, state) for group, states in topics.groups(topic).items() for state in states]
    row: Row[tuple[str, GroupPartition]] = Row(
        field("group", lambda row: row[0], text("GROUP")),
        field("topic", lambda _: name),
        field("partition", lambda row: row[1].partition, number("PARTITION")),
        column(number("GENERATION", rank=2), lambda row: str(row[1].generation)),
        field("owner", lambda row: row[1].owner, word("OWNER", rank=3)),
        field("generation", lambda row: row[1].generation),
        field(
            "position",
            lambda row: row[1].position and list(row[1].position),
            word("POSITION"),
            lambda position: "/".join(map(str, position)),
        ),
        field("end_offset", lambda row: ends[row[1].partition], number("END", rank=1)),
    )
    if rows or as_json:
        row.show(rows, as_json=as_json)
    else:
        print_lines([f"no group has read topic {name}"])


def _json_line(record: ConsumedRecord) -> str:
    def coded(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode()

    document: dict[str, JsonValue] = {
        "partition": record.partition,
        "offset": record.offset,
        "message": record.message,
        "record": record.record,
        "id": coded(record.message_id),
        "key": coded(record.key),
        "value": coded(record.value),
        "headers": [[name, coded(value)] for name, value in record.headers] or None,
        "timestamp": record.timestamp,
    }
    return json.dumps(document) + "\n"


def _text_line(record: ConsumedRecord) -> str:
    when = "-" if record.timestamp is None else iso_utc(record.timestamp) or str(record.timestamp)
    place = f"{record.partition}/{record.offset}/{record.message}/{record.record}"
    headers = "".join(f"  {name}={shown_text(value)}" for name, value in record.headers)
    return plain(f"{place:<16}  {when:<24}  {shown_text(record.key):<16}  {shown_text(record.value)}{headers}") + "\n"
