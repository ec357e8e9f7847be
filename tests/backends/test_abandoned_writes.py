"""Unfinished writes as stores report them, through every wrapper."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from examples.sqlite_store import SqliteObjectStore
from tests.support.network.fault_proxy import Answer, FaultProxy
from tests.support.servers.azurite_server import AzureServer
from tests.support.servers.fake_gcs import GcsServer
from tests.support.servers.s3_server import S3Server
from tests.support.stores.clouds import AZURE_KEYS, LARGE, PART, make_azure, make_container, make_gcs
from tests.support.stores.doubles import CountingStore, DelegatingObjectStore, FaultyStore, LatencyStore, Moment
from tests.support.stores.s3_stores import impatient_store, options_for
from tests.support.stores.stepped_actors import AgingStore, WorldClock
from tieredstore.backends.base import (
    AbandonedWrite,
    DelegatingStore,
    ObjectStore,
    StoreAdmin,
    admin_of,
    find_abandoned_writes,
    store_time_ms,
)
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.backends.wrappers.stack import LimitedStore, MeteredStore
from tieredstore.errors import ConfigError, InvalidKeyError, StoreUnavailableError

LEFT = AbandonedWrite("object", 5, 1000, "id")


class Leaving(AgingStore):
    """A store that has one abandoned write until that is discarded, and answers only small reads of its objects."""

    def __init__(self) -> None:
        super().__init__(WorldClock())
        self.abandoned = [LEFT]

    def kept_after_delete(self) -> list[str]:
        return ["versions"]

    def rules_on(self, prefix: str) -> list[str]:
        return [f"rule {prefix}"]

    def caller(self) -> str:
        return "somebody"

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        raise AssertionError("a small read was made a whole one")

    def get_small(self, key: str, most: int) -> bytes | None:
        return b"small" if most >= 5 else None


WRAPPERS: list[Callable[[ObjectStore], ObjectStore]] = [
    DelegatingObjectStore,
    CountingStore,
    LatencyStore,
    FaultyStore,
    LimitedStore,
    MeteredStore,
]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_every_wrapper_passes_the_whole_contract_on(wrap: Callable[[ObjectStore], ObjectStore]) -> None:
    store = wrap(Leaving())
    assert list(find_abandoned_writes(store, "obj")) == [LEFT]
    assert list(find_abandoned_writes(store, "other")) == []
    assert store.discard(LEFT)
    assert not store.discard(LEFT)
    assert list(find_abandoned_writes(store)) == []
    assert store.get_small("object", 5) == b"small"
    assert store.get_small("object", 4) is None
    assert store.get_small_batch(["object", "other"], 5) == [b"small", b"small"]
    assert admin_of(store).now_ms() == WorldClock().now_ms
    assert list(admin_of(store).kept_after_delete()) == ["versions"]
    assert admin_of(store).rules_on("prefix/") == ["rule prefix/"]
    assert admin_of(store).caller() == "somebody"


@pytest.mark.parametrize(
    ("wrapper", "made_of_others"),
    [(DelegatingStore, {"put_once", "get_whole"}), (LimitedStore, set()), (MeteredStore, set())],
)
def test_no_method_of_the_contract_is_left_to_its_default_by_a_wrapper(
    wrapper: type[DelegatingStore], made_of_others: set[str]
) -> None:
    left = {
        name
        for protocol in (ObjectStore, StoreAdmin)
        for name, default in vars(protocol).items()
        if not name.startswith("_") and getattr(wrapper, name) is default
    }
    assert left == made_of_others


class Own(SqliteObjectStore):
    """A custom store that implements only two of the administrative methods."""

    def now_ms(self) -> int:
        return 1234

    def caller(self) -> str:
        return "somebody"


@pytest.mark.parametrize("wrap", [lambda store: store, *WRAPPERS])
@pytest.mark.parametrize(("own", "now_ms", "caller"), [(SqliteObjectStore, None, ""), (Own, 1234, "somebody")])
def test_what_a_store_does_not_answer_is_unknown_and_tools_say_so(
    wrap: Callable[[ObjectStore], ObjectStore],
    own: type[SqliteObjectStore],
    now_ms: int | None,
    caller: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = wrap(own(str(tmp_path / "objects.sqlite")))
    admin = admin_of(store)
    assert (admin.now_ms(), admin.caller(), admin.rules_on("")) == (now_ms, caller, None)
    assert "cannot say" in admin.kept_after_delete()[0]
    assert admin.lifecycle() == "the store cannot list its lifecycle rules"
    assert list(find_abandoned_writes(store)) == []
    assert [
        "unfinished writes of killed writers, so these were not checked" in message for message in caplog.messages
    ] == [True]
    if now_ms is None:
        with pytest.raises(ConfigError, match="has no clock"):
            store_time_ms(store)
    else:
        assert store_time_ms(store) == now_ms


def test_the_doubles_count_delay_and_fail_the_new_operations_too() -> None:
    counting = CountingStore(Leaving())
    list(counting.abandoned_writes("o"))
    counting.discard(LEFT)
    counting.get_small("object", 5)
    counting.now_ms()
    assert [operation.name for operation in counting.operations] == ["abandoned_writes", "discard", "get", "now_ms"]
    assert counting.bytes_down == 5
    waits: list[float] = []
    slow = LatencyStore(Leaving(), request_s=1.0, bytes_per_s=5.0, sleep=waits.append)
    list(slow.abandoned_writes())
    slow.discard(LEFT)
    slow.get_small("object", 5)
    slow.now_ms()
    assert waits == [1.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_fault_strikes_the_new_operations_too(moment: Moment) -> None:
    operations: list[Callable[[ObjectStore], object]] = [
        lambda store: list(find_abandoned_writes(store)),
        lambda store: store.discard(LEFT),
        lambda store: store.get_small("object", 5),
        lambda store: admin_of(store).now_ms(),
    ]
    for operation in operations:
        with pytest.raises(StoreUnavailableError):
            operation(FaultyStore(Leaving(), fail_at=0, moment=moment))


def test_a_store_that_leaves_nothing_has_nothing_to_tell() -> None:
    store = MemoryObjectStore()
    assert list(store.abandoned_writes()) == []
    assert not store.discard(LEFT)


@pytest.mark.parametrize("name", ["object", "folder/object", "../.~tieredstore-x", ".~tieredstore-x/y", "a/../b"])
def test_the_file_system_store_discards_nothing_but_drafts(tmp_path: Path, name: str) -> None:
    store = FilesystemObjectStore(tmp_path)
    store.put("object", b"x")
    with pytest.raises(InvalidKeyError):
        store.discard(AbandonedWrite(name, 1, 1, name))
    assert not store.discard(AbandonedWrite("f", 1, 1, "no/such/.~tieredstore-folder"))
    assert [info.key for info in store.list()] == ["object"]


# Clouds


@pytest.mark.server
@pytest.mark.parametrize("server_name", ["minio", "seaweedfs"])
def test_an_upload_to_s3_that_nobody_ended_is_told_and_aborted(
    server_name: str, request: pytest.FixtureRequest
) -> None:
    server: S3Server = request.getfixturevalue(server_name)
    bucket = server.make_bucket()
    begun = server.plain.create_multipart_upload(Bucket=bucket, Key="folder/object")["UploadId"]
    with closing(impatient_store(options_for(server, bucket))) as store:
        (write,) = store.abandoned_writes("folder/object")
        assert (write.key, write.id, write.size, write.removable) == ("folder/object", begun, None, True)
        assert write.started_ms is not None
        assert abs(write.started_ms - time.time() * 1000) < 3_600_000
        assert list(store.abandoned_writes("folder/other")) == []
        assert store.discard(write)
        assert list(store.abandoned_writes("folder/object")) == []
    assert "Uploads" not in server.plain.list_multipart_uploads(Bucket=bucket, Prefix="folder/object")


def test_a_page_of_uploads_is_followed_by_the_next(minio: S3Server) -> None:
    def page(key: str, following: str) -> bytes:
        upload = f"<Key>{key}</Key><UploadId>{key}-id</UploadId><Initiated>2026-01-02T03:04:05Z</Initiated>"
        text = f"<ListMultipartUploadsResult>{following}<Upload>{upload}</Upload></ListMultipartUploadsResult>"
        return text.encode()

    more = "<IsTruncated>true</IsTruncated><NextKeyMarker>a</NextKeyMarker><NextUploadIdMarker>m</NextUploadIdMarker>"
    with FaultProxy(minio.endpoint_url) as proxy:
        proxy.plan(Answer(200, page("a", more), {"Content-Type": "application/xml"}))
        proxy.plan(Answer(200, page("b", ""), {"Content-Type": "application/xml"}))
        with closing(impatient_store(options_for(minio, "logs", url=proxy.url))) as store:
            writes = list(store.abandoned_writes())
    assert [(write.key, write.id, write.started_ms) for write in writes] == [
        ("a", "a-id", 1767323045000),
        ("b", "b-id", 1767323045000),
    ]
    assert "key-marker=a&upload-id-marker=m" in proxy.seen[1].path


def test_a_session_of_google_s_cannot_be_listed(fake_gcs: GcsServer) -> None:
    with closing(make_gcs(fake_gcs.endpoint_url, fake_gcs.make_bucket())) as store:
        with pytest.raises(EOFError):
            store.put("object", broken())
        assert list(store.abandoned_writes()) == []


def test_blocks_without_a_blob_are_told_but_cannot_be_removed(azurite: AzureServer) -> None:
    AZURE_KEYS[azurite.account_name] = azurite.account_key
    with closing(make_azure(azurite.endpoint_url, make_container(azurite), page_size=2)) as store:
        for key in ("empty", "full", "last"):
            store.put(key, b"" if key == "empty" else b"x")
        for key in ("full", "folder/object", "folder/other"):
            with pytest.raises(EOFError):
                store.put(key, broken())
        left = list(store.abandoned_writes())
        assert [(write.key, write.removable) for write in left] == [("folder/object", False), ("folder/other", False)]
        # Some of the parallel parts may be abandoned before they arrive.
        assert all(write.size in {PART, 2 * PART, 3 * PART} for write in left)
        assert [write.key for write in store.abandoned_writes("folder/ob")] == ["folder/object"]
        assert not store.discard(left[0])
        store.put("folder/object", b"now")
        assert [write.key for write in store.abandoned_writes()] == ["folder/other"]
        assert [info.key for info in store.list()] == ["empty", "folder/object", "full", "last"]


def broken() -> Iterator[bytes]:
    yield LARGE
    raise EOFError
