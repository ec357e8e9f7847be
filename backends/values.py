"""The values of the stores' contract: bodies, what is listed, and what was written and is not yet seen."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self, TypeAlias, cast

from tieredstore.errors import StoreError, excerpt
from tieredstore.limits import MAX_INT64

Buffer: TypeAlias = bytes | bytearray | memoryview
Body: TypeAlias = Buffer | Iterable[Buffer]
"""What ``put`` takes. A buffer that an iterable yields is valid only until the next one is asked for: a store that
keeps bytes longer than that copies them."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_MOST_PARTS: Final = 50_000
"""As many as Azure has blocks in a blob; S3 has 10,000 parts."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object.

    ``size`` in bytes. ``etag`` changes whenever the content does; None where a listing does not tell it.
    ``modified_ms`` is the store's own time of the last write, in ms since the epoch; None where it does not tell.
    """

    key: str
    size: int
    etag: str | None = None
    modified_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AbandonedWrite:
    """What a write left that began and did not end: bytes that take room, and that no listing shows.

    ``key`` is that of the object that was being written; a store that does not know it tells the place instead.
    ``size`` in bytes, None where the store does not tell. ``started_ms`` is the store's own time of the write's
    beginning, or of its last bytes, in ms since the epoch; None where it does not tell. ``id`` is the store's name for
    it. What is not ``removable`` nobody can take away: the store drops it in its own time.
    """

    key: str
    size: int | None
    started_ms: int | None
    id: str
    removable: bool = True


@dataclass(frozen=True, slots=True)
class Prepared:
    """An object that is in the store with all of its bytes, and that no listing shows under its key yet.

    It is a value for anybody who may write the store, in whatever process, as JSON too, and has no secret. ``sha256``
    in hexadecimal. ``place``, ``parts`` and ``mark`` are the store's own: where the bytes are, of what they are made,
    and which write made them.
    """

    key: str
    size: int
    sha256: str
    place: str
    parts: tuple[str, ...] = ()
    mark: str = ""

    def to_json(self) -> dict[str, object]:
        """As an object of JSON."""
        return {
            "key": self.key,
            "size": self.size,
            "sha256": self.sha256,
            "place": self.place,
            "parts": list(self.parts),
            "mark": self.mark,
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        """What ``to_json`` gave. StoreError for anything else: whoever can write where it is kept may have written
        it."""
        shown = excerpt(value)
        fields = cast("dict[str, object]", value if isinstance(value, dict) else {})
        key, size, sha256 = fields.get("key"), fields.get("size"), fields.get("sha256")
        place, parts, mark = fields.get("place"), fields.get("parts"), fields.get("mark")
        if (
            isinstance(key, str)
            and isinstance(size, int)
            and not isinstance(size, bool)
            and 0 <= size <= MAX_INT64
            and isinstance(sha256, str)
            and _DIGEST.fullmatch(sha256)
            and isinstance(place, str)
            and isinstance(mark, str)
            and isinstance(parts, list)
            and len(listed := cast("list[object]", parts)) <= _MOST_PARTS
            and all(isinstance(part, str) for part in listed)
        ):
            return cls(key, size, sha256, place, tuple(cast("list[str]", parts)), mark)
        raise StoreError(f"{shown!r} does not describe a prepared object: it was not written by this library")
