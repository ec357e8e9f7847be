"""Servers of one test run, each started once for all workers.

The process that starts the run owns each server, from a worker's first request until the run ends. A worker sends
requests through a socket in a private folder, and gets the server's connection details.
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import fields
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from typing import Any, Final, NoReturn

from tests.support.servers.azurite_server import AzureServer, start_azurite
from tests.support.servers.fake_gcs import GcsServer, start_fake_gcs
from tests.support.servers.kafka import KafkaServer, start_kafka
from tests.support.servers.kafka_certificates import Identity
from tests.support.servers.minio import start_minio
from tests.support.servers.process import ServerFailedError
from tests.support.servers.s3_server import S3Server
from tests.support.servers.seaweedfs import start_seaweedfs
from tests.support.servers.zookeeper import ZooKeeperServer, start_zookeeper

Server = S3Server | GcsServer | AzureServer | KafkaServer | ZooKeeperServer
Texts = dict[str, str]

STARTS: Final[Mapping[str, Callable[[], AbstractContextManager[Server]]]] = {
    "seaweedfs": start_seaweedfs,
    "minio": start_minio,
    "fake_gcs": start_fake_gcs,
    "azurite": start_azurite,
    "kafka": start_kafka,
    "zookeeper": start_zookeeper,
}
_ANSWER_TIMEOUT_S: Final = 1740.0  # on a new machine, MinIO is built first


class SharedServers:
    """Servers, each started at its first request, and all stopped by ``close``."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self._locks = {name: threading.Lock() for name in STARTS}
        self._described: dict[str, Texts] = {}

    def describe(self, name: str) -> Texts:
        """Return a server's connection details; if it does not start, raise ServerFailedError at every call."""
        with self._locks[name]:
            if name not in self._described:
                self._described[name] = self._start(name)
        texts = self._described[name]
        if "error" in texts:
            raise ServerFailedError(texts["error"])
        return texts

    def _start(self, name: str) -> Texts:
        try:
            return texts_of(self._running.enter_context(STARTS[name]()))
        except ServerFailedError as error:
            return {"error": str(error)}

    def close(self) -> None:
        """Stop all started servers."""
        self._running.close()


class ServersDoor:
    """Socket at which the workers request servers. It is in a folder that only this user can open."""

    def __init__(self, servers: SharedServers) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tieredstore-servers-"))
        self.address = str(self._folder / "socket")

        class Answer(StreamRequestHandler):
            def handle(self) -> None:
                try:
                    texts = servers.describe(self.rfile.readline().decode().strip())
                except ServerFailedError as error:
                    texts = {"error": str(error)}
                self.wfile.write(json.dumps(texts).encode())

        self._server = ThreadingUnixStreamServer(self.address, Answer)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        shutil.rmtree(self._folder)


def ask(address: str, name: str) -> Texts:
    """Request a server from within a worker; return its connection details, or raise ServerFailedError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_TIMEOUT_S)
        connection.connect(address)
        connection.sendall(f"{name}\n".encode())
        with connection.makefile("rb") as answer:
            # If the answering thread has failed, the answer is empty, and the thread's error is on the run's stderr.
            texts: Texts = json.loads(answer.read() or b'{"error": "it could not be started"}')
    if "error" in texts:
        raise ServerFailedError(f"{name}: {texts['error']}")
    return texts


def texts_of(server: Server) -> Texts:
    """Return the details of a server, without the means to kill it."""
    own = {"kill", "process"}
    values = {part.name: getattr(server, part.name) for part in fields(server) if part.name not in own}
    return {name: value.pem if isinstance(value, Identity) else str(value) for name, value in values.items()}


def server_of(name: str, texts: Texts) -> Server:
    """Return the server with these details. It belongs to the whole run, so a test cannot kill it."""
    values: dict[str, Any] = {**texts, "kill": _refuse}
    if name == "kafka":
        values |= {"log_dir": Path(texts["log_dir"]), "authority": Identity.of_pem(texts["authority"])}
        return KafkaServer(**values)
    kinds: dict[str, Callable[..., Server]] = {
        "fake_gcs": GcsServer,
        "azurite": AzureServer,
        "zookeeper": ZooKeeperServer,
    }
    return kinds.get(name, S3Server)(**values)


def _refuse() -> NoReturn:
    raise AssertionError("this server is shared by all tests: one that kills a server starts its own")
