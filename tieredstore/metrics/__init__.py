"""Metrics of this process: requests to stores, and segments that were copied, read and deleted.

Counting needs no library and costs two to three microseconds per store call. The first use of the registry ``REGISTRY``
imports Prometheus's client. Call :func:`serve_metrics` to serve the registry, or pass it to your own exporter. A forked
child counts from zero, except for inherited readers and caches, whose counts continue. The child does not serve its
parent's metrics. docs/reference/metrics.md lists the metrics, and the name of each in the Java plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.metrics.exposition import REGISTRY, serve_metrics

__all__ = ["REGISTRY", "serve_metrics"]


def __getattr__(name: str) -> object:
    """Import Prometheus's client on first use, because its import takes forty milliseconds (it imports an HTTP
    server)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tieredstore.metrics import exposition  # noqa: PLC0415  imports an HTTP server

    return getattr(exposition, name)
