"""Faults specific to S3: keys, an absent bucket of SeaweedFS, and the three requests of a multipart upload."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import pytest

from tests.support.network.fault_proxy import Answer, FaultProxy, LoseAnswer
from tests.support.servers.s3_server import S3Server
from tests.support.stores.s3_stores import MIB, impatient_store, options_for
from tieredstore.backends.s3.options import AccessKeys
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.errors import AccessDeniedError, PreconditionFailedError, StoreError, StoreUnavailableError


@dataclass
class Faulty:
    """A store that uses a fault proxy, and direct access to the same bucket."""

    store: S3ObjectStore
    proxy: FaultProxy
    server: S3Server
    bucket: str

    def content(self, key: str) -> bytes:
        return self.server.plain.get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def keys(self) -> list[str]:
        return [
            entry.get("Key", "") for entry in self.server.plain.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        ]

    def uploads(self) -> list[str]:
        listed = self.server.plain.list_multipart_uploads(Bucket=self.bucket, Prefix="object").get("Uploads", [])
        return [upload.get("UploadId", "") for upload in listed]


@pytest.fixture
def faulty(minio: S3Server) -> Iterator[Faulty]:
    bucket = minio.make_bucket()
    with (
        FaultProxy(minio.endpoint_url) as proxy,
        closing(impatient_store(options_for(minio, bucket, url=proxy.url))) as store,
    ):
        yield Faulty(store, proxy, minio, bucket)


def large(parts: int = 3) -> Iterator[bytes]:
    """Yield a body of ``parts`` parts, the last one short."""
    for number in range(parts * 5 - 2):
        yield bytes([number]) * MIB


LARGE = b"".join(large())


# Refusals


@pytest.mark.parametrize(
    "keys", [AccessKeys("minio-tests", "not the secret"), AccessKeys("nobody", "nothing")], ids=["secret", "key"]
)
def test_wrong_keys_are_refused_by_the_server(minio: S3Server, keys: AccessKeys) -> None:
    options = replace(options_for(minio, minio.make_bucket()), credentials=keys)
    with closing(impatient_store(options)) as store:
        for attempt in (
            lambda: store.put("object", b"data"),
            lambda: store.put("object", large()),
            lambda: store.get("object"),
            lambda: store.head("object"),
            lambda: list(store.list()),
            lambda: store.delete(["object"]),
        ):
            with pytest.raises(AccessDeniedError) as caught:
                attempt()
            assert keys.secret not in str(caught.value)


def test_an_absent_bucket_of_seaweedfs_is_not_an_absent_object(seaweedfs: S3Server) -> None:
    with closing(impatient_store(options_for(seaweedfs, "no-such-bucket"))) as store:
        for attempt in (
            lambda: store.put("object", b"data"),
            lambda: store.put("object", b"data", if_absent=True),
            lambda: store.put("object", large()),
            lambda: store.get("object"),
            lambda: store.head("object"),
            lambda: list(store.list()),
            lambda: store.delete(["object"]),
        ):
            with pytest.raises(StoreError, match="bucket") as caught:
                attempt()
            assert type(caught.value) is StoreError
            assert not caught.value.retryable


def test_a_damaged_part_is_not_stored(faulty: Faulty) -> None:
    damaged = b"<Error><Code>XAmzContentChecksumMismatch</Code></Error>"
    faulty.proxy.plan(Answer(400, damaged), method="PUT", path="partNumber=1")
    faulty.store.put("object", large())
    assert faulty.content("object") == LARGE


# Lost answers


@pytest.mark.parametrize("if_absent", [True, False])
@pytest.mark.parametrize("operation", ["uploads", "partNumber=2", "uploadId"])
def test_a_multipart_upload_survives_each_lost_answer(faulty: Faulty, operation: str, if_absent: bool) -> None:
    method = "PUT" if "part" in operation else "POST"
    faulty.proxy.plan(LoseAnswer(), method=method, path=operation)
    faulty.store.put("object", large(), if_absent=if_absent)
    assert faulty.content("object") == LARGE
    if operation != "uploads":
        # Skip ``uploads``, because if its answer is lost, no client knows the upload's id, so the upload stays.
        assert faulty.uploads() == []


def test_a_completion_that_lost_its_race_leaves_no_parts(faulty: Faulty) -> None:
    def body() -> Iterator[bytes]:
        yield from large()
        faulty.server.plain.put_object(Bucket=faulty.bucket, Key="object", Body=b"the other's")

    with pytest.raises(PreconditionFailedError):
        faulty.store.put("object", body(), if_absent=True)
    assert faulty.content("object") == b"the other's"
    assert faulty.uploads() == []


def test_an_upload_that_somebody_aborted_is_retryable_and_not_there(faulty: Faulty) -> None:
    def body() -> Iterator[bytes]:
        yield from large(4)
        for upload in faulty.uploads():
            faulty.server.plain.abort_multipart_upload(Bucket=faulty.bucket, Key="object", UploadId=upload)

    with pytest.raises(StoreUnavailableError):
        faulty.store.put("object", body())
    assert faulty.keys() == []
