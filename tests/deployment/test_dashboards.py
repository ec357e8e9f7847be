"""Dashboards and alert rules: each metric and label exists, and Grafana finds what it needs to show a panel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.deployment.dashboards import DASHBOARDS, RULES, document_of, metrics_of, queries_of
from tests.support.deployment.exported_samples import exported_samples

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
