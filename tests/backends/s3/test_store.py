"""The S3 store on two real servers: the whole contract."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import ClassVar

import pytest

from tests.support.servers.s3_server import S3Server
from tests.support.stores.s3_stores import MIB, impatient_store, options_for
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.s3.options import Compatibility
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.testing.object_store_tests import ObjectStoreTests


class S3StoreTests(ObjectStoreTests):
    """``ObjectStoreTests`` on the server of the subclass's fixture ``server``."""

    compatibility: ClassVar = Compatibility.S3_COMPATIBLE
    listed_objects = 25

    @pytest.fixture
    def store(self, server: S3Server) -> Iterator[ObjectStore]:
        options = options_for(server, server.make_bucket(), compatibility=self.compatibility)
        with closing(S3ObjectStore(replace(options, page_size=10))) as store:
            yield store


class TestMinio(S3StoreTests):
    compatibility = Compatibility.AWS

    @pytest.fixture
    def server(self, minio: S3Server) -> S3Server:
        return minio


class TestMinioAsS3Compatible(TestMinio):
    compatibility = Compatibility.S3_COMPATIBLE
    race_rounds = 3


class TestSeaweedfsAsS3Compatible(S3StoreTests):
    # On this server a round of racing writers takes about 2 s. The server may accept two uploads to one key.
    race_rounds = 3
    racing_publishers = 1

    @pytest.fixture
    def server(self, seaweedfs: S3Server) -> S3Server:
        return seaweedfs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["minio", "seaweedfs"])
@pytest.mark.parametrize("count", [1_010, pytest.param(2_500, marks=pytest.mark.soak)])
def test_pages_and_deletions_have_the_sizes_of_s3(name: str, count: int, request: pytest.FixtureRequest) -> None:
    server: S3Server = request.getfixturevalue(name)
    keys = [f"folder{number % 3}/{number:05}" for number in range(count)]
    options = options_for(server, server.make_bucket(), compatibility=Compatibility.S3_COMPATIBLE)
    with closing(impatient_store(options)) as store:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(key, b"x"), keys))
        in_order = sorted(keys)
        assert [info.key for info in store.list("folder")] == in_order
        assert [info.key for info in store.list("folder", in_order[500])] == in_order[501:]
        store.delete(info.key for info in store.list("folder"))
        assert list(store.list()) == []


def test_seaweedfs_checks_the_checksums_of_aws_too(seaweedfs: S3Server) -> None:
    options = options_for(seaweedfs, seaweedfs.make_bucket(), compatibility=Compatibility.AWS)
    with closing(impatient_store(options)) as store:
        for size in (0, 1, MIB, 12 * MIB):
            body = b"".join(bytes([number % 251]) * 1000 for number in range(-(-size // 1000)))[:size]
            store.put("object", (body[at : at + 99_999] for at in range(0, size, 99_999)))
            assert store.get("object") == body
        assert store.replace("object", b"new", store.head("object").etag or "")
        store.delete(["object"])
        assert list(store.list()) == []
