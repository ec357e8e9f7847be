"""Small JSON objects of our own beside the batches: written once, or moved by conditional replace."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, cast

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import CorruptData, ObjectNotFound

_MOST_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class OwnFolder:
    """``<key.prefix>!tieredstore/pubsub/<cluster>/``: where topics, queues and groups of a cluster lie."""

    store: ObjectStore
    prefix: str
    cluster: str

    def key(self, *parts: str) -> str:
        """The key of what ``parts`` name."""
        return f"{self.prefix}!tieredstore/pubsub/{self.cluster}/{'/'.join(parts)}"

    def read(self, key: str) -> dict[str, Any]:
        """The JSON object at ``key``; ObjectNotFound, or CorruptData for what is none."""
        raw = self.store.get_small(key, _MOST_BYTES)
        try:
            document = json.loads(raw or b"")
        except (ValueError, RecursionError) as error:
            raise CorruptData(f"{key} is not what pubsub wrote: {error}") from error
        if not isinstance(document, dict):
            raise CorruptData(f"{key} is not what pubsub wrote: no object of JSON")
        return cast("dict[str, Any]", document)

    def read_with_etag(self, key: str) -> tuple[dict[str, Any], str] | None:
        """The JSON object and the etag to replace it by; None if it is not there.

        The etag is asked first: if somebody writes between the two requests, it is too old, and the replace fails.
        """
        try:
            etag = self.store.head(key).etag
            document = self.read(key)
        except ObjectNotFound:
            return None
        if etag is None:
            raise CorruptData(f"{key}: the store tells no etag, without which nothing can be replaced")
        return document, etag


def json_body(document: dict[str, Any]) -> bytes:
    """The bytes of an object of ours."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def number_in(document: dict[str, Any], name: str, key: str) -> int:
    """A number of an object of ours that is 0 or more; CorruptData if it is none."""
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CorruptData(f"{key} is not what pubsub wrote: its {name} is {value!r:.60}")
    return value
