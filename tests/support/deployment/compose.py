"""The services of examples/compose as local processes: the same programs and arguments, on the loopback interface."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from botocore.exceptions import ClientError, EndpointConnectionError

from tests.support.cli.cli_process import command, environment
from tests.support.deployment.dashboards import YAML
from tests.support.paths import REPOSITORY
from tests.support.servers.kafka import answers as broker_answers
from tests.support.servers.kafka import java_command
from tests.support.servers.probe import answers
from tests.support.servers.process import Launch, free_port, running, script_of_environment
from tests.support.servers.s3_server import S3Server

EXAMPLE: Final = REPOSITORY / "examples" / "compose"
_BROKER: Final = """
"$@" kafka.tools.StorageTool format --cluster-id "$CLUSTER_ID" --config "$CONFIG" --ignore-formatted &&
exec "$@" kafka.Kafka "$CONFIG"
"""
# Options for the ports that ``weed mini`` opens besides S3's. Without the gRPC options, each gRPC
# port would be 10,000 above another port, and might be taken.
_PORTS: Final = (
    "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc",
    "s3.port.grpc", "admin.port", "admin.port.grpc",
)  # fmt: skip
_TOOLS: Final = {
    "/opt/kafka/bin/kafka-producer-perf-test.sh": "org.apache.kafka.tools.ProducerPerformance",
    "/opt/kafka/bin/kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
"""Java classes that Kafka's scripts start."""


def services_of(file: Path) -> dict[str, dict[str, Any]]:
    """Return the services of a file by name, each merged with the service that it extends."""
    services: dict[str, dict[str, Any]] = YAML.safe_load(file.read_text())["services"]
    for name, own in services.items():
        if extended := own.pop("extends", None):
            base = services_of(file.with_name(extended["file"]))[extended["service"]]
            merged = {**base, **own}
            merged["environment"] = {**base.get("environment", {}), **own.get("environment", {})}
            merged["volumes"] = [*base.get("volumes", ()), *own.get("volumes", ())]
            services[name] = merged
    return services


def commands_of(readme: Path) -> list[list[str]]:
    """Return the words of each command of a page's console blocks, in order."""
    return [shlex.split(line) for line in re.findall(r"^\$ (.+)$", readme.read_text(), re.MULTILINE)]


class Stack:
    """Services of a compose file. ``folder`` gets a copy of the example, with loopback addresses and real paths.

    The example uses each port number only once, so the number alone identifies a port.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._folder = folder
        for part in ("compose", "uploader", "helm/dashboards"):
            shutil.copytree(REPOSITORY / "examples" / part, folder / part)
        self.services = services_of(folder / "compose" / name)
        self._ports: dict[str, int] = {}
        self._mounts: dict[str, Path] = {}
        for service in self.services.values():
            for volume in service.get("volumes", ()):
                self._mount(*volume.split(":")[:2])
        for file in sorted((folder / "compose").glob("*/**/*.*")):
            if file.is_file():
                file.write_text(self.local(file.read_text()))
        self._running = ExitStack()

    def _mount(self, source: str, target: str) -> None:
        is_named = not source.startswith(".")
        path = self._folder / "volumes" / source if is_named else (self._folder / "compose" / source).resolve()
        assert is_named or path.is_dir(), f"{source} is not a folder of the example"
        path.mkdir(parents=True, exist_ok=True)
        self._mounts[target] = path

    def port(self, number: int | str) -> int:
        """Return the loopback port that replaces this port of the example."""
        return self._ports.setdefault(str(number), free_port())

    def local(self, text: str) -> str:
        """Return a text with the services' addresses and the containers' paths replaced by those of this machine."""
        hosts = "|".join(map(re.escape, (*self.services, "0.0.0.0")))
        text = re.sub(rf"\b(?:{hosts}):(\d+)\b", lambda found: f"127.0.0.1:{self.port(found[1])}", text)
        targets = "|".join(map(re.escape, sorted(self._mounts, key=len, reverse=True)))
        return re.sub(rf"(?<![\w/])(?:{targets})(?![\w-])", lambda found: str(self._mounts[found[0]]), text)

    def path(self, target: str) -> Path:
        """Return the folder that is mounted at a path of the containers."""
        return self._mounts[target]

    def environment(self, service: str) -> dict[str, str]:
        """Return the variables of a service."""
        return {name: self.local(value) for name, value in self.services[service].get("environment", {}).items()}

    def words(self, service: str) -> list[str]:
        """Return the command of a service."""
        return [self.local(word) for word in self.services[service]["command"]]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    def start(self, service: str) -> None:
        """Start a service; return when it is ready."""
        make: Mapping[str, Callable[[Path], Launch]] = {
            "seaweedfs": self._seaweedfs, "broker": self._broker, "uploader": self._uploader,
        }  # fmt: skip
        self._running.enter_context(running(service, make[service]))

    def _seaweedfs(self, folder: Path) -> Launch:
        keys = self.environment("seaweedfs")
        port = self.port(8333)
        server = S3Server(
            "seaweedfs",
            f"http://127.0.0.1:{port}",
            keys["AWS_ACCESS_KEY_ID"],
            keys["AWS_SECRET_ACCESS_KEY"],
            kill=self._running.close,
        )
        words = [*self.words("seaweedfs"), "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.port={port}"]
        words += ["-s3.port.iceberg=0", "-s3.port.lance=0", *(f"-{name}={free_port()}" for name in _PORTS)]
        words += [f"-{part}.localSocket={folder}/{part}.sock" for part in ("s3", "filer")]

        def is_ready() -> bool:
            try:
                server.plain.head_bucket(Bucket="logs")
            except (ClientError, EndpointConnectionError):
                return False
            return True

        return Launch([script_of_environment("weed"), *words], is_ready, keys)

    def _broker(self, folder: Path) -> Launch:
        settings = self.path("/mnt/shared/config") / "server.properties"
        variables = {**self.environment("broker"), "CONFIG": str(settings)}
        return Launch(java_command(folder, _BROKER), lambda: broker_answers(self.port(9092)), variables)

    def _uploader(self, _: Path) -> Launch:
        variables = environment(**self.environment("uploader"))
        return Launch(command(*self.words("uploader")), lambda: answers(self.port(9464), "/metrics"), variables)

    def run(self, words: Sequence[str]) -> str:
        """Run a command of the page: `docker compose exec broker SCRIPT …` or `docker compose run --rm tieredstore …`.

        Assert that the command succeeds; return its output.
        """
        service, *rest = words[words.index("exec" if "exec" in words else "run") + 1 :]
        if service == "--rm":
            service, *rest = rest
        rest = [self.local(word) for word in rest]
        if service == "broker":
            script, *rest = rest
            java: list[str | Path] = [*java_command(self._folder, 'exec "$@"'), _TOOLS[script], *rest]
        else:
            java = [*command(*rest)]
        done = subprocess.run(
            java, env={**os.environ, **environment(**self.environment(service))}, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout
