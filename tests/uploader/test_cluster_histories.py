"""Random histories of a real cluster with an uploader beside each broker. In the end all readers must agree.

The reference is the leader's log, which a plain client reads before retention deletes it. An unclean election truncates
it. SEED chooses another history, and ROUNDS its length.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.kafka.kafka_topics import TIMEOUT_S
from tests.support.servers.kafka_cluster import ClusterNode, KafkaCluster, start_kafka_cluster
from tests.support.uploader.log_readers import BATCH, LONG_S, Life, Readers, Writer, Writing
from tests.support.uploader.uploader_disk import watermark_of
from tests.support.uploader.uploader_runs import uploader_process
from tests.support.waiting import wait_until
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.catalog.watermark import Watermark
from tieredstore.kafka.checkpoints import parse_leader_epochs
from tieredstore.kafka.logdir import discover
from tieredstore.model import TopicIdPartition, Uuid

pytestmark = [pytest.mark.soak, pytest.mark.broker, pytest.mark.timeout(3600)]

TOPIC: Final = "events"
CONFIG: Final = {
    "internal.segment.bytes": "20000",
    "retention.bytes": "240000",
    "file.delete.delay.ms": "3000",
    "unclean.leader.election.enable": "true",
}
BROKERS: Final = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    # Slow replicas stay in sync, so elections are clean unless a round asks otherwise.
    "replica.lag.time.max.ms": "60000",
    "auto.leader.rebalance.enable": "false",
}
_library: Any = confluent_kafka


class UploaderBeside:
    """Uploader of one broker, as a separate process."""

    def __init__(self, node: ClusterNode, servers: str, folder: Path) -> None:
        self._node, self._stack = node, ExitStack()
        self._settings = folder / f"uploader-{node.node_id}.properties"
        self._log = folder / f"uploader-{node.node_id}.log"
        lines = {
            **store_of(folder),
            "uploader.log.dirs": str(node.log_dir),
            "uploader.broker.id": str(node.node_id),
            "uploader.kafka.bootstrap.servers": servers,
        }
        self._settings.write_text("".join(f"{name}={text}\n" for name, text in lines.items()))
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        self.process = self._stack.enter_context(uploader_process(self._settings, self._log))
        opened = Path(f"/proc/{self.process.pid}/fd")
        wait_until(lambda: self._node.log_dir in [file.resolve() for file in opened.iterdir()])

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._stack.close()

    def check_runs(self) -> None:
        assert self.process.poll() is None, self._log.read_text()[-3000:]


def store_of(folder: Path) -> dict[str, str]:
    root = str(folder / "bucket")
    return {"storage.backend.class": "filesystem", "storage.root": root, "chunk.size": "4096"}


class Histories:
    """Cluster with its uploaders and bucket, and the records written under each id of the topic."""

    def __init__(self, cluster: KafkaCluster, folder: Path, source: random.Random) -> None:
        self.cluster, self.folder, self.source = cluster, folder, source
        self.client = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": "0"}
        (folder / "bucket").mkdir()
        self.store = FilesystemObjectStore(folder / "bucket")
        self.admin: Any = AdminClient(dict(self.client))
        self.writer = Writer(cluster.bootstrap_servers, TOPIC, random.Random(source.random()))
        self.uploaders = {
            number: UploaderBeside(node, cluster.bootstrap_servers, folder) for number, node in cluster.brokers.items()
        }
        self.readers = Readers(TOPIC, store_of(folder), cluster.bootstrap_servers, folder)
        self.has_moved_out = False
        """True as soon as retention has deleted records from the brokers, so that only the bucket has them."""
        self.lives: list[Life] = []
        self.begin_life()

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def begin_life(self) -> None:
        replicas = self.source.sample(list(self.cluster.brokers), 2)
        new = NewTopic(TOPIC, 1, replica_assignment=[replicas], config=CONFIG)
        self.admin.create_topics([new])[TOPIC].result(TIMEOUT_S)
        metadata = self.log_of(replicas[0]) / "partition.metadata"
        wait_until(metadata.exists)
        topic_id = Uuid.parse(metadata.read_text().rpartition(": ")[2].strip())
        self.lives.append(Life(TopicIdPartition(topic_id, TOPIC, 0)))

    def log_of(self, broker: int) -> Path:
        return self.cluster.brokers[broker].log_dir / f"{TOPIC}-0"

    def state(self) -> Any:
        """Return the leader, replicas and in-sync replicas that a client sees; retry while a frozen broker delays
        the answer.
        """
        end = time.monotonic() + LONG_S
        while True:
            with contextlib.suppress(KafkaException, KeyError):
                return self.admin.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions[0]
            assert time.monotonic() < end, "no broker tells of the topic"

    @property
    def leader(self) -> int:
        return int(self.state().leader)

    @property
    def follower(self) -> int:
        leader = self.leader
        return int(next(broker for broker in self.state().replicas if broker != leader))

    def is_whole(self) -> bool:
        state = self.state()
        return state.leader > 0 and len(state.replicas) == len(state.isrs) == 2

    def watermark(self, life: Life) -> Watermark:
        return watermark_of(self.store, life.where)

    def epochs(self, broker: int) -> tuple[tuple[int, int], ...]:
        return parse_leader_epochs((self.log_of(broker) / "leader-epoch-checkpoint").read_bytes())

    def is_shipped(self) -> bool:
        """Return True if the leader's uploader has shipped all segments that the leader has closed."""
        with contextlib.suppress(Exception):
            leader = self.leader
            active = max(found.base_offset for found in discover(self.log_of(leader)).segments)
            mark = self.watermark(self.life)
            return mark.next_offset >= active and mark.leader_epoch >= self.epochs(leader)[-1][0]
        return False

    def read_on(self) -> None:
        """Read with the plain client up to the last record acknowledged outside of transactions."""
        last = max(self.life.acknowledged)
        consumer: Any = _library.Consumer(
            {**self.client, "group.id": "plain", "isolation.level": "read_committed", "enable.auto.commit": False}
        )
        with contextlib.closing(consumer):
            low, _ = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=TIMEOUT_S)
            assert low <= self.life.position, "retention was before the plain client"
            self.has_moved_out |= low > 0
            consumer.assign([TopicPartition(TOPIC, 0, self.life.position)])
            end = time.monotonic() + LONG_S
            while last not in self.life.truth:
                assert time.monotonic() < end, "the plain client does not come to the last record"
                for message in consumer.consume(500, 0.5):
                    assert message.error() is None, message.error()
                    self.life.truth[message.offset()] = message.value()
        self.life.position = max(self.life.truth) + 1
        for offset, value in self.life.acknowledged.items():
            assert self.life.truth.get(offset) == value, offset
        assert not self.life.aborted & set(self.life.truth)

    def settle(self) -> None:
        """Wait until everything is replicated, read and shipped by the last leader, and no transaction is open."""
        wait_until(self.is_whole)
        for _ in range(3):
            self.writer.write(self.life, plain=True)
        self.read_on()
        wait_until(self.is_shipped)
        for uploader in self.uploaders.values():
            uploader.check_runs()
        mark = self.watermark(self.life)
        assert (mark.holes, len(mark.moved_back)) == ((), self.life.cuts)

    # Events

    def elect_cleanly(self) -> None:
        leader, follower = self.leader, self.follower
        with Writing(self.writer, self.life):
            self.cluster.reassign(TOPIC, 0, [follower, leader])
            wait_until(self.is_whole)
            self.cluster.elect(TOPIC, 0, "PREFERRED")
            wait_until(lambda: self.leader == follower)

    def elect_uncleanly(self) -> None:
        """Elect a leader that lacks the newest segments that the former leader has shipped.

        Let each reader read while only the brokers have the records that replace the lost ones.
        """
        leader, follower = self.leader, self.follower
        self.cluster.brokers[follower].stand_still()
        wait_until(lambda: list(self.state().isrs) == [leader])
        for _ in range(4):
            self.writer.write(self.life, plain=True)
        wait_until(self.is_shipped)
        before = self.watermark(self.life).next_offset
        self.uploaders[follower].process.send_signal(signal.SIGSTOP)
        self.cluster.brokers[leader].kill()
        self.cluster.brokers[follower].go_on()

        def is_elected() -> bool:
            with contextlib.suppress(Exception):
                self.cluster.elect(TOPIC, 0, "UNCLEAN")
            return self.leader == follower

        wait_until(is_elected)
        at = self.epochs(follower)[-1][1]
        assert at < before, "nothing was lost: the test has no unclean election"
        self.life.cut(at)
        self.writer.renew()
        while max(self.life.acknowledged, default=0) < before + BATCH:
            self.writer.write(self.life, plain=True)
        self.read_on()
        self.readers.check_with_broker(self.life.rows())
        self.uploaders[follower].process.send_signal(signal.SIGCONT)
        self.cluster.brokers[leader].start()

    def kill_broker(self) -> None:
        broker = self.source.choice([self.leader, self.follower])
        with Writing(self.writer, self.life):
            self.cluster.brokers[broker].kill()
            wait_until(lambda: broker not in self.state().isrs)
            self.cluster.brokers[broker].start()

    def kill_uploaders(self) -> None:
        for _ in range(3):
            uploader = self.uploaders[self.source.choice([self.leader, self.leader, self.follower])]
            uploader.kill()
            for _ in range(2):
                self.writer.write(self.life)
            uploader.start()

    def freeze(self) -> None:
        """Freeze a broker and its uploader until another broker leads, then let them continue."""
        broker = self.source.choice([self.leader, self.leader, self.follower])
        uploader, node = self.uploaders[broker].process, self.cluster.brokers[broker]
        with Writing(self.writer, self.life):
            uploader.send_signal(signal.SIGSTOP)
            node.stand_still()
            wait_until(lambda: broker not in self.state().isrs)
            if self.source.random() < 0.5:
                node.go_on()
                uploader.send_signal(signal.SIGCONT)
            else:
                uploader.send_signal(signal.SIGCONT)
                node.go_on()

    def reassign(self) -> None:
        pair = [self.leader, self.follower]
        (spare,) = set(self.cluster.brokers) - set(pair)
        pair[self.source.randrange(2)] = spare
        with Writing(self.writer, self.life):
            self.cluster.reassign(TOPIC, 0, pair)
            wait_until(lambda: set(self.state().replicas) == set(pair) and self.is_whole())

    def wipe_follower(self) -> None:
        follower = self.follower
        node = self.cluster.brokers[follower]
        with Writing(self.writer, self.life):
            node.kill()
            wait_until(lambda: follower not in self.state().isrs)
            for entry in node.log_dir.iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            node.start()
            wait_until(self.is_whole)

    def create_again(self) -> None:
        """Re-create the topic. The old topic's segments stay readable by its id."""
        self.admin.delete_topics([TOPIC])[TOPIC].result(TIMEOUT_S)
        wait_until(lambda: not any(self.log_of(broker).exists() for broker in self.cluster.brokers))
        self.begin_life()
        # librdkafka ignores a leader whose epoch is below the last one that it knew for this topic name.
        self.writer.renew()

    def check(self) -> None:
        """Check every reader, and that the bucket alone has the shipped records of each id of the topic."""
        self.readers.check_with_broker(self.life.rows())
        shipped = {life.where.topic_id: life.rows(self.watermark(life).next_offset) for life in self.lives}
        self.readers.check_bucket(shipped, self.life.where.topic_id)


@contextlib.contextmanager
def running_histories(folder: Path, source: random.Random) -> Generator[Histories]:
    with start_kafka_cluster(3, **BROKERS) as cluster, ExitStack() as stack:
        histories = Histories(cluster, folder, source)
        for uploader in histories.uploaders.values():
            stack.callback(uploader.kill)
            uploader.start()
        yield histories


def test_every_reader_gives_each_record_once_whatever_befalls_the_cluster(tmp_path: Path) -> None:
    seed, rounds = os.environ.get("SEED", "1"), int(os.environ.get("ROUNDS", "8"))
    source = random.Random(f"histories {seed}")
    with running_histories(tmp_path, source) as histories:
        events: list[Callable[[], None]] = [
            histories.elect_cleanly, histories.elect_uncleanly, histories.kill_broker, histories.kill_uploaders,
            histories.freeze, histories.reassign, histories.wipe_follower, histories.create_again,
        ]  # fmt: skip
        order = [event for _ in range(-(-rounds // len(events))) for event in source.sample(events, len(events))]
        histories.settle()
        for number, event in enumerate(order[:rounds], 1):
            print(f"seed {seed}, round {number}: {event.__name__}")
            event()
            histories.settle()
            if number % 3 == 0 or number == rounds:
                histories.check()
        assert histories.has_moved_out
