"""No store follows a redirect: bodies and credentials go only to the host in the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.support.faulty_server.connection_ways import EVERY_STEP
from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.service import Cloud, Step
from tests.support.faulty_server.way import Exchange, Must, Way
from tests.support.faulty_server.wire import Reply
from tests.support.stores.faulty_stores import PART_SIZES, SERVICES, store_on
from tieredstore.backends.base import ObjectStore
from tieredstore.errors import StoreError

pytestmark = pytest.mark.slow

OBJECT = b"content"
VERBS: dict[str, Callable[[ObjectStore], object]] = {
    "put": lambda store: store.put("other", OBJECT),
    "put in parts": lambda store: store.put("parts", iter([bytes(2 * max(PART_SIZES.values()))])),
    "put_once": lambda store: store.put_once("other", OBJECT, "a" * 32),
    "replace": lambda store: store.replace("object", b"new", "1"),
    "get": lambda store: store.get("object"),
    "head": lambda store: store.head("object"),
    "list": lambda store: list(store.list("o")),
    "delete": lambda store: store.delete(["object"]),
}


@pytest.fixture(scope="module", params=list(Cloud), ids=lambda cloud: cloud.value)
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[FaultyServer, FaultyServer, ObjectStore]]:
    cloud: Cloud = request.param
    with (
        FaultyServer(SERVICES[cloud]()) as named,
        FaultyServer(SERVICES[cloud]()) as elsewhere,
        closing(store_on(named)) as store,
    ):
        yield named, elsewhere, store


@pytest.mark.parametrize("verb", list(VERBS))
def test_no_request_goes_elsewhere(servers: tuple[FaultyServer, FaultyServer, ObjectStore], verb: str) -> None:
    named, elsewhere, store = servers
    # S3's client reads 301 and 302 as a bucket's region and derives the host itself.
    for status in (303, 307, 308) if named.service.cloud is Cloud.S3 else (301, 302, 303, 307, 308):
        named.forget()
        elsewhere.forget()
        store.put("object", OBJECT)
        elsewhere.service.objects.by_key.update(named.service.objects.by_key)

        def answer(exchange: Exchange, status: int = status) -> Reply:
            return Reply(status, headers={"Location": f"{elsewhere.url}{exchange.request.target}"})

        steps: set[Step] = set(EVERY_STEP)
        named.lie(Way("elsewhere", list(Cloud), steps, Must.REFUSED, answer))
        with pytest.raises(StoreError) as caught:
            VERBS[verb](store)
        assert not caught.value.retryable
        named.be_honest()
        assert elsewhere.asked == []
