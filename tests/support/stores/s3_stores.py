"""S3 stores on the tests' servers."""

from __future__ import annotations

import base64

from crc32c import crc32c

from tests.support.servers.s3_server import REGION, S3Server
from tieredstore.backends.s3.options import AccessKeys, Compatibility, S3Options
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.process.retry import RetryPolicy

MIB = 1 << 20

IMPATIENT = RetryPolicy(attempts=3, base_delay_s=0.001, max_delay_s=0.01, timeout_s=30)
"""Retries for tests of failures: the usual back-off, a hundred times faster."""


def options_for(
    server: S3Server, bucket: str, *, url: str | None = None, compatibility: Compatibility = Compatibility.AWS
) -> S3Options:
    """Return options for a bucket of ``server``; ``url`` is that of a proxy before the server."""
    return S3Options(
        bucket,
        region=REGION,
        endpoint_url=url or server.endpoint_url,
        path_style=True,
        compatibility=compatibility,
        credentials=AccessKeys(server.access_key, server.secret_key),
        part_size=5 * MIB,
    )


def impatient_store(options: S3Options) -> S3ObjectStore:
    """Return a store that gives up after three quick tries."""
    return S3ObjectStore(options, retries=IMPATIENT)


def replace_part(server: S3Server, bucket: str, key: str, upload_id: str) -> None:
    """Replace the first part of an uncompleted upload, so that the server no longer has the store's own part."""
    body = b"another part"
    checksum = base64.b64encode(crc32c(body).to_bytes(4, "big")).decode()
    server.plain.upload_part(
        Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=1, Body=body, ChecksumCRC32C=checksum
    )
