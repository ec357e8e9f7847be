"""Small JSON objects next to the batches: written once, or changed by conditional replace."""

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
    """``<key.prefix>!tieredstore/pubsub/<cluster>/``: the folder for topics, queues and groups of a cluster."""

    store: ObjectStore
    prefix: str
    cluster: str

    def key(self, *parts: str) -> str:
        """Return the key of an object."""
        return f"{self.prefix}!tieredstore/pubsub/{self.cluster}/{'/'.join(parts)}"

    def read(self, key: str, kind: TypeAdapter[_Kind]) -> _Kind:
        """Return the object at ``key``; raise ObjectNotFoundError, or CorruptDataError if it does not match
        ``kind``."""
        return parse_own(kind, self.store.get_small(key, _MOST_BYTES), key)

    def read_with_etag(self, key: str, kind: TypeAdapter[_Kind]) -> tuple[_Kind, str] | None:
        """Return the object and the etag to replace it by; None if it does not exist.

        Ask for the etag first: a write between the two requests makes it outdated, and the replace fails.
        """
        try:
            etag = self.store.head(key).etag
            found = self.read(key, kind)
        except ObjectNotFoundError:
            return None
        if etag is None:
            raise CorruptDataError(f"{key}: the store returned no etag, which a conditional replace needs")
        return found, etag


def json_body(document: Mapping[str, object]) -> bytes:
    """Return the stored bytes of a JSON object."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def parse_own(kind: TypeAdapter[_Kind], raw: bytes | None, key: str) -> _Kind:
    """Parse the JSON at ``key``; raise CorruptDataError, naming a field, if it does not match ``kind``."""
    try:
        return kind.validate_json(raw or b"", strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        why = first["msg"] if not name or first["type"] == "missing" else f"its {name} is {first['input']!r:.60}"
        raise CorruptDataError(f"{key} is not a valid pubsub object: {why}") from error
