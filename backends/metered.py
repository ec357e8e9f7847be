"""A store whose calls are counted and timed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator

from tieredstore import metrics
from tieredstore.backends.base import Body, Buffer, ObjectInfo, ObjectStore
from tieredstore.backends.bodies import open_body


class MeteredStore(ObjectStore):
    """Passes every call on, and counts it (see ``tieredstore.metrics``). The label is the store's URL scheme."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self._kind = inner.identity.partition(":")[0]

    def __reduce__(self) -> tuple[Callable[..., MeteredStore], tuple[ObjectStore]]:
        return MeteredStore, (self.inner,)

    def __repr__(self) -> str:
        return f"MeteredStore({self.inner!r})"

    @property
    def identity(self) -> str:
        """That of the store within."""
        return self.inner.identity

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """One object up."""
        sent = 0

        def counted(parts: Iterable[memoryview]) -> Generator[memoryview, None, None]:
            nonlocal sent
            for part in parts:
                sent += len(part)
                yield part

        with metrics.store_call(self._kind, "put"), open_body(body) as parts:
            self.inner.put(key, counted(parts), if_absent=if_absent)
        metrics.count_objects(self._kind, "up", 1, sent)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """One object down; an empty range is no call."""
        if start == stop:
            return self.inner.get(key, start, stop)
        with metrics.store_call(self._kind, "get"):
            data = self.inner.get(key, start, stop)
        metrics.count_objects(self._kind, "down", 1, len(data))
        return data

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """One object down; an empty buffer is no call."""
        size = memoryview(buffer).nbytes
        if not size:
            self.inner.get_into(key, start, buffer)
            return
        with metrics.store_call(self._kind, "get"):
            self.inner.get_into(key, start, buffer)
        metrics.count_objects(self._kind, "down", 1, size)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """One call, timed until its last object was taken."""
        with metrics.store_call(self._kind, "list"):
            yield from self.inner.list(prefix, start_after)

    def delete(self, keys: Iterable[str]) -> None:
        """One call; its keys count as deleted if it succeeds, present or not."""
        wanted = tuple(keys)
        with metrics.store_call(self._kind, "delete"):
            self.inner.delete(wanted)
        metrics.count_objects(self._kind, "deleted", len(wanted))

    def head(self, key: str) -> ObjectInfo:
        """One call."""
        with metrics.store_call(self._kind, "head"):
            return self.inner.head(key)

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """One object up."""
        with metrics.store_call(self._kind, "replace"):
            made = self.inner.replace(key, body, etag)
        metrics.count_objects(self._kind, "up", 1, memoryview(body).nbytes)
        return made

    def close(self) -> None:
        """Close the store within."""
        self.inner.close()
