"""A request that reaches the store twice, for example resent by a proxy, is one write; no other write counts as
ours.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.faulty_server.gcs import GcsService
from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.service import Cloud as FaultyCloud
from tests.support.network.fault_proxy import Answer, FaultProxy, LoseAnswer, Repeat
from tests.support.records.small_segments import PLAIN, memory_settings
from tests.support.stores.clouds import Cloud, OnEveryCloud, plan, quick
from tests.support.stores.faulty_stores import PART_SIZES, store_on
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.gcs.options import Anonymous, GcsOptions
from tieredstore.backends.gcs.store import GcsObjectStore
from tieredstore.errors import PreconditionFailedError, SegmentAlreadyExistsError
from tieredstore.model import Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import build_segment

MARK = "0123456789abcdef" * 2
MARK_HEADERS = {"s3": "x-amz-meta-tieredstore-write", "azure": "x-ms-meta-tieredstore_write"}

Write = Callable[[ObjectStore, Cloud], bytes]


def small(store: ObjectStore, _: Cloud) -> bytes:
    store.put("object", b"small", if_absent=True)
    return b"small"


def large(store: ObjectStore, cloud: Cloud) -> bytes:
    # Use a body of unknown length, so that the store does not first check whether the object exists.
    store.put("object", iter([cloud.large]), if_absent=True)
    return cloud.large


def changed(store: ObjectStore, _: Cloud) -> bytes:
    store.put("object", b"first")
    etag = store.replace("object", b"changed", store.head("object").etag or "")
    assert etag == store.head("object").etag
    return b"changed"


def once(store: ObjectStore, _: Cloud) -> bytes:
    store.put_once("object", b"once", MARK)
    return b"once"


def published(store: ObjectStore, cloud: Cloud) -> bytes:
    # Google gets one small request, because the tests' Google server handles a repeated chunk differently from Google.
    content = b"published" if cloud.name == "gcs" else cloud.large
    store.publish(store.prepare("object", iter([content]), staging_prefix="staging/"))
    return content


WRITES: dict[str, Write] = {"small": small, "large": large, "replace": changed, "put_once": once, "publish": published}


class TestRepeats(OnEveryCloud):
    @pytest.mark.parametrize("name", list(WRITES))
    def test_a_write_each_of_whose_requests_comes_twice_is_one(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore, direct: ObjectStore, name: str
    ) -> None:
        if cloud.name == "gcs" and name == "large":
            pytest.skip("the tests' server of Google keeps no marks of sessions, and appends a chunk twice: see below")
        proxy.plan(Repeat(), times=None)
        expected = WRITES[name](store, cloud)
        assert direct.get("object") == expected

    @pytest.mark.parametrize("name", ["small", "replace", "put_once"])
    def test_one_request_of_all_comes_twice(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore, direct: ObjectStore, name: str
    ) -> None:
        WRITES[name](store, cloud)
        for number in range(len(proxy.seen)):
            proxy.heal()
            direct.delete(["object"])
            left = [number]

            def is_it(_method: str, _path: str, left: list[int] = left) -> bool:
                left[0] -= 1
                return left[0] == -1

            proxy.plan(Repeat(), where=is_it)
            expected = WRITES[name](store, cloud)
            assert direct.get("object") == expected

    def test_another_writers_object_is_a_conflict_whatever_it_holds(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore, direct: ObjectStore
    ) -> None:
        direct.put("object", b"small")
        proxy.plan(Repeat(), times=None)
        with pytest.raises(PreconditionFailedError):
            small(store, cloud)
        with pytest.raises(PreconditionFailedError):
            store.replace("object", b"small", "1234")
        etag = direct.head("object").etag or ""
        direct.replace("object", b"changed", etag)
        with pytest.raises(PreconditionFailedError):
            store.replace("object", b"changed", etag)

    def test_equal_content_without_a_mark_is_ours_only_after_a_lost_answer(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore, direct: ObjectStore
    ) -> None:
        if cloud.name == "gcs":
            pytest.skip("its marks are in no header")
        proxy.hidden_headers.add(MARK_HEADERS[cloud.name])
        direct.put("object", b"small")
        # The HEAD after the first refusal fails, so the store tries again. The second refusal must not be taken for the
        # lost answer of a write that succeeded.
        plan(proxy, cloud, Answer(503), "head")
        with pytest.raises(PreconditionFailedError):
            small(store, cloud)
        direct.delete(["object"])
        plan(proxy, cloud, LoseAnswer(), "single_write")
        small(store, cloud)

    def test_a_damaged_object_of_this_write_is_taken_back(
        self, cloud: Cloud, proxy: FaultProxy, direct: ObjectStore, place: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fixed = uuid.UUID(MARK)
        damages = iter([b"small" * 2])

        def between(_: float) -> None:
            for damaged in damages:
                direct.delete(["object"])
                direct.put_once("object", damaged, MARK)

        monkeypatch.setattr("uuid.uuid4", lambda: fixed)
        with closing(cloud.make(proxy.url, place, quick(sleep=between))) as store:
            plan(proxy, cloud, LoseAnswer(), "single_write")
            small(store, cloud)
        assert direct.get("object") == b"small"

    def test_a_segment_is_copied_whole_and_once(
        self, proxy: FaultProxy, store: ObjectStore, direct: ObjectStore, tmp_path: Path
    ) -> None:
        proxy.plan(Repeat(), times=None)
        segment = build_segment(tmp_path, 100_000)
        metadata = segment.to_metadata(Uuid.random(), event_timestamp_ms=1000)
        with RemoteStorageManager(memory_settings(16 * 1024, mode=dict(PLAIN)), store=store) as manager:
            manager.copy_log_segment_data(metadata, segment.files)
            with pytest.raises(SegmentAlreadyExistsError):
                manager.copy_log_segment_data(metadata, segment.files)
        endings = {info.key.rpartition(".")[2] for info in direct.list()}
        assert endings == {"log", "indexes", "rsm-manifest"}


def test_a_large_object_each_of_whose_chunks_comes_twice_is_written_to_google() -> None:
    content = bytes(range(256)) * (3 * PART_SIZES[FaultyCloud.GCS] // 256) + b"rest"
    with FaultyServer(GcsService()) as server, FaultProxy(server.url) as proxy, closing(store_on(server)) as direct:
        proxy.plan(Repeat(), times=None)
        options = GcsOptions(server.service.bucket, Anonymous(), proxy.url, part_size=PART_SIZES[FaultyCloud.GCS])
        with closing(GcsObjectStore(options, retries=quick())) as store:
            store.put("object", iter([content]), if_absent=True)
            assert direct.get("object") == content
            with pytest.raises(PreconditionFailedError):
                store.put("object", iter([content]), if_absent=True)
