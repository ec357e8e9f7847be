"""SeaweedFS's S3 gateway with master, volume server and filer in one process."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.probe import answers
from tests.support.servers.process import Launch, free_port, running, script_of_environment
from tests.support.servers.s3_server import S3Server

ACCESS_KEY = "seaweedfs-tests"
SECRET_KEY = "seaweedfs-tests-secret"

_IDENTITIES = {
    "identities": [
        {
            "name": "tests",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
}

# Set all ports that have a default, so that two servers can run at the same time.
_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port.grpc",
)
_OPTIONS = (
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    "-s3",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-s3.autoCreateBucket=false",
    # Allow many volumes, because each bucket takes several, even if it is empty.
    "-volume.max=10000",
    "-volume.preStopSeconds=0",
    "-master.volumeSizeLimitMB=1024",
    "-master.telemetry=false",
)


@contextmanager
def start_seaweedfs() -> Generator[S3Server, None, None]:
    """Run a fresh server (about 3 s to be ready); kill it at the end of the block."""
    chosen: list[int] = []

    def prepare(folder: Path) -> Launch:
        s3_port = free_port()
        chosen.append(s3_port)
        identities = folder.with_suffix(".json")
        identities.write_text(json.dumps(_IDENTITIES))
        command: list[str | Path] = [script_of_environment("weed"), "-logtostderr=true", "server", *_OPTIONS]
        command += [f"-dir={folder}", f"-s3.port={s3_port}", f"-s3.config={identities}"]
        command += [f"-{part}.localSocket={folder}/{part}.sock" for part in ("s3", "filer")]
        command += [f"-{name}={free_port()}" for name in _PORTS]
        return Launch(command, lambda: answers(s3_port, "/status"), {})

    with running("seaweedfs", prepare) as process:
        yield S3Server("seaweedfs", f"http://127.0.0.1:{chosen[-1]}", ACCESS_KEY, SECRET_KEY, process.kill, process)
