"""Small JSON objects of topics, queues and groups, which are written once or changed by conditional replace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import TypeAdapter

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import CorruptDataError, ObjectNotFoundError
from tieredstore.versions import StateKind

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

    def read(self, key: str, state: StateKind, kind: TypeAdapter[_Kind], most: int = _MOST_BYTES) -> _Kind:
        """Return the object at ``key``, which has at most ``most`` bytes. Raise ObjectNotFoundError if it does not
        exist, and CorruptDataError if it does not match ``kind``."""
        return state.parse(kind, self.store.get_small(key, most), key)

    def read_with_etag(
        self, key: str, state: StateKind, kind: TypeAdapter[_Kind], most: int = _MOST_BYTES
    ) -> tuple[_Kind, str] | None:
        """Return the object and its etag for a conditional replace; None if the object does not exist.

        The etag is requested before the content, so that a write between the two requests makes the etag old, and the
        replace fails.
        """
        try:
            etag = self.store.head(key).etag
            found = self.read(key, state, kind, most)
        except ObjectNotFoundError:
            return None
        if etag is None:
            raise CorruptDataError(f"{key}: the store returned no etag, which a conditional replace needs")
        return found, etag

    def write(self, key: str, body: bytes, etag: str | None) -> None:
        """Replace the object that has ``etag``; without an etag, create it. Raise PreconditionFailedError if another
        write was faster."""
        if etag is None:
            self.store.put(key, body, if_absent=True)
        else:
            self.store.replace(key, body, etag)
