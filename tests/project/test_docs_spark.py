"""The documents' examples of Spark and of a broker, run in their order."""

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
from tests.support.kafka.kafka_topics import Produced, delete_topic
from tests.support.kafka.live_topics import TieredTopic
from tests.support.paths import REPOSITORY
from tests.support.servers.kafka import KafkaServer

HOW_TO = REPOSITORY / "docs" / "how-to"


@pytest.fixture
def orders(kafka: KafkaServer, tmp_path: Path) -> Iterator[TieredTopic]:
    """Yield the topic of the examples: most of it in the bucket, its end on the broker alone."""
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
    logs = orders.server.folder("orders")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "orders-0").symlink_to(logs)
    places = {
        '"store.properties"': repr(str(tmp_path / "store.properties")),
        "broker1:9092": orders.server.bootstrap_servers,
        "/data/": f"{tmp_path}/",
        "/backup/kafka/": f"{tmp_path}/log/",
        '"findings"': repr(str(tmp_path / "findings")),
    }
    batches = bytearray(min(logs.glob("*.log")).read_bytes())
    names: dict[str, Any] = {
        "spark": spark,
        "df": spark.createDataFrame([("a", batches)], "file string, batches binary"),
    }
    in_bucket, *_ = run_all(HOW_TO / "spark.md", names, places)
    assert f"{in_bucket} records, {in_bucket} from whole segments" in names["shown"]
    assert "900 records up to now" in names["shown"]
    assert names["recent"].count() == in_bucket
    assert spark.read.parquet(str(tmp_path / "orders")).count() == in_bucket
    assert names["records"].count() > 0
    run_all(REPOSITORY / "README.md", names, places)
    run_all(HOW_TO / "verify.md", names, places)
    assert spark.read.parquet(str(tmp_path / "findings")).count() == 0


@pytest.mark.slow
def test_the_function_over_a_frame_filters_and_adds_columns(spark: SparkSession) -> None:
    (code,) = (code for code in blocks(HOW_TO / "pipelines.md", "python") if "pyspark" in code)
    names: dict[str, Any] = {}
    exec(compile(code, "<example>", "exec"), names)
    values = [(b'{"id": 1, "status": "paid"}',), (b'{"id": 2, "status": "draft"}',)]
    (row,) = names["orders"](spark.createDataFrame(values, "value binary")).collect()
    assert (row.order.id, bytes(row.value)) == (1, values[0][0])


@pytest.mark.slow
def test_pipelines_start_in_a_session(spark: SparkSession, tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "examples" / "sample", tmp_path / "sample")
    (tmp_path / "sample" / "files").mkdir()
    page = HOW_TO / "pipelines.md"
    (settings,) = (text for text in blocks(page, "properties") if text.startswith("pipeline.name=orders-by-hour"))
    places = {"root=/tmp/sample/": f"root={tmp_path}/sample/"}
    (tmp_path / "by-hour.properties").write_text(with_places(settings, places))
    (code,) = (code for code in blocks(page, "python") if "start_pipelines" in code)
    # Run the pipeline once, because the page's program never ends.
    once = code.replace('"by-hour.properties"', f"{str(tmp_path / 'by-hour.properties')!r}, once=True")
    exec(compile(once, "<example>", "exec"), {"spark": spark})
    assert spark.read.parquet(str(tmp_path / "sample" / "files" / "orders")).count() == 720


def run_all(page: Path, names: dict[str, Any], places: Mapping[str, str]) -> list[int]:
    """Run the Spark programs of a page, keep their output in ``shown``, and return the record counts of ``orders``."""
    shown = io.StringIO()
    counts: list[int] = []
    with contextlib.redirect_stdout(shown):
        for code in (code for code in blocks(page, "python") if "spark" in code):
            before = names.get("orders")
            exec(compile(with_places(code, places), f"<{page.name}>", "exec"), names)
            if names["orders"] is not before:  # a count takes a second
                counts.append(names["orders"].count())
    names["shown"] = shown.getvalue()
    return counts


def test_the_program_beside_a_broker_reads_bucket_and_broker_as_one_log(
    orders: TieredTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = [code for code in blocks(REPOSITORY / "docs" / "how-to" / "read.md", "python") if "broker=" in code]
    monkeypatch.chdir(tmp_path)
    assert printed_by(code.replace("broker1:9092", orders.server.bootstrap_servers)) == "900 records\n"


def printed_by(code: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code, "<example>", "exec"), {})
    return shown.getvalue()


def with_places(code: str, places: Mapping[str, str]) -> str:
    """Return the code, in which each place of the page is replaced by one of this machine."""
    for place, here in places.items():
        code = code.replace(place, here)
    return code
