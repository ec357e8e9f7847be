"""Wrong answers in Google Cloud Storage's protocol."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from tests.support.faulty_server.answer_ways import header, instead
from tests.support.faulty_server.service import Cloud, Step
from tests.support.faulty_server.way import Exchange, Must, Way
from tests.support.faulty_server.wire import Answer, Reply

_GCS: Final = (Cloud.GCS,)
_LIST: Final = (Step.LIST,)
_WRITES: Final = (Step.WRITE, Step.COMPLETE)
_OBJECTS: Final = (Step.HEAD,)
_ANY: Final = (Step.WRITE, Step.BEGIN, Step.PART, Step.COMPLETE, Step.READ, Step.HEAD, Step.LIST, Step.DELETE)


def _edited(edit: Callable[[Any], object]) -> Callable[[Exchange], Answer]:
    """Change the honest answer's JSON by ``edit``, which works in place, or returns another value."""

    def answer(exchange: Exchange) -> Answer:
        reply = exchange.honest()
        if not reply.body:
            return reply
        value = json.loads(reply.body)
        changed = edit(value)
        return reply.changed(body=json.dumps(value if changed is None else changed).encode())

    return answer


def _first(**fields: object) -> Callable[[Exchange], Answer]:
    """Set these fields in a listing's first item; None removes one."""

    def edit(page: Any) -> None:
        if page.get("items"):
            _set(page["items"][0], fields)

    return _edited(edit)


def _described(**fields: object) -> Callable[[Exchange], Answer]:
    """Set these fields in the object's description; None removes one."""
    return _edited(lambda value: _set(value, fields))


def _set(value: dict[str, object], fields: dict[str, object]) -> None:
    value.update(fields)
    for name in [name for name, field in value.items() if field is None]:
        del value[name]


def _json(status: int, value: object) -> Callable[[Exchange], Answer]:
    return instead(status, json.dumps(value).encode(), Content_Type="application/json")


def _reason(reason: object) -> object:
    return {"error": {"code": 403, "message": "no", "errors": [{"reason": reason}]}}


def _reversed(page: Any) -> None:
    page["items"].reverse()


def _twice(page: Any) -> None:
    page["items"][:0] = page["items"][:1]


def _instead_of_items(value: object) -> Callable[[Exchange], Answer]:
    return _edited(lambda page: page.update(items=value))


def _cut_json(exchange: Exchange) -> Answer:
    reply = exchange.honest()
    return reply.changed(body=reply.body[:-5])


def _placed(url: str) -> Callable[[Exchange], Answer]:
    return lambda _: Reply(200, b"", {"Location": url})


LISTING_WAYS: Final = (
    Way("an item without a name", _GCS, _LIST, Must.REFUSED, _first(name=None)),
    Way("an item whose name is a number", _GCS, _LIST, Must.REFUSED, _first(name=7)),
    Way("an item without a size", _GCS, _LIST, Must.REFUSED, _first(size=None)),
    Way("a size in words", _GCS, _LIST, Must.REFUSED, _first(size="twelve")),
    Way("a negative size", _GCS, _LIST, Must.REFUSED, _first(size="-12")),
    Way("a size of 30 digits in JSON", _GCS, _LIST, Must.REFUSED, _first(size="9" * 30)),
    Way("a size that is a list", _GCS, _LIST, Must.REFUSED, _first(size=[12])),
    Way("a generation in words", _GCS, _LIST, Must.REFUSED, _first(generation="latest")),
    Way("an update at no time", _GCS, _LIST, Must.REFUSED, _first(updated="yesterday")),
    Way("no updates", _GCS, _LIST, Must.RIGHT, _first(updated=None)),
    Way("items that are no list", _GCS, _LIST, Must.REFUSED, _instead_of_items({"a": 1})),
    Way("items that are numbers", _GCS, _LIST, Must.REFUSED, _instead_of_items([1, 2])),
    Way("items out of order", _GCS, _LIST, Must.REFUSED, _edited(_reversed)),
    Way("an item twice", _GCS, _LIST, Must.REFUSED, _edited(_twice)),
    Way("a token that is a number", _GCS, _LIST, Must.REFUSED, _edited(lambda page: page.update(nextPageToken=7))),
    Way(
        "a listing of another kind",
        _GCS,
        _LIST,
        Must.REFUSED,
        _edited(lambda page: page.update(kind="storage#buckets")),
    ),
    Way("a listing that is a list", _GCS, _LIST, Must.REFUSED, _json(200, [])),
    Way("a listing that is null", _GCS, _LIST, Must.REFUSED, _json(200, None)),
    Way("JSON that ends early", _GCS, (Step.LIST, Step.HEAD), Must.UNAVAILABLE, _cut_json),
    Way("100,000 lists in each other", _GCS, _LIST, Must.REFUSED, instead(200, b'{"items":' + b"[" * 100_000)),
)
OBJECT_WAYS: Final = (
    Way("an object without a size", _GCS, _OBJECTS, Must.REFUSED, _described(size=None)),
    Way("an object of a size in words", _GCS, _OBJECTS, Must.REFUSED, _described(size="twelve")),
    Way("an object of a negative size", _GCS, _OBJECTS, Must.REFUSED, _described(size="-12")),
    Way("an object without a generation", _GCS, _OBJECTS, Must.REFUSED, _described(generation=None)),
    Way("an object of no time", _GCS, _OBJECTS, Must.REFUSED, _described(updated="yesterday")),
    Way("an object that is a list", _GCS, _OBJECTS, Must.REFUSED, _json(200, [])),
    Way("bytes without a generation", _GCS, (Step.READ,), Must.REFUSED, header("X-Goog-Generation", None)),
    Way("written, without a size", _GCS, _WRITES, Must.RIGHT, _described(size=None)),
    Way("written, without a generation", _GCS, _WRITES, Must.RIGHT, _described(generation=None)),
    Way("written, with a size in words", _GCS, _WRITES, Must.RIGHT, _described(size="twelve")),
    Way("written, described as a list", _GCS, _WRITES, Must.RIGHT, _edited(lambda _: [])),
    Way("not written, described without a size", _GCS, _WRITES, Must.REFUSED, _json(200, {"generation": "1"})),
    Way("a write that was damaged", _GCS, (Step.COMPLETE,), Must.UNAVAILABLE, _described(crc32c="AAAAAA==")),
)
SESSION_WAYS: Final = (
    Way("an upload at no place", _GCS, (Step.BEGIN,), Must.REFUSED, instead(200)),
    Way("an upload at a place that is none", _GCS, (Step.BEGIN,), Must.REFUSED, _placed("somewhere")),
    Way("a chunk that ends the upload", _GCS, (Step.PART,), Must.REFUSED, _json(200, {})),
    Way("a chunk of which nothing is held", _GCS, (Step.PART,), Must.UNAVAILABLE, instead(308)),
    Way("a chunk held in words", _GCS, (Step.PART,), Must.REFUSED, instead(308, Range="bytes=all")),
    Way("more held than was sent", _GCS, (Step.PART,), Must.REFUSED, instead(308, Range="bytes=0-99999999999")),
    Way("the last chunk is never enough", _GCS, (Step.COMPLETE,), Must.REFUSED, instead(308)),
)
ERROR_WAYS: Final = (
    Way("403 rateLimitExceeded", _GCS, _ANY, Must.THROTTLED, _json(403, _reason("rateLimitExceeded"))),
    Way("403 userRateLimitExceeded", _GCS, _ANY, Must.THROTTLED, _json(403, _reason("userRateLimitExceeded"))),
    Way("403 forbidden", _GCS, _ANY, Must.DENIED, _json(403, _reason("forbidden"))),
    Way("403 for a reason that is a list", _GCS, _ANY, Must.DENIED, _json(403, _reason([]))),
    Way("403 with a list", _GCS, _ANY, Must.DENIED, _json(403, ["no"])),
    Way("403 with an error in words", _GCS, _ANY, Must.DENIED, _json(403, {"error": "no"})),
    Way("403 with errors that are a number", _GCS, _ANY, Must.DENIED, _json(403, {"error": {"errors": 5}})),
    Way("503 with a number", _GCS, _ANY, Must.THROTTLED, _json(503, 5)),
    Way("a deletion answered with JSON", _GCS, (Step.DELETE,), Must.REFUSED, _json(200, {"kind": "storage#object"})),
)
GCS_WAYS: Final = (*LISTING_WAYS, *OBJECT_WAYS, *SESSION_WAYS, *ERROR_WAYS)
"""All wrong answers for Google."""
