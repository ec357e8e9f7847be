"""Stores on a faulty server, with short timeouts."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

from tests.support.faulty_server.azure import ACCOUNT, AzureService
from tests.support.faulty_server.gcs import GcsService
from tests.support.faulty_server.s3 import S3Service
from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.service import Cloud, Service
from tieredstore.backends.azure.options import AccountKey, AzureOptions
from tieredstore.backends.azure.store import AzureObjectStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.gcs.options import Anonymous, GcsOptions
from tieredstore.backends.gcs.store import GcsObjectStore
from tieredstore.backends.s3.options import AccessKeys, S3Options
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.process.retry import RetryPolicy

SERVICES: dict[Cloud, type[Service]] = {Cloud.S3: S3Service, Cloud.GCS: GcsService, Cloud.AZURE: AzureService}
PART_SIZES = {Cloud.S3: 5 << 20, Cloud.GCS: 1 << 18, Cloud.AZURE: 1 << 18}
"""Smallest part size of each cloud."""

ATTEMPTS = 2
AZURE_KEY = base64.b64encode(b"no secret").decode()


def store_on(
    server: FaultyServer,
    *,
    timeout_s: float = 60.0,
    monotonic: Callable[[], float] = time.monotonic,
    **options: Any,
) -> ObjectStore:
    """Return a store of the server's bucket that tries twice, without waiting between."""
    bucket, cloud = server.service.bucket, server.service.cloud
    retries = RetryPolicy(attempts=ATTEMPTS, timeout_s=timeout_s, monotonic=monotonic, sleep=lambda _: None)
    shared: dict[str, Any] = {
        "part_size": PART_SIZES[cloud],
        "connect_timeout_s": timeout_s,
        "read_timeout_s": timeout_s,
        **options,
    }
    if cloud is Cloud.S3:
        keys = AccessKeys("key", "secret")
        of_s3: dict[str, Any] = {"region": "us-east-1", "path_style": True, "credentials": keys, **shared}
        return S3ObjectStore(S3Options(bucket, endpoint_url=server.url, **of_s3), retries=retries)
    if cloud is Cloud.GCS:
        return GcsObjectStore(GcsOptions(bucket, Anonymous(), server.url, **shared), retries=retries)
    account = AccountKey(ACCOUNT, AZURE_KEY)
    return AzureObjectStore(AzureOptions(bucket, account, f"{server.url}/{ACCOUNT}", **shared), retries=retries)
