"""A single-node Kafka broker (also the controller), whose jars scripts/servers.py installs.

The broker has a listener for each protocol: plain, SASL, TLS, and SASL over TLS.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from scripts.caches import locked
from scripts.toolchain import JAVA, located, missing
from tests.support.servers.kafka_certificates import Identity, issue, make_authority
from tests.support.servers.process import (
    Launch,
    ServerFailedError,
    ServerProcess,
    free_port,
    installed_server,
    running,
)
from tieredstore.model import Uuid

USER = "alice"
PASSWORD = "a secret; of = tests"
CLUSTER_ID = "dGllcmVkc3RvcmVUZXN0cw"

_LISTENERS = {"PLAINTEXT": "PLAINTEXT", "SASL": "SASL_PLAINTEXT", "TLS": "SSL", "SASLTLS": "SASL_SSL"}
# Use a small heap and only the fast compiler, because a test broker lives for seconds.
_JVM = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
# "$@" is java and its options. The shell becomes the broker, so that killing its process ends all.
SCRIPT: Final = 'exec "$@" kafka.Kafka server.properties'
_FORMATTING_SCRIPT: Final = f"""
"$@" kafka.tools.StorageTool format --cluster-id {CLUSTER_ID} --config server.properties --add-scram "$SCRAM" \
    --ignore-formatted &&
{SCRIPT}
"""
_ENVIRONMENT: Final = {"SCRAM": f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"}
LIBS: Final = "kafka/libs"
_CLASSES: Final = "classes.jsa"
_BOOTSTRAP: Final = "bootstrap.checkpoint"


@dataclass(frozen=True)
class KafkaServer:
    """Running broker; ``kill`` is kill -9. ``log_dir`` holds the folders of the partitions.

    ``process`` is set only for a broker that the test itself started.
    """

    bootstrap_servers: str
    sasl_servers: str
    tls_servers: str
    sasl_tls_servers: str
    log_dir: Path
    authority: Identity = field(repr=False)
    kill: Callable[[], None] = field(repr=False)
    process: ServerProcess | None = field(default=None, repr=False)

    def folder(self, topic: str, partition: int = 0) -> Path:
        """Return the folder of a partition's segments."""
        return self.log_dir / f"{topic}-{partition}"


@contextmanager
def start_kafka(jvm: Sequence[str] = _JVM, **overrides: str) -> Generator[KafkaServer, None, None]:
    """Run a fresh broker (about 2 s to be ready); kill it at the end of the block.

    ``overrides`` are properties of the broker: ``start_kafka(**{"log.retention.ms": "1000"})``. With the ``log.dirs``
    of an earlier broker, the new one continues with its data.
    """
    with _start(jvm, overrides) as server:
        yield server


@contextmanager
def _start(
    jvm: Sequence[str], overrides: Mapping[str, str], *, is_first: bool = False
) -> Generator[KafkaServer, None, None]:
    """Run a broker. ``is_first``: see ``first_start``."""
    authority = make_authority()
    chosen: list[tuple[dict[str, int], Path]] = []

    def prepare(folder: Path) -> Launch:
        ports = {name: free_port() for name in (*_LISTENERS, "CONTROLLER")}
        log_dir = folder / "logs"
        issue(authority, "broker").write(folder / "broker.pem")
        (folder / "authority.pem").write_text(authority.certificate_pem)
        properties = _properties(ports, log_dir) | dict(overrides)
        chosen.append((ports, Path(properties["log.dirs"])))
        (folder / "server.properties").write_text("".join(f"{name}={text}\n" for name, text in properties.items()))
        formats = is_first or "unstable.feature.versions.enable" in overrides  # these have other metadata
        if not formats:
            format_log_dirs(properties)
        command = java_command(folder, _FORMATTING_SCRIPT if formats else SCRIPT, jvm)
        return Launch(command, lambda: answers(ports["PLAINTEXT"]), _ENVIRONMENT)

    with running("kafka", prepare) as process:
        ports, log_dir = chosen[-1]
        at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        yield KafkaServer(
            at["PLAINTEXT"], at["SASL"], at["TLS"], at["SASLTLS"], log_dir, authority=authority, kill=process.kill,
            process=process,
        )  # fmt: skip


@cache
def first_start() -> Path:
    """Start a broker once per installation, and return the folder that it left: its loaded classes, with which later
    brokers start in half the processor time, and the metadata of a formatted log directory.
    """
    folder = installed_server(LIBS).with_name("first-start")
    with locked(folder.with_suffix(".key")) as made:
        if not made.read():
            folder.mkdir(exist_ok=True)
            jvm = (*_JVM, f"-XX:ArchiveClassesAtExit={folder / _CLASSES}")
            with _start(jvm, {}, is_first=True) as server:
                assert server.process is not None
                shutil.copy(server.log_dir / _BOOTSTRAP, folder)
                server.process.stop()
            made.write(b"made")
    return folder


def format_log_dirs(properties: Mapping[str, str]) -> None:
    """Format the log directories that are not formatted, as Kafka's StorageTool does, but without starting Java."""
    for log_dir in map(Path, properties["log.dirs"].split(",")):
        meta = log_dir / "meta.properties"
        if not meta.exists():
            log_dir.mkdir(parents=True, exist_ok=True)
            shutil.copy(first_start() / _BOOTSTRAP, log_dir)
            ids = {"cluster.id": CLUSTER_ID, "node.id": properties["node.id"], "directory.id": Uuid.random()}
            meta.write_text("version=1\n" + "".join(f"{name}={value}\n" for name, value in ids.items()))


def java_command(folder: Path, script: str, jvm: Sequence[str] = _JVM, *, libs: str = LIBS) -> list[str | Path]:
    """Return the command that runs a shell script in the folder, with Java and its options as arguments."""
    command = f"cd '{folder}' && {script.strip()}"
    archive = first_start() / _CLASSES if jvm is _JVM and libs == LIBS else None
    classes = [f"-XX:SharedArchiveFile={archive}"] if archive and archive.exists() else []  # not every Java writes one
    return ["/bin/sh", "-c", command, "kafka", _java(), *jvm, *classes, "-cp", f"{installed_server(libs)}/*"]


@cache
def _java() -> Path:
    java = located(JAVA)
    if java is None:
        raise ServerFailedError(missing(JAVA))
    return java


def _properties(ports: Mapping[str, int], log_dir: Path) -> dict[str, str]:
    listeners = [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]
    folder = log_dir.parent
    jaas = "org.apache.kafka.common.security"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join(listeners),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in {**_LISTENERS, "CONTROLLER": "PLAINTEXT"}.items()
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(log_dir),
        "num.partitions": "1",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        # The minimum is low, so that tests can detect a killed member quickly.
        "group.min.session.timeout.ms": "1000",
        # On a busy machine, heartbeats to the controller may be seconds late.
        "broker.session.timeout.ms": "60000",
        "log.message.timestamp.before.max.ms": str(2**63 - 1),
        "log.initial.task.delay.ms": "500",
        # Disable retention by time, because the tests' records have fixed, old timestamps.
        "log.retention.ms": "-1",
        "log.retention.check.interval.ms": "500",
        "log.cleaner.enable": "true",
        "log.cleaner.dedupe.buffer.size": "2000000",
        "num.network.threads": "1",
        "num.io.threads": "2",
        "background.threads": "2",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        **{
            f"listener.name.{name.lower()}.{mechanism}.sasl.jaas.config": f"{jaas}.{login};"
            for name in ("SASL", "SASLTLS")
            for mechanism, login in {
                "plain": f'plain.PlainLoginModule required user_{USER}="{PASSWORD}"',
                "scram-sha-256": "scram.ScramLoginModule required",
            }.items()
        },
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "authority.pem"),
        "ssl.client.auth": "requested",
    }


_API_VERSIONS = b"\x00\x00\x00\x0e\x00\x12\x00\x00\x00\x00\x00\x01\x00\x04test"


def answers(port: int) -> bool:
    """Return True if the broker answers ApiVersions, which needs no login."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(_API_VERSIONS)
            return len(connection.recv(8)) == 8
    except OSError:
        return False
