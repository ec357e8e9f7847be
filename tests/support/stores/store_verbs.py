"""Calls of every store method for a faulty server, each with its setup, its requests and its expected result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.service import Cloud, Step
from tests.support.stores.faulty_stores import PART_SIZES
from tieredstore.backends.base import ObjectStore, find_abandoned_writes

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
