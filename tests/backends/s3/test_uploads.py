"""Uploads to S3 that are cancelled, killed or refused: no object and no parts stay."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from tests.support.network.fault_proxy import Answer, FaultProxy
from tests.support.servers.s3_server import S3Server
from tests.support.servers.seaweedfs import start_seaweedfs
from tests.support.stores.s3_stores import MIB, impatient_store, options_for, replace_part
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.errors import AccessDeniedError, PreparedGoneError, StoreUnavailableError

pytestmark = pytest.mark.server


@pytest.fixture(params=["minio", "seaweedfs"])
def server(request: pytest.FixtureRequest) -> S3Server:
    requested: S3Server = request.getfixturevalue(request.param)
    return requested


def stands(server: S3Server, bucket: str) -> tuple[list[str], list[str]]:
    """Return the keys of all objects and of all unfinished uploads."""
    objects = server.plain.list_objects_v2(Bucket=bucket).get("Contents", [])
    uploads = server.plain.list_multipart_uploads(Bucket=bucket, Prefix="object").get("Uploads", [])
    return [entry.get("Key", "") for entry in objects], [upload.get("Key", "") for upload in uploads]


class Cancelled(BaseException):
    """Raised to cancel an upload from outside. Like KeyboardInterrupt, the class does not derive from Exception."""


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt, Cancelled])
@pytest.mark.parametrize("pieces", [1, 11, 23])
def test_a_cancelled_upload_leaves_no_object_and_no_parts(
    server: S3Server, error: type[BaseException], pieces: int
) -> None:
    bucket = server.make_bucket()

    def body() -> Iterator[bytes]:
        for _ in range(pieces):
            yield bytes(MIB)
        raise error("cancelled")

    with closing(impatient_store(options_for(server, bucket))) as store, pytest.raises(error, match="cancelled"):
        store.put("object", body())
    assert stands(server, bucket) == ([], [])


def test_a_prepared_upload_whose_part_the_server_has_no_more_is_gone(minio: S3Server) -> None:
    bucket = minio.make_bucket()
    with closing(impatient_store(options_for(minio, bucket))) as store:
        prepared = store.prepare("object", b"the bytes", staging_prefix="_staging/")
        replace_part(minio, bucket, "object", prepared.place)
        with pytest.raises(PreparedGoneError):
            store.publish(prepared)
        store.discard(prepared)
    assert stands(minio, bucket) == ([], [])


@pytest.mark.parametrize("refused", ["partNumber=2", "uploadId"])
def test_a_refused_upload_leaves_no_object_and_no_parts(minio: S3Server, refused: str) -> None:
    bucket = minio.make_bucket()
    method = "PUT" if "part" in refused else "POST"
    with FaultProxy(minio.endpoint_url) as proxy:
        proxy.plan(Answer(403), method=method, path=refused, times=None)
        with (
            closing(impatient_store(options_for(minio, bucket, url=proxy.url))) as store,
            pytest.raises(AccessDeniedError),
        ):
            store.put("object", (bytes(MIB) for _ in range(17)))
    assert stands(minio, bucket) == ([], [])


def test_an_abort_that_fails_is_logged_and_does_not_hide_the_reason(
    minio: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    with FaultProxy(minio.endpoint_url) as proxy:
        proxy.plan(Answer(403), method="PUT", path="partNumber=2", times=None)
        proxy.plan(Answer(503), method="DELETE", times=None)
        options = options_for(minio, minio.make_bucket(), url=proxy.url)
        with (
            closing(impatient_store(options)) as store,
            caplog.at_level(logging.WARNING),
            pytest.raises(AccessDeniedError),
        ):
            store.put("object", (bytes(MIB) for _ in range(17)))
    assert "lifecycle" in caplog.text


def test_parts_are_sent_in_parallel_within_their_memory(minio: S3Server) -> None:
    bucket = minio.make_bucket()
    options = replace(options_for(minio, bucket), upload_parallelism=3)
    data = b"".join(bytes([number]) * MIB for number in range(42))
    before, names = set(threading.enumerate()), set[str]()

    def uploading() -> set[str]:
        return {thread.name for thread in set(threading.enumerate()) - before if "tieredstore-upload" in thread.name}

    def body() -> Iterator[bytes]:
        for at in range(0, len(data), 333_333):
            names.update(uploading())
            yield data[at : at + 333_333]

    with closing(S3ObjectStore(options)) as store:
        store.put("object", body())
        assert store.get("object") == data
    assert 2 <= len(names) <= 3
    assert uploading() == set()


def test_seaweedfs_killed_in_the_middle_of_an_upload_is_retryable() -> None:
    with start_seaweedfs() as server:
        options = replace(options_for(server, server.make_bucket()), connect_timeout_s=2)

        def body() -> Iterator[bytes]:
            for number in range(30):
                if number == 15:
                    server.kill()
                yield bytes(MIB)

        with closing(impatient_store(options)) as store:
            with pytest.raises(StoreUnavailableError):
                store.put("object", body())
            with pytest.raises(StoreUnavailableError):
                store.put("object", b"small")
