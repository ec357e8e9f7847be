"""Services waiting at start-up for a silent store or broker: when stopped, they end at once, with 0."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.cli.cli_process import tieredstore
from tests.support.cli.forked_commands import ForkedCommands
from tests.support.servers.process import free_port
from tests.support.uploader.uploader_disk import BrokerDisk

pytestmark = pytest.mark.slow

SOON_S = 20.0
"""Time in which a stopped service must end. It is much shorter than any drain time, but enough on a busy machine."""
LONG_S = 120.0
SIGNALS = [signal.SIGTERM, signal.SIGINT]


MODULES = (
    "kazoo.client",
    "tieredstore.backends.s3.store",
    "tieredstore.live.cluster",
    "tieredstore.pubsub.broker.running",
    "tieredstore.pubsub.cli.pubsub",
    "tieredstore.pubsub.queue.kafka_audit",
    "tieredstore.uploader.service",
)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Generator[ForkedCommands]:
    with ForkedCommands(tmp_path_factory.mktemp("commands"), MODULES, is_measured=True) as forked:
        yield forked


@pytest.fixture
def silent() -> Generator[socket.socket]:
    """Yield a server that accepts connections and never answers."""
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


def folder_store(folder: Path) -> dict[str, str]:
    (folder / "store").mkdir()
    return {
        "storage.backend.class": "filesystem",
        "storage.root": str(folder / "store"),
        "chunk.size": "4194304",
    }


UPLOADER = {"uploader.drain.ms": "3600000", "uploader.broker.id": "1"}
BROKER = {"pubsub.broker.drain.ms": "3600000"}
SERVICES = {
    "uploader, store": ("uploader", UPLOADER | {"uploader.leadership": "static"}),
    "uploader, broker": ("uploader", UPLOADER | {"uploader.kafka.bootstrap.servers": "SILENT"}),
    "broker of batches, store": ("pubsub broker", BROKER | {"pubsub.broker.coordinator": "none"}),
    "broker of batches and its coordinator, store": ("pubsub broker", BROKER | {"pubsub.broker.coordinator": "store"}),
    "broker of batches, zookeeper": (
        "pubsub broker",
        BROKER | {"pubsub.broker.coordinator": "zookeeper", "pubsub.broker.zookeeper.connect": "SILENT"},
    ),
    "audit that follows, broker": (
        "pubsub verify events --follow",
        {"pubsub.audit.topic": "audit", "pubsub.kafka.bootstrap.servers": "SILENT"},
    ),
}
"""For each service and its silent server: the command, and the properties it needs."""


# ZooKeeper's client keeps waiting for 10 s.
@pytest.mark.parametrize(
    ("name", "signum"),
    [
        pytest.param(
            name, signum, marks=[pytest.mark.soak] if (name[-9:], signum) == ("zookeeper", signal.SIGINT) else []
        )
        for name in SERVICES
        for signum in SIGNALS
    ],
)
def test_a_service_that_waits_ends_at_once(
    name: str, signum: signal.Signals, tmp_path: Path, silent: socket.socket, commands: ForkedCommands
) -> None:
    command, own = SERVICES[name]
    store = silent_store(silent) if name.endswith("store") else folder_store(tmp_path)
    if command == "uploader":
        BrokerDisk(tmp_path / "logs").grow(3)
        own = {**own, "uploader.log.dirs": str(tmp_path / "logs")}
    elif command == "pubsub broker":
        own = {**own, "pubsub.broker.listen": f"127.0.0.1:{free_port()}"}
    else:
        created = ("pubsub", "topics", "events", "--create", "--store", tmp_path / "store")
        assert tieredstore(*created).code == 0
    properties = store | {key: place_of(silent) if text == "SILENT" else text for key, text in own.items()}
    settings = tmp_path / "service.properties"
    settings.write_text("".join(f"{key}={text}\n" for key, text in properties.items()))
    running, ended = commands.start(*command.split(), settings=settings), None
    try:
        with contextlib.ExitStack() as connections:
            for _ in range(2 if "coordinator" in name else 1):
                connections.enter_context(silent.accept()[0])
            running.send(signum)
            ended = running.wait(SOON_S)
    finally:
        if ended is None:
            with contextlib.suppress(ProcessLookupError):
                running.send(signal.SIGKILL)
    assert ended is not None, "it did not end"
    assert ended.code == 0, ended.stderr
    assert "did not end" not in ended.stderr
