"""Counters of this process, and functions that count. Counting needs no library: only ``exposition``, which exports the
counters, imports Prometheus's client."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import Counter as Sums
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, time
from typing import Final, TypeAlias

from tieredstore.errors import (
    AccessDeniedError,
    CorruptDataError,
    PreconditionFailedError,
    ResourceNotFoundError,
    StoreThrottledError,
    StoreUnavailableError,
)

SECONDS: Final = (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
"""Upper bounds of a histogram's buckets in seconds, from 100 us for a local file to minutes for a large object."""

Labels: TypeAlias = tuple[str, ...]

COUNTERS: Final[list[Counter]] = []
HISTOGRAMS: Final[list[Histogram]] = []
SNAPSHOTS: Final[list[Snapshots]] = []


@dataclass(slots=True)
class Total:
    """A counter's value for one combination of labels, and the time of its first count."""

    value: float = 0.0
    created: float = field(default_factory=time)


@dataclass(slots=True)
class Distribution:
    """A histogram's values for one combination of labels. The last element of ``counts`` is the number of values above
    all bounds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    sum: float = 0.0
    created: float = field(default_factory=time)


class Counter:
    """A total for each combination of labels. A counter without labels exports its total even before the first
    count."""

    def __init__(self, name: str, meaning: str, labels: Labels = ()) -> None:
        self.name, self.meaning, self.labels = name, meaning, labels
        self.begin_again()
        COUNTERS.append(self)

    def begin_again(self) -> None:
        """Reset to zero in a forked child. Also replace the lock, which another thread of the parent may have held."""
        self._lock = threading.Lock()
        self._totals = defaultdict[Labels, Total](Total, {} if self.labels else {(): Total()})

    def add(self, amount: float, *labels: str) -> None:
        """Add ``amount``."""
        with self._lock:
            self._totals[labels].value += amount

    @contextmanager
    def count_exceptions(self) -> Generator[None]:
        """Add 1 if an exception ends the block."""
        try:
            yield
        except Exception:
            self.add(1)
            raise

    def totals(self) -> list[tuple[Labels, Total]]:
        """Return a copy of the totals."""
        with self._lock:
            return [(labels, Total(total.value, total.created)) for labels, total in self._totals.items()]


class Histogram:
    """For each combination of labels, the number of durations in each bucket."""

    def __init__(self, name: str, meaning: str, labels: Labels = ()) -> None:
        self.name, self.meaning, self.labels = name, meaning, labels
        self.begin_again()
        HISTOGRAMS.append(self)

    def begin_again(self) -> None:
        """Reset to zero in a forked child."""
        self._lock = threading.Lock()
        self._distributions = defaultdict[Labels, Distribution](
            Distribution, {} if self.labels else {(): Distribution()}
        )

    def observe(self, seconds: float, *labels: str) -> None:
        """Count a duration."""
        with self._lock:
            distribution = self._distributions[labels]
            distribution.counts[bisect_left(SECONDS, seconds)] += 1
            distribution.sum += seconds

    def distributions(self) -> list[tuple[Labels, Distribution]]:
        """Return a copy of the distributions."""
        with self._lock:
            return [
                (labels, Distribution(list(found.counts), found.sum, found.created))
                for labels, found in self._distributions.items()
            ]


Snapshot: TypeAlias = Callable[[], Mapping[str, float]]
"""A function that returns a source's values by name: totals since its start, or current values (see ``levels`` below).
"""


class Snapshots:
    """Sums the snapshots of all living sources of one kind. Counts of a closed source stay in the totals.

    ``levels`` are the names of values that may rise and fall, such as sizes; all other values only rise. A level whose
    name ends with ``_max`` is the maximum over all sources, not their sum. The constructor appends the object to
    ``among``, the list of snapshots to export.
    """

    def __init__(
        self, prefix: str, *, levels: Iterable[str] = ("entries", "bytes"), among: list[Snapshots] = SNAPSHOTS
    ) -> None:
        self.prefix = prefix
        self.levels: frozenset[str] = frozenset(levels)
        self._lock = threading.Lock()
        self._sources: dict[int, Snapshot] = {}
        self._closed: Sums[str] = Sums()
        self._next = 0
        among.append(self)

    def begin_again(self) -> None:
        """Replace the lock in a forked child, because another thread of the parent may have held it. Keep sources and
        totals.
        """
        self._lock = threading.Lock()

    def add(self, source: Snapshot) -> Callable[[], None]:
        """Collect from ``source`` until the returned function is called."""
        with self._lock:
            self._next += 1
            number = self._next
            self._sources[number] = source

        def remove() -> None:
            with self._lock:
                if self._sources.pop(number, None) is not None:
                    self._closed.update({name: value for name, value in source().items() if name not in self.levels})

        return remove

    def totals(self) -> Mapping[str, float]:
        """Return the sums by name."""
        with self._lock:
            sums = Sums(self._closed)
            for source in self._sources.values():
                totals = dict(source())
                greatest = {name: max(sums[name], totals.pop(name)) for name in list(totals) if name.endswith("_max")}
                sums.update(totals)
                sums.update({name: value - sums[name] for name, value in greatest.items()})
        return sums


_REQUESTS: Final = Histogram(
    "tieredstore_store_request_seconds",
    "Duration of a store's calls, including retries; the histogram's count is the number of calls.",
    ("store", "operation"),
)
_OBJECTS: Final = Counter(
    "tieredstore_store_objects",
    "Objects written, read or deleted; an object counts once for each call that reads it.",
    ("store", "how"),
)
_BYTES: Final = Counter("tieredstore_store_bytes", "Bytes written or read.", ("store", "how"))
_ERRORS: Final = Counter("tieredstore_store_errors", "Failed calls of a store.", ("store", "operation", "kind"))
RETRIES: Final = Counter(
    "tieredstore_store_retries", "Retries of failed attempts, by the kind of the error.", ("kind",)
)
SEGMENT_COPY: Final = Histogram("tieredstore_segment_copy_seconds", "Duration of successful segment copies.")
SEGMENT_COPY_ERRORS: Final = Counter("tieredstore_segment_copy_errors", "Segment copies that failed.")
SEGMENT_DELETE: Final = Histogram("tieredstore_segment_delete_seconds", "Duration of successful deletes.")
SEGMENT_DELETE_ERRORS: Final = Counter("tieredstore_segment_delete_errors", "Segment deletes that failed.")
SEGMENT_DELETE_BYTES: Final = Counter("tieredstore_segment_delete_bytes", "Original bytes of deleted segments.")
SEGMENT_FETCH_REQUESTED_BYTES: Final = Counter(
    "tieredstore_segment_fetch_requested_bytes", "Bytes of the requested ranges, counted before they are read."
)
FETCH: Final = Snapshots("tieredstore_fetch")
"""Requests and fetches by readers, summed over all remote storage managers."""

CHUNK_CACHE: Final = Snapshots("tieredstore_chunk_cache")
"""Counters of chunk caches, summed over all caches."""

# Subclasses must come first: for example, StoreThrottledError is a subclass of StoreUnavailableError.
_KINDS: Final = (
    (StoreThrottledError, "throttled"),
    (StoreUnavailableError, "transient"),
    (AccessDeniedError, "denied"),
    (ResourceNotFoundError, "missing"),
    (PreconditionFailedError, "precondition"),
    (CorruptDataError, "corrupt"),
)


def kind_of(error: BaseException) -> str:
    """Return the label ``kind`` of an error in metrics: throttled, transient, denied, missing, precondition, corrupt or
    other."""
    return next((kind for error_class, kind in _KINDS if isinstance(error, error_class)), "other")


@dataclass(slots=True)
class StoreCall:
    """One running call of a store. ``elsewhere_s`` is the part of its duration that was spent outside the store."""

    elsewhere_s: float = 0.0


@contextmanager
def store_call(store: str, operation: str) -> Generator[StoreCall, None, None]:
    """Time the block as one call of a store, and count an error that the block raises.

    Closing a generator before its end does not count as an error of the store.
    """
    call = StoreCall()
    start = perf_counter()
    try:
        yield call
    # A reader that stops early closes the generator, so that Python raises GeneratorExit. That is no failure, so
    # count no error.
    except GeneratorExit:
        raise
    except BaseException as error:
        count_error(store, operation, error)
        raise
    finally:
        _REQUESTS.observe(perf_counter() - start - call.elsewhere_s, store, operation)


def count_error(store: str, operation: str, error: BaseException) -> None:
    """Count an error that concerns one object of a store call for several objects."""
    _ERRORS.add(1, store, operation, kind_of(error))


def count_objects(store: str, how: str, objects: int, byte_count: int = 0) -> None:
    """Count objects, and their bytes. ``how`` is ``up`` for written, ``down`` for read, or ``deleted``."""
    _OBJECTS.add(objects, store, how)
    if byte_count:
        _BYTES.add(byte_count, store, how)


def _begin_again() -> None:
    """Reset the counts in a forked child. Otherwise, parent and child would both export the parent's counts."""
    everything: list[Counter | Histogram | Snapshots] = [*COUNTERS, *HISTOGRAMS, *SNAPSHOTS]
    for each in everything:
        each.begin_again()


os.register_at_fork(after_in_child=_begin_again)
