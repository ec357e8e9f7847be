"""Several brokers with their own controller, or with ZooKeeper; each can be killed and restarted with its data."""

from __future__ import annotations

import importlib
import shutil
import tempfile
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.servers.kafka import CLUSTER_ID, LIBS, SCRIPT, answers, format_log_dirs, java_command
from tests.support.servers.process import Launch, ServerProcess, free_port

_CONTROLLER: Final = 100
_TIMEOUT_S: Final = 60
KAFKA: Final = LIBS
KAFKA_39: Final = "kafka39/libs"
"""The last version that supports ZooKeeper."""

_OLD_SCRIPT: Final = f"""
"$@" kafka.tools.StorageTool format --cluster-id {CLUSTER_ID} --config server.properties --ignore-formatted &&
{SCRIPT}
"""
_KRAFT: Final = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    # Short, to detect a killed broker soon, but long enough for a live broker on a busy machine.
    "broker.session.timeout.ms": "9000",
}
_COMMON: Final = {
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "log.initial.task.delay.ms": "500",
    "log.retention.ms": "-1",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.enable": "false",
    "replica.lag.time.max.ms": "5000",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
}


@dataclass
class ClusterNode:
    """Broker or controller. ``kill`` is kill -9."""

    node_id: int
    folder: Path
    port: int
    properties: Mapping[str, str]
    libs: str = KAFKA
    process: ServerProcess | None = field(default=None, repr=False)

    @property
    def log_dir(self) -> Path:
        return self.folder / "logs"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the node, and wait until it answers."""
        self.begin()
        self.wait()

    def begin(self) -> None:
        """Start the node without waiting, so that others can start at the same time."""
        self.folder.mkdir(exist_ok=True)
        properties = {**self.properties, "log.dirs": str(self.log_dir)}
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        (self.folder / "server.properties").write_text(text)
        script = SCRIPT
        if "process.roles" in properties:
            if self.libs == KAFKA:
                format_log_dirs(properties)
            else:  # it has older metadata
                script = _OLD_SCRIPT
        launch = Launch(java_command(self.folder, script, libs=self.libs), lambda: answers(self.port), {})
        self.process = ServerProcess(f"kafka-{self.node_id}", launch, self.folder.with_suffix(".log"))

    def wait(self) -> None:
        """Wait until the node answers."""
        assert self.process is not None
        self.process.wait_until_ready(lambda: answers(self.port))

    def stand_still(self) -> None:
        """Suspend the node until ``go_on``."""
        assert self.process is not None
        self.process.stand_still()

    def go_on(self) -> None:
        assert self.process is not None
        self.process.go_on()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None

    def stop(self) -> None:
        """Shut the node down cleanly, so that it hands over leadership."""
        if self.process is not None:
            self.process.stop()
            self.process = None


class KafkaCluster:
    """Running cluster, with ``brokers`` by id from 1 on."""

    def __init__(self, brokers: Mapping[int, ClusterNode]) -> None:
        self.brokers = brokers

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.address for node in self.brokers.values())

    def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Assign the partition to these brokers, the first being preferred; return before they have its records."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the imports below raise it
            kafka: Any = importlib.import_module("kafka")
            admin_module: Any = importlib.import_module("kafka.admin")
        admin = admin_module.KafkaAdminClient(bootstrap_servers=self.bootstrap_servers.split(","))
        try:
            place = kafka.TopicPartition(topic, partition)
            admin.alter_partition_reassignments({place: list(replicas)})
        finally:
            admin.close()

    def prefer(self, topic: str, partition: int, broker: int) -> None:
        """Make that broker the leader by a clean election: put it first among the replicas, and elect it."""
        self.reassign(topic, partition, [broker, *(other for other in self.brokers if other != broker)])
        self.elect(topic, partition, "PREFERRED")

    def elect(self, topic: str, partition: int, kind: str) -> None:
        """Run an election, ``PREFERRED`` or ``UNCLEAN``. It is not an error if the leader stays the same."""
        confluent: Any = importlib.import_module("confluent_kafka")
        admin_module: Any = importlib.import_module("confluent_kafka.admin")
        admin = admin_module.AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        place = confluent.TopicPartition(topic, partition)
        kinds: Any = confluent.ElectionType
        admin.elect_leaders(getattr(kinds, kind), [place]).result(_TIMEOUT_S)


@contextmanager
def start_kafka_cluster(brokers: int = 2, *, libs: str = KAFKA, **overrides: str) -> Generator[KafkaCluster]:
    """Run this many brokers (about 2 s of processor time each) with these overrides; kill them after the block."""
    root = Path(tempfile.mkdtemp(prefix="tieredstore-kafka-cluster-"))
    controller_port = free_port()
    common = {**_COMMON, **_KRAFT, "controller.quorum.voters": f"{_CONTROLLER}@127.0.0.1:{controller_port}"}
    listeners = f"CONTROLLER://127.0.0.1:{controller_port}"
    roles = {"process.roles": "controller", "node.id": str(_CONTROLLER), "listeners": listeners}
    controller = ClusterNode(_CONTROLLER, root / "controller", controller_port, {**common, **roles}, libs)
    nodes: dict[int, ClusterNode] = {}
    for number in range(1, brokers + 1):
        port = free_port()
        own = {
            "process.roles": "broker",
            "node.id": str(number),
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "inter.broker.listener.name": "PLAINTEXT",
        }
        nodes[number] = ClusterNode(number, root / f"broker-{number}", port, {**common, **own, **overrides}, libs)
    with _started(root, [controller, *nodes.values()]):
        yield KafkaCluster(nodes)


@contextmanager
def start_zookeeper_cluster(hosts: str, **overrides: str) -> Generator[KafkaCluster]:
    """Run two Kafka 3.9 brokers, with the ZooKeeper at ``hosts`` (with a chroot); kill them after the block."""
    root = Path(tempfile.mkdtemp(prefix="tieredstore-kafka-cluster-"))
    nodes: dict[int, ClusterNode] = {}
    for number in (1, 2):
        port = free_port()
        own = {
            "broker.id": str(number),
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "zookeeper.connect": hosts,
            "zookeeper.session.timeout.ms": "9000",
        }
        properties = {**_COMMON, **own, **overrides}
        folder = root / f"broker-{number}"
        nodes[number] = ClusterNode(number, folder, port, properties, KAFKA_39)
    with _started(root, list(nodes.values())):
        yield KafkaCluster(nodes)


@contextmanager
def _started(root: Path, nodes: Sequence[ClusterNode]) -> Generator[None]:
    try:
        # Start all nodes at the same time, because brokers wait for their controller by themselves.
        for node in nodes:
            node.begin()
        for node in nodes:
            node.wait()
        yield
    finally:
        for node in reversed(nodes):
            node.kill()
        shutil.rmtree(root, ignore_errors=True)
