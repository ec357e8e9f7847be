"""Three real brokers, in each version of Kafka: replicas of a restored log follow and lead, and truncate nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

import tieredstore as ts
from tests.restore.logdir.log_dirs import fresh_bucket
from tests.restore.logdir.test_real_broker import records, stored
from tests.restore.logdir.test_unfinished import stop_after
from tests.support.cli.cli_process import tieredstore
from tests.support.paths import GOLDEN
from tests.support.servers.kafka_cluster import KAFKA, KAFKA_39, ClusterNode, KafkaCluster, start_kafka_cluster
from tests.support.servers.process import ServerFailedError
from tests.support.waiting import wait_until
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.restore.logdir.log_directory import MARKER
from tieredstore.restore.logdir.prepared import PreparedRestore
from tieredstore.restore.logdir.restoring import RestoreOptions
from tieredstore.testing.batches import Record, build_batch
from tieredstore.testing.segments import write_segment

COMPACTED = TopicIdPartition(Uuid(b"compacted-topic."), "compacted", 0)
TOPICS = ("txn", "smallbatch", "compacted")
_TIMEOUT_S = 90.0


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[ts.Bucket]:
    """Yield a bucket whose compacted topic begins at 10, has gaps, and lost its last batches, from 50 to 99."""
    batches = [build_batch([Record(b"v")] * 5, offset) for offset in (15, 30, 45)]
    write_segment(tmp_path / "disk", batches, partition=COMPACTED, base_offset=10, end_offset=99)
    (tmp_path / "disk" / "compacted-0" / f"{100:020d}.log").touch()
    disks = [tmp_path / "disk", *(GOLDEN / name / "original" for name in ("07-txn", "12-smallbatch"))]
    with fresh_bucket(tmp_path / "store", disks) as opened:
        yield opened


class Leaders:
    """Leaders and in-sync replicas of the topics, which have one partition each."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})

    def now(self) -> dict[str, tuple[int, int]]:
        found = cast("Any", self._admin).list_topics(timeout=_TIMEOUT_S).topics
        parts = {topic: found[topic].partitions[0] for topic in TOPICS}
        return {topic: (part.leader, len(part.isrs)) for topic, part in parts.items()}

    def wait(self, are_ready: Callable[[int, int], bool]) -> None:
        wait_until(lambda: all(are_ready(*each) for each in self.now().values()))


def write(cluster: KafkaCluster, value: bytes) -> list[int]:
    """Write records with a new idempotent producer; return their offsets."""
    producer, offsets = (
        Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True}),
        list[int](),
    )
    for _ in range(20):
        producer.produce(
            "compacted", value, partition=0, on_delivery=lambda _, sent: offsets.append(sent.offset() or 0)
        )
    assert producer.flush(_TIMEOUT_S) == 0
    return offsets


def attempt(bucket: ts.Bucket, node: ClusterNode, plan: PreparedRestore) -> None:
    """If the broker has a replica, let a restore of it die at the second segment. Assert that the broker does not start
    afterwards.
    """
    if (node.log_dir / "txn-0").exists():
        stop_after(1, bucket, node.log_dir, plan, RestoreOptions(replicas=True))
        with pytest.raises(ServerFailedError, match=MARKER):
            node.start()
        node.kill()


@pytest.mark.soak
@pytest.mark.broker
@pytest.mark.parametrize("libs", [KAFKA, KAFKA_39])
@pytest.mark.parametrize("factor", [3, 1])
def test_replicas_of_a_restored_log(bucket: ts.Bucket, tmp_path: Path, libs: str, factor: int) -> None:
    """With ``factor`` 3, all replicas are restored. With 1, the other replicas are added afterwards."""
    with start_kafka_cluster(3, libs=libs) as cluster:
        plan = tmp_path / "restore.json"
        options = ["--store", str(tmp_path / "store"), "--plan", str(plan)]
        servers = ["--bootstrap-server", cluster.bootstrap_servers]
        factors = ["--replication-factor", str(factor)]
        tieredstore("restore", "prepare", *TOPICS, *options, *servers, *factors).clean()
        for node in cluster.brokers.values():
            node.stop()
        for node in cluster.brokers.values():
            attempt(bucket, node, PreparedRestore.read(plan))
        for node in cluster.brokers.values():
            words = ["--replicas"] if factor > 1 else []
            assert tieredstore("restore", "logdir", str(node.log_dir), *options, *words).code == 0
        for node in cluster.brokers.values():
            node.begin()
        for node in cluster.brokers.values():
            node.wait()
        leaders = Leaders(cluster)
        leaders.wait(lambda leader, replicas: leader > 0 and replicas == factor)
        assert write(cluster, b"one") == list(range(100, 120))
        if factor == 1:
            for topic, (leader, _) in leaders.now().items():
                others = [number for number in cluster.brokers if number != leader]
                cluster.reassign(topic, 0, [leader, *others])
            leaders.wait(lambda _, replicas: replicas == 3)
        victim, _ = leaders.now()["compacted"]
        cluster.brokers[victim].kill()
        leaders.wait(lambda leader, _: leader not in (-1, victim))
        assert write(cluster, b"two") == list(range(120, 140))
        cluster.brokers[victim].start()
        leaders.wait(lambda _, replicas: replicas == 3)
        check_served(bucket, cluster)


def check_served(bucket: ts.Bucket, cluster: KafkaCluster) -> None:
    for isolation in ("read_uncommitted", "read_committed"):
        for topic in ("txn", "smallbatch"):
            assert records(cluster, topic, 0, isolation) == stored(bucket, topic, 0, isolation)
        found = [offset for offset, *_ in records(cluster, "compacted", 0, isolation)]
        assert found == [*range(15, 20), *range(30, 35), *range(45, 50), *range(100, 140)]
    for node in cluster.brokers.values():
        log = node.folder.with_suffix(".log").read_text()
        assert not [line for line in log.splitlines() if "Truncating" in line and "txn" in line]
