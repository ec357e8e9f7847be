"""Topics of a real broker: created, written, truncated and read by clients that share no code with the product."""

from __future__ import annotations

import asyncio
import functools
import importlib
import itertools
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.servers.kafka import KafkaServer
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.waiting import wait_until

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_S: Final = 60.0
_admin: Any = importlib.import_module("confluent_kafka.admin")
# no types
_aiokafka: Any = importlib.import_module("aiokafka")
# Names must be unique, because the workers of a test run share the broker.
_names = (f"{os.getpid()}-{number}" for number in itertools.count())

Row = dict[str, Any]
Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Produced:
    """Record to write; the broker assigns its offset."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = 1_700_000_000_000


def random_produced(source: random.Random, count: int, *, size: int = 60) -> list[Produced]:
    """Return records with nulls, empty values, headers (null, empty and repeated) and timestamps out of order."""

    def data() -> bytes | None:
        return source.choice([None, b"", source.randbytes(source.randrange(size)), b"a" * source.randrange(size)])

    def headers() -> Headers:
        return tuple((source.choice(["h", "ключ", ""]), data()) for _ in range(source.choice([0, 0, 1, 3])))

    moments = (1_700_000_000_000 + source.randrange(10**9) for _ in range(count))
    return [Produced(data(), data(), headers(), moment) for moment in moments]


def admin_of(server: KafkaServer | KafkaCluster) -> Any:
    """Return confluent-kafka's admin client, which is untyped. Keep the client while its futures are pending."""
    return AdminClient({"bootstrap.servers": server.bootstrap_servers})


def make_topic(
    server: KafkaServer, config: Mapping[str, str] | None = None, *, name: str | None = None, partitions: int = 1
) -> str:
    """Create a topic, by default with a unique name, and settings such as ``{"segment.bytes": "1048576"}``."""
    topic = name or f"topic-{next(_names)}"
    admin = admin_of(server)
    admin.create_topics([NewTopic(topic, partitions, config=dict(config or {}))])[topic].result(TIMEOUT_S)
    _wait_until_led(admin, topic, partitions)
    return topic


def _wait_until_led(admin: Any, topic: str, partitions: int) -> None:
    """Wait until a broker knows all partitions of a topic. The broker may learn of them only after the controller has
    answered.
    """

    def is_led() -> bool:
        known = admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions
        return len(known) >= partitions and all(each.leader >= 0 for each in known.values())

    wait_until(is_led, what=f"a leader of each partition of {topic}")


def delete_topic(server: KafkaServer, topic: str) -> None:
    """Delete a topic and wait until it has disappeared from the metadata, shortly after the broker's answer."""
    admin = admin_of(server)
    _kept_producer.cache_clear()  # because a kept producer would continue the old topic's sequence numbers
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    wait_until(lambda: topic not in admin.list_topics(timeout=TIMEOUT_S).topics)


def add_partitions(server: KafkaServer, topic: str, partitions: int) -> None:
    """Increase the topic to this many partitions."""
    admin = admin_of(server)
    _kept_producer.cache_clear()  # because a kept producer would not see the new partitions for a while
    admin.create_partitions([_admin.NewPartitions(topic, partitions)])[topic].result(TIMEOUT_S)
    _wait_until_led(admin, topic, partitions)


def delete_records(server: KafkaServer, topic: str, before: int, *, partition: int = 0) -> None:
    """Delete records like retention: the log begins at ``before`` afterwards."""
    admin, place = admin_of(server), TopicPartition(topic, partition, before)
    admin.delete_records([place])[place].result(TIMEOUT_S)


def create_acls(servers: str, *bindings: Any) -> None:
    """Create ACLs, and wait until the broker applies them. It may apply them only after the controller has answered."""
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_acls(list(bindings)).values():
        created.result(TIMEOUT_S)
    for each in bindings:
        wanted = _admin.AclBindingFilter(
            each.restype, each.name, each.resource_pattern_type, each.principal, each.host, each.operation,
            each.permission_type,
        )  # fmt: skip
        wait_until(lambda: admin.describe_acls(wanted).result(TIMEOUT_S), what=each)  # noqa: B023


def allow_to_read(server: KafkaServer, user: str, topic: str) -> None:
    """Allow the user to read only this topic, on a broker with an authorizer."""
    types, resource = _admin, _admin.ResourceType.TOPIC
    rule = types.AclBinding(
        resource, topic, types.ResourcePatternType.LITERAL, f"User:{user}", "*", types.AclOperation.READ,
        types.AclPermissionType.ALLOW,
    )  # fmt: skip
    create_acls(server.bootstrap_servers, rule)


@functools.cache
def _kept_producer(servers: str, codec: str) -> Producer:
    """Return one producer for the whole run, because each new one waits half a second before it sends."""
    return Producer({"bootstrap.servers": servers, **_ORDERED, "compression.type": codec})


_ORDERED: Final = {"enable.idempotence": "true", "linger.ms": "20", "log_level": "2"}


def producer_of(server: KafkaServer, **config: str) -> Producer:
    """Return a producer that writes the given records in one go, exactly once, and in order.

    The producer is idempotent. Otherwise, the broker might refuse the first batch to a new topic, and the producer
    would send it again only after the second batch.
    """
    return Producer({"bootstrap.servers": server.bootstrap_servers, **_ORDERED, **config})


def send(producer: Producer, topic: str, records: Iterable[Produced], *, partition: int = 0) -> None:
    """Write records and wait for the broker's acknowledgement."""
    failed: list[object] = []
    for record in records:
        producer.produce(
            topic, record.value, record.key, partition=partition, timestamp=record.timestamp_ms,
            headers=list(record.headers), on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
    assert producer.flush(TIMEOUT_S) == 0
    assert failed == []


def produce(
    server: KafkaServer, topic: str, records: Iterable[Produced], *, codec: str = "none", partition: int = 0
) -> None:
    """Write records without a transaction."""
    if server.process is None:
        producer = _kept_producer(server.bootstrap_servers, codec)
    else:  # this server belongs to one test, so it may end before a kept producer
        producer = producer_of(server, **{"compression.type": codec})
    send(producer, topic, records, partition=partition)


def end_offset(server: KafkaServer, topic: str, *, partition: int = 0) -> int:
    """Return the high watermark."""
    admin, place = admin_of(server), TopicPartition(topic, partition)
    end: int = admin.list_offsets({place: _admin.OffsetSpec.latest()})[place].result(TIMEOUT_S).offset
    return end


class Transaction:
    """Open transaction, whose records are on the broker without an outcome."""

    def __init__(self, server: KafkaServer) -> None:
        # Raise the timeout for slow tests. By default, the broker aborts a transaction that is open for a minute.
        patience = {"transactional.id": f"transaction-{next(_names)}", "transaction.timeout.ms": "600000"}
        self._producer = producer_of(server, **patience)
        self._producer.init_transactions(TIMEOUT_S)
        self._producer.begin_transaction()
        self._server = server
        self._places: set[tuple[str, int]] = set()

    def send(self, topic: str, records: Iterable[Produced], *, partition: int = 0) -> None:
        self._places.add((topic, partition))
        send(self._producer, topic, records, partition=partition)

    def end(self, outcome: Literal["commit", "abort"]) -> None:
        """End the transaction, and wait for its markers, which take one offset in each partition. The broker writes
        them only after it has answered.
        """
        ends = {"commit": self._producer.commit_transaction, "abort": self._producer.abort_transaction}
        before = {place: end_offset(self._server, place[0], partition=place[1]) for place in self._places}
        ends[outcome](TIMEOUT_S)
        wait_until(
            lambda: all(end_offset(self._server, name, partition=at) != end for (name, at), end in before.items())
        )


def produce_transaction(
    server: KafkaServer, topic: str, records: Iterable[Produced], outcome: Literal["commit", "abort"]
) -> None:
    """Write a separate transaction with this outcome."""
    transaction = Transaction(server)
    transaction.send(topic, records)
    transaction.end(outcome)


def consumed(
    server: KafkaServer, topic: str, start: int, stop: int, *, isolation: str, partition: int = 0
) -> list[Row]:
    """Return the rows with offsets in ``[start, stop)``, as aiokafka's consumer reads them."""
    return asyncio.run(_consumed(server, _aiokafka.TopicPartition(topic, partition), start, stop, isolation))


async def _consumed(server: KafkaServer, place: Any, start: int, stop: int, isolation: str) -> list[Row]:
    rows: list[Row] = []
    async with _aiokafka.AIOKafkaConsumer(
        bootstrap_servers=server.bootstrap_servers, enable_auto_commit=False, isolation_level=isolation
    ) as consumer:
        consumer.assign([place])
        consumer.seek(place, start)
        async with asyncio.timeout(TIMEOUT_S):
            while await consumer.position(place) < stop:
                fetched: Mapping[Any, Sequence[Any]] = await consumer.getmany(timeout_ms=200)
                rows += [_row(record) for record in fetched.get(place, ())]
    return [row for row in rows if row["offset"] < stop]


def _row(record: Any) -> Row:
    return {
        "key": record.key,
        "value": record.value,
        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": record.timestamp_type,
    }
