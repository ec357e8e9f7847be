"""Dashboards and alert rules: each metric and label exists, and Grafana finds what it needs to show a panel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Metric

from tests.support.deployment.dashboards import DASHBOARDS, RULES, document_of, metrics_of, queries_of
from tieredstore.consumer.assembly import CONSUMERS, Measures
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


FOLDERS = {"uploader", "consumer", "pipelines", "pubsub", "stores"}


@pytest.fixture(scope="module")
def samples() -> dict[str, set[str]]:
    return exported_samples()


def test_each_service_has_a_dashboard() -> None:
    assert {file.stem for file in DASHBOARDS} == FOLDERS


@pytest.mark.parametrize("file", [*DASHBOARDS, *RULES], ids=lambda file: f"{file.parent.name}/{file.name}")
def test_each_metric_exists(file: Path, samples: dict[str, set[str]]) -> None:
    queries = list(queries_of(document_of(file)))
    assert len(queries) > 6
    for query in queries:
        assert metrics_of(query), query
        assert metrics_of(query) <= {*samples, "up"}, query


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_each_label_exists(file: Path, samples: dict[str, set[str]]) -> None:
    for panel in document_of(file)["panels"]:
        for target in panel["targets"]:
            labels = {"instance", "job"}.union(*(samples[name] for name in metrics_of(target["expr"])))
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            summed = {name for names in re.findall(r"by \(([^)]*)\)", target["expr"]) for name in names.split(", ")}
            assert shown | summed <= labels, target
            assert not summed or shown <= summed, target


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_panels_are_distinct_and_can_be_filtered(file: Path) -> None:
    board = document_of(file)
    assert board["uid"] == f"tieredstore-{file.stem}"
    assert [each["name"] for each in board["templating"]["list"]] == ["datasource", "job", "instance"]
    panels = board["panels"]
    for field in ("id", "title"):
        assert len({panel[field] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}"
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        assert all('job=~"$job", instance=~"$instance"' in target["expr"] for target in panel["targets"])
