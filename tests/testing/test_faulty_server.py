"""The faulty server while it is honest: every verb of every cloud's store, and what it remembers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.service import Cloud, Step
from tests.support.faulty_server.way import Exchange, Must, Way
from tests.support.faulty_server.wire import Cut, Pause, Piece
from tests.support.faulty_stores import PART_SIZES, SERVICES, store_on
from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ObjectNotFound, PreconditionFailed, RangeNotSatisfiable, StoreError, StoreUnavailable


@pytest.fixture(scope="module", params=list(Cloud), ids=lambda cloud: cloud.value)
def shared(request: pytest.FixtureRequest) -> Iterator[tuple[FaultyServer, ObjectStore]]:
    cloud: Cloud = request.param
    with FaultyServer(SERVICES[cloud]()) as server, closing(store_on(server, page_size=3)) as store:
        yield server, store


@pytest.fixture
def server(shared: tuple[FaultyServer, ObjectStore]) -> FaultyServer:
    shared[0].forget()
    return shared[0]


@pytest.fixture
def store(shared: tuple[FaultyServer, ObjectStore]) -> ObjectStore:
    return shared[1]


def test_small_objects_come_back(server: FaultyServer, store: ObjectStore) -> None:
    store.put("a/b c+d%25", b"hello")
    assert store.get("a/b c+d%25") == b"hello"
    assert store.get("a/b c+d%25", 1, 3) == b"el"
    assert store.get_small("a/b c+d%25", 5) == b"hello"
    assert store.get_small("a/b c+d%25", 4) is None
    buffer = bytearray(4)
    store.get_into("a/b c+d%25", 1, buffer)
    assert buffer == b"ello"
    assert store.head("a/b c+d%25").size == 5
    assert list(server.service.objects.by_key) == ["a/b c+d%25"]


def test_objects_in_parts_come_back(server: FaultyServer, store: ObjectStore) -> None:
    data = bytes(range(256)) * (PART_SIZES[server.service.cloud] // 128 + 1)
    store.put("large", [data], if_absent=True)
    assert store.get("large") == data
    assert server.steps().count(Step.PART) + server.steps().count(Step.COMPLETE) >= 3
    assert server.service.objects.uploads == {}
    with pytest.raises(PreconditionFailed):
        store.put("large", [data], if_absent=True)


def test_conditions_hold(server: FaultyServer, store: ObjectStore) -> None:
    store.put("key", b"one", if_absent=True)
    with pytest.raises(PreconditionFailed):
        store.put("key", b"two", if_absent=True)
    etag = store.head("key").etag or ""
    following = store.replace("key", b"three", etag)
    assert store.head("key").etag == following
    with pytest.raises(PreconditionFailed):
        store.replace("key", b"four", etag)
    assert server.service.objects.by_key["key"].data == b"three"


def test_listings_come_by_pages(server: FaultyServer, store: ObjectStore) -> None:
    keys = [f"p/{number:02}" for number in range(8)]
    for key in [*keys, "q"]:
        store.put(key, key.encode())
    listed = list(store.list("p/"))
    assert [info.key for info in listed] == keys
    assert [info.size for info in listed] == [4] * 8
    assert [info.key for info in store.list("p/", start_after="p/05")] == keys[6:]
    assert store.head("p/03") == listed[3]
    assert server.steps().count(Step.LIST) >= 4


def test_what_is_deleted_is_gone(server: FaultyServer, store: ObjectStore) -> None:
    for key in ("a", "b", "c"):
        store.put(key, b"x")
    store.delete(["a", "c", "never there"])
    assert list(server.service.objects.by_key) == ["b"]
    with pytest.raises(ObjectNotFound):
        store.get("a")
    with pytest.raises(ObjectNotFound):
        store.head("a")
    with pytest.raises(RangeNotSatisfiable):
        store.get("b", 0, 2)


def test_an_absent_bucket_is_told(server: FaultyServer, store: ObjectStore) -> None:
    server.service.bucket = "another"
    try:
        with pytest.raises(StoreError, match="does not exist"):
            list(store.list())
    finally:
        server.service.bucket = "bucket"


def test_failed_uploads_leave_nothing(server: FaultyServer, store: ObjectStore) -> None:
    data = bytes(3 * PART_SIZES[server.service.cloud])

    def body() -> Iterator[bytes]:
        yield data
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.put("broken", body())
    assert server.service.objects.by_key == {}
    if server.service.cloud is not Cloud.AZURE:  # whose blocks nobody can take back
        assert server.service.objects.uploads == {}


def test_unfinished_uploads_are_listed(server: FaultyServer, store: ObjectStore) -> None:
    server.service.objects.begin("left", {})
    if server.service.cloud is Cloud.AZURE:
        server.service.objects.uploads = {"left": server.service.objects.uploads.popitem()[1]}
        server.service.objects.uploads["left"].parts["YQ=="] = b"x"
    keys = [write.key for write in store.abandoned_writes()]
    assert keys == ([] if server.service.cloud is Cloud.GCS else ["left"])


def test_a_lie_is_told_until_honesty_returns(server: FaultyServer, store: ObjectStore) -> None:
    def dripping(exchange: Exchange) -> Iterator[Piece]:
        yield exchange.honest().head()[:20]
        yield Pause(0.01)
        yield Cut(reset=True)

    store.put("key", b"x")
    server.lie(Way("dripping", frozenset(Cloud), frozenset({Step.READ}), Must.UNAVAILABLE, dripping))
    with pytest.raises(StoreUnavailable):
        store.get("key")
    assert [asked.way is None for asked in server.asked] == [True, False, False]
    server.be_honest()
    assert store.get("key") == b"x"
