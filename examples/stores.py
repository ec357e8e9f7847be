"""Local object stores for the demo: a folder, or an S3 server that runs while it is used."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

FILESYSTEM = """\
storage.backend.class=io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage
storage.root=store
"""
S3 = """\
storage.backend.class=io.aiven.kafka.tieredstorage.storage.s3.S3Storage
storage.s3.bucket.name={bucket}
storage.s3.region={region}
storage.s3.endpoint.url={endpoint}
storage.s3.compatibility=s3-compatible
storage.aws.access.key.id={access_key}
storage.aws.secret.access.key={secret_key}
key.prefix=kafka/
"""


@contextlib.contextmanager
def filesystem(folder: Path) -> Generator[str, None, None]:
    """Yield the settings of an empty folder below ``folder``."""
    (folder / "store").mkdir()
    yield FILESYSTEM


@contextlib.contextmanager
def s3(folder: Path) -> Generator[str, None, None]:
    """Yield the settings of an empty bucket of a local SeaweedFS, which runs during the block."""
    del folder  # the server uses a separate temporary folder
    # The server of the tests. Only this function needs it, and the `servers` extra.
    from tests.support.servers.s3_server import REGION  # noqa: PLC0415
    from tests.support.servers.seaweedfs import start_seaweedfs  # noqa: PLC0415

    with start_seaweedfs() as server:
        print(f"a SeaweedFS server runs at {server.endpoint_url}\n", flush=True)
        yield S3.format(
            bucket=server.make_bucket(),
            region=REGION,
            endpoint=server.endpoint_url,
            access_key=server.access_key,
            secret_key=server.secret_key,
        )


STORES = {"filesystem": filesystem, "s3": s3}
"""Context managers by name: each opens a store and yields its settings."""
