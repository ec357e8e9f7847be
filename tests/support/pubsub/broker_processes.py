"""Batch brokers as processes, each with separate links to the store and ZooKeeper that can be cut."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from tests.support.cli.forked_commands import ForkedCommands, Running
from tests.support.network.loopback_server import ConnectionServer, relay
from tests.support.pubsub.pubsub_brokers import LONG_S, PacketClient
from tests.support.servers.process import free_port
from tests.support.servers.s3_server import REGION, S3Server
from tieredstore.pubsub.format.packets import MetadataAnswer, MetadataRequest


class CutProxy(ConnectionServer):
    """Context manager that runs a proxy in front of ``host:port``; clients connect to ``address``."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self.upstream = (host, int(port))
        self.flows = threading.Event()
        self.flows.set()
        super().__init__()
        self.address = f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Stop all traffic in both directions without closing connections, as if all packets were lost."""
        self.flows.clear()

    def heal(self) -> None:
        """Resume; deliver pending data first."""
        self.flows.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.heal()
        super().__exit__(kind, error, trace)

    def serve(self, connection: socket.socket) -> None:
        """Pass on what the client and the server send."""
        with suppress(OSError), socket.create_connection(self.upstream, 30) as upstream:
            upstream.settimeout(None)
            relay(connection, upstream, pause=self.flows.wait)


_MODULES = (
    "tieredstore.pubsub.cli.pubsub",
    "tieredstore.pubsub.broker.running",
    "tieredstore.backends.s3.store",
    "tieredstore.pubsub.queue.kafka_queue",
)


def store_properties(server: S3Server, bucket: str, endpoint_url: str | None = None) -> dict[str, str]:
    """Return the settings of a store in this bucket; ``endpoint_url`` overrides the server's own URL."""
    return {
        "storage.backend.class": "s3",
        "storage.s3.endpoint.url": endpoint_url or server.endpoint_url,
        "storage.s3.bucket.name": bucket,
        "storage.s3.region": REGION,
        "storage.s3.path.style.access.enabled": "true",
        "storage.aws.access.key.id": server.access_key,
        "storage.aws.secret.access.key": server.secret_key,
        "chunk.size": "4194304",
    }


class BrokerProcess:
    """One broker, with a fixed address that it keeps across restarts."""

    def __init__(
        self, commands: ForkedCommands, folder: Path, number: int, properties: Mapping[str, str], links: list[CutProxy]
    ) -> None:
        self.host = f"127.0.0.{number + 1}"
        self.place = f"{self.host}:{free_port()}"
        self.is_well = False
        self._commands = commands
        self._links = links
        self._log = folder / f"broker-{number}.log"
        self._settings = folder / f"broker-{number}.properties"
        own = {**properties, "pubsub.broker.listen": self.place, "pubsub.broker.advertised": self.place}
        self._settings.write_text("".join(f"{name}={text}\n" for name, text in own.items()))
        self._run: Running | None = None

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(self) -> None:
        self._run = self._commands.start("pubsub", "broker", settings=self._settings, stderr=self._log)
        self.is_well = True

    def kill(self) -> None:
        """Kill -9."""
        if self._run is not None:
            self._signal(signal.SIGKILL)
            self._run.wait(LONG_S)
            self._run, self.is_well = None, False

    def stop(self) -> None:
        """Suspend the broker; its connections stay open."""
        self._signal(signal.SIGSTOP)
        self.is_well = False

    def cut_off(self) -> None:
        """Cut the broker's links to the store and to ZooKeeper. Clients still reach it."""
        for link in self._links:
            link.cut()
        self.is_well = False

    def recover(self) -> None:
        """Restart or resume the broker, and heal its links."""
        if self._run is None:
            self.start()
        self._signal(signal.SIGCONT)
        for link in self._links:
            link.heal()
        self.is_well = True

    def _signal(self, signum: signal.Signals) -> None:
        assert self._run is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._run.process, signum)

    def writers(self, topic: str) -> set[str] | None:
        """Return the topic's writers as this broker reports them; None if it does not answer."""
        try:
            with PacketClient(self.place) as client:
                answer = client.ask(MetadataRequest((topic,))).payload
        except (OSError, AssertionError):
            return None
        if not isinstance(answer, MetadataAnswer):
            return None
        return {f"{broker.ip}:{broker.port}" for each in answer.topics for broker in each.write_brokers}


@contextmanager
def broker_processes(
    folder: Path, server: S3Server, properties: Mapping[str, str], *, zookeeper: str | None = None
) -> Generator[list[BrokerProcess]]:
    """Run three brokers; ``properties`` are those of the store and the topics."""
    hosts, slash, node = (zookeeper or "").partition("/")
    with ExitStack() as stack:
        commands = stack.enter_context(ForkedCommands(folder, _MODULES))
        brokers: list[BrokerProcess] = []
        for number in range(3):
            to_store = stack.enter_context(CutProxy(urlsplit(server.endpoint_url).netloc))
            links, own = [to_store], {**properties, "storage.s3.endpoint.url": f"http://{to_store.address}"}
            if zookeeper is not None:
                links.append(stack.enter_context(CutProxy(hosts)))
                own["pubsub.broker.coordinator"] = "zookeeper"
                own["pubsub.broker.zookeeper.connect"] = f"{links[-1].address}{slash}{node}"
            brokers.append(BrokerProcess(commands, folder, number, own, links))
        try:
            for broker in brokers:
                broker.start()
            yield brokers
        finally:
            for broker in brokers:
                broker.recover()  # a suspended process cannot be waited for
                broker.kill()
