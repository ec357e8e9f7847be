"""What the S3 store does when the network or the server fails: throttling, refusals, cut connections, lost answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import pytest

from tests.support.network.fault_proxy import Answer, CutRequest, CutResponse, FaultProxy, LoseAnswer, Stall, Trickle
from tests.support.servers.s3_server import S3Server
from tests.support.stores.s3_stores import MIB, impatient_store, options_for
from tieredstore.backends.s3.options import AccessKeys
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.errors import AccessDenied, PreconditionFailed, StoreError, StoreUnavailable

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


@dataclass
class Faulty:
    """A store behind a fault proxy, and the same bucket by other means."""

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
    """A body of ``parts`` parts, the last one short."""
    for number in range(parts * 5 - 2):
        yield bytes([number]) * MIB


LARGE = b"".join(large())


# Throttling


def test_a_throttled_part_is_sent_again_whole(faulty: Faulty) -> None:
    faulty.proxy.plan(Answer(503, SLOW_DOWN), method="PUT", path="partNumber=2", times=2)
    faulty.store.put("object", large())
    assert faulty.content("object") == LARGE
    assert faulty.proxy.count("PUT", "partNumber=2") == 3


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
            with pytest.raises(AccessDenied) as caught:
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


# Cut connections


@pytest.mark.parametrize("after", [0, 1000, MIB])
def test_an_upload_that_is_cut_is_sent_again(faulty: Faulty, after: int) -> None:
    faulty.proxy.plan(CutRequest(after), method="PUT")
    faulty.store.put("object", LARGE[: 2 * MIB])
    assert faulty.content("object") == LARGE[: 2 * MIB]


@pytest.mark.parametrize("after", [0, 1, 1000, MIB + 1])
def test_a_download_that_is_cut_is_asked_for_again(faulty: Faulty, after: int) -> None:
    faulty.store.put("object", LARGE[: 2 * MIB])
    faulty.proxy.plan(CutResponse(after), method="GET")
    assert faulty.store.get("object") == LARGE[: 2 * MIB]
    faulty.proxy.plan(CutResponse(after), method="GET")
    assert faulty.store.get("object", 7, MIB + 1007) == LARGE[7 : MIB + 1007]
    faulty.proxy.plan(CutResponse(after), method="GET")
    buffer = bytearray(MIB + 1000)
    faulty.store.get_into("object", 7, buffer)
    assert buffer == LARGE[7 : MIB + 1007]
    assert faulty.proxy.count("GET") == 6


def test_a_damaged_part_is_not_stored(faulty: Faulty) -> None:
    damaged = b"<Error><Code>XAmzContentChecksumMismatch</Code></Error>"
    faulty.proxy.plan(Answer(400, damaged), method="PUT", path="partNumber=1")
    faulty.store.put("object", large())
    assert faulty.content("object") == LARGE


# Time


def test_a_server_that_does_not_answer_is_given_up(minio: S3Server) -> None:
    bucket = minio.make_bucket()
    with FaultProxy(minio.endpoint_url) as proxy:
        proxy.plan(Stall(60), times=None)
        options = replace(options_for(minio, bucket, url=proxy.url), read_timeout_s=0.2)
        with closing(impatient_store(options)) as store, pytest.raises(StoreUnavailable):
            store.head("object")
        assert proxy.count("HEAD") <= 3


@pytest.mark.parametrize("limits", [(0.5, None), (300.0, 0.5)], ids=["call", "attempt"])
def test_a_server_that_sends_a_byte_now_and_then_does_not_outlive_the_deadline(
    minio: S3Server, limits: tuple[float, float | None]
) -> None:
    bucket = minio.make_bucket()
    minio.plain.put_object(Bucket=bucket, Key="object", Body=bytes(10_000))
    with FaultProxy(minio.endpoint_url) as proxy:
        proxy.plan(Trickle(1, 0.02), times=None)
        options = options_for(minio, bucket, url=proxy.url)
        options = replace(options, attempts=2, call_timeout_s=limits[0], attempt_timeout_s=limits[1])
        with closing(S3ObjectStore(options)) as store:
            with pytest.raises(StoreUnavailable, match="deadline"):
                store.get("object")
            with pytest.raises(StoreUnavailable, match="deadline"):
                store.get_into("object", 0, bytearray(10_000))


# Lost answers


@pytest.mark.parametrize("if_absent", [True, False])
@pytest.mark.parametrize("operation", ["uploads", "partNumber=2", "uploadId"])
def test_a_multipart_upload_survives_each_lost_answer(faulty: Faulty, operation: str, if_absent: bool) -> None:
    method = "PUT" if "part" in operation else "POST"
    faulty.proxy.plan(LoseAnswer(), method=method, path=operation)
    faulty.store.put("object", large(), if_absent=if_absent)
    assert faulty.content("object") == LARGE
    if operation != "uploads":
        # The id of an upload whose very first answer was lost is known to nobody: it holds no parts.
        assert faulty.uploads() == []


def test_a_completion_that_lost_its_race_leaves_no_parts(faulty: Faulty) -> None:
    def body() -> Iterator[bytes]:
        yield from large()
        faulty.server.plain.put_object(Bucket=faulty.bucket, Key="object", Body=b"the other's")

    with pytest.raises(PreconditionFailed):
        faulty.store.put("object", body(), if_absent=True)
    assert faulty.content("object") == b"the other's"
    assert faulty.uploads() == []


def test_an_upload_that_somebody_aborted_is_retryable_and_not_there(faulty: Faulty) -> None:
    def body() -> Iterator[bytes]:
        yield from large(4)
        for upload in faulty.uploads():
            faulty.server.plain.abort_multipart_upload(Bucket=faulty.bucket, Key="object", UploadId=upload)

    with pytest.raises(StoreUnavailable):
        faulty.store.put("object", body())
    assert faulty.keys() == []
