"""Every method of every cloud's store, on a server that tells each lie of the table ``WAYS``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.service import Cloud, Step
from tests.support.faulty_server.way import Must, Way
from tests.support.faulty_server.ways import QUICK_WAYS, WAYS
from tests.support.stores.faulty_stores import PART_SIZES, SERVICES, store_on
from tieredstore.backends.base import ObjectStore, admin_of, find_abandoned_writes
from tieredstore.backends.cloud.answers import parse_date
from tieredstore.errors import TieredStoreError

SMALL = b"small object"
KEYS = tuple(f"kept/{number}" for number in range(4))
"""Keys of the bucket's objects; a page of a listing has three of them."""


@dataclass(frozen=True)
class Verb:
    """One store call: ``run`` makes the call, ``is_right`` checks the call's result and the server's content.

    ``steps`` are the kinds of the requests that it sends, on any of the clouds.
    """

    name: str
    steps: frozenset[Step]
    run: Callable[[ObjectStore, Cloud], object] = field(repr=False)
    is_right: Callable[[object, FaultyServer], bool] = field(repr=False)
    clouds: frozenset[Cloud] = frozenset(Cloud)


def large(cloud: Cloud) -> bytes:
    """Return content of two parts."""
    return bytes(range(256)) * (PART_SIZES[cloud] // 256 + 1)


def _get_into(store: ObjectStore, _: Cloud) -> object:
    buffer = bytearray(5)
    store.get_into(KEYS[0], 1, buffer)
    return bytes(buffer)


def _replace(store: ObjectStore, _: Cloud) -> object:
    return store.replace(KEYS[0], b"replaced", etag_of(store))


def etag_of(store: ObjectStore) -> str:
    """Return the first object's etag; call it while the server is honest."""
    return _ETAGS[id(store)]


_ETAGS: dict[int, str] = {}


def remember_etag(store: ObjectStore) -> None:
    """Fetch the first object's etag, for ``etag_of``."""
    _ETAGS[id(store)] = store.head(KEYS[0]).etag or ""


def _holds(key: str, data: bytes) -> Callable[[object, FaultyServer], bool]:
    def is_right(_: object, server: FaultyServer) -> bool:
        held = server.service.objects.by_key.get(key)
        return held is not None and held.data == data

    return is_right


def _holds_large(_: object, server: FaultyServer) -> bool:
    return _holds("new", large(server.service.cloud))(_, server)


def _infos(keys: tuple[str, ...]) -> Callable[[object, FaultyServer], bool]:
    return lambda listed, _: listed == [(key, len(SMALL)) for key in keys]


UPLOAD = frozenset({Step.BEGIN, Step.PART, Step.COMPLETE})
VERBS = (
    Verb("put", frozenset({Step.WRITE}), lambda store, _: store.put("new", SMALL), _holds("new", SMALL)),
    Verb("put in parts", UPLOAD, lambda store, cloud: store.put("new", [large(cloud)]), _holds_large),
    Verb(
        "put if absent",
        frozenset({Step.WRITE}),
        lambda store, _: store.put("new", SMALL, if_absent=True),
        _holds("new", SMALL),
    ),
    Verb("replace", frozenset({Step.WRITE}), _replace, _holds(KEYS[0], b"replaced")),
    Verb("get", frozenset({Step.READ}), lambda store, _: store.get(KEYS[0]), lambda data, _: data == SMALL),
    Verb(
        "get range",
        frozenset({Step.READ}),
        lambda store, _: store.get(KEYS[0], 1, 6),
        lambda data, _: data == SMALL[1:6],
    ),
    Verb(
        "get_small",
        frozenset({Step.READ}),
        lambda store, _: store.get_small(KEYS[0], 99),
        lambda data, _: data == SMALL,
    ),
    Verb("get_into", frozenset({Step.READ}), _get_into, lambda data, _: data == SMALL[1:6]),
    Verb("head", frozenset({Step.HEAD}), lambda store, _: store.head(KEYS[0]).size, lambda size, _: size == len(SMALL)),
    Verb(
        "list",
        frozenset({Step.LIST}),
        lambda store, _: [(info.key, info.size) for info in store.list("kept/")],
        _infos(KEYS),
    ),
    Verb(
        "delete",
        frozenset({Step.DELETE, Step.BULK}),
        lambda store, _: store.delete(KEYS[:3]),
        lambda _, server: list(server.service.objects.by_key) == [KEYS[3]],
    ),
    Verb(
        "abandoned_writes",
        frozenset({Step.UPLOADS}),
        lambda store, _: list(find_abandoned_writes(store)),
        lambda writes, _: writes == [],
        clouds=frozenset({Cloud.S3}),
    ),
)


def verbs_of(cloud: Cloud) -> list[Verb]:
    """Return the store calls that a cloud has."""
    return [verb for verb in VERBS if cloud in verb.clouds]


pytestmark = pytest.mark.slow

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Place:
    """A server, a store on it, and the kinds of requests that each method sends while the server is honest."""

    server: FaultyServer
    store: ObjectStore
    steps: dict[str, frozenset[Step]]

    @property
    def cloud(self) -> Cloud:
        return self.server.service.cloud

    def fresh(self) -> None:
        """Make a bucket of a few objects, on an honest server."""
        self.server.forget()
        for key in KEYS:
            self.server.service.objects.write(key, SMALL, {})
        remember_etag(self.store)
        self.server.asked.clear()


@pytest.fixture(scope="module", params=list(Cloud), ids=lambda cloud: cloud.value)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    cloud: Cloud = request.param
    with (
        FaultyServer(SERVICES[cloud]()) as server,
        closing(store_on(server, timeout_s=TIMEOUT_S, page_size=3)) as store,
    ):
        place = Place(server, store, {})
        for verb in verbs_of(cloud):
            place.fresh()
            assert verb.is_right(verb.run(store, cloud), server), verb
            place.steps[verb.name] = frozenset(server.steps())
        yield place


@pytest.mark.parametrize("way", QUICK_WAYS, ids=lambda way: way.name)
def test_a_lie_is_an_error_or_does_no_harm(place: Place, way: Way) -> None:
    if place.cloud not in way.clouds:
        return
    wrong = [line for verb in verbs_of(place.cloud) if (line := _outcome(place, way, verb)) is not None]
    assert not wrong, "\n".join(wrong)


NO_LISTING = (
    "connection closed before the answer",
    "a web page, nothing done",
    "JSON of another kind",
    "403, a web page",
)


@pytest.mark.parametrize("way", [way for way in QUICK_WAYS if way.name.endswith(NO_LISTING)], ids=lambda way: way.name)
def test_the_time_is_that_of_a_listing_s_answer(place: Place, way: Way) -> None:
    """``now_ms`` reads only the header Date of a listing's answer, so false contents of the listing do no harm."""
    place.fresh()
    assert admin_of(place.store).now_ms() is not None
    place.server.lie(way)
    error = way.must.error
    assert error is not None
    with pytest.raises(error):
        admin_of(place.store).now_ms()


@pytest.mark.parametrize("date", ["", "yesterday", "Sun, 22 Nov 2026 07:48:01", 7, "Sun, 99 Nov 2026 07:48:01 GMT"])
def test_a_date_that_is_none_is_no_time(date: object) -> None:
    with pytest.raises(ValueError, match=r"(?i)date|day|text|zone"):
        parse_date(date)
    assert parse_date(None) is None
    assert parse_date("Sun, 22 Nov 2026 07:48:01 GMT") == datetime(2026, 11, 22, 7, 48, 1, tzinfo=UTC)


def test_no_two_ways_have_one_name() -> None:
    assert len({way.name for way in WAYS}) == len(WAYS) >= 60


def _outcome(place: Place, way: Way, verb: Verb) -> str | None:
    """Return the fault in a method's outcome, if any."""
    if not place.steps[verb.name] & frozenset(way.steps):
        return None
    place.fresh()
    place.server.lie(way)
    began_s = time.monotonic()
    try:
        result = verb.run(place.store, place.cloud)
    except TieredStoreError as error:
        if type(error) is not way.must.error:
            return f"{verb.name}: {type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001  the test looks for leaked errors
        return f"{verb.name}: LEAKED {type(error).__name__}: {error}"
    else:
        if way.must is not Must.RIGHT:
            return f"{verb.name}: took it: {result!r:.100}"
        if not verb.is_right(result, place.server):
            return f"{verb.name}: WRONG {result!r:.100}"
    took_s = time.monotonic() - began_s
    if took_s > 4 * TIMEOUT_S:
        return f"{verb.name}: took {took_s:.1f} s"
    if place.cloud is not Cloud.AZURE and Step.ABORT not in way.steps and place.server.service.objects.uploads:
        return f"{verb.name}: upload not aborted"
    return None
