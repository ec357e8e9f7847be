"""Real brokers that fail beneath a group member (killed, elected uncleanly, unreachable), and a store that hangs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.kafka.kafka_topics import TIMEOUT_S
from tests.support.servers.kafka_cluster import ClusterNode, KafkaCluster, start_kafka_cluster
from tests.support.waiting import wait_until
from tieredstore.config import settings_from
from tieredstore.consumer import Consumer
from tieredstore.errors import BrokerUnavailableError, DataLossError, TieredStoreError
from tieredstore.kafka.logdir import describe, discover
from tieredstore.model import Uuid
from tieredstore.remote import RemoteStorageManager

pytestmark = [pytest.mark.soak, pytest.mark.broker, pytest.mark.timeout(1800)]

LONG_S: Final = 300.0
AWAY_S: Final = 30.0
POLL_INTERVAL_S: Final = 6.0


class Log:
    """Topic of one partition on some brokers, and the bucket with its closed segments."""

    def __init__(self, cluster: KafkaCluster, folder: Path) -> None:
        self.cluster = cluster
        self.topic = folder.name
        (folder / "bucket").mkdir()
        self.store = {
            "storage.backend.class": "filesystem", "storage.root": str(folder / "bucket"), "chunk.size": "8192",
        }  # fmt: skip
        self._admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        config = {"internal.segment.bytes": "20000", "unclean.leader.election.enable": "true"}
        new = NewTopic(self.topic, 1, replica_assignment=[list(cluster.brokers)], config=config)
        self._admin.create_topics([new])[self.topic].result(TIMEOUT_S)

    def write(self, word: str, count: int) -> None:
        """Write values that name their writer, in batches that fit a segment."""
        # Make a new producer, because it does not know what was sent to an earlier leader.
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 0, "acks": "all"})
        failed: list[object] = []
        for at in range(count):
            value = f"{word} {at}".encode() + b"." * 200
            producer.produce(
                self.topic, value, partition=0, on_delivery=lambda error, _: failed.append(error) if error else None
            )
            if at % 50 == 49:
                assert producer.flush(LONG_S) == 0
        assert producer.flush(LONG_S) == 0
        assert failed == []

    def copy(self, node: ClusterNode) -> int:
        """Copy this broker's closed segments; return their end offset."""
        seam = 0
        with RemoteStorageManager(settings_from(self.store)) as manager:
            mine = (segment for segment in discover(node.log_dir).segments if segment.topic == self.topic)
            for segment in map(describe, mine):
                if not segment.active:
                    manager.copy_log_segment_data(segment.to_metadata(Uuid.random()), segment.files)
                    seam = max(seam, segment.end_offset + 1)
        assert seam
        return seam

    def cut(self, start: int) -> None:
        """Delete the broker's records before this offset."""
        place = TopicPartition(self.topic, 0, start)
        self._admin.delete_records([place])[place].result(TIMEOUT_S)

    @property
    def leader(self) -> int:
        leader: int = self._admin.list_topics(self.topic, timeout=TIMEOUT_S).topics[self.topic].partitions[0].leader
        return leader

    def properties(self, group: str, **own: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.cluster.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest",
            "tiered.storage.settings": self.store, "tiered.storage.refresh.ms": 200, "log_level": 0,
            "enable.auto.commit": False, **{name.replace("_", "."): value for name, value in own.items()},
        }  # fmt: skip


def gathered(consumer: Consumer, count: int) -> list[Any]:
    """Return this many records, ignoring transient errors."""
    messages: list[Any] = []
    end = time.monotonic() + LONG_S
    while len(messages) < count:
        assert time.monotonic() < end, len(messages)
        with contextlib.suppress(BrokerUnavailableError):
            messages += [one for one in consumer.consume(count - len(messages), 0.5) if one.error() is None]
    return messages


def until_raised(consumer: Consumer) -> tuple[TieredStoreError, list[Any]]:
    """Return a call's error, and the records before it."""
    messages: list[Any] = []
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        try:
            messages += [one for one in consumer.consume(50, 0.5) if one.error() is None]
        except TieredStoreError as error:
            return error, messages
    raise AssertionError(f"nothing was raised behind {len(messages)} records")


def offsets_of(messages: list[Any]) -> list[int]:
    return [message.offset() for message in messages]


@pytest.fixture(scope="module")
def pair() -> Iterator[KafkaCluster]:
    with start_kafka_cluster() as cluster:
        yield cluster


def test_an_unclean_election_while_a_member_is_at_the_seam(pair: KafkaCluster, tmp_path: Path) -> None:
    """The bucket is read completely. The broker's truncated log has grown beyond the bucket's end, so only its
    epochs show that it was truncated.
    """
    log = Log(pair, tmp_path)
    log.write("kept", 100)
    pair.brokers[2].kill()
    wait_until(lambda: log.leader == 1, passing=(Exception,))
    log.write("lost", 500)
    seam = log.copy(pair.brokers[1])
    assert seam > 200
    with contextlib.ExitStack() as opened:
        consumers = {
            policy: opened.enter_context(
                Consumer(
                    log.properties(policy, tiered_storage_on_data_loss=policy, tiered_storage_mode="remote_preferred")
                )
            )
            for policy in ("fail", "report")
        }
        for consumer in consumers.values():
            consumer.assign([TopicPartition(log.topic, 0, 0)])
            assert offsets_of(gathered(consumer, seam)) == list(range(seam))
        pair.brokers[1].kill()
        pair.brokers[2].start()

        def is_elected() -> bool:
            with contextlib.suppress(Exception):
                pair.elect(log.topic, 0, "UNCLEAN")
            return log.leader == 2

        wait_until(is_elected, passing=(Exception,))
        log.write("new", seam + 100)
        error, messages = until_raised(consumers["fail"])
        assert isinstance(error, DataLossError)
        assert not messages
        # The consumer returns all replacements of the lost records, not only those from the bucket's end on.
        following = gathered(consumers["report"], seam)
        assert offsets_of(following) == list(range(100, 100 + seam))
        assert all(message.value().startswith(b"new") for message in following)


@pytest.fixture(scope="module")
def single() -> Iterator[KafkaCluster]:
    with start_kafka_cluster(1) as cluster:
        yield cluster


def copied_and_cut(cluster: KafkaCluster, folder: Path, count: int) -> tuple[Log, int]:
    """Return a log whose last records only the broker has, and the offset where these records start."""
    log = Log(cluster, folder)
    log.write("written", count)
    start = log.copy(cluster.brokers[1]) - 20
    log.cut(start)
    return log, start


def test_a_broker_that_is_away_for_half_a_minute(single: KafkaCluster, tmp_path: Path) -> None:
    """The member reads the bucket during the outage, and the broker after it. No record is lost or duplicated."""
    log, start = copied_and_cut(single, tmp_path, 1000)
    own = {"enable_auto_commit": True, "auto_commit_interval_ms": 100}
    with Consumer(log.properties("away", **own)) as consumer:
        consumer.subscribe([log.topic])
        messages = gathered(consumer, 100)
        single.brokers[1].kill()
        back_at = time.monotonic() + AWAY_S
        while time.monotonic() < back_at:
            most = min(20, start - len(messages))
            messages += [one for one in consumer.consume(max(1, most), 0.5) if one.error() is None]
        assert 200 < len(messages) <= start + 20
        single.brokers[1].start()
        messages += gathered(consumer, 1000 - len(messages))
        assert offsets_of(messages) == list(range(1000))
        consumer.commit(asynchronous=False)
        (place,) = consumer.committed([TopicPartition(log.topic, 0)], TIMEOUT_S)
        assert place.offset == 1000


def test_a_store_that_hangs_for_three_poll_intervals_costs_no_membership(
    single: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, start = copied_and_cut(single, tmp_path, 300)
    goes_on, fetch, revoked = threading.Event(), RemoteStorageManager.fetch_log_segment, list[object]()

    def hanging(self: RemoteStorageManager, *arguments: Any, **named: Any) -> Any:
        goes_on.wait(LONG_S)
        return fetch(self, *arguments, **named)

    monkeypatch.setattr(RemoteStorageManager, "fetch_log_segment", hanging)
    interval_ms = int(POLL_INTERVAL_S * 1000)
    own = {"max_poll_interval_ms": interval_ms, "session_timeout_ms": interval_ms, "tiered_storage_mode": "remote_only"}
    with Consumer(log.properties("patient", **own)) as consumer:

        def on_revoke(_: object, places: list[TopicPartition]) -> None:
            revoked.extend(places)

        consumer.subscribe([log.topic], on_revoke=on_revoke)
        wait_until(lambda: not consumer.poll(0.5) and consumer.assignment(), passing=(Exception,))
        member = consumer.memberid()
        assert member
        end = time.monotonic() + 3 * POLL_INTERVAL_S
        while time.monotonic() < end:
            assert consumer.poll(0.5) is None
        assert (consumer.memberid(), revoked) == (member, [])
        goes_on.set()
        seam = start + 20
        assert offsets_of(gathered(consumer, seam)) == list(range(seam))
        assert (consumer.memberid(), revoked) == (member, [])


def test_a_damaged_chunk_is_told_of_until_a_seek_and_the_broker_goes_on_behind(
    single: KafkaCluster, tmp_path: Path
) -> None:
    log, start = copied_and_cut(single, tmp_path, 400)
    damaged = sorted((tmp_path / "bucket").rglob("*.log"))[1]
    base = int(damaged.name.partition("-")[0])
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(bytes(content))
    with Consumer(log.properties("damaged")) as consumer:
        consumer.subscribe([log.topic])
        error, messages = until_raised(consumer)
        assert offsets_of(messages) == list(range(len(messages)))
        assert base <= len(messages) < start
        with pytest.raises(type(error)):
            consumer.poll(1.0)
        consumer.seek(TopicPartition(log.topic, 0, start - 10))
        assert offsets_of(gathered(consumer, 410 - start)) == list(range(start - 10, 400))
