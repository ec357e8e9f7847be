"""A store of which nothing is believed: every object that is written is read back and compared with what was sent."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Generator, Iterable
from typing import Final

from tieredstore.backends.base import Body, Buffer, DelegatingStore, ObjectStore
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
        sent = _Digest()
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

    def _holds(self, key: str, sent: _Digest) -> bool:
        stored = _Digest()
        try:
            for part in parts_of(self.inner, key, sent.size):
                stored.take(part)
        except (ObjectNotFound, RangeNotSatisfiable):
            return False
        return stored.value == sent.value and ends_at(self.inner, key, sent.size)

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


class _Digest:
    """Size and digest of what went by."""

    def __init__(self) -> None:
        self.size = 0
        self._digest = hashlib.blake2b()

    @property
    def value(self) -> tuple[int, bytes]:
        return self.size, self._digest.digest()

    def take(self, buffer: Buffer) -> None:
        self.size += memoryview(buffer).nbytes
        self._digest.update(buffer)

    def of(self, body: Body) -> Body:
        """The same body, which is noted as it goes by."""
        if isinstance(body, bytes | bytearray):
            self.take(body)
            return body
        if isinstance(body, memoryview):
            view = memoryview(body).cast("B")
            self.take(view)
            return view
        return self._noted(body)

    def _noted(self, parts: Iterable[Buffer]) -> Generator[Buffer]:
        for part in parts:
            self.take(part)
            yield part
