"""Export of the counters to Prometheus: a separate registry, and its HTTP server.

Prometheus's client is slow to import, because it imports an HTTP server. So ``counting``, which each process imports,
is a separate module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tieredstore.metrics.counting import COUNTERS, HISTOGRAMS, SECONDS, SNAPSHOTS, Snapshots

REGISTRY: Final = CollectorRegistry()
"""All metrics of this library in this process."""

_BOUNDS: Final = (*(repr(float(seconds)) for seconds in SECONDS), "+Inf")


class CountsCollector(Collector):
    """Exports all counters, and all histograms with cumulative buckets, in Prometheus's form."""

    def describe(self) -> Iterable[Metric]:
        """Return the names, so that a scrape can request some of the metrics."""
        counters = [Metric(counter.name, counter.meaning, "counter") for counter in COUNTERS]
        return [*counters, *(Metric(histogram.name, histogram.meaning, "histogram") for histogram in HISTOGRAMS)]

    def collect(self) -> Iterable[Metric]:
        """Return the counters' totals and the histograms' distributions."""
        metrics = {metric.name: metric for metric in self.describe()}
        for counter in COUNTERS:
            name, metric = counter.name, metrics[counter.name]
            for values, total in counter.totals():
                labels = dict(zip(counter.labels, values, strict=True))
                metric.add_sample(f"{name}_total", labels, total.value)
                metric.add_sample(f"{name}_created", labels, total.created)
        for histogram in HISTOGRAMS:
            name, metric = histogram.name, metrics[histogram.name]
            for values, distribution in histogram.distributions():
                labels = dict(zip(histogram.labels, values, strict=True))
                up_to = list(map(float, accumulate(distribution.counts)))
                for bound, count in zip(_BOUNDS, up_to, strict=True):
                    metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
                metric.add_sample(f"{name}_count", labels, up_to[-1])
                metric.add_sample(f"{name}_sum", labels, distribution.sum)
                metric.add_sample(f"{name}_created", labels, distribution.created)
        return metrics.values()


class SnapshotsCollector(Collector):
    """Exports the totals of each Snapshots object in ``every``. Each scrape iterates over ``every`` again."""

    def __init__(self, every: Iterable[Snapshots]) -> None:
        self._every = every

    def describe(self) -> Iterable[Metric]:
        """Return no metric names, because they are unknown before a source is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return one metric for each name: a gauge for a level, a counter otherwise."""
        for snapshots in list(self._every):
            for name, value in sorted(snapshots.totals().items()):
                family = GaugeMetricFamily if name in snapshots.levels else CounterMetricFamily
                yield family(f"{snapshots.prefix}_{name}", f"See docs/reference/metrics.md: {name}.", value=value)


_servers: Final[set[WSGIServer]] = set()


def serve_metrics(port: int, host: str = "127.0.0.1") -> Callable[[], None]:
    """Serve ``REGISTRY`` by HTTP for Prometheus. Return a function that stops the server.

    By default only this machine can connect; set ``host`` to serve other machines. Raise OSError if the port is taken.
    A forked child does not serve, and closes its copy of the socket so that the port becomes free with the parent.
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


def _register_all() -> None:
    REGISTRY.register(CountsCollector())
    REGISTRY.register(SnapshotsCollector(SNAPSHOTS))


def _begin_again() -> None:
    """Replace locks in a forked child, because the threads that held them during the fork do not exist in the child."""
    while _servers:
        _servers.pop().server_close()
    CollectorRegistry.__init__(REGISTRY)
    _register_all()


_register_all()
os.register_at_fork(after_in_child=_begin_again)
