"""Storage of a faulty server: objects under keys, and uncompleted multipart uploads."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Final

_EPOCH_S: Final = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Held:
    """One object. ``version`` counts all writes to the server; ``digest`` is S3's etag."""

    data: bytes = field(repr=False)
    metadata: Mapping[str, str]
    version: int
    digest: str

    @property
    def modified_s(self) -> int:
        """Modification time in seconds since the epoch: one second per write."""
        return _EPOCH_S + self.version

    @property
    def modified_http(self) -> str:
        """Modification time in HTTP's format."""
        return formatdate(self.modified_s, usegmt=True)


@dataclass(slots=True)
class Started:
    """Started upload: its parts by name."""

    key: str
    metadata: Mapping[str, str]
    parts: dict[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    generation: int | None = None


class HeldObjects:
    """Objects and uploads, in memory. A thread must hold ``lock`` to read several of them consistently."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_key: dict[str, Held] = {}
        self.uploads: dict[str, Started] = {}
        self._writes = 0

    def clear(self) -> None:
        """Remove everything; versions continue to count."""
        with self.lock:
            self.by_key.clear()
            self.uploads.clear()

    def reset(self, objects: Mapping[str, Held]) -> None:
        """Hold exactly these objects, without uploads; versions continue to count."""
        with self.lock:
            self.clear()
            self.by_key.update(objects)

    def write(self, key: str, data: bytes, metadata: Mapping[str, str], digest: str | None = None) -> Held:
        """Store an object, replacing any with this key."""
        with self.lock:
            self._writes += 1
            digest = digest or hashlib.md5(data, usedforsecurity=False).hexdigest()
            held = self.by_key[key] = Held(data, metadata, self._writes, digest)
        return held

    def begin(self, key: str, metadata: Mapping[str, str], generation: int | None = None) -> str:
        """Begin an upload and return its id."""
        with self.lock:
            self._writes += 1
            name = f"upload-{self._writes}"
            self.uploads[name] = Started(key, metadata, generation=generation)
        return name

    def keys_below(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        with self.lock:
            return sorted(key for key in self.by_key if key.startswith(prefix))


def ranged(data: bytes, header: str | None) -> tuple[bytes, str | None] | None:
    """Return the bytes selected by a ``Range`` header and their ``Content-Range``; None if there are none."""
    if not header:
        return data, None
    first, _, last = header.removeprefix("bytes=").partition("-")
    start, stop = int(first), min(int(last) + 1 if last else len(data), len(data))
    if start >= stop:
        return None
    return data[start:stop], f"bytes {start}-{stop - 1}/{len(data)}"
