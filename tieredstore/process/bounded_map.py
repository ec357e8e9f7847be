"""Map in memory, limited by the age and the weight of its entries."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from tieredstore.process.forks import begin_again_after_fork

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(slots=True)
class MapStats:
    """Current content of a map, and counters since it was made.

    ``evictions`` counts the entries removed for space or age, and ``evicted_weight`` is their weight. Replaced and
    discarded entries are not included.
    """

    entries: int = 0
    weight: int = 0
    evictions: int = 0
    evicted_weight: int = 0


@dataclass(slots=True)
class _Entry(Generic[Value]):
    value: Value
    weight: int
    used: float


class BoundedMap(Generic[Key, Value]):
    """Map limited by the weight of its entries. It evicts the least recently used entries first. Safe from several
    threads.

    ``limit`` bounds the sum of the weights; -1 is no limit. The map does not keep an entry above the limit. ``weigh``
    returns a value's weight (default: 1), and is called once per value.

    ``entry_cost`` is the weight of an entry besides its value. The map adds this cost for each entry beyond
    ``free_entries``. This cost is negligible for a few heavy values, but dominates for millions of light values.

    Entries expire ``retention_ms`` after their last use (-1: never). ``clock`` returns monotonic seconds. In a forked
    child the map is empty.
    """

    def __init__(
        self,
        limit: int,
        *,
        weigh: Callable[[Value], int] | None = None,
        entry_cost: int = 0,
        free_entries: int = 0,
        retention_ms: int = -1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._weigh = weigh
        self._entry_cost, self._free_entries = entry_cost, free_entries
        self._retention = retention_ms / 1000 if retention_ms >= 0 else None
        self._clock = clock
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Empty the map in a forked child, because another thread of the parent may have been changing the map at the
        fork."""
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, _Entry[Value]] = OrderedDict()  # the least recently used comes first
        self._stats = MapStats()

    def get(self, key: Key) -> Value | None:
        """Return the value and note its use. Return None if the value is absent or expired."""
        with self._lock:
            now = self._expire()
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.used = now
            self._entries.move_to_end(key)
            return entry.value

    def put(self, key: Key, value: Value) -> None:
        """Keep ``value``, replace an older value of the key, and evict other values if needed."""
        weight = 1 if self._weigh is None else self._weigh(value)
        with self._lock:
            now = self._expire()
            self._drop(key)
            if 0 <= self._limit < weight:
                return
            self._entries[key] = _Entry(value, weight, now)
            self._stats.weight += weight
            while (
                0
                <= self._limit
                < self._stats.weight + self._entry_cost * max(0, len(self._entries) - self._free_entries)
            ):
                self._evict_oldest()

    def discard(self, key: Key) -> None:
        """Remove the entry, if there is one."""
        with self._lock:
            self._drop(key)

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
            self._stats.weight = 0

    def __contains__(self, key: Key) -> bool:
        """Return True if ``get`` would find the key now, without noting a use."""
        with self._lock:
            self._expire()
            return key in self._entries

    def __len__(self) -> int:
        return self.stats.entries

    @property
    def stats(self) -> MapStats:
        """Return a snapshot of the map's content and counters."""
        with self._lock:
            self._expire()
            return replace(self._stats, entries=len(self._entries))

    def _expire(self) -> float:
        """Remove expired entries, which are the first entries of the map. Return the current time."""
        now = self._clock()
        if self._retention is not None:
            while self._entries and now - next(iter(self._entries.values())).used >= self._retention:
                self._evict_oldest()
        return now

    def _evict_oldest(self) -> None:
        _, entry = self._entries.popitem(last=False)
        self._stats.weight -= entry.weight
        self._stats.evictions += 1
        self._stats.evicted_weight += entry.weight

    def _drop(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._stats.weight -= entry.weight
