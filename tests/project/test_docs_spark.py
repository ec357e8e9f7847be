"""The documents' examples of Spark and of a broker, run in the order in which they are shown."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.project.test_docs import blocks
from tests.support.cli.cli_process import tieredstore
from tests.support.kafka.kafka_topics import Produced, delete_topic
from tests.support.kafka.live_topics import TieredTopic
from tests.support.paths import GOLDEN, REPOSITORY
from tests.support.servers.kafka import KafkaServer


@pytest.fixture
def orders(kafka: KafkaServer, tmp_path: Path) -> Iterator[TieredTopic]:
    """The topic of the examples: most of it in the bucket, the end of it on the broker alone."""
    topic = TieredTopic(kafka, tmp_path, name="orders")
    topic.produce([Produced(b"k", b"%d" % number * 20, (), 1_767_225_600_000 + number) for number in range(900)])
    assert topic.tier() > 0
    settings = "".join(f"{name}={text}\n" for name, text in {**topic.store, "chunk.size": "8192"}.items())
    (tmp_path / "store.properties").write_text(settings)
    yield topic
    topic.close()
    delete_topic(kafka, "orders")


@pytest.mark.slow
def test_the_examples_of_spark_run(spark: SparkSession, orders: TieredTopic, tmp_path: Path) -> None:
    settings = str(tmp_path / "store.properties")
    listed = tieredstore("ls", "-c", settings, "orders", "-p", "all", "--json").stdout
    (tmp_path / "segments.json").write_bytes(listed)
    logs = orders.server.folder("orders")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "orders-0").symlink_to(logs)
    places = {
        "/etc/tieredstore/store.properties": settings,
        '"store.properties"': repr(settings),
        '"segments.json"': repr(str(tmp_path / "segments.json")),
        "broker1:9092": orders.server.bootstrap_servers,
        "/data/": f"{tmp_path}/",
        "/backup/kafka/": f"{tmp_path}/log/",
    }
    batches = bytearray(min(logs.glob("*.log")).read_bytes())
    names: dict[str, Any] = {
        "spark": spark,
        "df": spark.createDataFrame([("a", batches)], "file string, batches binary"),
    }
    codes = [code for name in ("README.md", "docs/spark.md") for code in blocks(REPOSITORY / name, "python")]
    of_spark = [code for code in codes if "spark" in code]
    assert len(of_spark) == 8
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for code in of_spark:
            exec(compile(with_places(code, places), "<example>", "exec"), names)
            if not names["orders"].isStreaming:
                assert names["orders"].count() > 0
    names["query"].processAllAvailable()
    names["query"].stop()
    assert spark.read.parquet(str(tmp_path / "orders")).count() > 0
    assert names["records"].count() > 0
    assert "orders" in shown.getvalue()


@pytest.mark.slow
def test_the_programs_of_the_guide_run_twice(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "case"
    shutil.copytree(GOLDEN / "07-txn", folder)
    (folder / "rsm.properties").rename(folder / "store.properties")
    # The session of these tests began in another folder.
    places = {'"orders"': '"txn"', '"store.properties"': repr(str(folder / "store.properties"))}
    guide = REPOSITORY / "docs" / "how-to" / "spark.md"
    codes = [with_places(code, places) for code in blocks(guide, "python")]
    for _ in range(2):
        names: dict[str, Any] = {}
        for code in codes:
            exec(compile(code, "<guide>", "exec"), names)
        assert "2357 records, 2357 from whole segments\n" in capsys.readouterr().out
        assert names["recent"].count() == 2357
        spark.catalog.dropTempView("seen")


def test_the_examples_of_live_reads_run(orders: TieredTopic) -> None:
    one_read, many_reads = (
        code.replace("127.0.0.1:9092", orders.server.bootstrap_servers)
        for code in blocks(REPOSITORY / "docs" / "live.md", "python")
    )
    assert sum(map(int, printed_by(one_read).split())) == 900
    assert printed_by(many_reads).split() == ["0", "900"]


def printed_by(code: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code, "<example>", "exec"), {})
    return shown.getvalue()


def with_places(code: str, places: Mapping[str, str]) -> str:
    """The code with what is on this machine in place of what it names."""
    for place, here in places.items():
        code = code.replace(place, here)
    return code
