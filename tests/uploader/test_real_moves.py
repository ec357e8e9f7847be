"""Real brokers move partitions while retention is short and the store unavailable. No held segment is lost.

One broker has two log directories and moves a replica between them (KIP-113). In another test, the partition is
reassigned from one of two brokers to the other.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import time
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.golden.records import rows_of
from tests.support.kafka.kafka_topics import TIMEOUT_S
from tests.support.records.record_reader import read_records
from tests.support.servers.kafka import start_kafka
from tests.support.servers.kafka_cluster import start_kafka_cluster
from tests.support.service_process import within
from tests.support.stores.doubles import FaultyStore
from tests.support.uploader.uploader_disk import STORE, stored, watermark_of
from tests.support.uploader.uploader_runs import Written
from tests.support.waiting import wait_until
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import settings_from
from tieredstore.kafka.logdir import discover
from tieredstore.live.broker_state import BrokerState
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.uploader import Uploader
from tieredstore.uploader import service as module
from tieredstore.uploader.partition import Role
from tieredstore.uploader.roles import Roles
from tieredstore.uploader.service import Pauses, uploader_service
from tieredstore.uploader.settings import uploader_settings_from

pytestmark = [pytest.mark.slow, pytest.mark.broker]

TOPIC: Final = "events"
CONFIG: Final = {"internal.segment.bytes": "20000", "retention.bytes": "20000", "file.delete.delay.ms": "3000"}
HELD: Final = 8


class Run:
    """A topic of one partition, its written records, and a store that is unavailable until the test restores it."""

    def __init__(self, servers: str, folder: Path, broker: int, pauses: Pauses | None = None, pace: int = 1) -> None:
        """For the uploaders' roles, ``pace`` seconds pass in each second."""
        self.servers, self.folder, self.pauses, self.pace = servers, folder, pauses, pace
        self.is_away = False
        self.inner = MemoryObjectStore()
        self.store = FaultyStore(self.inner, lambda _: self.is_away)
        self.written, self.source = Written(1), random.Random(broker)
        admin: Any = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        new = NewTopic(TOPIC, 1, replica_assignment=[[broker]], config=CONFIG)
        admin.create_topics([new])[TOPIC].result(TIMEOUT_S)
        small = {"batch.size": "4000", "linger.ms": "5", "enable.idempotence": "true", "log_level": "0"}
        self.producer = Producer({"bootstrap.servers": servers, **small})

    @contextlib.contextmanager
    def uploader(self, log_dirs: list[Path], broker: int, hold_dir: str) -> Generator[Uploader]:
        own = {
            "uploader.log.dirs": ",".join(map(str, log_dirs)),
            "uploader.broker.id": str(broker),
            "uploader.kafka.bootstrap.servers": self.servers,
            "uploader.hold.dir": hold_dir,
            "uploader.scan.interval.ms": "200",
        }
        with (
            Uploader(settings_from(STORE), uploader_settings_from(own), store=self.store) as uploader,
            BrokerState(uploader.environment.client) as state,
        ):
            uploader.roles = Roles(
                uploader.disk, uploader.leadership, uploader.topics, state, lambda: self.pace * time.monotonic()
            )
            with within(uploader_service(uploader, pauses=self.pauses)):
                yield uploader

    def write(self, uploader: Uploader, rounds: int) -> None:
        """Write about one segment per round. The uploader notices each closed segment before the next round."""
        for _ in range(rounds):
            self.written.write(self.producer, TOPIC, self.source, 100, None)
            wait_until(lambda: not uploader.held.unheld and not uploader.held.incomplete)

    def fall_behind(self, uploader: Uploader) -> None:
        """Make the store unavailable, and let retention delete the held segments from the disk."""
        self.is_away = True
        only_ours = 0
        while only_ours < HELD:
            self.write(uploader, 2)
            pinned = [one for partition in uploader.disk.partitions for one in partition.pending() if one.is_pinned]
            only_ours = sum(one.is_only_ours for one in pinned)

    def partition(self, folder: Path) -> TopicIdPartition:
        raw = (folder / "partition.metadata").read_text()
        return TopicIdPartition(Uuid.parse(raw.rpartition(": ")[2].strip()), TOPIC, 0)

    def check(self, folder: Path) -> None:
        """Check that all closed segments are stored, each record once, without holes."""
        partition = self.partition(folder)

        def active() -> int:
            return max(segment.base_offset for segment in discover(folder).segments)

        wait_until(lambda: watermark_of(self.inner, partition).next_offset >= active())
        wait_until(lambda: watermark_of(self.inner, partition).holes == ())
        assert self.written.failed == []
        end = active()
        expected = {offset: value for offset, value in self.written.values[TOPIC, 0].items() if offset < end}
        with RemoteStorageManager(settings_from(STORE), store=self.inner) as manager:
            rows = rows_of(read_records(manager, TOPIC, 0, 0, end))
        stored = {row["offset"] for row in rows}
        assert (sorted(expected.keys() - stored), sorted(stored - expected.keys())) == ([], [])
        assert [(row["offset"], row["value"]) for row in rows] == sorted(expected.items())


@contextlib.contextmanager
def admin_of(servers: str) -> Generator[Any]:
    """Yield an admin client for requests that confluent_kafka's does not support."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the module's imports raise this warning
        admin_module: Any = importlib.import_module("kafka.admin")
    with contextlib.closing(admin_module.KafkaAdminClient(bootstrap_servers=servers.split(","))) as admin:
        yield admin


def has_no_lag(uploader: Uploader) -> bool:
    gauges = uploader.gauges()
    return gauges["lag_segments"] == gauges["unread_partitions"] == 0


def move_between_log_directories(
    tmp_path: Path, hold_dir: str, moves: int, pauses: Pauses | None = None, pace: int = 1
) -> None:
    log_dirs = [tmp_path / "logs-1", tmp_path / "logs-2"]
    with (
        start_kafka(**{"log.dirs": ",".join(map(str, log_dirs))}) as server,
        admin_of(server.bootstrap_servers) as admin,
    ):
        run = Run(server.bootstrap_servers, tmp_path, 1, pauses, pace)
        folders = [log_dir / f"{TOPIC}-0" for log_dir in log_dirs]
        wait_until(lambda: any(folder.exists() for folder in folders))
        at = next(number for number, folder in enumerate(folders) if folder.exists())
        with run.uploader(log_dirs, 1, hold_dir) as uploader:
            for _ in range(moves):
                run.write(uploader, 2)
                run.fall_behind(uploader)
                _ask_to_move(admin, log_dirs[1 - at])
                wait_until(folders[1 - at].exists)
                wait_until(lambda: not folders[at].exists())  # noqa: B023
                at = 1 - at
                run.write(uploader, 2)
                run.is_away = False
                wait_until(lambda: has_no_lag(uploader))
            run.check(folders[at])
            assert uploader.counts.abandoned_segments == uploader.counts.holes == 0
            # Held segments are dropped only if the cluster does not know the topic.
            run.fall_behind(uploader)
            admin.delete_topics([TOPIC])
            wait_until(lambda: not uploader.disk.partitions)
            assert uploader.counts.abandoned_segments >= HELD
            assert list(Path(hold_dir).glob("*/*/*") if hold_dir else []) == []


def _ask_to_move(admin: Any, log_dir: Path) -> None:
    kafka: Any = importlib.import_module("kafka")
    admin.alter_replica_log_dirs({kafka.structs.TopicPartitionReplica(TOPIC, 0, 1): str(log_dir)})


def test_a_replica_that_moves_between_log_directories_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    move_between_log_directories(tmp_path, str(tmp_path / "links"), 1, Pauses(follow=0.5), 60)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("is_linked", [False, True], ids=["held", "linked"])
def test_a_replica_that_moves_twenty_times_loses_nothing(tmp_path: Path, is_linked: bool) -> None:
    (tmp_path / "links").mkdir()
    move_between_log_directories(tmp_path, str(tmp_path / "links") if is_linked else "", 20)


@pytest.mark.parametrize("is_linked", [False, True], ids=["held", "linked"])
def test_a_topic_that_is_deleted_and_created_again_while_it_is_shipped(tmp_path: Path, is_linked: bool) -> None:
    """Under each topic id, the store has only records of this incarnation. The last incarnation is stored whole."""
    (hold_dir := tmp_path / "links").mkdir()
    lives: dict[TopicIdPartition, dict[int, bytes]] = {}
    with start_kafka() as server:
        folder = server.log_dir / f"{TOPIC}-0"
        run = Run(server.bootstrap_servers, tmp_path, 1, Pauses(follow=0.5), 60)
        with run.uploader([server.log_dir], 1, str(hold_dir) if is_linked else "") as uploader:
            for rounds in (1, 2, 3, 2, 4):
                if lives:
                    _create_again(server.bootstrap_servers)
                wait_until((folder / "partition.metadata").exists)
                client = {"bootstrap.servers": server.bootstrap_servers, "batch.size": "4000", "log_level": "0"}
                producer, run.written = Producer(client), Written(1)
                for _ in range(rounds):
                    run.written.write(producer, TOPIC, run.source, 100, None)
                where = run.partition(folder)
                assert where not in lives
                lives[where] = run.written.values[TOPIC, 0]
            end = max(segment.base_offset for segment in discover(folder).segments)
            wait_until(lambda: any(one.metadata.end_offset + 1 >= end for one in stored(run.inner, where)))
            wait_until(lambda: len(uploader.disk.partitions) == 1)
            assert uploader.counts.holes == 0
    with RemoteStorageManager(settings_from(STORE), store=run.inner) as manager:
        for where, values in lives.items():
            for segment in stored(run.inner, where):
                start, stop = segment.metadata.start_offset, segment.metadata.end_offset + 1
                rows = rows_of(read_records(manager, TOPIC, 0, start, stop, topic_id=where.topic_id))
                expected = [(offset, values[offset]) for offset in range(start, stop)]
                assert [(row["offset"], row["value"]) for row in rows] == expected


def _create_again(servers: str) -> None:
    """Delete the topic, and create it again as soon as the broker allows it."""
    admin: Any = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.delete_topics([TOPIC])[TOPIC].result(TIMEOUT_S)
    new = NewTopic(TOPIC, 1, replica_assignment=[[1]], config=CONFIG)

    def is_created() -> bool:
        with contextlib.suppress(KafkaException):
            admin.create_topics([new])[TOPIC].result(TIMEOUT_S)
            return True
        return False

    wait_until(is_created)


class NoCollector:
    """Substitute for the metrics, because two uploaders in one process would register the same names."""

    def __init__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.soak
@pytest.mark.parametrize("is_new", [False, True], ids=["begun", "nothing stored"])
def test_a_partition_that_is_reassigned_while_the_store_is_away_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """The broker that loses the partition holds segments that retention deleted. The other broker's log begins after
    them.
    """
    monkeypatch.setattr(module, "CountsCollector", NoCollector)
    with start_kafka_cluster() as cluster:
        run = Run(cluster.bootstrap_servers, tmp_path, 1, Pauses(holes=1.0, follow=0.5))
        log_dirs = {number: node.log_dir for number, node in cluster.brokers.items()}
        folders = {number: log_dir / f"{TOPIC}-0" for number, log_dir in log_dirs.items()}
        wait_until(folders[1].exists)
        run.is_away = is_new
        with run.uploader([log_dirs[1]], 1, "") as first, run.uploader([log_dirs[2]], 2, "") as second:
            run.write(first, 2)
            if not is_new:
                wait_until(lambda: has_no_lag(first))
            run.fall_behind(first)
            with admin_of(cluster.bootstrap_servers) as admin:
                kafka: Any = importlib.import_module("kafka")
                admin.alter_partition_reassignments({kafka.TopicPartition(TOPIC, 0): [2]})
            wait_until(lambda: folders[2].exists() and not folders[1].exists())
            run.write(second, 2)
            (leaving,) = first.disk.partitions
            wait_until(lambda: leaving.role is Role.LEAVING)
            assert sum(segment.is_pinned for segment in leaving.pending()) >= HELD
            run.is_away = False
            wait_until(lambda: not first.disk.partitions)
            run.check(folders[2])
            assert first.counts.abandoned_segments == 0
