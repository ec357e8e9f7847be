"""``get_small`` returns an object up to a size. For a larger object it returns None, and does not read the object.

Manifests are read by ``get_small``.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.support.network.loopback_server import LoopbackServer, RunningServer
from tests.support.records.small_segments import new_metadata, write_segment
from tests.support.servers.s3_server import S3Server
from tests.support.stores.doubles import CountingStore
from tests.support.stores.s3_stores import impatient_store, options_for
from tieredstore import metrics
from tieredstore.backends.azure.options import AccountKey, AzureOptions
from tieredstore.backends.azure.store import AzureObjectStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.gcs.options import Anonymous, GcsOptions
from tieredstore.backends.gcs.store import GcsObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.backends.s3.options import AccessKeys, S3Options
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.backends.wrappers.stack import LimitedStore, MeteredStore, TokenBucket
from tieredstore.config import settings_from
from tieredstore.errors import ManifestCorruptError
from tieredstore.format.keys import Suffix
from tieredstore.model import IndexType
from tieredstore.process.retry import RetryPolicy
from tieredstore.remote import RemoteStorageManager

GIB = 1 << 30


def test_wrappers_hand_the_bound_on() -> None:
    inner = MemoryObjectStore()
    inner.put("object", b"12345")
    for store in (MeteredStore(inner), LimitedStore(inner, down=TokenBucket(1 << 20)), CountingStore(inner)):
        assert store.get_small("object", 5) == b"12345"
        assert store.get_small("object", 4) is None


def test_with_checksums_checked_an_answer_that_is_not_read_does_no_harm(minio: S3Server) -> None:
    checked = replace(options_for(minio, minio.make_bucket()), checksum_check=True)
    with closing(impatient_store(checked)) as store:
        store.put("object", b"12345")
        assert store.get_small("object", 4) is None
        assert store.get_small("object", 5) == b"12345"


def test_what_is_too_large_counts_as_a_call_but_not_as_bytes() -> None:
    store = MeteredStore(MemoryObjectStore(), "small-reads")
    store.put("object", b"12345")

    def counted(name: str, **labels: str) -> float:
        return metrics.REGISTRY.get_sample_value(name, {"store": "small-reads", **labels}) or 0

    for most, expected, calls, size in ((4, None, 1, 0), (5, b"12345", 2, 5)):
        assert store.get_small("object", most) == expected
        assert counted("tieredstore_store_request_seconds_count", operation="get") == calls
        assert counted("tieredstore_store_bytes_total", how="down") == size


# A server whose every object has 1 GiB


class _Endless(LoopbackServer):
    """A server that answers every GET with 1 GiB. ``sent`` is the number of bytes that clients took."""

    def __init__(self) -> None:
        self.sent = 0
        self.requests = 0
        super().__init__(_GibHandler)


class _GibHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        server = self.server
        if not isinstance(server, _Endless):
            raise TypeError(server)
        server.requests += 1
        self.send_response(200)
        for name, value in (
            *(("Content-Length", str(GIB)), ("ETag", '"etag"'), ("X-Goog-Generation", "1")),
            *(("Last-Modified", "Sat, 21 Nov 2026 00:00:00 GMT"),),
            *(("x-ms-blob-type", "BlockBlob"), ("Content-Type", "application/octet-stream")),
        ):
            self.send_header(name, value)
        self.end_headers()
        piece = bytes(1 << 16)
        try:
            while server.sent < GIB:
                self.wfile.write(piece)
                server.sent += len(piece)
        except OSError:
            self.close_connection = True


@contextmanager
def endless() -> Generator[tuple[_Endless, str]]:
    server = _Endless()
    with RunningServer(server):
        yield server, f"http://127.0.0.1:{server.port}"


QUICK = RetryPolicy(attempts=2, base_delay_s=0, timeout_s=30)


def s3_at(url: str) -> S3ObjectStore:
    options = S3Options("b", region="r", endpoint_url=url, path_style=True, credentials=AccessKeys("k", "s"))
    return S3ObjectStore(options, retries=QUICK)


def gcs_at(url: str) -> GcsObjectStore:
    return GcsObjectStore(GcsOptions("b", Anonymous(), url), retries=QUICK)


def azure_at(url: str) -> AzureObjectStore:
    return AzureObjectStore(AzureOptions("c", AccountKey("a", "a2V5"), f"{url}/a"), retries=QUICK)


@pytest.mark.parametrize("make", [s3_at, gcs_at, azure_at])
def test_of_a_gibibyte_only_what_the_network_had_under_way_comes(make: Callable[[str], ObjectStore]) -> None:
    with endless() as (server, url):
        with closing(make(url)) as store:
            assert store.get_small("object", 16 << 20) is None
        # The store sends one request, and does not read the whole answer: only the sockets' buffers fill, with a few
        # MiB.
        assert server.requests == 1
    assert server.sent < 64 << 20


def test_a_manifest_of_a_gibibyte_is_damaged_and_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    files, metadata = write_segment(tmp_path, b"log"), new_metadata(3)
    settings = settings_from(
        {"storage.backend.class": "filesystem", "storage.root": str(folder), "chunk.size": "4194304"}
    )
    with RemoteStorageManager(settings) as manager:
        manager.copy_log_segment_data(metadata, files)
        (manifest,) = folder.rglob(f"*.{Suffix.MANIFEST.value}")
        with manifest.open("r+b") as opened:
            opened.truncate(GIB)
        tracemalloc.start()
        try:
            with pytest.raises(ManifestCorruptError, match="more than 16777216 bytes"):
                manager.fetch_index(metadata, IndexType.OFFSET)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1 << 20
