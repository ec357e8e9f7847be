"""A store of which nothing is believed: every object that is written is read back and compared with what was sent."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Final

from tieredstore.backends.base import Body, DelegatingStore, Digest, ObjectStore
from tieredstore.errors import ObjectNotFound, RangeNotSatisfiable, StoreError
from tieredstore.format.data_key_field import same_but_for_data_key
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import MAX_MANIFEST_SIZE

PART: Final = 8 << 20
"""Bytes of one request of an object that is read whole."""


class ProvenStore(DelegatingStore):
    """Passes every call on. A ``put`` ends once what is stored was read back and is what was sent; otherwise what it
    wrote is deleted, and StoreError says so. A manifest may have been rotated meanwhile."""

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Write, and read back."""
        sent = Digest()
        whole = body if isinstance(body, bytes) else None
        try:
            self.inner.put(key, sent.of(body), if_absent=if_absent)
        finally:
            # Also where the store refused before it took anything: then it did not end the body either.
            if isinstance(body, Generator):
                body.close()
        if not (self._holds(key, sent) or self._holds_manifest(key, whole)):
            with contextlib.suppress(StoreError):
                self.inner.delete([key])
            raise StoreError(f"{self.identity} did not give back what was written as {key!r}; it was deleted again")

    def _holds(self, key: str, sent: Digest) -> bool:
        stored = Digest()
        try:
            for part in parts_of(self.inner, key, sent.size):
                stored.take(part)
        except (ObjectNotFound, RangeNotSatisfiable):
            return False
        return (stored.size, stored.sha256) == (sent.size, sent.sha256) and ends_at(self.inner, key, sent.size)

    def _holds_manifest(self, key: str, sent: bytes | None) -> bool:
        """Whether it is a manifest that a rotation has given another wrapping since: others have seen it by then."""
        if sent is None or not key.endswith(f".{Suffix.MANIFEST.value}"):
            return False
        try:
            stored = self.inner.get_small(key, MAX_MANIFEST_SIZE)
        except ObjectNotFound:
            return False
        return stored is not None and same_but_for_data_key(stored, sent)


def parts_of(store: ObjectStore, key: str, size: int) -> Generator[bytes]:
    """The ``size`` bytes of an object, a part by each request."""
    for start in range(0, size, PART):
        yield store.get(key, start, min(start + PART, size))


def ends_at(store: ObjectStore, key: str, size: int) -> bool:
    """Whether the object has no more than ``size`` bytes; a folder's ``head`` would read all of it."""
    try:
        store.get(key, size, size + 1)
    except RangeNotSatisfiable:
        return True
    return False
