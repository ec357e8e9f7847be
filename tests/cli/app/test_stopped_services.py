"""Services that wait at their start for a store or broker that is silent: told to stop, they end at once, with 0."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cli.cli_process import environment, measured_command, tieredstore
from tests.support.servers.process import free_port
from tests.support.uploader.uploader_disk import BrokerDisk

pytestmark = pytest.mark.slow

SOON_S = 20.0
"""A small part of what each has for draining, and much for a busy machine."""
LONG_S = 120.0
SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture
def silent() -> Generator[socket.socket]:
    """Takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LONG_S)
        yield server


def place_of(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def silent_store(server: socket.socket) -> dict[str, str]:
    return {
        "storage.backend.class": "s3",
        "storage.s3.endpoint.url": f"http://{place_of(server)}",
        "storage.s3.bucket.name": "kept",
        "storage.s3.region": "nowhere",
        "storage.s3.path.style.access.enabled": "true",
        "storage.aws.access.key.id": "id",
        "storage.aws.secret.access.key": "secret",
        "chunk.size": "4194304",
    }


@contextmanager
def started(folder: Path, properties: Mapping[str, str], *arguments: str) -> Generator[subprocess.Popen[bytes]]:
    """A command of these settings in a process of its own."""
    settings = folder / "service.properties"
    settings.write_text("".join(f"{name}={text}\n" for name, text in properties.items()))
    command = measured_command(*arguments, "-c", settings)
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def check_end(process: subprocess.Popen[bytes], signum: signal.Signals) -> None:
    """It is told to stop, has nothing to say of that, and ends well."""
    process.send_signal(signum)
    said = process.communicate(timeout=SOON_S)[1].decode()
    assert process.returncode == 0, said
    assert "did not end" not in said


@pytest.mark.parametrize("signum", SIGNALS)
def test_an_uploader_whose_store_is_silent(tmp_path: Path, silent: socket.socket, signum: signal.Signals) -> None:
    BrokerDisk(tmp_path / "logs").grow(3)
    own = {"uploader.log.dirs": str(tmp_path / "logs"), "uploader.leadership": "static", "uploader.drain.ms": "3600000"}
    with started(tmp_path, silent_store(silent) | own, "uploader") as process:
        connection, _ = silent.accept()
        with connection:
            check_end(process, signum)


def test_an_uploader_whose_broker_is_silent(tmp_path: Path, silent: socket.socket) -> None:
    BrokerDisk(tmp_path / "logs").grow(3)
    (tmp_path / "store").mkdir()
    own = {
        "storage.backend.class": "filesystem", "storage.root": str(tmp_path / "store"), "chunk.size": "4194304",
        "uploader.log.dirs": str(tmp_path / "logs"), "uploader.broker.id": "1", "uploader.drain.ms": "3600000",
        "uploader.kafka.bootstrap.servers": place_of(silent),
    }  # fmt: skip
    with started(tmp_path, own, "uploader") as process:
        connection, _ = silent.accept()
        with connection:
            check_end(process, signal.SIGTERM)


@pytest.mark.parametrize("coordinator", ["none", "store"])
def test_a_broker_of_batches_whose_store_is_silent(tmp_path: Path, silent: socket.socket, coordinator: str) -> None:
    own = {
        "pubsub.broker.listen": f"127.0.0.1:{free_port()}",
        "pubsub.broker.coordinator": coordinator,
        "pubsub.broker.drain.ms": "3600000",
    }
    with started(tmp_path, silent_store(silent) | own, "pubsub", "broker") as process:
        connections = [silent.accept()[0] for _ in range(1 if coordinator == "none" else 2)]
        try:
            check_end(process, signal.SIGTERM)
        finally:
            for connection in connections:
                connection.close()


def test_a_broker_of_batches_whose_zookeeper_is_silent(tmp_path: Path, silent: socket.socket) -> None:
    (tmp_path / "store").mkdir()
    own = {
        "storage.backend.class": "filesystem", "storage.root": str(tmp_path / "store"), "chunk.size": "4194304",
        "pubsub.broker.listen": f"127.0.0.1:{free_port()}", "pubsub.broker.drain.ms": "3600000",
        "pubsub.broker.coordinator": "zookeeper", "pubsub.broker.zookeeper.connect": place_of(silent),
    }  # fmt: skip
    with started(tmp_path, own, "pubsub", "broker") as process:
        connection, _ = silent.accept()
        with connection:
            check_end(process, signal.SIGTERM)


def test_an_audit_that_follows_and_whose_broker_is_silent(tmp_path: Path, silent: socket.socket) -> None:
    (tmp_path / "store").mkdir()
    store = f"file://{tmp_path / 'store'}"
    assert tieredstore("pubsub", "topics", "events", "--create", "--store", store).code == 0
    own = {
        "storage.backend.class": "filesystem", "storage.root": str(tmp_path / "store"), "chunk.size": "4194304",
        "pubsub.audit.topic": "audit", "pubsub.kafka.bootstrap.servers": place_of(silent),
    }  # fmt: skip
    with started(tmp_path, own, "pubsub", "audit", "events", "--follow") as process:
        connection, _ = silent.accept()
        with connection:
            check_end(process, signal.SIGTERM)
