"""Google's store on its emulator: the contract, and behaviour that only Google has."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote

import google_crc32c
import pytest
import urllib3

from tests.support.network.fault_proxy import Answer, FaultProxy, LoseAnswer
from tests.support.servers.fake_gcs import GcsServer
from tests.support.stores.clouds import LARGE, PART, make_gcs
from tests.support.waiting import wait_until
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.gcs.options import Anonymous, GcsOptions
from tieredstore.backends.gcs.store import GcsObjectStore
from tieredstore.config import settings_from
from tieredstore.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    StoreUnavailableError,
)
from tieredstore.testing.object_store_tests import ObjectStoreTests
from tieredstore.testing.object_store_writes import WriteTests


class TestGcsObjectStore(ObjectStoreTests):
    listed_objects = 25
    # Only one publisher at a time, because the emulator ignores the condition of a copy.
    racing_publishers = 1

    @pytest.fixture
    def store(self, fake_gcs: GcsServer) -> Iterator[ObjectStore]:
        options = GcsOptions(fake_gcs.make_bucket(), Anonymous(), fake_gcs.endpoint_url, page_size=10)
        with closing(GcsObjectStore(options)) as store, urllib3.PoolManager() as self.pool:
            yield store

    def raw_put(self, store: ObjectStore, key: str, data: bytes) -> None:
        assert isinstance(store, GcsObjectStore)
        where = f"{store.options.endpoint_url}/upload/storage/v1/b/{store.options.bucket}/o"
        url = f"{where}?uploadType=media&name={quote(key, safe='')}"
        assert self.pool.request("POST", url, body=data).status == 200

    def raw_get(self, store: ObjectStore, key: str) -> bytes:
        assert isinstance(store, GcsObjectStore)
        url = f"{store.options.endpoint_url}/{store.options.bucket}/{quote(key, safe='')}"
        return self.pool.request("GET", url).data


class TestGcsInSmallChunks(WriteTests):
    @pytest.fixture
    def store(self, fake_gcs: GcsServer) -> Iterator[ObjectStore]:
        with closing(make_gcs(fake_gcs.endpoint_url, fake_gcs.make_bucket())) as store:
            yield store


@pytest.fixture
def bucket(fake_gcs: GcsServer) -> str:
    return fake_gcs.make_bucket()


@pytest.fixture
def proxy(fake_gcs: GcsServer) -> Iterator[FaultProxy]:
    with FaultProxy(fake_gcs.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: FaultProxy, bucket: str) -> Iterator[GcsObjectStore]:
    with closing(make_gcs(proxy.url, bucket)) as store:
        yield store


def test_a_failed_upload_is_cancelled_at_the_server(proxy: FaultProxy, store: GcsObjectStore) -> None:
    def body() -> Iterator[bytes]:
        yield LARGE
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put("object", body())
    wait_until(lambda: proxy.count("DELETE", "upload_id=") == 1)
    assert list(store.list()) == []


def test_an_upload_that_cannot_be_cancelled_fails_for_its_own_reason(proxy: FaultProxy, store: GcsObjectStore) -> None:
    proxy.plan(Answer(403), method="PUT", path="upload_id=")
    proxy.plan(Answer(503), method="DELETE", times=None)
    with pytest.raises(StoreError, match="status 403"):
        store.put("object", LARGE)


def test_conditions_go_to_the_server(proxy: FaultProxy, store: GcsObjectStore) -> None:
    store.put("small", b"x", if_absent=True)
    store.put("large", LARGE, if_absent=True)
    etag = store.head("large").etag
    assert etag is not None
    store.replace("large", LARGE, etag)

    def conditions() -> list[str]:
        seen = [each.path.partition("ifGenerationMatch=")[2].partition("&")[0] for each in proxy.seen]
        return [condition for condition in seen if condition]

    wait_until(lambda: conditions() == ["0", "0", etag])


def test_a_large_write_that_the_server_refuses_at_its_end_is_a_conflict(
    proxy: FaultProxy, store: GcsObjectStore
) -> None:
    left = [3]

    def is_last(method: str, path: str) -> bool:
        left[0] -= method == "PUT"
        return left[0] < 0

    proxy.plan(Answer(412), where=is_last)
    with pytest.raises(PreconditionFailedError):
        store.put("object", LARGE, if_absent=True)
    with pytest.raises(ObjectNotFoundError):
        store.head("object")


def test_a_server_that_keeps_a_chunk_twice_is_found_out(proxy: FaultProxy, store: GcsObjectStore) -> None:
    # The emulator stores the repeated chunk twice; Google's service would skip the bytes that it has.
    proxy.plan(LoseAnswer(), method="PUT", path="upload_id=")
    with pytest.raises(StoreUnavailableError, match="damaged"):
        store.put("object", LARGE)
    assert list(store.list()) == []


def test_a_chunk_of_which_the_server_took_a_part_is_continued_from_there(
    proxy: FaultProxy, store: GcsObjectStore
) -> None:
    persisted_ranges = ["bytes=0-999", None, f"bytes=0-{PART - 1}", f"bytes=0-{2 * PART - 1}"]
    for persisted in persisted_ranges:
        headers = {} if persisted is None else {"Range": persisted}
        # None, which stands for no bytes, is not a valid answer after some progress.
        proxy.plan(Answer(308, headers=headers), method="PUT", path="upload_id=")
    with pytest.raises(StoreError, match="the server holds None"):
        store.put("object", LARGE)
    ranges = [seen.headers["Content-Range"] for seen in proxy.seen if seen.method == "PUT"]
    assert ranges == [f"bytes 0-{PART - 1}/*", f"bytes 1000-{PART - 1}/*"]
    proxy.heal()

    before = len(proxy.seen)
    body = b"x" * (2 * PART)
    answers = [f"bytes=0-{PART - 1}", f"bytes=0-{PART + 4}", f"bytes=0-{2 * PART - 1}"]
    for persisted in answers:
        proxy.plan(Answer(308, headers={"Range": persisted}), method="PUT", path="upload_id=")
    described = {"generation": "5", "size": str(len(body)), "crc32c": crc_of(body)}
    proxy.plan(Answer(200, json.dumps(described).encode()), method="PUT", path="upload_id=")
    store.put("object", body)
    ranges = [seen.headers["Content-Range"] for seen in proxy.seen[before:] if seen.method == "PUT"]
    total = 2 * PART
    assert ranges == [
        f"bytes 0-{PART - 1}/*",
        f"bytes {PART}-{total - 1}/{total}",
        f"bytes {PART + 5}-{total - 1}/{total}",
        f"bytes */{total}",
    ]


def crc_of(data: bytes) -> str:
    # Use a CRC implementation other than the store's.
    untyped: Any = google_crc32c
    return base64.b64encode(untyped.Checksum(data).digest()).decode()


@pytest.mark.parametrize("status", [404, 410])
def test_an_upload_that_the_server_has_forgotten_may_be_tried_again(
    proxy: FaultProxy, store: GcsObjectStore, status: int
) -> None:
    proxy.plan(Answer(status), method="PUT", path="upload_id=")
    with pytest.raises(StoreUnavailableError, match="forgotten"):
        store.put("object", LARGE)


@pytest.mark.parametrize("persisted", ["bytes=0-9999999", "bytes=5-10", "nonsense", "bytes=0--1"])
def test_a_server_that_claims_to_hold_what_was_not_sent_is_an_error(
    proxy: FaultProxy, store: GcsObjectStore, persisted: str
) -> None:
    proxy.plan(Answer(308, headers={"Range": persisted}), method="PUT", path="upload_id=")
    with pytest.raises(StoreError, match="the server holds"):
        store.put("object", LARGE)


@pytest.mark.parametrize("body", [b"small", LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"{}", b'{"generation": "x", "size": "1", "crc32c": ""}', b"\xff", b"null"]
)
def test_an_answer_that_describes_no_object_is_an_error(
    proxy: FaultProxy, store: GcsObjectStore, body: bytes, answer: bytes
) -> None:
    path = "uploadType=multipart" if body == b"small" else "upload_id="
    proxy.plan(Answer(200, answer), path=path)
    with pytest.raises(StoreError):
        store.put("object", body)


def test_an_object_that_the_server_stored_otherwise_is_not_accepted(proxy: FaultProxy, store: GcsObjectStore) -> None:
    for wrong in ({"size": "4", "crc32c": crc_of(b"small")}, {"size": "5", "crc32c": crc_of(b"smell")}):
        proxy.plan(Answer(200, json.dumps({"generation": "5", **wrong}).encode()), path="multipart", times=3)
        with pytest.raises(StoreUnavailableError, match="damaged"):
            store.put("object", b"small")


def test_throttling_that_looks_like_a_denial_is_tried_again(proxy: FaultProxy, store: GcsObjectStore) -> None:
    throttled = {"error": {"code": 403, "message": "slow", "errors": [{"reason": "userRateLimitExceeded"}]}}
    store.put("object", b"x")
    proxy.plan(Answer(403, json.dumps(throttled).encode(), {"Content-Type": "application/json"}), times=2)
    assert store.get("object") == b"x"


def test_uploads_stay_at_the_endpoint_that_was_set(proxy: FaultProxy, store: GcsObjectStore) -> None:
    # The server is configured to return its own address, not the proxy's, for the upload session.
    store.put("object", LARGE)
    wait_until(lambda: proxy.count("PUT", "upload_id=") == 4)


def test_settings_make_the_store(fake_gcs: GcsServer, bucket: str) -> None:
    settings = settings_from(
        {
            "storage.backend.class": "io.aiven.kafka.tieredstorage.storage.gcs.GcsStorage",
            "chunk.size": "4194304",
            "storage.gcs.bucket.name": bucket,
            "storage.gcs.endpoint.url": fake_gcs.endpoint_url,
            "storage.gcs.credentials.default": "false",
            "storage.gcs.resumable.upload.chunk.size": "524288",
        }
    )
    with closing(GcsObjectStore.from_settings(settings)) as store:
        store.put("object", b"data")
        assert store.get("object") == b"data"
        assert store.options.part_size == 524288
        assert store.identity == f"{fake_gcs.endpoint_url}/{bucket}"
