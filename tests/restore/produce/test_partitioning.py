"""Partitions of restored records, compared with those that the clients choose."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaError, Message, Producer
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kafka.kafka_topics import consumed, end_offset, make_topic
from tests.support.kafka.mock_kafka import mock_kafka
from tests.support.servers.kafka import KafkaServer, java_command
from tieredstore.restore.produce.runs import Partitioner, Partitioning, murmur2

PARTITIONS: Final = 7
SOURCE: Final = 9
TIMEOUT_S: Final = 120
WORDS: Final = [f"key-{number}".encode() for number in range(100)]
KEYS: Final = [*WORDS, *(bytes(range(255, 255 - size, -1)) for size in range(1, 70)), "ключ".encode(), b"a" * 1000]


def client_partitions(servers: str, topic: str, keys: Sequence[bytes], partitioner: str) -> list[int | None]:
    """Produce one record for each key through librdkafka; return the partitions that librdkafka chose."""
    placed: dict[bytes | None, int | None] = {}

    def note(error: KafkaError | None, message: Message) -> None:
        assert error is None
        placed[message.key()] = message.partition()

    producer = Producer({"bootstrap.servers": servers, "partitioner": partitioner})
    for key in keys:
        producer.produce(topic, b"v", key, on_delivery=note)
    assert producer.flush(TIMEOUT_S) == 0
    return [placed[key] for key in keys]


@pytest.mark.parametrize(
    ("own", "name", "keys"),
    [("librdkafka", "consistent_random", KEYS), ("java", "murmur2_random", [*KEYS, b""])],
)
def test_keys_go_where_librdkafka_puts_them(own: Partitioner, name: str, keys: list[bytes]) -> None:
    with mock_kafka() as cluster:
        cluster.make_topic("orders", PARTITIONS)
        found = Partitioning(own, PARTITIONS).partitions(keys, SOURCE)
        assert found == client_partitions(cluster.bootstrap_servers, "orders", keys, name)
        assert set(found) == set(range(PARTITIONS))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_are_those_of_kafkas_own_test(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0x7FFFFFFF


def test_records_without_a_key_have_a_partition_that_can_be_foretold() -> None:
    keys = [None, b""]
    assert Partitioning("librdkafka", PARTITIONS).partitions(keys, SOURCE) == [SOURCE % PARTITIONS] * 2
    assert Partitioning("java", PARTITIONS).partitions(keys, SOURCE) == [SOURCE % PARTITIONS, murmur2(b"") % PARTITIONS]


@given(st.lists(st.none() | st.binary(max_size=9)), st.sampled_from(["java", "librdkafka"]))
def test_each_record_has_one_share(keys: list[bytes | None], partitioner: Partitioner) -> None:
    partitioning = Partitioning(partitioner, PARTITIONS)
    expected = partitioning.partitions(keys, SOURCE)
    shares = partitioning.shares(keys, SOURCE)
    assert {partition: [at for at, own in enumerate(expected) if own == partition] for partition in expected} == {
        partition: list(places) for partition, places in shares.items()
    }


@pytest.mark.soak
def test_javas_own_producer_agrees(kafka: KafkaServer, tmp_path: Path) -> None:
    topic, keys = make_topic(kafka, partitions=PARTITIONS), [*WORDS, b""]
    arguments = ["--topic", topic, "--property", "parse.key=true", "--property", "key.separator=:"]
    command = [
        *java_command(tmp_path, 'exec "$@"'), "org.apache.kafka.tools.ConsoleProducer",
        "--bootstrap-server", kafka.bootstrap_servers, *arguments,
    ]  # fmt: skip
    lines = b"".join(key + b":v\n" for key in keys)
    done = subprocess.run(command, input=lines, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    ends = {number: end_offset(kafka, topic, partition=number) for number in range(PARTITIONS)}
    by_java = {
        row["key"]: number
        for number, end in ends.items()
        for row in consumed(kafka, topic, 0, end, isolation="read_committed", partition=number)
    }
    assert by_java == dict(zip(keys, Partitioning("java", PARTITIONS).partitions(keys, SOURCE), strict=True))
