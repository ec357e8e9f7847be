"""ZooKeeper, whose jars scripts/servers.py installs: one server, on the loopback interface."""

from __future__ import annotations

import contextlib
import importlib
import socket
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scripts.toolchain import JAVA, located, missing
from tests.support.servers.process import Launch, ServerFailedError, free_port, installed_server, running

_JVM: Final = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
# Switch off syncing, because test data needs no durability, and the admin server, whose port might be taken.
_PROPERTIES: Final = (
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.4lw.commands.whitelist=ruok,srvr",
)


@dataclass(frozen=True)
class ZooKeeperServer:
    """Running server. Clients connect to ``hosts``; ``kill`` is kill -9."""

    hosts: str
    kill: Callable[[], None] = field(repr=False)

    def chroot(self) -> str:
        """Return a connection string whose root is a new node, private to one test."""
        node = f"/{uuid.uuid4().hex}"
        with zookeeper_client(self.hosts) as client:
            client.create(node)
        return f"{self.hosts}{node}"


@contextmanager
def zookeeper_client(hosts: str) -> Generator[Any, None, None]:
    """Yield a connected client of the package kazoo, which has no types."""
    client = importlib.import_module("kazoo.client").KazooClient(hosts, timeout=30)
    client.start(60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def end_session(hosts: str, client: Any) -> None:
    """End the session of a connected client from outside, as ZooKeeper does after a long silence."""
    kazoo_client = importlib.import_module("kazoo.client").KazooClient
    session = (client._session_id, client._session_passwd)
    end_s = time.monotonic() + 120.0
    # The other client takes the session over and closes it. Repeat this, because the first client may reconnect to its
    # session before the other client closes it.
    while session[0] is not None and client._session_id == session[0]:
        assert time.monotonic() < end_s, "the session does not end"
        other = kazoo_client(hosts, client_id=session, timeout=30)
        with contextlib.suppress(Exception):
            other.start(10)
        with contextlib.suppress(Exception):
            other.stop()
            other.close()
        for _ in range(50):
            if client._session_id != session[0]:
                break
            time.sleep(0.02)


@contextmanager
def start_zookeeper(folder: Path | None = None, port: int | None = None) -> Generator[ZooKeeperServer, None, None]:
    """Run a server (about 1 s to be ready); kill it at the end of the block.

    With the ``folder`` and ``port`` of an earlier server, the new one continues with its data and its clients.
    """
    chosen: list[int] = []

    def prepare(own_folder: Path) -> Launch:
        chosen.append(free_port() if port is None else port)
        data = folder or own_folder / "data"
        data.mkdir(exist_ok=True)
        settings = {
            "tickTime": "500",
            "dataDir": str(data),
            "clientPort": str(chosen[-1]),
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": "0",
            # On a busy machine, a client may be silent for seconds.
            "maxSessionTimeout": "60000",
        }
        file = own_folder / "zoo.cfg"
        file.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
        java = located(JAVA)
        if java is None:
            raise ServerFailedError(missing(JAVA))
        classes = f"{installed_server('zookeeper/libs')}/*"
        command = (java, *_JVM, *_PROPERTIES, "-cp", classes, "org.apache.zookeeper.server.quorum.QuorumPeerMain", file)
        return Launch(command, lambda: _is_ok(chosen[-1]), {})

    with running("zookeeper", prepare) as process:
        yield ZooKeeperServer(f"127.0.0.1:{chosen[-1]}", kill=process.kill)


def _is_ok(port: int) -> bool:
    """Return True if the server answers "ruok" with "imok"."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"ruok")
            return connection.recv(4) == b"imok"
    except OSError:
        return False
