"""Prometheus metrics of this process: what stores were asked, what segments were copied, read and deleted.

One registry of our own, ``REGISTRY``: export it with :func:`serve_metrics`, or hand it to your own exporter. Counting
costs about a microsecond a request whether or not anybody looks. A forked process goes on with its parent's totals.
The names are listed, beside those of the plugin, in docs/metrics.md.
"""

from __future__ import annotations

import threading
from collections import Counter as Totals
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tieredstore.errors import (
    AccessDenied,
    CorruptData,
    PreconditionFailed,
    ResourceNotFound,
    StoreThrottled,
    StoreUnavailable,
)

REGISTRY: Final = CollectorRegistry()
"""All metrics of this library in this process."""

# Requests take from 100 us (a local file) to minutes (a large object).
_SECONDS: Final = (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)

_REQUESTS: Final = Histogram(
    "tieredstore_store_request_seconds",
    "Duration of the calls of a store, its retries included; the count is the number of calls.",
    ["store", "operation"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
_OBJECTS: Final = Counter(
    "tieredstore_store_objects",
    "Objects written, read (once a call) or deleted.",
    ["store", "how"],
    registry=REGISTRY,
)
_BYTES: Final = Counter("tieredstore_store_bytes", "Bytes written or read.", ["store", "how"], registry=REGISTRY)
_ERRORS: Final = Counter(
    "tieredstore_store_errors", "Calls of a store that failed.", ["store", "operation", "kind"], registry=REGISTRY
)
RETRIES: Final = Counter(
    "tieredstore_store_retries",
    "Tries after a failed one, by why that one failed.",
    ["kind"],
    registry=REGISTRY,
)
SEGMENT_COPY: Final = Histogram(
    "tieredstore_segment_copy_seconds", "Duration of successful segment copies.", buckets=_SECONDS, registry=REGISTRY
)
SEGMENT_COPY_ERRORS: Final = Counter(
    "tieredstore_segment_copy_errors", "Segment copies that failed.", registry=REGISTRY
)
SEGMENT_DELETE: Final = Histogram(
    "tieredstore_segment_delete_seconds", "Duration of successful deletes.", buckets=_SECONDS, registry=REGISTRY
)
SEGMENT_DELETE_ERRORS: Final = Counter(
    "tieredstore_segment_delete_errors", "Segment deletes that failed.", registry=REGISTRY
)
SEGMENT_DELETE_BYTES: Final = Counter(
    "tieredstore_segment_delete_bytes", "Original bytes of deleted segments.", registry=REGISTRY
)
SEGMENT_FETCH_REQUESTED_BYTES: Final = Counter(
    "tieredstore_segment_fetch_requested_bytes", "Bytes of the ranges asked for, before any is read.", registry=REGISTRY
)

_KINDS: Final = (
    (StoreThrottled, "throttled"),
    (StoreUnavailable, "transient"),
    (AccessDenied, "denied"),
    (ResourceNotFound, "missing"),
    (PreconditionFailed, "precondition"),
    (CorruptData, "corrupt"),
)

Snapshot: TypeAlias = Callable[[], Mapping[str, float]]
"""Totals so far by name; those that say what is there now, and may fall, are named ``entries`` or ``bytes``."""


def kind_of(error: BaseException) -> str:
    """Which class of errors it counts among: throttled, transient, denied, missing, precondition, corrupt or other."""
    return next((kind for error_class, kind in _KINDS if isinstance(error, error_class)), "other")


@contextmanager
def store_call(store: str, operation: str) -> Generator[None, None, None]:
    """Times the block as one call of a store, and counts the error that it raises."""
    start = perf_counter()
    try:
        yield
    except BaseException as error:
        _ERRORS.labels(store, operation, kind_of(error)).inc()
        raise
    finally:
        _REQUESTS.labels(store, operation).observe(perf_counter() - start)


def count_objects(store: str, how: str, objects: int, byte_count: int = 0) -> None:
    """Count objects, and bytes, that went ``up`` or ``down`` or were ``deleted``."""
    _OBJECTS.labels(store, how).inc(objects)
    if byte_count:
        _BYTES.labels(store, how).inc(byte_count)


class Snapshots(Collector):
    """Adds up the snapshots of all living sources of one kind; what a closed one counted stays in the totals."""

    _LEVELS: Final = frozenset({"entries", "bytes"})

    def __init__(self, prefix: str, registry: CollectorRegistry = REGISTRY) -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        self._sources: dict[int, Snapshot] = {}
        self._closed: Totals[str] = Totals()
        self._next = 0
        registry.register(self)

    def add(self, source: Snapshot) -> Callable[[], None]:
        """Collect from ``source`` until the function that is returned is called."""
        with self._lock:
            self._next += 1
            number = self._next
            self._sources[number] = source

        def remove() -> None:
            with self._lock:
                if self._sources.pop(number, None) is not None:
                    self._closed.update({name: value for name, value in source().items() if name not in self._LEVELS})

        return remove

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not known before there is a source."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One metric for each name."""
        with self._lock:
            sums = Totals(self._closed)
            for source in self._sources.values():
                sums.update(dict(source()))
        for name, value in sorted(sums.items()):
            family = GaugeMetricFamily if name in self._LEVELS else CounterMetricFamily
            yield family(f"{self._prefix}_{name}", f"See docs/metrics.md: {name}.", value=value)


FETCH: Final = Snapshots("tieredstore_fetch")
"""What readers asked for and fetched: one source a remote storage manager."""

CHUNK_CACHE: Final = Snapshots("tieredstore_chunk_cache")
"""Chunk caches: one source a cache."""


def serve_metrics(port: int, host: str = "127.0.0.1") -> Callable[[], None]:
    """Serve ``REGISTRY`` by HTTP for Prometheus to scrape; the function returned stops it.

    Only this machine is served unless ``host`` says otherwise. OSError if the port is taken.
    """
    server, thread = start_http_server(port, host, REGISTRY)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
