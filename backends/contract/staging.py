"""Prepared writes for stores that cannot hide bytes. The object is written under a staging prefix, then copied to its
key.

Publication copies the staged object to its key by an atomic write that requires a free key. If the key already has an
object of the same size and SHA-256, publication succeeds too.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final

from tieredstore.backends.contract.bodies import Digest, byte_view, closing_body
from tieredstore.backends.contract.checks import checked_key
from tieredstore.backends.values import Body, Buffer, Prepared
from tieredstore.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    PreparedGoneError,
    RangeNotSatisfiableError,
    StoreError,
)

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore

_MARK: Final = re.compile(r"[0-9a-f]{32}")

PIECE: Final = 8 << 20
"""Bytes per request when an object is copied or compared."""


def prepare(store: ObjectStore, key: str, body: Body, prefix: str) -> Prepared:
    """Write the object under a unique name that begins with ``prefix``."""
    mark = uuid.uuid4().hex
    digest = Digest()
    place = f"{prefix}{mark}"
    with closing_body(body):
        checked_key(key)
        store.put(place, digest.of(body), if_absent=True)
    return Prepared(key, digest.size, digest.sha256, place, (), mark)


def publish(store: ObjectStore, prepared: Prepared, copy: Callable[[Prepared], None] | None = None) -> None:
    """Copy the staged object to its key (by ``copy``, if given), then delete the staged object."""
    what = f"{prepared.key!r} of {store.identity}"
    try:
        if copy is None:
            _copy(store, prepared)
        else:
            copy(prepared)
    except PreconditionFailedError as refusal:
        if not holds(store, prepared):
            raise conflict_error(what) from refusal
    except (ObjectNotFoundError, RangeNotSatisfiableError) as error:
        if not holds(store, prepared):
            raise gone_error(what) from error
    store.delete([prepared.place])


def discard(store: ObjectStore, prepared: Prepared) -> bool:
    """Delete a staged object; return False if it does not exist."""
    is_there = any(info.key == prepared.place for info in store.list(prepared.place))
    if is_there:
        store.delete([prepared.place])
    return is_there


def holds(store: ObjectStore, prepared: Prepared) -> bool:
    """Return True if the object under the key has the prepared bytes. This reads the whole object."""
    sha256 = hashlib.sha256()
    try:
        if store.head(prepared.key).size != prepared.size:
            return False
        for piece in _pieces(store, prepared.key, prepared.size):
            sha256.update(piece)
    except (ObjectNotFoundError, RangeNotSatisfiableError):
        return False
    return sha256.hexdigest() == prepared.sha256


def conflict_error(what: str) -> PreconditionFailedError:
    """Return the error for a key that has another object; ``what`` names the object to be published."""
    return PreconditionFailedError(f"{what} exists already, and is another object than the one to be published")


def gone_error(what: str) -> PreparedGoneError:
    """Return the error for prepared bytes that no longer exist."""
    return PreparedGoneError(
        f"{what} cannot be published: the bytes prepared for it were discarded or have expired; prepare it again"
    )


def _copy(store: ObjectStore, prepared: Prepared) -> None:
    digest = Digest()

    def body() -> Generator[bytes]:
        for piece in _pieces(store, prepared.place, prepared.size):
            digest.take(memoryview(piece))
            yield piece
        # Compare the digests before the body ends, so that the error below makes ``put`` write nothing.
        if digest.sha256 != prepared.sha256:
            raise StoreError(
                f"the bytes prepared for {prepared.key!r} of {store.identity} are damaged; prepare the object again"
            )

    store.put(prepared.key, body(), if_absent=True)


def _pieces(store: ObjectStore, key: str, size: int) -> Generator[bytes]:
    for start in range(0, size, PIECE):
        yield store.get(key, start, min(start + PIECE, size))


def check_mark(mark: str) -> str:
    """Return ``mark``; raise ValueError if it is not 32 hexadecimal digits. Every store can use such a mark."""
    if not _MARK.fullmatch(mark):
        raise ValueError(f"{mark!r:.60} is not the mark of a write: it must have 32 hexadecimal digits")
    return mark


def holds_bytes(store: ObjectStore, key: str, body: Buffer) -> bool:
    """Return True if the object under ``key`` has the content of ``body``."""
    with byte_view(body) as view:
        try:
            return store.head(key).size == len(view) and memoryview(store.get(key)) == view
        except ObjectNotFoundError:
            return False
