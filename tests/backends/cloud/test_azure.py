"""Azure's store on its emulator: the contract, and behaviour that only Azure has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
import urllib3
from azure.storage.blob import ContainerClient, ContainerSasPermissions, generate_container_sas
from hypothesis import given
from hypothesis import strategies as st

from tests.support.network.fault_proxy import Answer, FaultProxy, LoseAnswer
from tests.support.servers.azurite_server import AzureServer
from tests.support.stores.clouds import AZURE_KEYS, LARGE, PART, make_azure, make_container
from tieredstore.backends.azure.errors import answer_error
from tieredstore.backends.azure.options import AccountKey, AzureOptions, SasToken
from tieredstore.backends.azure.store import KEYS_PER_DELETION, AzureObjectStore, in_key_order
from tieredstore.backends.base import ObjectInfo, ObjectStore, Prepared
from tieredstore.config import settings_from
from tieredstore.errors import (
    AccessDeniedError,
    ObjectArchivedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    StoreThrottledError,
    StoreUnavailableError,
    TieredStoreError,
)
from tieredstore.process.retry import RetryPolicy
from tieredstore.testing.object_store_tests import ObjectStoreTests
from tieredstore.testing.object_store_writes import WriteTests


def sas_of(server: AzureServer, container: str, permission: str = "racwdl") -> str:
    """Return a token for one container, valid for an hour."""
    until = datetime.now(UTC) + timedelta(hours=1)
    allowed = ContainerSasPermissions.from_string(permission)
    token: str = generate_container_sas(server.account_name, container, server.account_key, None, allowed, until)
    return token


class TestAzureObjectStore(ObjectStoreTests):
    listed_objects = 25

    @pytest.fixture
    def store(self, azurite: AzureServer) -> Iterator[ObjectStore]:
        key = AccountKey(azurite.account_name, azurite.account_key)
        options = AzureOptions(make_container(azurite), key, azurite.endpoint_url, page_size=10)
        self.sas = sas_of(azurite, options.container)
        with closing(AzureObjectStore(options)) as store, urllib3.PoolManager() as self.pool:
            yield store

    def raw_put(self, store: ObjectStore, key: str, data: bytes) -> None:
        headers = {"x-ms-blob-type": "BlockBlob"}
        assert self.pool.request("PUT", self._url(store, key), body=data, headers=headers).status == 201

    def raw_get(self, store: ObjectStore, key: str) -> bytes:
        return self.pool.request("GET", self._url(store, key)).data

    def _url(self, store: ObjectStore, key: str) -> str:
        return f"{store.identity}/{quote(key, safe='')}?{self.sas}"


class TestAzureInSmallBlocks(WriteTests):
    @pytest.fixture
    def store(self, azurite: AzureServer, container: str) -> Iterator[ObjectStore]:
        with closing(make_azure(azurite.endpoint_url, container)) as store:
            yield store


@pytest.fixture
def container(azurite: AzureServer) -> str:
    AZURE_KEYS[azurite.account_name] = azurite.account_key
    return make_container(azurite)


@pytest.fixture
def proxy(azurite: AzureServer) -> Iterator[FaultProxy]:
    with FaultProxy(azurite.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: FaultProxy, container: str) -> Iterator[AzureObjectStore]:
    with closing(make_azure(proxy.url, container)) as store:
        yield store


def test_blocks_of_a_failed_upload_are_never_an_object(
    azurite: AzureServer, container: str, store: AzureObjectStore
) -> None:
    def body() -> Iterator[bytes]:
        yield LARGE
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put("object", body())
    assert list(store.list()) == []
    with pytest.raises(ObjectNotFoundError):
        store.get("object")
    with ContainerClient.from_connection_string(azurite.connection_string, container) as client:
        # The interrupted write's blocks stay, because only the service can drop them.
        assert [blob.name for blob in client.list_blobs(include=["uncommittedblobs"])] == ["object"]


@pytest.mark.parametrize("body", [b"", b"another", LARGE], ids=["empty", "small", "large"])
@pytest.mark.parametrize("if_absent", [True, False])
def test_blocks_of_a_failed_upload_do_not_stand_in_the_way_of_the_next(
    store: AzureObjectStore, body: bytes, if_absent: bool
) -> None:
    def broken() -> Iterator[bytes]:
        yield LARGE
        raise EOFError

    with pytest.raises(EOFError):
        store.put("object", broken())
    store.put("object", body, if_absent=if_absent)
    assert store.get("object") == body
    with pytest.raises(PreconditionFailedError):
        store.put("object", body, if_absent=True)


def test_a_large_replace_whose_answer_was_lost_gives_the_etag_of_what_it_wrote(
    proxy: FaultProxy, store: AzureObjectStore
) -> None:
    store.put("object", b"first")
    proxy.plan(LoseAnswer(), path="comp=blocklist")
    etag = store.replace("object", LARGE, store.head("object").etag or "")
    assert etag == store.head("object").etag
    assert store.get("object") == LARGE


def test_a_large_write_that_another_overtook_is_a_conflict(store: AzureObjectStore) -> None:
    def body() -> Iterator[bytes]:
        yield LARGE
        store.put("object", LARGE)
        yield b"end"

    with pytest.raises((PreconditionFailedError, StoreUnavailableError)):
        store.put("object", body(), if_absent=True)
    assert store.get("object") == LARGE


def test_blocks_that_the_service_has_discarded_are_a_passing_failure(
    proxy: FaultProxy, store: AzureObjectStore
) -> None:
    gone = Answer(400, b"", {"x-ms-error-code": "InvalidBlockList"})
    proxy.plan(gone, path="comp=blocklist")
    with pytest.raises(StoreUnavailableError, match="another write"):
        store.put("object", LARGE)


def test_a_discard_of_blocks_needs_no_listing() -> None:
    options = AzureOptions("container", AccountKey("account", "a2V5"), "http://127.0.0.1:1/account")
    with closing(AzureObjectStore(options, retries=RetryPolicy(attempts=1))) as store:
        assert not store.discard(Prepared("object", 1, "0" * 64, "", ("block",), "0" * 32))


def test_every_part_of_a_write_is_checked_by_the_service(proxy: FaultProxy, store: AzureObjectStore) -> None:
    store.put("small", b"x")
    store.put("large", LARGE)
    written = [seen for seen in proxy.seen if seen.method == "PUT" and "blocklist" not in seen.path]
    assert len(written) == 5
    assert all({name.lower() for name in seen.headers} >= {"content-md5"} for seen in written)
    proxy.plan(Answer(400, b"", {"x-ms-error-code": "Md5Mismatch"}), path="comp=block&", times=2)
    store.put("large", LARGE)
    assert store.get("large") == LARGE


def test_the_checksums_of_uploads_can_be_switched_off(azurite: AzureServer, container: str, proxy: FaultProxy) -> None:
    with closing(make_azure(proxy.url, container, send_md5=False)) as store:
        store.put("small", b"x")
        store.put("large", LARGE)
        assert store.get("large") == LARGE
    assert len([seen for seen in proxy.seen if seen.method == "PUT"]) == 6
    assert not any("content-md5" in {name.lower() for name in seen.headers} for seen in proxy.seen)


def test_a_listing_goes_over_pages_of_any_size(azurite: AzureServer, container: str) -> None:
    keys = [f"{number:02}" for number in range(7)]
    with closing(make_azure(azurite.endpoint_url, container, page_size=2)) as store:
        for key in keys:
            store.put(key, b"x")
        assert [info.key for info in store.list()] == keys
        assert [info.key for info in store.list(start_after="03")] == keys[4:]


def test_a_deletion_of_more_keys_than_a_request_takes_deletes_the_first_and_the_last(
    azurite: AzureServer, container: str
) -> None:
    keys = [f"{number:03}" for number in range(KEYS_PER_DELETION + 1)]
    with closing(make_azure(azurite.endpoint_url, container)) as store:
        for key in (keys[0], keys[-1], "other"):
            store.put(key, b"x")
        store.delete(keys)
        assert [info.key for info in store.list()] == ["other"]


@given(st.lists(st.text(alphabet="ab/\ud7ff\ue000\uffee\U00010000😀", max_size=6), unique=True))
def test_keys_in_the_order_of_utf_16_come_out_in_that_of_utf_8(keys: list[str]) -> None:
    served = sorted(keys, key=lambda key: key.encode("utf-16-be"))
    listed = in_key_order(ObjectInfo(key, 0) for key in served)
    assert [info.key for info in listed] == sorted(keys, key=str.encode)
    already = in_key_order(ObjectInfo(key, 0) for key in sorted(keys))
    assert [info.key for info in already] == sorted(keys)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "BlobNotFound", ObjectNotFoundError),
        (404, "", ObjectNotFoundError),
        (404, "ContainerNotFound", StoreError),
        (409, "ContainerBeingDeleted", StoreError),
        (409, "BlobAlreadyExists", PreconditionFailedError),
        (409, "SnapshotsPresent", StoreError),
        (409, "BlobArchived", ObjectArchivedError),
        (409, "BlobBeingRehydrated", ObjectArchivedError),
        (412, "ConditionNotMet", PreconditionFailedError),
        (412, "LeaseIdMissing", AccessDeniedError),
        (403, "AuthenticationFailed", AccessDeniedError),
        (401, "NoAuthenticationInformation", AccessDeniedError),
        (429, "TooManyRequests", StoreThrottledError),
        (500, "OperationTimedOut", StoreUnavailableError),
        (503, "ServerBusy", StoreThrottledError),
        (400, "InvalidHeaderValue", StoreError),
    ],
)
def test_an_error_code_has_its_class(status: int, code: str, expected: type[TieredStoreError]) -> None:
    error = answer_error("object", status, code, "because")
    assert type(error) is expected
    assert str(error).endswith("; restore the object from the archive first") is (expected is ObjectArchivedError)


def settings_for(**azure: str) -> Mapping[str, str]:
    names = {name.replace("_", "."): value for name, value in azure.items()}
    return {
        "storage.backend.class": "io.aiven.kafka.tieredstorage.storage.azure.AzureBlobStorage",
        "chunk.size": "4194304",
        **{f"storage.azure.{name}": value for name, value in names.items()},
    }


@pytest.mark.parametrize("kind", ["connection string", "account key", "sas token"])
def test_settings_make_the_store(azurite: AzureServer, container: str, kind: str) -> None:
    account = {"account_name": azurite.account_name, "endpoint_url": azurite.endpoint_url}
    identity = {
        "connection string": {"connection_string": azurite.connection_string},
        "account key": {**account, "account_key": azurite.account_key},
        "sas token": {**account, "sas_token": f"?{sas_of(azurite, container)}"},
    }[kind]
    azure_settings = settings_for(container_name=container, upload_block_size="262144", **identity)
    with closing(AzureObjectStore.from_settings(settings_from(azure_settings))) as store:
        store.put("object", LARGE)
        assert store.get("object") == LARGE
        assert [info.key for info in store.list()] == ["object"]
        store.delete(["object"])
        assert list(store.list()) == []
        assert store.options.part_size == PART
        assert store.identity == f"{azurite.endpoint_url}/{container}"


def test_a_token_without_the_right_is_denied(azurite: AzureServer, container: str) -> None:
    options = AzureOptions(container, SasToken(sas_of(azurite, container, "r")), azurite.endpoint_url)
    with closing(AzureObjectStore(options)) as store:
        with pytest.raises(AccessDeniedError):
            store.put("object", b"x")
        with pytest.raises(AccessDeniedError):
            list(store.list())
        with pytest.raises(AccessDeniedError, match="1 object"):
            store.delete(["object"])
