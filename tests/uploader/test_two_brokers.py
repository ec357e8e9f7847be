"""Two real brokers, each with an uploader, whose leadership moves. The bucket has one log with each record once."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.golden.records import rows_of
from tests.support.kafka.kafka_topics import TIMEOUT_S
from tests.support.records.record_reader import read_records
from tests.support.servers.kafka_cluster import KafkaCluster, start_kafka_cluster, start_zookeeper_cluster
from tests.support.servers.zookeeper import start_zookeeper
from tests.support.uploader.uploader_disk import watermark_of
from tests.support.uploader.uploader_runs import Written, uploader_process
from tests.support.waiting import wait_until
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.config import settings_from
from tieredstore.kafka.checkpoints import parse_leader_epochs
from tieredstore.kafka.logdir import discover
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager

pytestmark = [pytest.mark.soak, pytest.mark.broker, pytest.mark.timeout(3600)]

TOPIC: Final = "events"
CONFIG: Final = {
    "retention.bytes": "40000",
    "unclean.leader.election.enable": "true",
}
LONG_S: Final = 600
MOST_BEHIND: Final = 2000
"""Maximum lead of the writer in offsets, about twenty segments. Without a limit, uploaders on a busy machine would
never catch up."""


KRAFT: Final = {"internal.segment.bytes": "20000"}
OLD: Final = {"segment.bytes": "20000"}


class Run:
    """Cluster with its bucket, and the records written to the topic's only partition.

    With ``zookeeper``, the uploaders ask it for leaders instead of the brokers. ``first_s`` has the
    seconds from each change of leaders to the new leader's first watermark. ``last_s`` has the seconds to the old
    leader's last watermark.
    """

    def __init__(
        self, cluster: KafkaCluster, folder: Path, zookeeper: str | None = None, *, delay_ms: int = 60_000
    ) -> None:
        self.cluster, self.folder, self.zookeeper = cluster, folder, zookeeper
        self.first_s: list[float] = []
        self.last_s: list[float] = []
        (folder / "bucket").mkdir()
        self.store = FilesystemObjectStore(folder / "bucket")
        self.written = Written(1)
        self.source = random.Random(7)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        config = {**CONFIG, **(OLD if zookeeper else KRAFT), "file.delete.delay.ms": str(delay_ms)}
        new = NewTopic(TOPIC, 1, replica_assignment=[[1, 2]], config=config)
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
    def uploader(self, broker: int) -> Generator[None]:
        node = self.cluster.brokers[broker]
        lines = {
            "storage.backend.class": "filesystem",
            "storage.root": str(self.folder / "bucket"),
            "chunk.size": "4096",
            "uploader.log.dirs": str(node.log_dir),
            "uploader.broker.id": str(broker),
            "uploader.kafka.bootstrap.servers": self.cluster.bootstrap_servers,
        }
        if self.zookeeper is not None:
            lines |= {"uploader.leadership": "zookeeper", "uploader.zookeeper.connect": self.zookeeper}
        settings = self.folder / f"uploader-{broker}.properties"
        settings.write_text("".join(f"{name}={text}\n" for name, text in lines.items()))
        with uploader_process(settings, self.folder / f"uploader-{broker}.log") as process:
            # On a busy machine Python takes seconds to start. Wait for it before leaders change.
            opened = Path(f"/proc/{process.pid}/fd")
            wait_until(lambda: node.log_dir in [file.resolve() for file in opened.iterdir()])
            yield

    def write(self, rounds: int = 2) -> None:
        """Write about two segments per round."""
        for _ in range(rounds):
            self.written.write(self.producer, TOPIC, self.source, 200, None)

    @property
    def leader(self) -> int:
        leader: int = self._admin.list_topics(TOPIC, timeout=TIMEOUT_S).topics[TOPIC].partitions[0].leader
        return leader

    def is_replicated(self) -> bool:
        """Return True if both brokers have all records, so that a kill loses none."""
        state = self._admin.list_topics(TOPIC, timeout=TIMEOUT_S).topics[TOPIC].partitions[0]
        return len(state.isrs) == 2

    @property
    def partition(self) -> TopicIdPartition:
        for node in self.cluster.brokers.values():
            with contextlib.suppress(FileNotFoundError):
                raw = (node.log_dir / f"{TOPIC}-0" / "partition.metadata").read_text()
                return TopicIdPartition(Uuid.parse(raw.rpartition(": ")[2].strip()), TOPIC, 0)
        raise AssertionError("no broker has the topic")

    def active(self, broker: int) -> int:
        """Return the base offset of the broker's active segment."""
        return max(segment.base_offset for segment in discover(self.cluster.brokers[broker].log_dir).segments)

    def is_shipped(self, broker: int) -> bool:
        with contextlib.suppress(Exception):
            watermark = watermark_of(self.store, self.partition)
            return watermark.next_offset >= self.active(broker)
        return False

    def moved_by(self) -> int:
        """Return the broker whose uploader moved the watermark last."""
        with contextlib.suppress(Exception):
            return watermark_of(self.store, self.partition).broker_id
        return -1

    def move_to(self, broker: int) -> None:
        """Move leadership to a broker while records are written, and wait until its uploader ships them."""
        self.cluster.prefer(TOPIC, 0, broker)
        self.follow(broker)

    def follow(self, broker: int) -> None:
        """Write until that broker leads and its uploader has moved the watermark."""
        wait_until(lambda: self.leader == broker)
        began_s = old_s = time.monotonic()
        writing = threading.Thread(target=self.write)
        writing.start()
        end_s = began_s + LONG_S
        while self.moved_by() != broker:
            assert time.monotonic() < end_s, "it took too long"
            if not writing.is_alive() and self.active(broker) - self.next_offset() < MOST_BEHIND:
                writing = threading.Thread(target=self.write)
                writing.start()
            before = self.next_offset()
            time.sleep(0.02)
            if self.next_offset() != before and self.moved_by() != broker:
                old_s = time.monotonic()
        self.first_s.append(time.monotonic() - began_s)
        self.last_s.append(old_s - began_s)
        writing.join(LONG_S)

    def next_offset(self) -> int:
        with contextlib.suppress(Exception):
            return watermark_of(self.store, self.partition).next_offset
        return -1

    def tell(self) -> None:
        """Print a summary (shown by -s)."""
        for name, seconds in (("first watermark of the new", self.first_s), ("last of the old", self.last_s)):
            ordered = sorted(seconds)
            print(f"change of leaders to the {name}: p50 {ordered[len(ordered) // 2]:.2f} s, most {ordered[-1]:.2f} s")

    def check(self, active: int) -> None:
        """Check that each record of the log is stored once, whichever segment is read first, and no other record."""
        settings = settings_from(
            {"storage.backend.class": "filesystem", "storage.root": "unused", "chunk.size": "4096"}
        )
        assert self.written.failed == []
        expected = {offset: value for offset, value in self.written.values[TOPIC, 0].items() if offset < active}
        with RemoteStorageManager(settings, store=self.store) as manager:
            rows = rows_of(read_records(manager, TOPIC, 0, 0, active))
        assert [(row["offset"], row["value"]) for row in rows] == sorted(expected.items())


def move(run: Run, moves: int) -> None:
    with run.uploader(1), run.uploader(2):
        run.write()
        for number in range(1, moves + 1):
            run.move_to(1 + number % 2)
        run.write()
        leader = run.leader
        wait_until(lambda: run.is_shipped(leader))
    watermark = watermark_of(run.store, run.partition)
    assert (watermark.holes, watermark.moved_back) == ((), ())
    run.tell()
    run.check(run.active(leader))


def test_leadership_that_moves_three_times_leaves_one_lineage(tmp_path: Path) -> None:
    with start_kafka_cluster() as cluster:
        move(Run(cluster, tmp_path), 3)


def test_leadership_that_moves_fifty_times_leaves_one_lineage(tmp_path: Path) -> None:
    with start_kafka_cluster() as cluster:
        move(Run(cluster, tmp_path), 50)


def test_segments_of_a_dead_leader_are_shipped_by_the_next_though_no_disk_has_them(tmp_path: Path) -> None:
    """The leader has no uploader. Retention deletes the segments from both disks, and the follower's uploader holds
    them.
    """
    with start_kafka_cluster() as cluster:
        run = Run(cluster, tmp_path, delay_ms=20_000)
        folder = cluster.brokers[2].log_dir / f"{TOPIC}-0"
        with run.uploader(2):
            wait_until(folder.exists)
            run.write(10)
            wait_until(lambda: not list(folder.glob(f"{0:020d}.log*")))
            wait_until(run.is_replicated)
            cluster.brokers[1].kill()
            run.follow(2)
            run.write()
            wait_until(lambda: run.is_shipped(2))
        watermark = watermark_of(run.store, run.partition)
        assert (watermark.holes, watermark.moved_back) == ((), ())
        run.check(run.active(2))


def test_by_zookeeper_leadership_that_moves_and_brokers_that_die_leave_one_lineage(tmp_path: Path) -> None:
    with start_zookeeper() as zookeeper:
        hosts = zookeeper.chroot()
        with start_zookeeper_cluster(hosts) as cluster:
            run = Run(cluster, tmp_path, hosts)
            move(run, 4)
            with run.uploader(1), run.uploader(2):
                for _ in range(2):
                    leader = run.leader
                    wait_until(run.is_replicated)
                    cluster.brokers[leader].kill()
                    run.follow(3 - leader)
                    cluster.brokers[leader].start()
                wait_until(run.is_replicated)
                run.write()
                wait_until(lambda: run.is_shipped(run.leader))
            watermark = watermark_of(run.store, run.partition)
            assert (watermark.holes, watermark.moved_back) == ((), ())
            run.tell()
            run.check(run.active(run.leader))


def test_an_unclean_election_moves_the_watermark_back_and_its_records_are_read(tmp_path: Path) -> None:
    with start_kafka_cluster() as cluster:
        run = Run(cluster, tmp_path)
        with run.uploader(1):
            run.write()
            wait_until(lambda: run.is_shipped(1))
            cluster.brokers[2].kill()
            # Only the first broker has the next records. It leads alone, and its uploader ships them.
            run.write(3)
            wait_until(lambda: run.is_shipped(1))
        before = watermark_of(run.store, run.partition)
        cluster.brokers[1].kill()
        cluster.brokers[2].start()

        def is_elected() -> bool:
            with contextlib.suppress(Exception):
                cluster.elect(TOPIC, 0, "UNCLEAN")
            return run.leader == 2

        wait_until(is_elected)
        folder = cluster.brokers[2].log_dir / f"{TOPIC}-0"
        cut = parse_leader_epochs((folder / "leader-epoch-checkpoint").read_bytes())[-1][1]
        assert cut < before.next_offset, "nothing was lost: the test has no unclean election"
        values = run.written.values[TOPIC, 0]
        for offset in [offset for offset in values if offset >= cut]:
            del values[offset]
        # Use a new producer, because the new leader would take the old one's sequence numbers for duplicates.
        run.producer = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "batch.size": "4000", "log_level": "0"}
        )
        with run.uploader(2):
            run.write(4)
            wait_until(lambda: run.is_shipped(2) and watermark_of(run.store, run.partition).broker_id == 2)
            cluster.brokers[1].start()
            run.write()
            wait_until(lambda: run.is_shipped(run.leader))
        watermark = watermark_of(run.store, run.partition)
        assert [(move.from_offset, move.to_offset) for move in watermark.moved_back] == [(before.next_offset, cut)]
        assert watermark.holes == ()
        run.check(run.active(run.leader))
