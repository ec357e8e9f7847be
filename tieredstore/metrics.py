"""Prometheus metrics of this process: what stores were asked, what segments were copied, read and deleted.

One registry of our own, ``REGISTRY``: export it with :func:`serve_metrics`, or hand it to your own exporter. Counting
costs five to ten microseconds a call of a store, whether or not anybody looks. A forked child counts from zero, but for
readers and caches that it has from its parent, and does not serve what its parent serves.
The names are listed, beside those of the plugin, in docs/metrics.md.
"""

from __future__ import annotations

import os
import threading
from collections import Counter as Totals
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Final, TypeAlias
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tieredstore.errors import (
    AccessDeniedError,
    CorruptDataError,
    PreconditionFailedError,
    ResourceNotFoundError,
    StoreThrottledError,
    StoreUnavailableError,
)

REGISTRY: Final = CollectorRegistry()
"""All metrics of this library in this process."""

# Requests take from 100 us (a local file) to minutes (a large object).
_SECONDS: Final = (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)

# A child has the counts of its parent in its memory; exported as its own they would be counted twice.
_anew: Final[list[Callable[[], None]]] = []
"""How each metric starts again in a forked child."""


def _counter(name: str, meaning: str, labels: tuple[str, ...] = ()) -> Counter:
    counter = Counter(name, meaning, labels, registry=REGISTRY)
    _anew.append(lambda: Counter.__init__(counter, name, meaning, labels, registry=REGISTRY))
    return counter


def _seconds(name: str, meaning: str, labels: tuple[str, ...] = ()) -> Histogram:
    histogram = Histogram(name, meaning, labels, buckets=_SECONDS, registry=REGISTRY)
    _anew.append(lambda: Histogram.__init__(histogram, name, meaning, labels, buckets=_SECONDS, registry=REGISTRY))
    return histogram


_REQUESTS: Final = _seconds(
    "tieredstore_store_request_seconds",
    "Duration of the calls of a store, its retries included; the count is the number of calls.",
    ("store", "operation"),
)
_OBJECTS: Final = _counter(
    "tieredstore_store_objects", "Objects written, read (once a call) or deleted.", ("store", "how")
)
_BYTES: Final = _counter("tieredstore_store_bytes", "Bytes written or read.", ("store", "how"))
_ERRORS: Final = _counter("tieredstore_store_errors", "Calls of a store that failed.", ("store", "operation", "kind"))
RETRIES: Final = _counter("tieredstore_store_retries", "Tries after a failed one, by why that one failed.", ("kind",))
SEGMENT_COPY: Final = _seconds("tieredstore_segment_copy_seconds", "Duration of successful segment copies.")
SEGMENT_COPY_ERRORS: Final = _counter("tieredstore_segment_copy_errors", "Segment copies that failed.")
SEGMENT_DELETE: Final = _seconds("tieredstore_segment_delete_seconds", "Duration of successful deletes.")
SEGMENT_DELETE_ERRORS: Final = _counter("tieredstore_segment_delete_errors", "Segment deletes that failed.")
SEGMENT_DELETE_BYTES: Final = _counter("tieredstore_segment_delete_bytes", "Original bytes of deleted segments.")
SEGMENT_FETCH_REQUESTED_BYTES: Final = _counter(
    "tieredstore_segment_fetch_requested_bytes", "Bytes of the ranges asked for, before any is read."
)

# More special classes first: a throttled store is also an unavailable one.
_KINDS: Final = (
    (StoreThrottledError, "throttled"),
    (StoreUnavailableError, "transient"),
    (AccessDeniedError, "denied"),
    (ResourceNotFoundError, "missing"),
    (PreconditionFailedError, "precondition"),
    (CorruptDataError, "corrupt"),
)

Snapshot: TypeAlias = Callable[[], Mapping[str, float]]
"""Totals so far by name; those that say what is there now, and may fall, are named ``entries`` or ``bytes``."""


def kind_of(error: BaseException) -> str:
    """Which class of errors it counts among: throttled, transient, denied, missing, precondition, corrupt or other."""
    return next((kind for error_class, kind in _KINDS if isinstance(error, error_class)), "other")


@dataclass(slots=True)
class StoreCall:
    """One call of a store, while it lasts; ``elsewhere_s`` are the seconds of it that were not the store's."""

    elsewhere_s: float = 0.0


@contextmanager
def store_call(store: str, operation: str) -> Generator[StoreCall, None, None]:
    """Times the block as one call of a store, and counts the error that it raises.

    A generator that is closed before its end is no error.
    """
    call = StoreCall()
    start = perf_counter()
    try:
        yield call
    # Whoever reads no further has not failed.
    except GeneratorExit:
        raise
    except BaseException as error:
        count_error(store, operation, error)
        raise
    finally:
        _REQUESTS.labels(store, operation).observe(perf_counter() - start - call.elsewhere_s)


def count_error(store: str, operation: str, error: BaseException) -> None:
    """Count an error of one object of several that a call was for."""
    _ERRORS.labels(store, operation, kind_of(error)).inc()


def count_objects(store: str, how: str, objects: int, byte_count: int = 0) -> None:
    """Count objects, and bytes, that went ``up`` or ``down`` or were ``deleted``."""
    _OBJECTS.labels(store, how).inc(objects)
    if byte_count:
        _BYTES.labels(store, how).inc(byte_count)


class Snapshots(Collector):
    """Adds up the snapshots of all living sources of one kind; what a closed one counted stays in the totals.

    ``levels`` say what is there now, and may fall; of those whose name ends with ``_max`` the greatest counts.
    """

    def __init__(
        self, prefix: str, registry: CollectorRegistry = REGISTRY, *, levels: Iterable[str] = ("entries", "bytes")
    ) -> None:
        self._prefix = prefix
        self._levels = frozenset(levels)
        self._lock = threading.Lock()
        self._sources: dict[int, Snapshot] = {}
        self._closed: Totals[str] = Totals()
        self._next = 0
        self._registry = registry
        registry.register(self)
        _anew.append(self.begin_again)

    def begin_again(self) -> None:
        """In a forked child: another thread may have held the lock."""
        self._lock = threading.Lock()
        self._registry.register(self)

    def add(self, source: Snapshot) -> Callable[[], None]:
        """Collect from ``source`` until the function that is returned is called."""
        with self._lock:
            self._next += 1
            number = self._next
            self._sources[number] = source

        def remove() -> None:
            with self._lock:
                if self._sources.pop(number, None) is not None:
                    self._closed.update({name: value for name, value in source().items() if name not in self._levels})

        return remove

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not known before there is a source."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One metric for each name."""
        with self._lock:
            sums = Totals(self._closed)
            for source in self._sources.values():
                totals = dict(source())
                greatest = {name: max(sums[name], totals.pop(name)) for name in list(totals) if name.endswith("_max")}
                sums.update(totals)
                sums.update({name: value - sums[name] for name, value in greatest.items()})
        for name, value in sorted(sums.items()):
            family = GaugeMetricFamily if name in self._levels else CounterMetricFamily
            yield family(f"{self._prefix}_{name}", f"See docs/metrics.md: {name}.", value=value)


FETCH: Final = Snapshots("tieredstore_fetch")
"""What readers asked for and fetched: one source a remote storage manager."""

CHUNK_CACHE: Final = Snapshots("tieredstore_chunk_cache")
"""Chunk caches: one source a cache."""


_servers: Final[set[WSGIServer]] = set()


def serve_metrics(port: int, host: str = "127.0.0.1") -> Callable[[], None]:
    """Serve ``REGISTRY`` by HTTP for Prometheus to scrape; the function returned stops it.

    Only this machine is served unless ``host`` says otherwise. OSError if the port is taken. A forked child does not
    serve, nor does it keep the port from being used again.
    """
    server, thread = start_http_server(port, host, REGISTRY)
    _servers.add(server)

    def stop() -> None:
        if server not in _servers:
            return
        _servers.remove(server)
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _begin_again() -> None:
    """Locks that other threads held during a fork stay locked in the child, where those threads are not."""
    while _servers:
        _servers.pop().server_close()
    CollectorRegistry.__init__(REGISTRY)
    for begin in _anew:
        begin()


os.register_at_fork(after_in_child=_begin_again)
