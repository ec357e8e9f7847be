"""What stores around stores have in common: every verb of the contract goes on to the store within."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tieredstore.backends.base import AbandonedWrite, Body, BucketLifecycle, Buffer, ObjectInfo, ObjectStore
from tieredstore.errors import TieredStoreError


class DelegatingStore(ObjectStore):
    """Hands every call on to ``inner``; a wrapper overrides what it has to do with."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    @property
    def identity(self) -> str:
        """The inner store's: these are its objects."""
        return self.inner.identity

    @property
    def conditional_writes(self) -> bool:
        """As ``inner``."""
        return self.inner.conditional_writes

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """As ``inner``."""
        self.inner.put(key, body, if_absent=if_absent)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """As ``inner``."""
        return self.inner.get(key, start, stop)

    def get_small(self, key: str, most: int) -> bytes | None:
        """As ``inner``."""
        return self.inner.get_small(key, most)

    @property
    def small_batch(self) -> int:
        """As ``inner``."""
        return self.inner.small_batch

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """As ``inner``."""
        return self.inner.get_small_batch(keys, most)

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """As ``inner``."""
        self.inner.get_into(key, start, buffer)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """As ``inner``."""
        return self.inner.list(prefix, start_after)

    def delete(self, keys: Iterable[str]) -> None:
        """As ``inner``."""
        self.inner.delete(keys)

    def head(self, key: str) -> ObjectInfo:
        """As ``inner``."""
        return self.inner.head(key)

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """As ``inner``."""
        return self.inner.replace(key, body, etag)

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite]:
        """As ``inner``."""
        return self.inner.abandoned_writes(prefix)

    def discard(self, write: AbandonedWrite) -> bool:
        """As ``inner``."""
        return self.inner.discard(write)

    def now_ms(self) -> int | None:
        """As ``inner``."""
        return self.inner.now_ms()

    def kept_after_delete(self) -> Sequence[str]:
        """As ``inner``."""
        return self.inner.kept_after_delete()

    def rules_on(self, prefix: str) -> Sequence[str] | None:
        """As ``inner``."""
        return self.inner.rules_on(prefix)

    def lifecycle(self) -> BucketLifecycle | str:
        """As ``inner``."""
        return self.inner.lifecycle()

    def caller(self) -> str:
        """As ``inner``."""
        return self.inner.caller()

    def close(self) -> None:
        """As ``inner``."""
        self.inner.close()
