"""MinIO, which scripts/servers.py builds from its Go module."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from tests.support.servers.probe import answers
from tests.support.servers.process import Launch, free_port, installed_server, running
from tests.support.servers.s3_server import S3Server

ACCESS_KEY = "minio-tests"
SECRET_KEY = "minio-tests-secret"


@contextmanager
def start_minio() -> Generator[S3Server, None, None]:
    """Run a fresh server (under a second to be ready); kill it at the end of the block."""
    chosen: list[int] = []

    def prepare(folder: Path) -> Launch:
        port = free_port()
        chosen.append(port)
        command: list[str | Path] = [
            installed_server("minio"),
            "server",
            folder,
            "--address",
            f"127.0.0.1:{port}",
            "--quiet",
        ]
        environment = {
            "MINIO_ROOT_USER": ACCESS_KEY,
            "MINIO_ROOT_PASSWORD": SECRET_KEY,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            # Allows data on the machine's root disk, which MinIO otherwise refuses.
            "MINIO_CI_CD": "1",
            "HOME": str(folder.parent),
        }
        return Launch(command, lambda: _is_ready(port), environment)

    with running("minio", prepare) as process:
        yield S3Server("minio", f"http://127.0.0.1:{chosen[-1]}", ACCESS_KEY, SECRET_KEY, process.kill, process)


def _is_ready(port: int) -> bool:
    """Return True if it serves client requests: it listens and reports alive before it has loaded its data."""
    if not answers(port, "/minio/health/cluster"):
        return False
    server = S3Server("minio", f"http://127.0.0.1:{port}", ACCESS_KEY, SECRET_KEY, lambda: None)
    with contextlib.suppress(BotoCoreError, ClientError), contextlib.closing(server.plain) as client:
        client.list_buckets()
        return True
    return False
