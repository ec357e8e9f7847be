"""Names and labels of all samples that this library exports to Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

from prometheus_client import CollectorRegistry, Metric

from tieredstore.consumer.measures import CONSUMERS, Measures
from tieredstore.metrics.counting import CHUNK_CACHE, COUNTERS, FETCH, HISTOGRAMS, Snapshots
from tieredstore.pipelines.run.progress import Counts as PipelineCounts
from tieredstore.pipelines.run.progress import CountsCollector as PipelinesCollector
from tieredstore.pubsub import counts as pubsub
from tieredstore.remote.fetch.chunk_cache import CacheStats
from tieredstore.remote.statistics import FetchStats
from tieredstore.uploader.metrics import LAG
from tieredstore.uploader.metrics import Counts as UploaderCounts
from tieredstore.uploader.metrics import CountsCollector as UploaderCollector

_SNAPSHOTS: Mapping[Snapshots, type] = {
    FETCH: FetchStats,
    CHUNK_CACHE: CacheStats,
    pubsub.PRODUCERS: pubsub.ProducerCounts,
    pubsub.CONSUMERS: pubsub.ConsumerCounts,
    pubsub.AUDIT: pubsub.PairingCounts,
    pubsub.BROKERS: pubsub.BrokerCounts,
}


def exported_samples() -> dict[str, set[str]]:
    """Return the labels of each sample, by the name that a query uses. Prometheus adds `job` and `instance`."""
    found: dict[str, set[str]] = {}
    for counter in COUNTERS:
        found[f"{counter.name}_total"] = {*counter.labels}
    for histogram in HISTOGRAMS:
        found |= {f"{histogram.name}_{part}": {*histogram.labels} for part in ("count", "sum")}
        found[f"{histogram.name}_bucket"] = {*histogram.labels, "le"}
    for snapshots, counted in _SNAPSHOTS.items():
        _add(found, snapshots, [field.name for field in fields(counted)])
    _add(found, CONSUMERS, Measures(dict).snapshot())
    found["tieredstore_consumer_refreshes_total"] = set()  # a counter, not in the snapshot
    registry = CollectorRegistry()
    uploader = UploaderCollector(UploaderCounts(), dict, lambda: {"orders": dict.fromkeys(LAG, 0.0)}, registry)
    pipelines = PipelinesCollector(registry)
    pipelines.add(lambda: ("orders", 1, PipelineCounts()))
    for metric in (*uploader.collect(), *pipelines.collect()):
        _add_metric(found, metric)
    return found


def _add(found: dict[str, set[str]], snapshots: Snapshots, names: Iterable[str]) -> None:
    for name in {*names, *snapshots.levels}:
        suffix = "" if name in snapshots.levels else "_total"
        found[f"{snapshots.prefix}_{name}{suffix}"] = set()


def _add_metric(found: dict[str, set[str]], metric: Metric) -> None:
    for sample in metric.samples:
        found[sample.name] = set(sample.labels)
