"""Two real brokers, each with its uploader, whose leaderships move: one lineage, each record once, none of another."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.golden.records import rows_of
from tests.support.kafka_topics import TIMEOUT_S
from tests.support.servers.kafka_cluster import KafkaCluster, start_kafka_cluster
from tests.support.uploader_disk import watermark_of
from tests.support.uploader_runs import Written, until, uploader_process
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.config import settings_from
from tieredstore.kafka.checkpoints import parse_leader_epochs
from tieredstore.kafka.logdir import discover
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.records import read_records
from tieredstore.remote import RemoteStorageManager

pytestmark = [pytest.mark.soak, pytest.mark.broker, pytest.mark.timeout(3600)]

TOPIC: Final = "events"
CONFIG: Final = {
    "internal.segment.bytes": "20000",
    "retention.bytes": "40000",
    "file.delete.delay.ms": "60000",
    "unclean.leader.election.enable": "true",
}
LONG_S: Final = 600


class Run:
    """The cluster, its bucket, and what was written to the topic's one partition."""

    def __init__(self, cluster: KafkaCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        (folder / "bucket").mkdir()
        self.store = FilesystemObjectStore(folder / "bucket")
        self.written = Written(1)
        self.source = random.Random(7)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        new = NewTopic(TOPIC, 1, replica_assignment=[[1, 2]], config=CONFIG)
        admin.create_topics([new])[TOPIC].result(TIMEOUT_S)
        self._admin: Any = admin
        self.producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "batch.size": "4000",
                "enable.idempotence": "true",
                "log_level": "0",
                "message.timeout.ms": "300000",
            }
        )

    @contextlib.contextmanager
    def uploader(self, broker: int) -> Iterator[None]:
        node = self.cluster.brokers[broker]
        lines = {
            "storage.backend.class": "filesystem",
            "storage.root": str(self.folder / "bucket"),
            "chunk.size": "4096",
            "uploader.log.dirs": str(node.log_dir),
            "uploader.broker.id": str(broker),
            "uploader.kafka.bootstrap.servers": self.cluster.bootstrap_servers,
        }
        settings = self.folder / f"uploader-{broker}.properties"
        settings.write_text("".join(f"{name}={text}\n" for name, text in lines.items()))
        with uploader_process(settings, self.folder / f"uploader-{broker}.log"):
            yield

    def write(self, rounds: int = 2) -> None:
        """About two segments a round."""
        for _ in range(rounds):
            self.written.write(self.producer, TOPIC, self.source, 200, None)

    @property
    def leader(self) -> int:
        leader: int = self._admin.list_topics(TOPIC, timeout=TIMEOUT_S).topics[TOPIC].partitions[0].leader
        return leader

    @property
    def partition(self) -> TopicIdPartition:
        for node in self.cluster.brokers.values():
            with contextlib.suppress(FileNotFoundError):
                raw = (node.log_dir / f"{TOPIC}-0" / "partition.metadata").read_text()
                return TopicIdPartition(Uuid.parse(raw.rpartition(": ")[2].strip()), TOPIC, 0)
        raise AssertionError("no broker has the topic")

    def active(self, broker: int) -> int:
        """Where the broker's active segment begins."""
        return max(segment.base_offset for segment in discover(self.cluster.brokers[broker].log_dir).segments)

    def is_shipped(self, broker: int) -> bool:
        with contextlib.suppress(Exception):
            watermark = watermark_of(self.store, self.partition)
            return watermark.next_offset >= self.active(broker)
        return False

    def is_moved_by(self, broker: int) -> bool:
        with contextlib.suppress(Exception):
            return watermark_of(self.store, self.partition).broker_id == broker
        return False

    def move_to(self, broker: int) -> float:
        """The leadership; how long it takes from then on until that broker's uploader has moved the watermark."""
        self.cluster.prefer(TOPIC, 0, broker)
        until(LONG_S, lambda: self.leader == broker)
        began_s = time.monotonic()
        self.write()
        until(LONG_S, lambda: self.is_moved_by(broker))
        return time.monotonic() - began_s

    def check(self, active: int) -> None:
        """Each record of the log once, in either order of the segments, and none of another."""
        settings = settings_from(
            {"storage.backend.class": "filesystem", "storage.root": "unused", "chunk.size": "4096"}
        )
        assert self.written.failed == []
        expected = {offset: value for offset, value in self.written.values[TOPIC, 0].items() if offset < active}
        with RemoteStorageManager(settings, store=self.store) as manager:
            rows = rows_of(read_records(manager, TOPIC, 0, 0, active))
        assert [(row["offset"], row["value"]) for row in rows] == sorted(expected.items())


def move(folder: Path, moves: int) -> None:
    with start_kafka_cluster() as cluster:
        run = Run(cluster, folder)
        with run.uploader(1), run.uploader(2):
            run.write()
            seconds = [run.move_to(1 + number % 2) for number in range(1, moves + 1)]
            run.write()
            leader = run.leader
            until(LONG_S, lambda: run.is_shipped(leader))
        watermark = watermark_of(run.store, run.partition)
        assert (watermark.holes, watermark.moved_back) == ((), ())
        run.check(run.active(leader))
        seconds.sort()
        print(
            f"from a change of leaders to its first watermark: {seconds[len(seconds) // 2]:.1f} s, {seconds[-1]:.1f} s"
        )


def test_leadership_that_moves_three_times_leaves_one_lineage(tmp_path: Path) -> None:
    move(tmp_path, 3)


def test_leadership_that_moves_fifty_times_leaves_one_lineage(tmp_path: Path) -> None:
    move(tmp_path, 50)


def test_an_unclean_election_moves_the_watermark_back_and_its_records_are_read(tmp_path: Path) -> None:
    with start_kafka_cluster() as cluster:
        run = Run(cluster, tmp_path)
        with run.uploader(1):
            run.write()
            until(LONG_S, lambda: run.is_shipped(1))
            cluster.brokers[2].kill()
            # Of these only the first broker knows, and they go up: it leads alone.
            run.write(3)
            until(LONG_S, lambda: run.is_shipped(1))
        before = watermark_of(run.store, run.partition)
        cluster.brokers[1].kill()
        cluster.brokers[2].start()

        def is_elected() -> bool:
            with contextlib.suppress(Exception):
                cluster.elect(TOPIC, 0, "UNCLEAN")
            return run.leader == 2

        until(LONG_S, is_elected)
        folder = cluster.brokers[2].log_dir / f"{TOPIC}-0"
        cut = parse_leader_epochs((folder / "leader-epoch-checkpoint").read_bytes())[-1][1]
        assert cut < before.next_offset, "nothing was lost: the test has no unclean election"
        values = run.written.values[TOPIC, 0]
        for offset in [offset for offset in values if offset >= cut]:
            del values[offset]
        # Another one, whose numbers the new leader does not know as written already.
        run.producer = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "batch.size": "4000", "log_level": "0"}
        )
        with run.uploader(2):
            run.write(4)
            until(LONG_S, lambda: run.is_shipped(2) and watermark_of(run.store, run.partition).broker_id == 2)
            cluster.brokers[1].start()
            run.write()
            until(LONG_S, lambda: run.is_shipped(run.leader))
        watermark = watermark_of(run.store, run.partition)
        assert [(move.from_offset, move.to_offset) for move in watermark.moved_back] == [(before.next_offset, cut)]
        assert watermark.holes == ()
        run.check(run.active(run.leader))
