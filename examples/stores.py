"""Local object stores for the demo: a folder, or an S3 server that is started for it and gone when it ends."""

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
    """The settings of an empty folder below ``folder``."""
    (folder / "store").mkdir()
    yield FILESYSTEM


@contextlib.contextmanager
def s3(folder: Path) -> Generator[str, None, None]:
    """The settings of an empty bucket of a local SeaweedFS, which runs while the block does."""
    del folder  # the server's files lie in a folder of its own, and go with it
    # The server of the tests, which only this needs, out of the `servers` extra.
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
"""By name: what opens a store for the length of a block and tells its settings."""
