"""The base of stores that show the objects of another one under other keys."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tieredstore.backends.base import AbandonedWrite, Body, DelegatingStore, ObjectInfo, ObjectStore, Prepared
from tieredstore.errors import TieredStoreError


class MappedStore(DelegatingStore):
    """Hands every call on with the keys that ``inner`` has; a subclass says which those are, and lists."""

    @abstractmethod
    def inner_key(self, key: str) -> str:
        """The key within."""

    @abstractmethod
    def outer_key(self, key: str) -> str | None:
        """What an object within is seen as; None if it is not seen."""

    def look_first(self, key: str, *, writes: bool) -> None:
        """Called before each request that is about ``key``, or about keys that begin so."""

    def target(self, key: str, *, writes: bool = False) -> tuple[ObjectStore, str]:
        """``inner``, and the key there."""
        self.look_first(key, writes=writes)
        return self.inner, self.inner_key(key)

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """As ``inner``."""
        for key in keys[:1]:
            self.look_first(key, writes=False)
        return self.inner.get_small_batch([self.inner_key(key) for key in keys], most)

    def delete(self, keys: Iterable[str]) -> None:
        """As ``inner``."""
        self.inner.delete(self.inner_key(key) for key in keys)

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite] | None:
        """Those of all of ``inner``'s keys that are seen under ``prefix``."""
        writes = super().abandoned_writes()
        return None if writes is None else self._see_writes(writes, prefix)

    def _see_writes(self, writes: Iterator[AbandonedWrite], prefix: str) -> Iterator[AbandonedWrite]:
        for write in writes:
            key = self.outer_key(write.key)
            if key is not None and key.startswith(prefix):
                yield replace(write, key=key)

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """By objects under ``staging_prefix``, whatever ``inner`` could do."""
        return ObjectStore.prepare(self, key, body, staging_prefix=staging_prefix)

    def publish(self, prepared: Prepared) -> None:
        """As it was prepared."""
        ObjectStore.publish(self, prepared)

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """As ``inner``; what was prepared as it was."""
        if isinstance(write, Prepared):
            return ObjectStore.discard(self, write)
        return self.inner.discard(replace(write, key=self.inner_key(write.key)))

    def see_listing(self, listed: Iterable[ObjectInfo], prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        """What a listing within is seen as, under ``prefix`` and behind ``start_after``, in its order."""
        for info in listed:
            key = self.outer_key(info.key)
            if key is not None and key.startswith(prefix) and (start_after is None or is_behind(key, start_after)):
                yield replace(info, key=key)


def is_behind(key: str, other: str) -> bool:
    """Whether a listing has ``key`` after ``other``."""
    return key.encode() > other.encode()


def listing_order(info: ObjectInfo) -> bytes:
    """What listings are sorted by."""
    return info.key.encode()
