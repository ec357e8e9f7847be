"""Pipelines of a real Spark on an S3 server: columns, transformers, a registry's schemas, and a concurrent backfill."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.support.network.key_services import serving
from tests.support.network.schema_registry_server import RegistryService, framed, written
from tests.support.pipelines.pipeline_runs import listed, verify_output
from tests.support.records.topic_buckets import FIRST_ID, Bucket
from tests.support.servers.minio import ACCESS_KEY, SECRET_KEY
from tests.support.servers.s3_server import REGION, S3Server
from tests.support.stores.clouds import make_s3
from tieredstore.backends.base import ObjectStore
from tieredstore.model import TopicIdPartition
from tieredstore.pipelines import load_pipeline, with_generation
from tieredstore.pipelines.run.source import open_parts
from tieredstore.pipelines.upkeep.backfill import Backfill
from tieredstore.pipelines.upkeep.record_sources import LogSource, Selected
from tieredstore.spark import start_pipelines
from tieredstore.testing.batches import Record, build_batch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ENDED_S = 300
TIME_MS = 1_700_000_000_000
OLD = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}]}
NEW = {
    "type": "record", "name": "Order",
    "fields": [{"name": "n", "type": "long"}, {"name": "more", "type": "string", "default": "-"}],
}  # fmt: skip


class Orders:
    """Two topics in a folder: one of JSON, one of Avro with alternating schemas."""

    def __init__(self, folder: Path, registry: RegistryService) -> None:
        self.bucket = Bucket(folder)
        self._ids = [registry.register("avro-value", schema) for schema in (OLD, NEW)]

    def write(self, count: int) -> None:
        """Write this many more records to each topic."""
        for topic in ("json", "avro"):
            start = self.bucket.ends[topic, 0, FIRST_ID]
            offsets = range(start, start + count)
            records = [Record(self._value(topic, offset), timestamp_ms=TIME_MS + offset) for offset in offsets]
            self.bucket.copy(TopicIdPartition(FIRST_ID, topic, 0), [build_batch(records, start)], offsets)

    def _value(self, topic: str, offset: int) -> bytes:
        if topic == "json":
            return json.dumps({"n": offset, "timestamp": TIME_MS + offset, "é": [offset]}).encode()
        turn = offset % 2
        datum = {"n": offset, "more": "x"} if turn else {"n": offset}
        return framed(self._ids[turn], written((OLD, NEW)[turn], datum))


@pytest.fixture
def registry() -> Iterator[tuple[RegistryService, str]]:
    service = RegistryService()
    with serving(service) as running:
        yield service, running.url


def files_of(store: ObjectStore, root: str, generation: int = 1) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for key in listed(store, root):
        if key.rpartition("/")[2].startswith(f"{generation}_"):
            rows += pq.read_table(io.BytesIO(store.get(key))).to_pylist()
    return rows


@pytest.mark.soak
def test_columns_transformers_and_schemas_of_a_registry_go_to_s3_with_a_backfill_beside(
    spark: SparkSession, minio: S3Server, tmp_path: Path, registry: tuple[RegistryService, str]
) -> None:
    orders, place = Orders(tmp_path, registry[0]), minio.make_bucket()
    orders.write(40)
    output = {
        "output.storage.backend.class": "s3", "output.storage.s3.bucket.name": place,
        "output.storage.s3.region": REGION, "output.storage.s3.endpoint.url": minio.endpoint_url,
        "output.storage.s3.path.style.access.enabled": "true", "output.storage.aws.access.key.id": ACCESS_KEY,
        "output.storage.aws.secret.access.key": SECRET_KEY, "secor.max.file.age.seconds": "1",
    }  # fmt: skip

    def settings(name: str, topic: str, **changes: str) -> Path:
        properties = {
            **orders.bucket.options, **output, "pipeline.name": name, "output.key.prefix": f"{name}/",
            "kafka.new.consumer.topic.list": topic,
            **{key.replace("__", "."): text for key, text in changes.items()},
        }  # fmt: skip
        path = tmp_path / f"{name}.properties"
        path.write_text("".join(f"{key}={text}\n" for key, text in properties.items()))
        return path

    by_json = settings(
        "rows", "json", columns="json", json__schema__json="n BIGINT", secor__message__parser__class="json",
        secor__message__transformer__class="tests.support.spark.odd_messages:without_odd",
    )  # fmt: skip
    by_avro = settings("avro", "avro", columns="avro", schema__registry__url=registry[1])
    with closing(make_s3(minio.endpoint_url, place)) as store, closing(orders.bucket):
        for query in start_pipelines(spark, by_json, by_avro, once=True):
            assert query.awaitTermination(ENDED_S)
        rows = files_of(store, "rows/")
        assert [(row["n"], json.loads(row["_rest"])["é"], row["kafka"]["offset"]) for row in rows] == [
            (offset, [offset], offset) for offset in range(0, 40, 2)
        ]
        rows = files_of(store, "avro/")
        assert [(row["n"], row["more"]) for row in rows] == [(offset, "-x"[offset % 2]) for offset in range(40)]
        # Concurrently with a running query, another generation writes other offsets.
        (query,) = start_pipelines(spark, by_json)
        backfill = with_generation(load_pipeline(by_json), 2)
        with open_parts(backfill) as parts, closing(LogSource(backfill, parts.source, "json")) as source:
            list(Backfill(backfill, parts.store, source, threads=1).run(Selected("json", 10, 20)))
        orders.write(10)
        query.processAllAvailable()
        query.stop()
        (query,) = start_pipelines(spark, by_json, once=True)
        assert query.awaitTermination(ENDED_S)
        for generation, offsets in {1: range(0, 50, 2), 2: range(10, 20, 2)}.items():
            assert [row["n"] for row in files_of(store, "rows/", generation)] == list(offsets)
            assert list(verify_output(with_generation(load_pipeline(by_json), generation), store)) == []
        assert list(verify_output(load_pipeline(by_avro), store)) == []
