"""Values of the stores' interface: bodies, listed objects, and unfinished writes."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Final, TypeAlias

from pydantic import Field, Strict, TypeAdapter, ValidationError

from tieredstore.errors import StoreError, excerpt
from tieredstore.limits import MAX_INT64

Buffer: TypeAlias = bytes | bytearray | memoryview
Body: TypeAlias = Buffer | Iterable[Buffer]
"""The body of a ``put``. A buffer from an iterable is valid only until the next buffer is requested. To keep a buffer,
copy it."""

_MOST_PARTS: Final = 50_000
"""Most parts that a parsed ``Prepared`` may have. Azure allows 50,000 blocks in a blob, S3 10,000 parts."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object.

    Metadata of one object. ``size`` is in bytes. ``etag`` changes whenever the content does; None if a listing lacks
    it. ``modified_ms`` is the time of the last write by the store's clock, in ms since the epoch; None if unknown.
    """

    key: str
    size: int
    etag: str | None = None
    modified_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """A version of an object, or a delete marker, in a bucket that keeps versions.

    A delete marker hides the versions below it, and has no size and no etag. ``time_ms`` is when the object was written
    or deleted, by the store's clock in ms since the epoch. ``is_latest`` is True for the version or marker that readers
    see.
    """

    key: str
    id: str
    time_ms: int
    size: int = 0
    etag: str | None = None
    is_marker: bool = False
    is_latest: bool = False


@dataclass(frozen=True, slots=True)
class AbandonedWrite:
    """Bytes of a write that did not end. They take space in the store, but are in no listing of objects.

    ``key`` is the key of the unfinished object or, if the store does not know that key, the path of the bytes. ``size``
    is in bytes, None if unknown. ``started_ms`` is the time when the write began or last progressed, in ms since the
    epoch by the store's clock; None if unknown.

    ``id`` is the store's name for the write. If the write is not ``removable``, only the store itself can drop its
    bytes.
    """

    key: str
    size: int | None
    started_ms: int | None
    id: str
    removable: bool = True


@dataclass(frozen=True, slots=True)
class Prepared:
    """An object whose bytes are all in the store, but invisible under its key until published.

    Any process with write access to the store can publish the object from the JSON of this value, which contains no
    secret.

    ``sha256`` is in hexadecimal. ``place`` and ``parts`` tell the store where the bytes are, and ``mark`` is the random
    id of the write.
    """

    key: str
    size: Annotated[int, Strict(), Field(ge=0, le=MAX_INT64)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    place: str
    parts: Annotated[tuple[str, ...], Field(max_length=_MOST_PARTS)] = ()
    mark: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the fields as a JSON object."""
        return {**asdict(self), "parts": list(self.parts)}

    @staticmethod
    def from_json(value: object) -> Prepared:
        """Parse the result of ``to_json``; raise StoreError for anything else, because the value may come from an
        untrusted source."""
        try:
            return _adapter().validate_python(value)
        except ValidationError:
            raise StoreError(
                f"{excerpt(value)!r} does not describe a prepared object: it was not written by this library"
            ) from None


@functools.cache
def _adapter() -> TypeAdapter[Prepared]:
    return TypeAdapter(Prepared)
