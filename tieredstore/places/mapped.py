"""Base class of stores that show another store's objects under other keys."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tieredstore.backends.base import AbandonedWrite, Body, DelegatingStore, ObjectInfo, ObjectStore, Prepared
from tieredstore.errors import TieredStoreError
from tieredstore.places.record import Layout, check_layout, record_layout


class LaidOutStore(DelegatingStore):
    """A place whose layout is recorded in the bucket. Checks the record before the first request, and writes it before
    the first segment.

    Every call goes to ``inner``, with the object's key in ``inner``. Only segments are stored under other keys. Other
    objects, such as this project's own state, keep their keys. Subclasses translate keys, and implement listings.
    """

    def __init__(self, inner: ObjectStore, prefix: str, layout: Layout) -> None:
        super().__init__(inner)
        self.prefix, self.layout = prefix, layout
        self._is_checked = self._is_recorded = self._is_told = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r}, {self.prefix!r}, {self.layout!r})"

    @abstractmethod
    def inner_key(self, key: str) -> str:
        """Return the key in ``inner``."""

    @abstractmethod
    def outer_key(self, key: str) -> str | None:
        """Return the key under which an object of ``inner`` is shown; None if it is hidden."""

    def look_first(self, key: str, *, writes: bool) -> None:
        """Check once that no other layout is recorded in the bucket. Two threads may both check, which does no harm."""
        if not self._is_checked:
            self._is_recorded = check_layout(self.inner, self.prefix, self.layout)
            self._is_checked = True
        if writes and not self._is_recorded and self.inner_key(key) != key:
            record_layout(self.inner, self.prefix, self.layout)
            self._is_recorded = True

    def target(self, key: str, *, writes: bool = False) -> tuple[ObjectStore, str]:
        """Return ``inner``, and the key in it."""
        self.look_first(key, writes=writes)
        return self.inner, self.inner_key(key)

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """Read all keys by one call of ``inner``."""
        for key in keys[:1]:
            self.look_first(key, writes=False)
        return self.inner.get_small_batch([self.inner_key(key) for key in keys], most)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the keys in ``inner``."""
        self.inner.delete(self.inner_key(key) for key in keys)

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite] | None:
        """Yield the abandoned writes of ``inner``, under the keys that this store shows or, for a hidden key, under the
        stored key. Leave out keys that do not start with ``prefix``."""
        writes = super().abandoned_writes(self.prefix)
        if writes is None:
            return None
        seen = (replace(write, key=self.outer_key(write.key) or write.key) for write in writes)
        return (write for write in seen if write.key.startswith(prefix))

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """Write an object under ``staging_prefix``, even if ``inner`` has its own way of staging."""
        return ObjectStore.prepare(self, key, body, staging_prefix=staging_prefix)

    def publish(self, prepared: Prepared) -> None:
        """Copy the staged object to its final key, then delete the staging copy."""
        ObjectStore.publish(self, prepared)

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """Delete a staged object, or let ``inner`` discard an abandoned write."""
        if isinstance(write, Prepared):
            return ObjectStore.discard(self, write)
        return self.inner.discard(replace(write, key=self.inner_key(write.key)))

    def see_listing(self, listed: Iterable[ObjectInfo], prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        """Yield the entries of a listing of ``inner``, in the same order, under the keys that this store shows.

        Leave out entries whose shown keys do not begin with ``prefix``, or do not come after ``start_after``."""
        for info in listed:
            key = self.outer_key(info.key)
            if key is not None and key.startswith(prefix) and (start_after is None or is_behind(key, start_after)):
                yield replace(info, key=key)


def is_behind(key: str, other: str) -> bool:
    """Return True if ``key`` comes after ``other`` in a listing."""
    return key.encode() > other.encode()


def listing_order(info: ObjectInfo) -> bytes:
    """Return the sort key of listings."""
    return info.key.encode()
