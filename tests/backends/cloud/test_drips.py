"""``api.call.timeout`` holds for every method of every cloud store, however slowly a server answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

import pytest

from tests.support.faulty_server.connection_ways import EVERY_STEP
from tests.support.faulty_server.drip_ways import DRIP_WAYS, PAGE_WAYS
from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.service import Cloud, Step
from tests.support.faulty_server.way import Exchange, Must, Way
from tests.support.faulty_server.wire import Answer
from tests.support.stores.faulty_stores import PART_SIZES, SERVICES, store_on
from tests.support.waiting import wait_until
from tieredstore.backends.base import ObjectStore, find_abandoned_writes
from tieredstore.errors import StoreUnavailableError, TieredStoreError

pytestmark = pytest.mark.slow

TIMEOUT_S = 0.3
GRACE_S = 120.0
"""Margin for a busy machine. It may be long, because without a deadline none of these calls would ever end."""

PARTS = 2 * max(PART_SIZES.values())
OBJECT = bytes(range(256)) * 4


def _delete_many(store: ObjectStore) -> None:
    # Google's store sends a request for each of the twenty keys. All these requests share one deadline.
    store.delete(f"object-{number}" for number in range(20))


VERBS: dict[str, tuple[set[Step], Callable[[ObjectStore], object]]] = {
    "put": ({Step.WRITE}, lambda store: store.put("other", b"small")),
    "put in parts": ({Step.BEGIN, Step.PART, Step.COMPLETE}, lambda store: store.put("parts", iter([bytes(PARTS)]))),
    "replace": ({Step.WRITE}, lambda store: store.replace("other", b"new", "1")),
    "get": ({Step.READ}, lambda store: store.get("object")),
    "get of a range": ({Step.READ}, lambda store: store.get("object", 1, 900)),
    "get_small": ({Step.READ}, lambda store: store.get_small("object", 1 << 20)),
    "get_into": ({Step.READ}, lambda store: store.get_into("object", 0, bytearray(len(OBJECT)))),
    "head": ({Step.HEAD}, lambda store: store.head("object")),
    "list": ({Step.LIST}, lambda store: list(store.list("o"))),
    "delete": ({Step.DELETE, Step.BULK}, _delete_many),
    "abandoned_writes": ({Step.UPLOADS}, lambda store: list(find_abandoned_writes(store, "o"))),
}


@pytest.fixture(scope="module", params=list(Cloud), ids=lambda cloud: cloud.value)
def dripping(request: pytest.FixtureRequest) -> Iterator[tuple[FaultyServer, ObjectStore]]:
    cloud: Cloud = request.param
    # Exclude the threads of managers that earlier tests have not closed.
    before = set(threading.enumerate())
    server = FaultyServer(SERVICES[cloud]())
    # Timeouts of a single wait keep their defaults.
    with server, closing(store_on(server, timeout_s=TIMEOUT_S, connect_timeout_s=10, read_timeout_s=30)) as store:
        with suppress(TieredStoreError):
            # Open the client first, because that may take longer.
            store.head("object")
        yield server, store
        # A thread that has finished its work may take a moment to end.
        wait_until(lambda: set(threads_of_ours()) <= before)
        store.close()
        wait_until(lambda: server.open_connections == 0)


@pytest.fixture
def patient(dripping: tuple[FaultyServer, ObjectStore]) -> Iterator[ObjectStore]:
    """Yield a store on the same bucket, with timeouts that give each call time to end by itself."""
    with closing(store_on(dripping[0])) as store:
        yield store


def threads_of_ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tieredstore")]


def _is_lied_to(verb: str, way: Way, cloud: Cloud) -> bool:
    steps = VERBS[verb][0] - ({Step.BULK, Step.UPLOADS} if cloud is Cloud.GCS else set())
    return bool(steps & set(way.steps)) and (verb, cloud) != ("abandoned_writes", Cloud.GCS)


def _outcome(store: ObjectStore, verb: str) -> tuple[str, float, object]:
    started = time.monotonic()
    try:
        answer = VERBS[verb][1](store)
    except Exception as error:  # noqa: BLE001  the test checks the class
        answer = error
    return verb, time.monotonic() - started, answer


@pytest.mark.parametrize("way", PAGE_WAYS, ids=lambda way: way.name)
def test_a_listing_brings_something_new_or_ends(
    dripping: tuple[FaultyServer, ObjectStore], patient: ObjectStore, way: Way
) -> None:
    server, hurried = dripping
    store = patient if way.must is Must.REFUSED else hurried
    for verb in (verb for verb in VERBS if _is_lied_to(verb, way, server.service.cloud)):
        server.forget()
        server.lie(way)
        _, took_s, outcome = _outcome(store, verb)
        assert type(outcome) is way.must.error, outcome
        assert took_s < TIMEOUT_S + GRACE_S
        if way.must is Must.REFUSED:
            assert "repeated a continuation token" in str(outcome)
            assert len(server.asked) < 9
        else:
            assert took_s > 0.9 * TIMEOUT_S


@pytest.mark.parametrize("way", DRIP_WAYS, ids=lambda way: way.name)
def test_no_verb_waits_longer_than_its_call_s_timeout(dripping: tuple[FaultyServer, ObjectStore], way: Way) -> None:
    server, store = dripping
    server.forget()
    server.service.objects.write("object", OBJECT, {})
    # Cut idle connections. An idle connection that the calls below do not reuse would stay open.
    server.cut_all()
    wait_until(lambda: server.open_connections == 0)
    server.lie(way)
    verbs = [verb for verb in VERBS if _is_lied_to(verb, way, server.service.cloud)]
    with ThreadPoolExecutor(len(verbs)) as pool:
        outcomes = list(pool.map(partial(_outcome, store), verbs))
    for verb, took_s, outcome in outcomes:
        assert type(outcome) is StoreUnavailableError, (verb, outcome)
        # The stall timeout of a listing or deletion equals the call timeout, but starts earlier, so it may end first.
        assert "within its deadline" in str(outcome) or f"no progress for {TIMEOUT_S:g} s" in str(outcome), outcome
        assert took_s < TIMEOUT_S + GRACE_S, verb
    if set(way.steps) == set(EVERY_STEP):
        # The store keeps no connection with an endless answer open for other requests.
        wait_until(lambda: server.open_connections == 0)


def test_pages_without_objects_are_passed_over(
    dripping: tuple[FaultyServer, ObjectStore], patient: ObjectStore
) -> None:
    server, _ = dripping
    server.forget()
    server.service.objects.write("object", OBJECT, {})
    empty = iter(range(5))
    of_empty_pages = PAGE_WAYS[0].answer

    def at_first_empty(exchange: Exchange) -> Answer:
        return of_empty_pages(exchange) if next(empty, None) else exchange.honest()

    next(empty)
    server.lie(replace(PAGE_WAYS[0], answer=at_first_empty))
    outcome = _outcome(patient, "list")
    server.be_honest()
    assert outcome[2] == list(patient.list("o"))
