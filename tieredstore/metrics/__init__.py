"""Metrics of this process: requests to stores, and segments that were copied, read and deleted.

Counting needs no library and costs two to three microseconds per store call. The first use of the registry ``REGISTRY``
imports Prometheus's client. Call :func:`serve_metrics` to serve the registry, or pass it to your own exporter. A forked
child counts from zero, except for inherited readers and caches, whose counts continue. The child does not serve its
parent's metrics. docs/reference/metrics.md lists the metrics, and the name of each in the Java plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.metrics.counting import (
    CHUNK_CACHE,
    FETCH,
    RETRIES,
    SEGMENT_COPY,
    SEGMENT_COPY_ERRORS,
    SEGMENT_DELETE,
    SEGMENT_DELETE_BYTES,
    SEGMENT_DELETE_ERRORS,
    SEGMENT_FETCH_REQUESTED_BYTES,
    Snapshots,
    count_error,
    count_objects,
    kind_of,
    store_call,
)

if TYPE_CHECKING:
    from tieredstore.metrics.exposition import REGISTRY, serve_metrics

__all__ = [
    "CHUNK_CACHE",
    "FETCH",
    "REGISTRY",
    "RETRIES",
    "SEGMENT_COPY",
    "SEGMENT_COPY_ERRORS",
    "SEGMENT_DELETE",
    "SEGMENT_DELETE_BYTES",
    "SEGMENT_DELETE_ERRORS",
    "SEGMENT_FETCH_REQUESTED_BYTES",
    "Snapshots",
    "count_error",
    "count_objects",
    "kind_of",
    "serve_metrics",
    "store_call",
]


def __getattr__(name: str) -> object:
    """Import Prometheus's client on first use, because its import takes forty milliseconds (it imports an HTTP
    server)."""
    if name not in {"REGISTRY", "serve_metrics"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tieredstore.metrics import exposition  # noqa: PLC0415  imports an HTTP server

    return exposition.REGISTRY if name == "REGISTRY" else exposition.serve_metrics
