"""A real broker serves every restored golden record at its offset, and appends new records after them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import tieredstore as ts
from tests.support.cli.cli_process import tieredstore
from tests.support.paths import GOLDEN
from tests.support.servers.kafka import KafkaServer, start_kafka
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.waiting import wait_until
from tieredstore.live.cluster import LiveCluster

pytestmark = pytest.mark.slow

GOLDEN_LOGS = sorted(GOLDEN.glob("*/original"))


@dataclass
class Stage:
    folder: Path
    server: KafkaServer
    bucket: ts.Bucket

    def restore(self, *words: str, code: int = 0) -> str:
        of_cluster = words[0] != "logdir"
        servers = ["--bootstrap-server", self.server.bootstrap_servers] if of_cluster else []
        plan = [] if words[0] == "verify" else ["--plan", str(self.folder / "restore.json")]
        done = tieredstore("restore", *words, "--store", str(self.folder / "store"), *servers, *plan)
        assert done.code == code, done.stderr
        return done.stderr if code else done.stdout.decode()

    @property
    def process(self) -> Any:
        assert self.server.process is not None
        return self.server.process


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Yield a bucket with all golden logs, and a new broker."""
    folder = tmp_path_factory.mktemp("restore")
    (folder / "store").mkdir()
    with ts.open(folder / "store") as bucket, start_kafka() as server:
        for log_dir in GOLDEN_LOGS:
            bucket.upload(log_dir)
        yield Stage(folder, server, bucket)


def records(server: KafkaServer | KafkaCluster, topic: str, partition: int, isolation: str) -> list[tuple[Any, ...]]:
    """Read a partition by a plain client up to its end."""
    configuration = {
        "bootstrap.servers": server.bootstrap_servers, "group.id": "none", "isolation.level": isolation,
        "enable.partition.eof": True, "auto.offset.reset": "error", "enable.auto.commit": False,
        "fetch.wait.max.ms": 10,  # the broker reports the end only after this wait
    }  # fmt: skip
    consumer, found = Consumer(configuration), list[tuple[Any, ...]]()
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), 60)
        consumer.assign([TopicPartition(topic, partition, low)])
        while (message := consumer.poll(60)) is not None and message.error() is None:
            moment = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
            found.append((message.offset(), moment, message.key(), message.value(), message.headers()))
        assert message is not None
        return found
    finally:
        consumer.close()


def stored(bucket: ts.Bucket, topic: str, partition: int, isolation: Any) -> list[tuple[Any, ...]]:
    with bucket.read(topic, partition, isolation=isolation) as read:
        return [(each.offset, each.timestamp, each.key, each.value, headers_of(each)) for each in read]


def headers_of(record: Any) -> list[tuple[str, bytes | None]] | None:
    return [(header["key"], header["value"]) for header in record.headers or ()] or None


def test_every_record_is_served_at_its_offset(stage: Stage) -> None:
    assert "17 topics prepared" in stage.restore("prepare", "*")
    assert "txn: cleanup.policy=delete, retention.ms=-1, retention.bytes=-1: nothing" in stage.restore("finish")
    assert stage.restore("finish").count("partitions without a record: 0") == 17
    stage.process.stop()
    planned = stage.restore("logdir", str(stage.server.log_dir), "--dry-run", "--open-transactions", "cut")
    assert "would be restored" in planned
    assert not list(stage.server.log_dir.glob("*/*.restore*"))
    done = stage.restore("logdir", str(stage.server.log_dir), "--open-transactions", "cut")
    assert "restored" in done
    again = stage.restore("logdir", str(stage.server.log_dir), "--open-transactions", "cut")
    assert again.startswith("there")
    assert "no segments restored" in again
    stage.process.start()
    topics = stage.bucket.topics()
    # The request is retried until the broker leads all partitions again.
    with LiveCluster({"bootstrap.servers": stage.server.bootstrap_servers}, isolation="read_uncommitted") as cluster:
        cluster.end_offsets((topic.name, partition.number) for topic in topics for partition in topic.partitions)
    for topic in topics:
        for partition in topic.partitions:
            for isolation in ("read_uncommitted", "read_committed"):
                served = records(stage.server, topic.name, partition.number, isolation)
                expected = stored(stage.bucket, topic.name, partition.number, isolation)
                assert served == expected
    # Compare the logs without their last offsets, which are in open transactions and so were cut.
    verified = stage.restore("verify", "--same-offsets", *(topic.name for topic in topics))
    count = sum(len(topic.partitions) for topic in topics)
    assert f"{count} partitions: {count} equal, 0 different" in verified


def test_writers_go_on_at_the_next_offset(stage: Stage) -> None:
    servers = {"bootstrap.servers": stage.server.bootstrap_servers}
    idempotent = Producer({**servers, "enable.idempotence": True})
    idempotent.produce("txn", b"new", partition=0)
    assert idempotent.flush(60) == 0
    transactional = Producer({**servers, "transactional.id": "after"})
    transactional.init_transactions(60)
    transactional.begin_transaction()
    transactional.produce("txn", b"new", partition=0)
    transactional.commit_transaction(60)
    # The broker answers before it has written the marker.
    wait_until(
        lambda: [offset for offset, *_ in records(stage.server, "txn", 0, "read_committed")][-2:] == [3047, 3048]
    )


def test_another_topic_of_the_name_keeps_its_settings(stage: Stage) -> None:
    plan = stage.folder / "restore.json"
    content = plan.read_text()
    ids = [topic["topic_id"] for topic in json.loads(content)["topics"]]
    plan.write_text(content.replace(ids[-1], ids[0]))
    assert "this is another cluster, or the topic was created again" in stage.restore("finish", "--yes", code=2)
    plan.write_text(content)


def test_the_topics_get_their_settings_back(stage: Stage) -> None:
    for words in ((), ("--yes",)):
        refused = stage.restore("finish", "--set", "retention.mss=1000", *words, code=6)
        assert "retention.mss" in refused
    planned = stage.restore("finish", "--set", "retention.ms=1000")
    assert "nothing was released: --yes does it" in planned
    assert "txn: cleanup.policy=delete, retention.ms=1000, retention.bytes=-1: 5 segments" in planned
    assert "released" in stage.restore("finish", "--set", "retention.ms=86400000000", "--yes")
    assert records(stage.server, "txn", 0, "read_uncommitted")[0][0] == 0


@pytest.mark.soak
def test_a_broker_of_two_disks(stage: Stage, tmp_path: Path) -> None:
    """The broker has put each partition on one of its disks."""
    plan, disks = ["--plan", str(tmp_path / "restore.json")], [tmp_path / "one", tmp_path / "two"]
    store = ["--store", str(stage.folder / "store")]
    with start_kafka(**{"log.dirs": ",".join(map(str, disks))}) as server:
        servers = ["--bootstrap-server", server.bootstrap_servers]
        tieredstore("restore", "prepare", "none", "txn", *store, *plan, *servers).clean()
        assert server.process is not None
        server.process.stop()
        held = [[path.name for path in disk.glob("[nt]*-[0-9]")] for disk in disks]
        assert all(held)
        for disk, missing in zip(disks, reversed(held), strict=True):
            refused = tieredstore("restore", "logdir", str(disk), *store, *plan)
            refused.fails(2, f"of broker 1 has no folder in {disk}: name all log directories")
            assert any(name in refused.stderr for name in missing)
        tieredstore("restore", "logdir", *map(str, disks), *store, *plan).clean()
        server.process.start()
        with LiveCluster({"bootstrap.servers": server.bootstrap_servers}, isolation="read_uncommitted") as cluster:
            cluster.end_offsets([("none", 0), ("none", 1), ("txn", 0)])
        for topic, partition in (("none", 0), ("none", 1), ("txn", 0)):
            found = records(server, topic, partition, "read_committed")
            assert found == stored(stage.bucket, topic, partition, "read_committed")
