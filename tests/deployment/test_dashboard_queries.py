"""Tests that run each query of the dashboards and alert rules in a real Prometheus, which scrapes running services."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

import tieredstore as ts
from tests.support.cli.cli_process import command, environment
from tests.support.deployment.dashboards import DASHBOARDS, RULES, document_of, metrics_of, queries_of
from tests.support.kafka.kafka_topics import TIMEOUT_S, make_topic
from tests.support.paths import REPOSITORY
from tests.support.pipelines.pipeline_service import pipeline_service
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.process import free_port
from tests.support.servers.prometheus import Prometheus, promtool, start_prometheus
from tests.support.waiting import wait_until
from tieredstore.metrics import serve_metrics
from tieredstore.pubsub import open_topics

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.spark]

NEVER_HAPPENED: Final = {"tieredstore_store_retries_total"}
"""Metrics with labels that have no series until the first event."""

COMMITTED: Final = re.compile(r"^tieredstore_pipeline_last_commit_timestamp_seconds\{.*\} [1-9]", re.MULTILINE)

SAMPLE: Final = REPOSITORY / "examples" / "sample"
UPLOADER: Final = """
storage.backend.class=filesystem
storage.root=uploaded
uploader.leadership=static
uploader.log.dirs=kafka-logs
uploader.broker.id=0
uploader.listen=127.0.0.1:{port}
uploader.metrics.topics=.*
"""
PIPELINE: Final = """
pipeline.name=by-hour
secor.kafka.topic_filter=orders
secor.message.parser.class=kafka-timestamp
partitioner.granularity.hour=true
secor.max.file.age.seconds=1
storage.backend.class=filesystem
storage.root=bucket
output.storage.backend.class=filesystem
output.storage.root=files
"""
BROKER: Final = """
storage.backend.class=filesystem
storage.root=batches
pubsub.broker.listen=127.0.0.1:{port}
pubsub.broker.advertised=127.0.0.1:{port}
pubsub.broker.metrics.listen=127.0.0.1:{metrics}
"""
AUDIT: Final = """
storage.backend.class=filesystem
storage.root=batches
pubsub.kafka.bootstrap.servers={kafka}
pubsub.audit.topic={topic}
pubsub.audit.metrics.listen=127.0.0.1:{port}
"""
CACHED: Final = """
storage.backend.class=filesystem
storage.root=bucket
fetch.chunk.cache.class=disk
fetch.chunk.cache.path=cache
fetch.chunk.cache.size=100000000
"""


@contextmanager
def service(folder: Path, name: str, settings: str, port: int, *words: str) -> Generator[str]:
    """Run a command with these settings; yield the address of its metrics."""
    (folder / f"{name}.properties").write_text(settings)
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command(*words, "-c", f"{name}.properties"), cwd=folder, env=environment(), stdout=log, stderr=log
        )
    try:
        address = f"127.0.0.1:{port}"
        wait_until(lambda: process.poll() is not None or is_served(address))
        assert process.poll() is None, (folder / f"{name}.log").read_text()
        yield address
    finally:
        process.kill()
        process.wait()


def is_served(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10):
            return True
    except OSError:
        return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(SAMPLE, tmp_path / "sample")
    for name in ("uploaded", "files", "batches", "cache"):
        (tmp_path / "sample" / name).mkdir()
    return tmp_path / "sample"


@pytest.fixture
def prometheus(folder: Path, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Prometheus]:
    """Yield a server that scrapes the services and this process, in which the clients run."""
    monkeypatch.chdir(folder)
    with ExitStack() as running:
        ports = {name: free_port() for name in ("uploader", "broker", "metrics", "audit", "clients")}
        jobs = {}
        jobs["tieredstore-uploader"] = running.enter_context(
            service(folder, "uploader", UPLOADER.format(port=ports["uploader"]), ports["uploader"], "uploader")
        )
        settings = AUDIT.format(kafka=kafka.bootstrap_servers, topic=make_topic(kafka), port=ports["audit"])
        (folder / "audit.properties").write_text(settings)
        with open_topics("audit.properties") as topics:
            topics.create("clicks")
        words = ("pubsub", "verify", "clicks", "--audit-records", "--follow")
        jobs["audit"] = running.enter_context(service(folder, "audit", settings, ports["audit"], *words))
        settings = BROKER.format(port=ports["broker"], metrics=ports["metrics"])
        jobs["broker"] = running.enter_context(
            service(folder, "broker", settings, ports["metrics"], "pubsub", "broker")
        )
        running.callback(serve_metrics(ports["clients"]))
        jobs["clients"] = f"127.0.0.1:{ports['clients']}"
        running.enter_context(clients_at_work(folder, kafka, f"127.0.0.1:{ports['broker']}"))
        (folder / "by-hour.properties").write_text(PIPELINE)
        pipeline = running.enter_context(pipeline_service(folder, folder / "by-hour.properties"))
        pipeline.wait_until(lambda: bool(COMMITTED.search(pipeline.asked("metrics") or "")))
        jobs["tieredstore-pipeline"] = str(pipeline.address)
        scrapes = [{"job_name": name, "static_configs": [{"targets": [at]}]} for name, at in jobs.items()]
        server = running.enter_context(
            start_prometheus({"global": {"scrape_interval": "1s"}, "scrape_configs": scrapes})
        )
        wait_until(lambda: server.targets() == dict.fromkeys(jobs, "up"))
        yield server


@contextmanager
def clients_at_work(folder: Path, kafka: KafkaServer, broker: str) -> Generator[None]:
    """Use a producer, consumers and readers in this process; keep open those that have gauges."""
    topic = make_topic(kafka)
    plain = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    plain.produce(topic, b"a value")
    assert plain.flush(TIMEOUT_S) == 0
    (folder / "cached.properties").write_text(CACHED)
    with ExitStack() as opened:
        consumer = opened.enter_context(
            ts.Consumer(
                {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"},
                store="cached.properties",
            )
        )
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(1.0) is not None)
        producer = opened.enter_context(ts.BatchProducer("audit.properties", "clicks", brokers=broker))
        producer.send("a value").result(TIMEOUT_S)
        reader = opened.enter_context(ts.BatchConsumer("audit.properties", "clicks", group="readers"))
        wait_until(lambda: reader.poll(timeout_s=1.0) is not None)
        bucket = opened.enter_context(ts.open("cached.properties"))
        assert sum(1 for _ in bucket.read("orders")) == 720
        yield


def asked() -> Iterator[str]:
    """Yield the queries of all dashboards and rules. The thresholds of rules are left out, as none is exceeded here."""
    for file in DASHBOARDS:
        yield from queries_of(document_of(file))
    for file in RULES:
        for query in queries_of(document_of(file)):
            yield re.split(r" [<>=]+ \d", query)[0]


def test_each_query_of_a_dashboard_or_rule_finds_series(prometheus: Prometheus) -> None:
    queries = [query for query in asked() if metrics_of(query).isdisjoint(NEVER_HAPPENED)]
    assert len(queries) > 100

    def unanswered() -> list[str]:
        return [query for query in queries if not prometheus.query(query)]

    with contextlib.suppress(AssertionError):
        # Wait, because rates need two scrapes.
        wait_until(lambda: not unanswered())
    assert unanswered() == []


@pytest.mark.parametrize("file", RULES, ids=lambda file: file.parent.name)
def test_prometheus_accepts_the_rules(file: Path) -> None:
    subprocess.run([promtool(), "check", "rules", file], check=True, timeout=60)
