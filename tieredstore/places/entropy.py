"""A store that inserts hash bits after the prefix into the stored keys of segments. It lists the keys without them."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain, islice
from typing import Final

from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.format.keys import partition_of
from tieredstore.places.mapped import LaidOutStore, listing_order
from tieredstore.places.record import STATE, Layout, all_folders, bits_folder
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool

_logger: Final = logging.getLogger(__name__)

_MOST_LISTINGS: Final = 256
"""Maximum number of folders to list in parallel. If there are more folders, list all of them by one listing, and sort
it in memory."""

_PAGE: Final = 1000


class EntropyStore(LaidOutStore):
    """Adds bits of MD5(``cluster-topic-partition``) after the prefix of segment keys. Readers see the keys without
    these bits."""

    def __reduce__(self) -> tuple[Callable[..., EntropyStore], tuple[ObjectStore, str, Layout]]:
        return EntropyStore, (self.inner, self.prefix, self.layout)

    def inner_key(self, key: str) -> str:
        """Insert the hash bits of a key's partition after the prefix."""
        if not key.startswith(self.prefix):
            return key
        path = key[len(self.prefix) :]
        where = partition_of(path)
        return key if where is None else f"{self.prefix}{self._bits(path)}{path}"

    def outer_key(self, key: str) -> str | None:
        """Remove the bits from a stored key. Return None for a segment's key without the bits of its partition."""
        if not key.startswith(self.prefix):
            return key
        path = key[len(self.prefix) :]
        if path.startswith(STATE):
            return key
        _, slash, rest = path.partition("/")
        where = partition_of(rest) if slash else None
        if where is not None and path == f"{self._bits(rest)}{rest}":
            return f"{self.prefix}{rest}"
        if where is not None or partition_of(path) is not None:
            if not self._is_told:
                self._is_told = True
                _logger.warning(
                    "%s is skipped: its hash bits are not those of its partition; other such keys are skipped too",
                    key,
                )
            return None
        return key

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """List a single partition with one listing. For several partitions, list each folder of bits, and merge the
        listings."""
        self.look_first(prefix, writes=False)
        path = prefix.removeprefix(self.prefix) if prefix.startswith(self.prefix) else None
        if path is not None and path.startswith(STATE):
            return self.inner.list(prefix, start_after)
        if path is not None and partition_of(path) is not None:
            after = None if start_after is None else self._after(self._bits(path), prefix, start_after)
            return self.see_listing(self.inner.list(self.inner_key(prefix), after), prefix, start_after)
        return self._list_folders(prefix, path or "", start_after)

    def _list_folders(self, prefix: str, path: str, start_after: str | None) -> Iterator[ObjectInfo]:
        folders = all_folders(self.layout.bits)
        if len(folders) > _MOST_LISTINGS:
            everything = self.see_listing(self.inner.list(self.prefix), prefix, start_after)
            yield from sorted(everything, key=listing_order)
            return
        listings = [
            self.inner.list(
                f"{self.prefix}{folder}{path}",
                None if start_after is None else self._after(folder, f"{self.prefix}{path}", start_after),
            )
            for folder in folders
        ]
        if STATE.startswith(path):
            listings.insert(0, self.inner.list(f"{self.prefix}{STATE}", start_after))
        merged = heapq.merge(
            *(self.see_listing(listing, prefix, start_after) for listing in begin_all(listings)), key=listing_order
        )
        yield from merged

    def _bits(self, path: str) -> str:
        where = partition_of(path)
        assert where is not None
        return bits_folder(self.layout.cluster or "", where, self.layout.bits)

    def _after(self, folder: str, outer_prefix: str, start_after: str) -> str | None:
        """Translate ``start_after`` to a key in ``folder``; return None if all requested keys come after
        ``start_after``.
        """
        if not start_after.startswith(self.prefix):
            return None
        return f"{self.prefix}{folder}{start_after[len(self.prefix) :]}" if start_after > outer_prefix else None


def begin_all(listings: Iterable[Iterator[ObjectInfo]]) -> list[Iterator[ObjectInfo]]:
    """Fetch the first page of each listing, in parallel, because a merge needs the first entry of every listing."""

    def begin(listing: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        return chain(list(islice(listing, _PAGE)), listing)

    with (
        ThreadPool(READERS, "tieredstore-places") as pool,
        closing(in_parallel(pool, begin, listings, at_once=READERS)) as pages,
    ):
        return list(pages)
