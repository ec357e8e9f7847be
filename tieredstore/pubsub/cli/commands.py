"""What ``tieredstore pubsub topics``, ``produce``, ``consume``, ``groups``, ``inspect`` and ``broker`` do.

Beside ``pubsub``, which imports it when one of them runs."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from tieredstore.cli.app.chosen_bucket import choose_settings, open_chosen_bucket
from tieredstore.cli.records.record_rows import shown_text
from tieredstore.cli.terminal.log_lines import log_lines
from tieredstore.cli.terminal.output import (
    JsonValue,
    complain,
    counted,
    iso_utc,
    print_growing_table,
    print_json,
    print_lines,
)
from tieredstore.cli.terminal.rows import Row, column, field
from tieredstore.cli.terminal.tables import number, plain, text, word
from tieredstore.errors import ConfigError
from tieredstore.model import human_bytes
from tieredstore.process.futures import outcome
from tieredstore.pubsub.consume.partition_state import ConsumedRecord, records_of, with_places
from tieredstore.pubsub.errors import InvalidRecordError
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.format.messages import ProducerRequest
from tieredstore.pubsub.produce.futures import RecordPlace
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.memq_topics import load_topic_config, open_configured_topics, topics_in_store
from tieredstore.pubsub.queue.topics import Topic, Topics
from tieredstore.pubsub.settings import BatchBrokerSettings
from tieredstore.pubsub.upkeep.inspection import (
    BatchSource,
    InspectedMessage,
    decode_messages,
    inspect_messages,
)

if TYPE_CHECKING:
    from tieredstore.pubsub.consume.consumer import BatchConsumer
    from tieredstore.pubsub.queue.queues import GroupPartition, NotificationQueue

_GROUP_WAIT_S: Final = 30.0
_NO_STORE: Final = {"storage.backend.class": "memory"}


@contextlib.contextmanager
def open_named_topics(settings: Path | None, store: str | None, topic_config: Path | None = None) -> Generator[Topics]:
    """The topics of the bucket that a command's options name, with that of MemQ's topic JSON among them."""
    config = None if topic_config is None else load_topic_config(topic_config)
    if config is not None and settings is None and store is None:
        store = f"s3://{config.bucket}"
    with open_chosen_bucket(settings, store) as bucket:
        if config is None:
            yield topics_in_store(bucket.store, bucket.settings)
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
) -> Generator[BatchProducer]:
    """A producer of brokers if some are named, else one that writes to the store itself."""
    if bootstrap is not None and store is not None:
        raise ConfigError("--bootstrap writes to brokers and --store to a store: give one of them")
    if topic_config is None:
        with BatchProducer(
            _NO_STORE if settings is None and bootstrap is not None else choose_settings(settings, store),
            topic,
            brokers=bootstrap,
        ) as producer:
            yield producer
        return
    if bootstrap is not None:
        raise ConfigError("--bootstrap writes to brokers, which have the topic's configuration: give one of them")
    with open_named_topics(settings, store, topic_config) as topics, BatchProducer(topics, topic) as producer:
        yield producer


def produce_lines(producer: BatchProducer, topic: str, separator: str | None) -> None:
    """A record of each line of stdin; says at the end how many are stored."""
    sent: deque[Future[RecordPlace]] = deque()
    count, size = 0, 0
    for line in sys.stdin.buffer:
        value, key = line.removesuffix(b"\n"), None
        if separator is not None:
            head, between, rest = value.partition(separator.encode())
            if not between:
                raise InvalidRecordError(f"line {count + 1} has no {separator!r:.20} between key and value")
            key, value = head, rest
        sent.append(producer.send(value, key))
        count, size = count + 1, size + len(value)
        while sent and sent[0].done():
            outcome(sent.popleft())
    producer.flush()
    while sent:
        outcome(sent.popleft())
    print_lines([f"{count} records, {size} bytes of values, stored in topic {topic}"])


def consume_records(topics: Topics, consumer: BatchConsumer, *, limit: int | None, follow: bool, as_json: bool) -> None:
    """Records up to the end that the queue has now, or for ever; a group's position is committed as they are shown."""
    left = limit
    with topics.queue(topics.get(consumer.topic)) as queue, consumer:
        ends = {} if follow else {partition: queue.end(partition) for partition in range(queue.partitions)}
        _join(consumer)
        while left != 0 and (follow or _is_before(consumer, queue, ends)):
            for record in consumer.records(0.2):
                sys.stdout.write(json.dumps(_CONSUMED.json(record)) + "\n" if as_json else _text_line(record))
                left = None if left is None else left - 1
                if left == 0:
                    break
            sys.stdout.flush()
            if consumer.group is not None:
                consumer.commit()


def _join(consumer: BatchConsumer) -> None:
    """Have partitions of the group: those of a member that was killed are free after a while."""
    waited_s = 0.0
    while consumer.group is not None and not consumer.assignment() and waited_s < _GROUP_WAIT_S:
        if not waited_s:
            complain(f"group {consumer.group}: waiting for a partition that another member has")
        time.sleep(1.0)
        waited_s += 1.0


def _is_before(consumer: BatchConsumer, queue: NotificationQueue, ends: dict[int, int]) -> bool:
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


def _encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _time(record: ConsumedRecord) -> str:
    return "-" if record.timestamp is None else iso_utc(record.timestamp) or str(record.timestamp)


def _headers(record: ConsumedRecord) -> str:
    return "".join(f"  {name}={shown_text(value)}" for name, value in record.headers)


_RECORD: Final[Row[ConsumedRecord]] = Row(
    field("message", lambda record: record.message, number("MESSAGE")),
    field("record", lambda record: record.record, number("RECORD")),
    column(word("TIMESTAMP", rank=1), _time),
    column(word("ID", rank=2), lambda record: "-" if record.message_id is None else record.message_id.hex()),
    column(text("KEY"), lambda record: shown_text(record.key)),
    column(text("VALUE"), lambda record: shown_text(record.value) + _headers(record)),
    field("id", lambda record: _encode(record.message_id)),
    field("key", lambda record: _encode(record.key)),
    field("value", lambda record: _encode(record.value)),
    field("headers", lambda record: [[name, _encode(value)] for name, value in record.headers] or None),
    field("timestamp", lambda record: record.timestamp),
)
_CONSUMED: Final[Row[ConsumedRecord]] = Row(
    field("partition", lambda record: record.partition),
    field("offset", lambda record: record.offset),
    _RECORD,
)


def _text_line(record: ConsumedRecord) -> str:
    place = f"{record.partition}/{record.offset}/{record.message}/{record.record}"
    told = f"{place:<16}  {_time(record):<24}  {shown_text(record.key):<16}  {shown_text(record.value)}"
    return plain(told + _headers(record)) + "\n"


def run_broker(settings: Path | None, *, serve_reads: bool, json_logs: bool) -> None:
    """Take Messages of others; typer.Exit with the service's code."""
    from tieredstore.pubsub.broker.running import broker_service, make_governed_broker

    if settings is None:
        raise ConfigError("no settings are named: give --settings FILE (-c), with pubsub.broker.* beside the store's")
    log_lines(as_json=json_logs)
    with open_chosen_bucket(settings) as bucket:
        chosen = bucket.settings
        if serve_reads:
            own = chosen.section(BatchBrokerSettings).model_copy(update={"serve_reads": True})
            chosen = chosen.with_section(own)
        code = broker_service(*make_governed_broker(Topics(bucket.store, chosen))).run()
    raise typer.Exit(code)


@contextlib.contextmanager
def open_batch(batch: str, settings: Path | None, store_url: str | None) -> Generator[BatchSource]:
    """A batch of this machine, or of a store; with ``store_url`` it is a key, whatever lies in this folder."""
    # Without it a file wins, which one can see.
    if store_url is None and Path(batch).is_file():
        try:
            with Path(batch).open("rb") as file:

                def read(start: int, stop: int) -> bytes:
                    file.seek(start)
                    return file.read(stop - start)

                yield BatchSource(batch, Path(batch).stat().st_size, read)
        except OSError as error:
            if error.filename is None or str(error.filename) != batch:
                raise
            raise ConfigError(f"{batch} cannot be read: {error.strerror}") from error
        return
    if settings is None and store_url is None:
        raise ConfigError(f"there is no file {batch}; for a key of a store give --settings FILE (-c) or --store URL")
    with open_chosen_bucket(settings, store_url) as bucket:
        store = bucket.store
        yield BatchSource(
            batch, store.head(batch).size, lambda start, stop: store.get(batch, start, stop) if stop > start else b""
        )


def _request(message: InspectedMessage) -> ProducerRequest | None:
    return None if message.header is None else message.header.request


def _compression(message: InspectedMessage) -> str | None:
    return None if message.header is None else message.header.compression.name.lower()


def _address(message: InspectedMessage) -> str | None:
    if (request := _request(message)) is None:
        return None
    try:
        return str(ip_address(request.address))
    except ValueError:  # of another length than an address of IPv4 or IPv6
        return request.address.hex()


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


_MESSAGE: Final[Row[InspectedMessage]] = Row(
    field("message", lambda message: message.place.number, number("MESSAGE")),
    field("position", lambda message: message.place.start, number("BYTE", rank=5)),
    field("size", lambda message: message.size, number("SIZE")),
    column(number("RECORDS"), lambda message: _cell(message.header and message.header.record_count)),
    column(word("COMPRESSION", rank=4), lambda message: _cell(_compression(message))),
    field("producer_address", _address, word("PRODUCER", rank=3)),
    field("producer_started_ms", lambda message: (request := _request(message)) and request.epoch_ms),
    column(number("REQUEST", rank=1), lambda message: _cell((request := _request(message)) and request.request_id)),
    field(
        "producer_started",
        lambda message: None if (request := _request(message)) is None else iso_utc(request.epoch_ms),
        word("STARTED", rank=6),
    ),
    field("request_id", lambda message: (request := _request(message)) and request.request_id),
    field("compression", _compression),
    field("records", lambda message: message.header and message.header.record_count),
    field("body_size", lambda message: message.header and message.header.body_size),
    field("damage", lambda message: message.damage, text("DAMAGE", rank=2)),
)


def show_messages(source: BatchSource, *, as_json: bool, wide: bool) -> None:
    """The Messages of a batch; typer.Exit with 4 for damaged ones."""
    index = source.index()
    damaged: list[str] = []

    def note_damage(messages: Iterator[InspectedMessage]) -> Iterator[InspectedMessage]:
        for message in messages:
            if message.damage is not None:
                damaged.append(message.damage)
            yield message

    messages = note_damage(inspect_messages(source, index, BatchDecoder(("message",))))
    if as_json:
        listed: list[JsonValue] = [_MESSAGE.json(message) for message in messages]
        sizes: dict[str, JsonValue] = {"size": index.object_size, "header_size": index.size}
        print_json({"object": source.name, **sizes, "messages": listed})
    else:
        print_lines([f"{source.name}: {counted(len(index), 'Message')}, {human_bytes(index.object_size)}"])
        print_growing_table(_MESSAGE.columns, map(_MESSAGE.cells, messages), wide=wide)
    if damaged:
        raise typer.Exit(4)


def show_records(source: BatchSource, *, as_json: bool, wide: bool) -> None:
    """The records of a batch."""
    batches = decode_messages(source, source.index(), BatchDecoder())
    records = (record for batch in batches for record in records_of(with_places(batch, 0, 0)))
    if as_json:
        sys.stdout.writelines(json.dumps(_RECORD.json(record)) + "\n" for record in records)
    else:
        print_growing_table(_RECORD.columns, map(_RECORD.cells, records), wide=wide)
