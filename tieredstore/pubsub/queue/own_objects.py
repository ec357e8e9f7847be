"""Small JSON objects of our own beside the batches: written once, or moved by conditional replace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import CorruptDataError, ObjectNotFoundError

_MOST_BYTES: Final = 1 << 16
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class OwnFolder:
    """``<key.prefix>!tieredstore/pubsub/<cluster>/``: where topics, queues and groups of a cluster lie."""

    store: ObjectStore
    prefix: str
    cluster: str

    def key(self, *parts: str) -> str:
        """The key of what ``parts`` name."""
        return f"{self.prefix}!tieredstore/pubsub/{self.cluster}/{'/'.join(parts)}"

    def read(self, key: str, kind: TypeAdapter[_Kind]) -> _Kind:
        """What the object at ``key`` says; ObjectNotFoundError, or CorruptDataError for what ``kind`` does not hold."""
        return parse_own(kind, self.store.get_small(key, _MOST_BYTES), key)

    def read_with_etag(self, key: str, kind: TypeAdapter[_Kind]) -> tuple[_Kind, str] | None:
        """The same, and the etag to replace it by; None if it is not there.

        The etag is asked first: if somebody writes between the two requests, it is too old, and the replace fails.
        """
        try:
            etag = self.store.head(key).etag
            found = self.read(key, kind)
        except ObjectNotFoundError:
            return None
        if etag is None:
            raise CorruptDataError(f"{key}: the store tells no etag, without which nothing can be replaced")
        return found, etag


def json_body(document: Mapping[str, object]) -> bytes:
    """The bytes of an object of ours."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def parse_own(kind: TypeAdapter[_Kind], raw: bytes | None, key: str) -> _Kind:
    """What the JSON at ``key`` says; CorruptDataError, which names a field, for what ``kind`` does not hold."""
    try:
        return kind.validate_json(raw or b"", strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        why = first["msg"] if not name or first["type"] == "missing" else f"its {name} is {first['input']!r:.60}"
        raise CorruptDataError(f"{key} is not what pubsub wrote: {why}") from error
