"""A pipeline's Prometheus counters, and its pauses while a store or broker is unreachable."""

from __future__ import annotations

import importlib
import itertools
import re
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.support.paths import REPOSITORY
from tests.support.pipelines.pipeline_runs import TOPIC, pipeline_of
from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import AccessDeniedError, StoreUnavailableError
from tieredstore.limits import MAX_INT64
from tieredstore.pipelines import Parts, Runner
from tieredstore.pipelines.run.progress import Counts, CountsCollector, Outage

YAML: Any = importlib.import_module("yaml")
"""no types"""
STRICT = pipeline_of(
    secor__message__parser__class="kafka-timestamp", pipeline__finalize="true", **{f"hive__table__name__{TOPIC}": "t"}
)
"""Parser by timestamp. The records' times are 0 to 299 ms, and 0 is invalid, so the first record is bad."""


def sample(registry: CollectorRegistry, name: str) -> float | None:
    labels = {"pipeline": "kept", "generation": "1"}
    return registry.get_sample_value(f"tieredstore_pipeline_{name}", labels)


def test_written_and_waiting_records_are_counted(topic: StoredTopic) -> None:
    registry = CollectorRegistry()
    clock = itertools.count(0, 100).__next__
    with Runner(STRICT, Parts(MemoryObjectStore(), topic.manager), threads=1, clock=clock) as runner:
        runner.measure()
        counts = runner.counts
        assert (counts.lag_offsets, counts.lag_seconds) == (300, 0)
        runner.measure()
        assert counts.lag_seconds >= 100
        list(runner.run_once())
        runner.driver.finalize({TOPIC: 10**12})
        runner.measure()
        collector = CountsCollector(registry)

        def counted() -> tuple[str, int, Counts]:
            return "kept", 1, counts

        collector.add(counted)
        assert {name: sample(registry, name) for name in ("records_total", "bad_messages_total", "files_total")} == {
            "records_total": 299, "bad_messages_total": 1, "files_total": 1,
        }  # fmt: skip
        assert (sample(registry, "batches_total"), sample(registry, "finalized_total")) == (1, 1)
        assert (sample(registry, "lag_offsets"), sample(registry, "lag_seconds")) == (0, 0)
        assert (sample(registry, "bytes_total") or 0) > 299
        assert (sample(registry, "last_commit_timestamp_seconds") or 0) > 1.7e9
        topic.copy_plain(300, 50, size=100)
        list(runner.run_once())
        assert (sample(registry, "late_total"), sample(registry, "records_total")) == (1, 349)
        collector.remove(counted)
    assert sample(registry, "files_total") is None


def test_a_pipeline_says_what_waits_and_what_it_has_written(
    topic: StoredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tieredstore.pipelines.run.runner")
    now = [1_767_225_600.0 + 50]
    parts = Parts(MemoryObjectStore(), topic.manager)
    pipeline = pipeline_of(secor__max__file__age__seconds="600", max__file__records="1000")
    with Runner(pipeline, parts, threads=1, clock=lambda: now[0], wall_clock=lambda: now[0]) as runner:
        runner.announce()
        runner.begin()
        for _ in range(3):
            runner.measure()
            now[0] += 60
        list(runner.run_once())
        runner.measure()
    limits = "at 190.7 MiB or 1,000 records of a partition"
    named, waiting, written = caplog.messages
    assert named == (
        f"kept: writes records after 10 min, or {limits} (secor.max.file.age.seconds, secor.max.file.size.bytes)"
    )
    assert waiting == f"kept: up to 300 records waiting, due by 00:11 UTC or {limits}"
    assert re.fullmatch(r"kept: batch \d+: 300 records written to 1 file \(\d\.\d KiB\)", written), written


def test_an_age_beyond_all_dates_is_said_as_the_last_one(topic: StoredTopic, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tieredstore.pipelines.run.runner")
    pipeline = pipeline_of(secor__max__file__age__seconds=str(MAX_INT64))
    with Runner(pipeline, Parts(MemoryObjectStore(), topic.manager), threads=1) as runner:
        runner.begin()
        runner.measure()
    assert "due by 9999-12-31 23:59 UTC" in caplog.text


def test_an_outage_tells_for_how_long_and_why() -> None:
    now = [10.0]
    outage = Outage(60, clock=lambda: now[0])
    assert outage.waiting_s == 0
    outage.note_failure(StoreUnavailableError("the store is away"))
    now[0] += 7
    assert (outage.waiting_s, outage.reason) == (7, "the store is away")
    outage.note_success()
    assert outage.waiting_s == 0


def test_each_rule_says_what_is_the_matter() -> None:
    (group,) = YAML.safe_load((REPOSITORY / "examples" / "pipelines" / "alerts.yml").read_text())["groups"]
    rules = group["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 6
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]


def test_each_metric_stands_on_the_page() -> None:
    lines = (REPOSITORY / "docs" / "reference" / "metrics.md").read_text().splitlines()
    (row,) = [line for line in lines if "`tieredstore_pipe" in line]
    collector = CountsCollector(CollectorRegistry())
    named = {metric.name.removeprefix("tieredstore_pipeline_") for metric in collector.describe()}
    assert len(named) == 13
    assert {f"`{each}`" for each in named} <= set(re.findall(r"`\w+`", row))


AWAY = StoreUnavailableError("away")


def test_an_outage_is_waited_for_with_longer_and_longer_pauses_and_then_ends_it() -> None:
    now = [0.0]
    outage = Outage(100, clock=lambda: now[0])
    pauses = [outage.note_failure(AWAY) for _ in range(8)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]
    now[0] = 99
    outage.note_failure(AWAY)
    # The time limit counts from the first failure; a success resets it.
    outage.note_success()
    now[0] = 150
    assert outage.note_failure(AWAY) == 0.5
    now[0] = 250
    with pytest.raises(StoreUnavailableError):
        outage.note_failure(AWAY)


def test_an_error_that_is_not_retryable_is_raised_at_once() -> None:
    with pytest.raises(AccessDeniedError):
        Outage(100).note_failure(AccessDeniedError("no"))
