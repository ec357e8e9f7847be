"""Metrics of this process: what stores were asked, what segments were copied, read and deleted.

Counting costs two to three microseconds a call of a store, whether or not anybody looks, and needs no library.
Prometheus's client is imported once the registry ``REGISTRY`` is asked for, to be served by :func:`serve_metrics` or to
be handed to your own exporter. A forked child counts from zero, but for readers and caches that it has from its parent,
and does not serve what its parent serves. docs/reference/metrics.md lists the names, beside those of the plugin.
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
    """Import Prometheus's client for what needs it: an HTTP server comes with it, forty milliseconds of each start."""
    if name not in {"REGISTRY", "serve_metrics"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tieredstore.metrics import exposition  # noqa: PLC0415  see above

    return exposition.REGISTRY if name == "REGISTRY" else exposition.serve_metrics
