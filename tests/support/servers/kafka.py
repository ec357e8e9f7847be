"""A single-node Kafka broker (also the controller), whose jars scripts/servers.py installs.

The broker has a listener for each protocol: plain, SASL, TLS, and SASL over TLS.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

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

USER = "alice"
PASSWORD = "a secret; of = tests"
CLUSTER_ID = "dGllcmVkc3RvcmVUZXN0cw"

_LISTENERS = {"PLAINTEXT": "PLAINTEXT", "SASL": "SASL_PLAINTEXT", "TLS": "SSL", "SASLTLS": "SASL_SSL"}
# Use a small heap and only the fast compiler, because a test broker lives for seconds.
_JVM = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
# One shell runs both programs and becomes the broker, so that killing its process ends all. "$@" is java and its
# options.
_SCRIPT = """
"$@" kafka.tools.StorageTool format --cluster-id "$CLUSTER_ID" --config server.properties --add-scram "$SCRAM" \
    --ignore-formatted &&
exec "$@" kafka.Kafka server.properties
"""
_ENVIRONMENT = {"CLUSTER_ID": CLUSTER_ID, "SCRAM": f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"}


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
    """Run a fresh broker (about 4 s to be ready); kill it at the end of the block.

    ``overrides`` are properties of the broker: ``start_kafka(**{"log.retention.ms": "1000"})``. With the ``log.dirs``
    of an earlier broker, the new one continues with its data.
    """
    authority = make_authority()
    chosen: list[tuple[dict[str, int], Path]] = []

    def prepare(folder: Path) -> Launch:
        ports = {name: free_port() for name in (*_LISTENERS, "CONTROLLER")}
        log_dir = folder / "logs"
        issue(authority, "broker").write(folder / "broker.pem")
        (folder / "authority.pem").write_text(authority.certificate_pem)
        properties = _properties(ports, log_dir) | overrides
        chosen.append((ports, Path(properties["log.dirs"])))
        (folder / "server.properties").write_text("".join(f"{name}={text}\n" for name, text in properties.items()))
        return Launch(java_command(folder, _SCRIPT, jvm), lambda: answers(ports["PLAINTEXT"]), _ENVIRONMENT)

    with running("kafka", prepare) as process:
        ports, log_dir = chosen[-1]
        at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        yield KafkaServer(
            at["PLAINTEXT"], at["SASL"], at["TLS"], at["SASLTLS"], log_dir, authority=authority, kill=process.kill,
            process=process,
        )  # fmt: skip


def java_command(folder: Path, script: str, jvm: Sequence[str] = _JVM, *, libs: str = "kafka/libs") -> list[str | Path]:
    """Return the command that runs a shell script in the folder, with Java and its options as arguments."""
    java = located(JAVA)
    if java is None:
        raise ServerFailedError(missing(JAVA))
    command = f"cd '{folder}' && {script.strip()}"
    return ["/bin/sh", "-c", command, "kafka", java, *jvm, "-cp", f"{installed_server(libs)}/*"]


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
