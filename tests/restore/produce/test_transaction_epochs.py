"""The epochs by which a cut recognizes the parts of a transaction, in logs that Java's own producer has written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.kafka.kafka_topics import TIMEOUT_S
from tests.support.servers.kafka import java_command
from tests.support.servers.kafka_cluster import KAFKA, KAFKA_39, start_kafka_cluster
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.restore.produce.target import NewTopic, TargetCluster
from tieredstore.restore.produce.time_cut import LoggedTransaction, follow


@pytest.mark.soak
@pytest.mark.broker
@pytest.mark.parametrize(("libs", "has_own_epochs"), [(KAFKA, True), (KAFKA_39, False)])
def test_each_transaction_of_protocol_v2_has_its_epoch(tmp_path: Path, libs: str, *, has_own_epochs: bool) -> None:
    with start_kafka_cluster(1, libs=libs) as cluster:
        with TargetCluster({"bootstrap.servers": cluster.bootstrap_servers}) as target:
            target.create("orders", NewTopic({}, 3))
        command = [
            *java_command(tmp_path, 'exec "$@"'), "org.apache.kafka.tools.ProducerPerformance",
            "--topic", "orders", "--num-records", "600", "--record-size", "10", "--throughput", "300",
            "--transactional-id", "one", "--transaction-duration-ms", "100",
            "--producer-props", f"bootstrap.servers={cluster.bootstrap_servers}", "batch.size=100",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        parts: dict[tuple[int, int], set[int]] = {}
        for partition in range(3):
            (log,) = (cluster.brokers[1].log_dir / f"orders-{partition}").glob("*.log")
            opened: dict[int, LoggedTransaction] = {}
            for header in read_batch_headers(log.read_bytes()):
                ended = follow(opened, header) if header.is_transactional else None
                if ended is not None:
                    assert ended.has_own_epoch is has_own_epochs
                    parts.setdefault((ended.producer_id, ended.epoch), set()).add(partition)
            assert opened == {}
        assert len(parts) > 3 if has_own_epochs else len(parts) == 1
        assert any(len(partitions) > 1 for partitions in parts.values())
