"""``tieredstore pipeline init`` samples a topic, and writes a settings file with which a pipeline runs unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.support.cli.cli_process import tieredstore
from tests.support.records.topic_buckets import FIRST_ID, Bucket
from tieredstore.model import TopicIdPartition
from tieredstore.pipelines import load_pipeline
from tieredstore.testing.segments import Record, build_batch

pytestmark = pytest.mark.slow

VALUES = {
    "web.orders": [b'{"id": %d, "to": {"a city": "x"}, "tags": ["a"], "amount": 1.5}' % number for number in range(4)],
    "mixed": [b'{"id": 1}', b'{"id": "x"}'],
}


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    topics = Bucket(tmp_path / "bucket")
    for topic, values in VALUES.items():
        batch = build_batch([Record(value, timestamp_ms=1_767_312_000_000) for value in values], 0)
        topics.copy(TopicIdPartition(FIRST_ID, topic, 0), [batch], range(len(values)))
    yield topics
    topics.close()


def test_the_file_of_a_sample_runs_as_it_is(bucket: Bucket, tmp_path: Path) -> None:
    (files := tmp_path / "files").mkdir()
    file = tmp_path / "by-hour.properties"
    line = ("pipeline", "init", "web.orders", "--store", bucket.root.as_uri(), files, "--file", file)
    done = tieredstore(*line).clean()
    assert done.text.splitlines()[0] == (
        f"{file}: JSON to Parquet by hour, 4 columns inferred from 4 records of web.orders"
    )
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    schema = "id BIGINT, to STRUCT<`a city` STRING>, tags ARRAY<STRING>, amount DOUBLE"
    assert f"json.schema.web.orders={schema}\n" in text
    assert all(block.startswith("# ") for block in text.split("\n\n")), text
    assert tieredstore("pipeline", "run", file, "--once").code == 0
    written, *_ = files.glob("web.orders/dt=*/hr=*/*.parquet")
    table = pyarrow.parquet.ParquetFile(written).read()
    assert table.column_names == ["id", "to", "tags", "amount", "_rest", "kafka"]
    assert table.slice(3).to_pylist()[0]["to"] == {"a city": "x"}
    tieredstore(*line).fails(2, "exists already, and init never changes a file")


def test_without_fields_in_common_the_file_says_why(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    file = tmp_path / "mixed.properties"
    line = ("--store", bucket.root.as_uri(), tmp_path / "files", "--file", file)
    assert "raw values" in tieredstore("pipeline", "init", "mixed", *line).clean().text
    assert (
        "# The values of 2 records of mixed have no fields in common: 'id' is number in some, string"
        in file.read_text()
    )
    assert load_pipeline(file).own.name == "mixed-by-hour"
    tieredstore("pipeline", "init", "none", *line[:-1], tmp_path / "x").fails(3, "there is no topic 'none'")
    tieredstore("pipeline", "init", "mixed", *line[:2], "nowhere").fails(2, "no file or folder 'nowhere'")
