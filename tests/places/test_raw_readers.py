"""Every reader of the raw layout, in a folder and on real S3, returns what a Java consumer read from the disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

from tests.places.test_raw_reading import put_raw
from tests.support.cli.cli_process import tieredstore
from tests.support.golden.records import expected_rows
from tests.support.golden.segments import case_path, segments
from tests.support.records.topic_reads import read_topic
from tests.support.servers.s3_server import REGION, S3Server
from tests.support.spark.spark_tasks import rows_in
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.registry import store_from_settings
from tieredstore.config import settings_from
from tieredstore.consumer import Consumer
from tieredstore.kafka.logdir import discover
from tieredstore.remote import RemoteStorageManager

CASE = "07-txn"
"""Transactions of either outcome, several segments, one partition."""

BITS = 3
LAYOUT = {
    "chunk.size": "4096",
    "key.prefix": "p/",
    "endpoint.layout": "pinterest",
    "endpoint.cluster": "kafkaCluster1",
    "endpoint.prefix.entropy.bits": str(BITS),
}

Row = tuple[int, bytes | None, bytes | None]


def topic() -> str:
    return segments(CASE)[0].topic


def expected(isolation: str) -> list[Row]:
    return [(row["offset"], row["key"], row["value"]) for row in expected_rows(CASE, 0, isolation)]


@pytest.fixture(params=["folder", pytest.param("minio", marks=pytest.mark.server)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Return settings of a bucket with all segments of the case."""
    if request.param == "folder":
        (tmp_path / "bucket").mkdir()
        texts = {"storage.backend.class": "filesystem", "storage.root": str(tmp_path / "bucket")}
        put_raw(FilesystemObjectStore(tmp_path / "bucket"), case_path(CASE) / "original", BITS)
        return {**LAYOUT, **texts}
    server: S3Server = request.getfixturevalue("minio")
    texts = {
        "storage.backend.class": "s3",
        "storage.s3.bucket.name": server.make_bucket(),
        "storage.s3.endpoint.url": server.endpoint_url,
        "storage.s3.region": REGION,
        "storage.s3.path.style.access.enabled": "true",
        "storage.aws.access.key.id": server.access_key,
        "storage.aws.secret.access.key": server.secret_key,
    }
    store = store_from_settings(settings_from({**texts, "chunk.size": "4096"}))
    put_raw(store, case_path(CASE) / "original", BITS)
    store.close()
    return {**LAYOUT, **texts}


def by_consumer(settings: Mapping[str, str], isolation: str) -> Iterator[Row]:
    given = {
        "group.id": "readers",
        "tiered.storage.mode": "remote_only",
        "tiered.storage.settings": dict(settings),
        "auto.offset.reset": "earliest",
        "isolation.level": isolation,
    }
    left = len(expected(isolation))
    with Consumer(given) as consumer:
        consumer.assign([TopicPartition(topic(), 0)])
        for _ in range(600):
            messages = consumer.consume(500, 0.1) if left else []
            left -= len(messages)
            for message in messages:
                assert message.error() is None
                yield message.offset(), message.key(), message.value()


def by_query(settings: Mapping[str, str], isolation: Any) -> Iterator[Row]:
    with RemoteStorageManager(settings_from(settings)) as manager:
        rows = pa.table(read_topic(manager, topic(), isolation=isolation)).to_pylist()
    return ((row["offset"], row["key"], row["value"]) for row in rows)


def by_spark(settings: Mapping[str, str], isolation: str) -> Iterator[Row]:
    """Plan and read as Spark's workers do."""
    options = {**settings, "subscribe": topic(), "kafka.isolation.level": isolation, "maxSplitBytes": 20_000}
    return ((row["offset"], row["key"], row["value"]) for row in rows_in(options))


def written(settings: Mapping[str, str], folder: Path) -> Path:
    file = folder / "store.properties"
    file.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    return file


READERS: Mapping[str, Callable[[Mapping[str, str], str], Iterator[Row]]] = {
    "consumer": by_consumer, "query": by_query, "spark": by_spark,
}  # fmt: skip


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("reader", READERS)
def test_each_reader_has_what_a_java_consumer_read(place: dict[str, str], reader: str, isolation: str) -> None:
    assert list(READERS[reader](place, isolation)) == expected(isolation)


def test_cat_prints_and_fetch_brings_the_brokers_own_bytes(place: dict[str, str], tmp_path: Path) -> None:
    file = written(place, tmp_path)
    printed = tieredstore("cat", topic(), "-p", "0", "--json", "-c", file)
    assert printed.code == 0, printed.stderr
    offsets = [json.loads(line)["offset"] for line in printed.text.splitlines()]
    assert offsets == [row[0] for row in expected("read_committed")]
    original = discover(case_path(CASE) / "original").segments[0]
    fetched = tieredstore("fetch", topic(), "0", original.base_offset, "-c", file, "-o", tmp_path / "fetched.log")
    assert fetched.code == 0, fetched.stderr
    assert (tmp_path / "fetched.log").read_bytes() == original.path("log").read_bytes()
    for words in (("ls", "--json"), ("du", "--json"), ("doctor", "--json")):
        done = tieredstore(*words, "-c", file)
        assert (words, done.code) == (words, 0), done.stderr
