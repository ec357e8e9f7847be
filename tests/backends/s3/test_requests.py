"""Requests of the S3 store: checksums, storage class, its own retries only; and parsing of the answers."""

from __future__ import annotations

import base64
import hashlib
import os
import pickle
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from tests.support.network.fault_proxy import Answer, FaultProxy, Seen
from tests.support.servers.s3_server import S3Server
from tests.support.stores.s3_stores import MIB, impatient_store, options_for
from tieredstore.backends.cloud.errors import NotSupportedError, PartsGoneError
from tieredstore.backends.s3.errors import class_for, error_of
from tieredstore.backends.s3.options import Compatibility, ListingOrder
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.errors import (
    AccessDeniedError,
    InvalidKeyError,
    ObjectArchivedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RangeNotSatisfiableError,
    StoreError,
    StoreThrottledError,
    StoreUnavailableError,
    TieredStoreError,
)


@pytest.fixture
def proxy(minio: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(minio.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def bucket(minio: S3Server) -> str:
    return minio.make_bucket()


def bodies(proxy: FaultProxy) -> list[Seen]:
    return [seen for seen in proxy.seen if seen.method == "PUT" and "/object" in seen.path]


def header(seen: Seen, name: str) -> str | None:
    return {key.lower(): value for key, value in seen.headers.items()}.get(name)


# Requests


def test_every_body_has_a_crc_32c_for_aws(minio: S3Server, proxy: FaultProxy, bucket: str) -> None:
    with closing(impatient_store(options_for(minio, bucket, url=proxy.url))) as store:
        store.put("object", b"123456789")
        store.put("object", (bytes(MIB) for _ in range(11)))
        assert store.get("object") == bytes(11 * MIB)
    assert header(bodies(proxy)[0], "x-amz-checksum-crc32c") == base64.b64encode(bytes.fromhex("e3069283")).decode()
    assert all(header(seen, "x-amz-checksum-crc32c") for seen in bodies(proxy))
    assert len(bodies(proxy)) == 4


@pytest.mark.parametrize("compatibility", list(Compatibility))
def test_a_body_that_is_not_what_was_signed_is_refused_by_the_server(
    minio: S3Server, proxy: FaultProxy, bucket: str, compatibility: Compatibility
) -> None:
    options = options_for(minio, bucket, url=proxy.url, compatibility=compatibility)
    with closing(impatient_store(options)) as store:
        proxy.damage_bodies = True
        with pytest.raises(StoreUnavailableError):
            store.put("object", b"data")
        with pytest.raises(StoreUnavailableError):
            store.put("object", (bytes(MIB) for _ in range(11)))
        proxy.damage_bodies = False
        with pytest.raises(ObjectNotFoundError):
            store.head("object")


def test_no_checksum_header_goes_to_a_compatible_server(minio: S3Server, proxy: FaultProxy, bucket: str) -> None:
    options = options_for(minio, bucket, url=proxy.url, compatibility=Compatibility.S3_COMPATIBLE)
    options = replace(options, path_style=None)
    with closing(impatient_store(options)) as store:
        store.put("object", b"data")
        store.put("object", (bytes(MIB) for _ in range(11)))
        store.replace("object", b"new", store.head("object").etag or "")
        assert store.get("object") == b"new"
    assert not [
        name for seen in proxy.seen for name in seen.headers if name.lower().startswith(("x-amz-checksum", "x-amz-sdk"))
    ]
    # Instead of a checksum, the signature covers the body.
    assert header(bodies(proxy)[0], "x-amz-content-sha256") == hashlib.sha256(b"data").hexdigest()
    # The bucket is in the path, because a host of its name would not resolve to this server.
    assert all(seen.path.startswith(f"/{bucket}") for seen in proxy.seen)


@pytest.mark.parametrize("legacy", [True, False])
def test_deletes_have_the_md5_that_old_servers_ask_for(
    minio: S3Server, proxy: FaultProxy, bucket: str, legacy: bool
) -> None:
    options = replace(options_for(minio, bucket, url=proxy.url), legacy_md5=legacy)
    with closing(impatient_store(options)) as store:
        store.put("object", b"data")
        store.delete(["object"])
        assert list(store.list()) == []
    (delete,) = (seen for seen in proxy.seen if seen.method == "POST")
    assert (header(delete, "content-md5") is not None) == legacy
    assert (header(delete, "x-amz-checksum-crc32") is None) == legacy


@pytest.mark.parametrize("storage_class", ["STANDARD", "REDUCED_REDUNDANCY"])
def test_the_storage_class_is_sent_when_it_is_not_the_default(
    minio: S3Server, proxy: FaultProxy, bucket: str, storage_class: str
) -> None:
    options = replace(options_for(minio, bucket, url=proxy.url), storage_class=storage_class)
    with closing(impatient_store(options)) as store:
        store.put("object", b"data")
        store.put("object", (bytes(MIB) for _ in range(6)))
    expected = None if storage_class == "STANDARD" else storage_class
    begun = [seen for seen in proxy.seen if seen.path.endswith("?uploads")]
    assert [header(seen, "x-amz-storage-class") for seen in (bodies(proxy)[0], begun[0])] == [expected, expected]


def test_the_sdk_does_not_retry_behind_our_back(minio: S3Server, proxy: FaultProxy, bucket: str) -> None:
    proxy.plan(Answer(500), times=None)
    options = replace(options_for(minio, bucket, url=proxy.url), attempts=1)
    with closing(S3ObjectStore(options)) as store, pytest.raises(StoreUnavailableError):
        store.get("object")
    assert len(proxy.seen) == 1


def test_sizes_around_the_part_size_choose_the_kind_of_upload(minio: S3Server, proxy: FaultProxy, bucket: str) -> None:
    with closing(impatient_store(options_for(minio, bucket, url=proxy.url))) as store:
        for size, requests in ((0, 1), (1, 1), (5 * MIB - 1, 1), (5 * MIB, 1), (5 * MIB + 1, 4)):
            before = len(proxy.seen)
            store.put("object", bytes(size))
            assert len(proxy.seen) - before == requests, size
            assert store.head("object").size == size


def test_one_range_is_one_request(minio: S3Server, proxy: FaultProxy, bucket: str) -> None:
    with closing(impatient_store(options_for(minio, bucket, url=proxy.url))) as store:
        store.put("object", bytes(9 * MIB))
        before = len(proxy.seen)
        store.get("object", 5, 8 * MIB)
        store.get_into("object", 5, bytearray(8 * MIB))
        store.get("object")
        assert len(proxy.seen) - before == 3


def test_connections_are_used_again(minio: S3Server, bucket: str) -> None:
    with FaultProxy(minio.endpoint_url) as proxy, closing(impatient_store(options_for(minio, bucket))) as direct:
        direct.put("object", bytes(3 * MIB))
        with closing(impatient_store(options_for(minio, bucket, url=proxy.url))) as store:
            for _ in range(5):
                store.get("object")
                store.get("object", 1, 2 * MIB)
                store.get_into("object", 1, bytearray(MIB))
                store.head("object")
            broken_off = sum(seen.status is None for seen in proxy.seen[:-1])
            assert proxy.connections == 1 + broken_off


# Bulk deletes


@pytest.mark.parametrize(("status", "code"), [(501, "NotImplemented"), (405, "MethodNotAllowed"), (501, "")])
def test_a_server_without_bulk_delete_is_asked_one_by_one(
    minio: S3Server, proxy: FaultProxy, bucket: str, status: int, code: str
) -> None:
    body = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
    proxy.plan(Answer(status, body), method="POST", times=None)
    with closing(impatient_store(options_for(minio, bucket, url=proxy.url))) as store:
        for number in range(5):
            store.put(f"object-{number}", b"x")
        store.delete([*(f"object-{number}" for number in range(4)), "absent"])
        assert [info.key for info in store.list()] == ["object-4"]
    assert (proxy.count("POST"), proxy.count("DELETE")) == (1, 5)


def test_each_key_that_is_refused_is_counted_after_retries(minio: S3Server, proxy: FaultProxy, bucket: str) -> None:
    answer = (
        b"<DeleteResult><Error><Key>a</Key><Code>AccessDenied</Code><Message>No.</Message></Error>"
        b"<Error><Key>b</Key><Code>InternalError</Code></Error></DeleteResult>"
    )
    proxy.plan(Answer(200, answer), method="POST")
    with closing(impatient_store(options_for(minio, bucket, url=proxy.url))) as store:
        with pytest.raises(AccessDeniedError, match=r"1 object could not be deleted.*'a'"):
            store.delete(["a", "b", "c"])
        assert proxy.count("POST") == 2  # the key with a transient error was sent again
        proxy.plan(Answer(200, answer.replace(b"AccessDenied", b"SlowDown")), method="POST", times=None)
        with pytest.raises(StoreUnavailableError, match="2 objects"):
            store.delete(["a", "b", "c"])


def test_all_keys_are_sent_again_if_a_transient_error_names_none(
    minio: S3Server, proxy: FaultProxy, bucket: str
) -> None:
    answer = (
        b"<DeleteResult><Error><Key>a</Key><Code>InternalError</Code></Error>"
        b"<Error><Code>InternalError</Code></Error></DeleteResult>"
    )
    proxy.plan(Answer(200, answer), method="POST")
    with closing(impatient_store(options_for(minio, bucket, url=proxy.url))) as store:
        for key in ("a", "b"):
            store.put(key, b"x")
        store.delete(["a", "b"])
        assert list(store.list()) == []


def test_a_batch_has_a_thousand_keys_at_most(minio: S3Server, proxy: FaultProxy, bucket: str) -> None:
    with closing(impatient_store(options_for(minio, bucket, url=proxy.url))) as store:
        store.delete(f"absent-{number}" for number in range(2001))
        store.delete([])
        # A repeated key is one object. A request for each of the five keys would exceed the count below.
        store.delete(["absent"] * 5)
    assert proxy.count("POST") == 4


def test_a_key_that_xml_cannot_say_is_deleted_all_the_same(minio: S3Server, bucket: str) -> None:
    odd = ["bell\x07", "line\nfeed", "tab\there", "carriage\rreturn", "c1\x85"]
    with closing(impatient_store(options_for(minio, bucket))) as store:
        for key in odd:
            store.put(key, b"x")
        store.put("plain", b"x")
        assert {info.key for info in store.list()} == {*odd, "plain"}
        store.delete([*odd, "plain"])
        assert list(store.list()) == []


# Listing


def page(*keys: str) -> Answer:
    entries = "".join(f"<Contents><Key>{key}</Key><Size>1</Size><ETag>e</ETag></Contents>" for key in keys)
    text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
    return Answer(200, text.encode(), {"Content-Type": "application/xml"})


def test_a_listing_out_of_order_is_an_error_that_says_the_way_out(
    minio: S3Server, proxy: FaultProxy, bucket: str
) -> None:
    proxy.plan(page("a/b", "a-b"), method="GET")
    with (
        closing(impatient_store(options_for(minio, bucket, url=proxy.url))) as store,
        pytest.raises(StoreError, match=r"storage\.s3\.listing\.order"),
    ):
        list(store.list())


def test_a_listing_by_folder_is_put_in_order_on_any_server(minio: S3Server, bucket: str) -> None:
    keys = ["a-b", "a/b/1", "a/b/2", "a/bc", "a/c-/x", "a0", "b", "é/ü"]
    by_folder = replace(options_for(minio, bucket), listing_order=ListingOrder.BY_FOLDER)
    with closing(impatient_store(by_folder)) as store:
        for key in keys:
            store.put(key, b"x")
        for prefix in ("", "a", "a/", "a/b", "é"):
            for after in (None, "", "a", "a-b", "a/b", "a/b/1", "a/c", "b", "z"):
                expected = [key for key in keys if key.startswith(prefix) and key > (after or "")]
                assert [info.key for info in store.list(prefix, after)] == expected, (prefix, after)


# Answers


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("NoSuchKey", 404, ObjectNotFoundError),
        ("404", 404, ObjectNotFoundError),
        ("NoSuchBucket", 404, StoreError),
        ("NoSuchUpload", 404, PartsGoneError),
        ("InvalidPart", 400, PartsGoneError),
        ("InvalidRange", 416, RangeNotSatisfiableError),
        ("PreconditionFailed", 412, PreconditionFailedError),
        ("ConditionalRequestConflict", 409, StoreUnavailableError),
        ("AccessDenied", 403, AccessDeniedError),
        ("401", 401, AccessDeniedError),
        ("SignatureDoesNotMatch", 403, AccessDeniedError),
        ("RequestTimeTooSkewed", 403, AccessDeniedError),
        ("ExpiredToken", 400, AccessDeniedError),
        ("InvalidObjectState", 403, ObjectArchivedError),
        ("SlowDown", 503, StoreThrottledError),
        ("SlowDown", 0, StoreThrottledError),
        ("Throttling", 400, StoreThrottledError),
        ("RequestTimeout", 400, StoreUnavailableError),
        ("InternalError", 500, StoreUnavailableError),
        ("429", 429, StoreThrottledError),
        ("KeyTooLongError", 400, InvalidKeyError),
        ("NotImplemented", 501, NotSupportedError),
        ("EntityTooLarge", 400, StoreError),
        ("Teapot", 418, StoreError),
    ],
)
def test_an_answer_s_code_and_status_decide_the_error(code: str, status: int, expected: type[TieredStoreError]) -> None:
    assert class_for(code, status) is expected
    sentence = str(error_of("object", code, "because", status))
    assert sentence.endswith("; restore the object from the archive first") is (expected is ObjectArchivedError)


@pytest.mark.parametrize("check", [True, False])
def test_a_download_is_exact_with_and_without_checksums(minio: S3Server, bucket: str, check: bool) -> None:
    data = os.urandom(6 * MIB)
    with closing(impatient_store(replace(options_for(minio, bucket), checksum_check=check))) as store:
        for body in (b"", b"x", data[:MIB], data):
            store.put("object", body)
            assert store.get("object") == body
            assert store.get("object", 0, len(body)) == body
            buffer = bytearray(len(body))
            store.get_into("object", 0, buffer)
            assert buffer == body


# Processes


def test_a_store_goes_to_another_process_without_its_connections(minio: S3Server, bucket: str) -> None:
    with closing(impatient_store(options_for(minio, bucket))) as store:
        store.put("object", b"data")
        with closing(pickle.loads(pickle.dumps(store))) as copy:
            assert copy.identity == store.identity == f"{minio.endpoint_url}/{bucket}"
            assert copy.get("object") == b"data"


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_use_its_parent_s_connections(minio: S3Server, proxy: FaultProxy, bucket: str) -> None:
    with closing(impatient_store(options_for(minio, bucket, url=proxy.url))) as store:
        store.put("object", b"data")
        child = os.fork()
        if child == 0:
            # The child must exit here, and never continue the test run.
            try:
                os._exit(0 if store.get("object") == b"data" else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.get("object") == b"data"
        assert proxy.connections == 2
