"""Objects in this process's memory: for tests, examples and experiments."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from tieredstore.backends.base import AbandonedWrite, Body, ObjectInfo, ObjectStore, StoreAdmin
from tieredstore.backends.contract.bodies import open_body
from tieredstore.backends.contract.checks import checked_key, is_empty_request, raise_failures, resolved_range
from tieredstore.errors import ObjectNotFoundError, PreconditionFailedError, TieredStoreError
from tieredstore.process.forks import ForkSafeLock

if TYPE_CHECKING:
    from tieredstore.config import Settings


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    version: int
    modified_ms: int

    def info(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self.data), f"v{self.version}", self.modified_ms)


class MemoryObjectStore(ObjectStore, StoreAdmin):
    """Objects in memory, safe for several threads.

    Pickling raises TypeError. Another process cannot share the memory, and an empty store there would look like lost
    data. The version number only grows, so an etag never repeats, even after a delete.
    """

    def __init__(self) -> None:
        self._identity = f"memory://{uuid.uuid4()}"
        self._lock = ForkSafeLock()
        self._objects: dict[str, _Object] = {}
        self._last_version = 0

    @classmethod
    def from_settings(cls, settings: Settings) -> MemoryObjectStore:  # noqa: ARG003  the interface's signature
        """Make an empty store."""
        return cls()

    @property
    def identity(self) -> str:
        """``memory://`` and a random name."""
        return self._identity

    def __repr__(self) -> str:
        return f"MemoryObjectStore({self._identity!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a memory store cannot be pickled: another process cannot share its objects")

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Collect the whole body before storing it."""
        with open_body(body) as parts:
            checked_key(key)
            data = b"".join(map(bytes, parts))
        with self._lock:
            if if_absent and key in self._objects:
                raise PreconditionFailedError(f"the object {key!r} exists already")
            self._write(key, data)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return a copy of the range."""
        checked_key(key)
        if is_empty_request(start, stop):
            return b""
        data = self._object(key).data
        wanted = resolved_range(key, len(data), start, stop)
        return data[wanted.start : wanted.stop]

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Fill ``buffer``, which must be contiguous."""
        checked_key(key)
        with memoryview(buffer).cast("B") as view:
            stop = start + len(view)
            if is_empty_request(start, stop):
                return
            data = self._object(key).data
            resolved_range(key, len(data), start, stop)
            with memoryview(data) as source:
                view[:] = source[start:stop]

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """List the keys that exist when the first result is requested, except keys that are deleted after that."""
        with self._lock:
            keys = [k for k in self._objects if k.startswith(prefix) and (start_after is None or k > start_after)]
        # Stores sort by UTF-8 bytes. Python compares text by code points, which gives the same order.
        for key in sorted(keys):
            stored = self._objects.get(key)
            if stored is not None:
                yield stored.info(key)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete keys one by one; other operations may run in between."""
        failures: list[TieredStoreError] = []
        for key in keys:
            try:
                checked_key(key)
            except TieredStoreError as error:
                failures.append(error)
                continue
            with self._lock:
                self._objects.pop(key, None)
        raise_failures(failures)

    def lifecycle(self) -> str:
        """Return a sentence that says that memory has no lifecycle rules. It needs none, because a failed write leaves
        no bytes for a rule or ``gc`` to remove.
        """
        return "a store in memory has no lifecycle rules, and nothing that gc would have to remove"

    def head(self, key: str) -> ObjectInfo:
        """Return metadata; the etag is ``v`` and the number of the write."""
        checked_key(key)
        return self._object(key).info(key)

    def replace(self, key: str, body: Body, etag: str) -> str:
        """Replace an object. Each replacement gives the object a new etag, even if the bytes are equal."""
        with open_body(body) as parts:
            checked_key(key)
            data = b"".join(map(bytes, parts))
        with self._lock:
            current = self._objects.get(key)
            if current is None or current.info(key).etag != etag:
                raise PreconditionFailedError(f"the object {key!r} no longer has the etag {etag!r}")
            return f"v{self._write(key, data).version}"

    def now_ms(self) -> int:
        """Return this machine's time."""
        return time.time_ns() // 1_000_000

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite]:  # noqa: ARG002
        """Yield nothing: failed writes leave nothing."""
        return iter(())

    def kept_after_delete(self) -> Sequence[str]:
        """Return an empty sequence, because memory keeps no deleted objects."""
        return ()

    def rules_on(self, prefix: str) -> Sequence[str]:  # noqa: ARG002
        """Return an empty sequence, because memory has no lifecycle rules."""
        return ()

    def _write(self, key: str, data: bytes) -> _Object:
        """Write an object; the caller holds the lock."""
        self._last_version += 1
        written = _Object(data, self._last_version, time.time_ns() // 1_000_000)
        self._objects[key] = written
        return written

    def _object(self, key: str) -> _Object:
        stored = self._objects.get(key)
        if stored is None:
            raise ObjectNotFoundError(f"there is no object {key!r} in {self.identity}")
        return stored
