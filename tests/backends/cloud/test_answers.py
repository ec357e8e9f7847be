"""What cloud stores conclude from answers, and the number of requests this takes."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.service import Cloud, Step
from tests.support.faulty_server.way import Exchange, Must, Way
from tests.support.faulty_server.ways import WAYS
from tests.support.faulty_server.wire import Reply
from tests.support.stores.faulty_stores import PART_SIZES, SERVICES, store_on
from tests.support.waiting import wait_until
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.cloud.store import BUCKET_REMEMBERED_S
from tieredstore.backends.gcs.client import open_client
from tieredstore.backends.gcs.options import CredentialsJson, GcsOptions
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.errors import ObjectNotFoundError, StoreError, StoreThrottledError, StoreUnavailableError
from tieredstore.process.retry import RetryPolicy


@pytest.fixture(scope="module", params=list(Cloud), ids=lambda cloud: cloud.value)
def shared(request: pytest.FixtureRequest) -> Iterator[tuple[FaultyServer, ObjectStore]]:
    cloud: Cloud = request.param
    with FaultyServer(SERVICES[cloud]()) as server, closing(store_on(server)) as store:
        yield server, store


@pytest.fixture
def server(shared: tuple[FaultyServer, ObjectStore]) -> FaultyServer:
    shared[0].forget()
    return shared[0]


@pytest.fixture
def store(shared: tuple[FaultyServer, ObjectStore]) -> ObjectStore:
    return shared[1]


def test_answers_that_prove_a_write_cost_no_other_request(server: FaultyServer, store: ObjectStore) -> None:
    store.put("small", b"x" * 100)
    assert server.steps() == [Step.WRITE]
    server.asked.clear()
    store.put("large", [bytes(2 * PART_SIZES[server.service.cloud] + 1)])
    steps = server.steps()
    expected = {
        Cloud.S3: [Step.BEGIN, *[Step.PART] * 3, Step.COMPLETE],
        Cloud.GCS: [Step.BEGIN, *[Step.PART] * 2, Step.COMPLETE],
        Cloud.AZURE: [*[Step.PART] * 3, Step.COMPLETE],
    }
    assert steps == expected[server.service.cloud]


def test_an_answer_that_proves_nothing_costs_one_look(server: FaultyServer, store: ObjectStore) -> None:
    def silent(exchange: Exchange) -> Reply:
        exchange.honest()
        return Reply(200)

    server.lie(Way("silent", tuple(Cloud), (Step.WRITE, Step.COMPLETE), Must.RIGHT, silent))
    store.put("small", b"x" * 100)
    store.put("large", [bytes(PART_SIZES[server.service.cloud] + 1)])
    assert server.steps().count(Step.HEAD) == 2
    assert server.service.objects.by_key["small"].data == b"x" * 100


def test_another_write_to_the_key_proves_nothing(server: FaultyServer, store: ObjectStore) -> None:
    server.service.objects.write("key", b"y" * 100, {"tieredstore-write": "another", "tieredstore_write": "another"})
    server.lie(Way("silent", tuple(Cloud), (Step.WRITE,), Must.REFUSED, lambda _: Reply(200)))
    with pytest.raises(StoreError, match="the object was not written"):
        store.put("key", b"x" * 100)


def test_ours_of_another_size_is_taken_back(server: FaultyServer, store: ObjectStore) -> None:
    def shortened(exchange: Exchange) -> Reply:
        exchange.honest()
        held = server.service.objects.by_key["key"]
        server.service.objects.write("key", held.data[:-1], held.metadata)
        return Reply(200)

    server.lie(Way("shortened", tuple(Cloud), (Step.WRITE,), Must.UNAVAILABLE, shortened))
    with pytest.raises(StoreUnavailableError, match="the store has 99 bytes of a write of 100"):
        store.put("key", b"x" * 100)
    assert "key" not in server.service.objects.by_key


class Clock:
    """A clock that tests set forward; waiting moves it too."""

    def __init__(self) -> None:
        self.now_s = time.monotonic()
        self.began_s = self.now_s

    def forward(self, seconds: float) -> None:
        self.now_s += seconds

    def retries(self, **changes: Any) -> RetryPolicy:
        return RetryPolicy(monotonic=lambda: self.now_s, sleep=self.forward, random=lambda: 1.0, **changes)


def s3_store_on(server: FaultyServer, retries: RetryPolicy) -> S3ObjectStore:
    store = store_on(server)
    assert isinstance(store, S3ObjectStore)
    return S3ObjectStore(store.options, retries=retries)


def test_many_absent_keys_cost_one_look_for_the_bucket() -> None:
    clock = Clock()
    with (
        FaultyServer(SERVICES[Cloud.S3]()) as server,
        closing(s3_store_on(server, clock.retries(timeout_s=1000.0))) as store,
    ):
        for number in range(5):
            with pytest.raises(ObjectNotFoundError):
                store.head(f"absent-{number}")
        assert server.steps().count(Step.BUCKET) == 1
        clock.forward(BUCKET_REMEMBERED_S + 1)
        with pytest.raises(ObjectNotFoundError):
            store.head("absent")
        assert server.steps().count(Step.BUCKET) == 2


def test_the_look_for_the_bucket_is_inside_the_deadline() -> None:
    clock = Clock()

    def slow(exchange: Exchange) -> Reply:
        clock.forward(8.0)
        return exchange.honest()

    with (
        FaultyServer(SERVICES[Cloud.S3]()) as server,
        closing(s3_store_on(server, clock.retries(timeout_s=10.0, attempts=100, max_delay_s=1.0))) as store,
    ):
        server.lie(
            Way("slow", (Cloud.S3,), (Step.HEAD,), Must.ABSENT, slow),
            Way("no bucket to be seen", (Cloud.S3,), (Step.BUCKET,), Must.UNAVAILABLE, lambda _: Reply(500)),
        )
        with pytest.raises(StoreUnavailableError):
            store.head("absent")
        assert server.steps().count(Step.BUCKET) >= 2
        assert clock.now_s - clock.began_s <= 10.0


def test_a_rate_limit_of_googles_is_throttling() -> None:
    body = b'{"error": {"code": 403, "message": "slow down", "errors": [{"reason": "rateLimitExceeded"}]}}'
    with FaultyServer(SERVICES[Cloud.GCS]()) as server, closing(store_on(server)) as store:
        server.lie(Way("limit", (Cloud.GCS,), (Step.HEAD,), Must.THROTTLED, lambda _: Reply(403, body)))
        with pytest.raises(StoreThrottledError, match="slow down"):
            store.head("key")
        assert server.steps() == [Step.HEAD] * 2


@pytest.mark.parametrize("cloud", list(Cloud), ids=lambda cloud: cloud.value)
@pytest.mark.parametrize(
    "name", ["Content-Length: 5, 5", "Content-Length: five", "a range in words", "a range that is none"]
)
def test_an_answer_whose_lengths_cannot_be_understood_leaves_no_connection_open(cloud: Cloud, name: str) -> None:
    (way,) = [way for way in WAYS if way.name == name]
    with FaultyServer(SERVICES[cloud]()) as server:
        server.service.objects.write("key", bytes(100), {})
        server.lie(way)
        gc.disable()  # otherwise the garbage collector, and not the store, might close the connections
        try:
            with closing(store_on(server)) as store, pytest.raises(StoreError) as caught:
                store.get("key", 1, 50)
            wait_until(lambda: server.open_connections == 0)
        finally:
            gc.enable()
    assert not caught.value.retryable


@pytest.mark.parametrize(
    "url",
    [
        "http://storage.googleapis.com/upload?upload_id=1",
        "https://storage.googleapis.com.example.org/upload?upload_id=1",
        "https://user:secret@example.org/upload",
        "somewhere",
    ],
)
def test_an_upload_goes_to_no_other_host(url: str) -> None:
    with closing(open_client(GcsOptions("bucket", CredentialsJson('{"access_token": "token"}')))) as client:
        with pytest.raises(ValueError, match="not Google's") as caught:
            client.session_url(url)
        assert "secret" not in str(caught.value)


def test_an_upload_goes_where_google_says() -> None:
    url = "https://www.googleapis.com/upload/storage/v1/b/bucket/o?uploadType=resumable&upload_id=1"
    with closing(open_client(GcsOptions("bucket", CredentialsJson('{"access_token": "token"}')))) as client:
        assert client.session_url(url) == url
