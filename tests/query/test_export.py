"""Tests of ``tieredstore cat -o``: later runs continue an export, each file is complete, and each record is in one."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from tests.support.cli.cli_process import Result, tieredstore
from tests.support.golden.records import expected_rows, partitions_of
from tests.support.golden.segments import case_path, segments
from tests.support.records.topic_buckets import Bucket, fill
from tieredstore.query.export import export_files, plan_export
from tieredstore.query.topic_read import ReadPlan
from tieredstore.query.writers import WRITERS
from tieredstore.reading.query import LogQuery
from tieredstore.reading.reader import TopicReader

pytestmark = pytest.mark.slow


@pytest.fixture
def bucket(bucket: Bucket) -> Bucket:
    fill(bucket)
    return bucket


def export(bucket: Bucket, *arguments: object) -> Result:
    return tieredstore("cat", "--store", bucket.root.as_uri(), *arguments)


def places(folder: Path, ending: str = "parquet") -> list[tuple[int, int]]:
    files = sorted(str(path) for path in folder.glob(f"*.{ending}"))
    table: Any = ds.dataset(files, format="parquet" if ending == "parquet" else "ipc").to_table()
    rows = table.select(["partition", "offset"]).to_pylist()
    return [(row["partition"], row["offset"]) for row in rows]


def test_a_golden_topic_is_what_the_java_consumer_read(tmp_path: Path) -> None:
    topic = segments("01-none")[0].topic
    done = tieredstore("cat", "-c", case_path("01-none") / "rsm.properties", topic, "-o", tmp_path / "out")
    assert done.code == 0, done.stderr
    table: Any = ds.dataset(str(tmp_path / "out"), format="parquet").to_table()
    rows = [(row["partition"], row["offset"], row["key"], row["value"]) for row in table.to_pylist()]
    expected = [
        (partition, row["offset"], row["key"], row["value"])
        for partition in partitions_of("01-none")
        for row in expected_rows("01-none", partition)
    ]
    assert sorted(rows) == sorted(expected)


def test_a_later_export_goes_on_and_a_missing_file_is_made_again(bucket: Bucket, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export(bucket, "orders", "-o", out).code == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "_tieredstore",
        "orders-0-00000000000000000000-00000000000000000099.parquet",
        "orders-1-00000000000000000000-00000000000000000049.parquet",
    ]
    assert "has all records" in export(bucket, "orders", "-o", out).stderr
    (out / "orders-1-00000000000000000000-00000000000000000049.parquet").unlink()
    (out / ".orders-1-00000000000000000000-00000000000000000049.parquet.part").write_bytes(b"of a killed one")
    done = export(bucket, "orders", "-o", out)
    assert "50 records in 1 new file" in done.stderr
    assert places(out) == [(0, at) for at in range(100)] + [(1, at) for at in range(50)]
    assert not list(out.glob(".*"))


def test_files_end_where_segments_do_and_grow_with_the_log(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "made")
    for _ in range(4):
        bucket.write(10)
    reader = TopicReader(lambda: bucket.manager, LogQuery.of_topic("orders"))
    snapshot = reader.snapshot()
    files = plan_export(snapshot, tmp_path, "arrow", file_bytes=1)
    assert [(file.start, file.stop) for file in files] == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert sorted(one.records for one in export_files(reader, snapshot, files[1:3], ReadPlan(), at_once=2)) == [10, 10]
    bucket.write(5)
    snapshot = reader.snapshot()
    files = plan_export(snapshot, tmp_path, "arrow")
    assert [(file.start, file.stop) for file in files] == [(0, 10), (30, 45)]
    list(export_files(reader, snapshot, files, ReadPlan(), at_once=1))
    assert sorted(places(tmp_path, "arrow")) == [(0, at) for at in range(45)]
    assert plan_export(snapshot, tmp_path, "arrow") == []
    bucket.close()


@pytest.mark.parametrize("number", [0, 2])
def test_an_unreadable_segment_at_either_end_of_a_topic_fails_its_export(tmp_path: Path, number: int) -> None:
    """Each file of an export has a given first and last offset, outside of which the segment is."""
    bucket, out = Bucket(tmp_path), tmp_path / "out"
    for _ in range(3):
        bucket.write(10)
    sorted(bucket.root.rglob("*.rsm-manifest"))[number].write_bytes(b"{}")
    failed = export(bucket, "orders", "-o", out)
    assert (failed.code, f"at offset {10 * number} is ignored" in failed.stderr) == (3, True)
    assert export(bucket, "orders", "-o", out, "--on-loss", "report").code == 0
    assert len(places(out)) == 20
    bucket.close()


def test_records_of_all_partitions_on_stdout(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-").mkdir()
    done = export(bucket, "orders", "-o", "-", "--format", "jsonl")
    assert [json.loads(line)["offset"] for line in done.text.splitlines()] == [*range(100), *range(50)]
    assert export(bucket, "orders", "-o", "/dev/null", "--format", "csv").code == 0
    assert not list((tmp_path / "-").iterdir())


@pytest.mark.parametrize("ending", [*WRITERS, "json"])
def test_one_file_of_each_format(bucket: Bucket, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"orders.{ending}"
    done = export(bucket, "orders", "-o", path, "-p", "1", "--value", "text")
    assert (done.code, "50 records" in done.stderr) == (0, True)
    match ending:
        case "csv":
            rows = list(csv.DictReader(path.read_text().splitlines()))
        case "jsonl" | "json":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
        case "parquet" | "arrow":
            table: Any = ds.dataset(str(path), format="ipc" if ending == "arrow" else "parquet").to_table()
            rows = table.to_pylist()
        case _:
            pytest.fail("read the new format back here")
    assert [(int(row["partition"]), int(row["offset"]), row["value"]) for row in rows] == [
        (1, at, f"v{at}") for at in range(50)
    ]


def test_a_folder_gets_a_window_and_then_the_rest(bucket: Bucket, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export(bucket, "orders", "-o", out, "-p", 0, "--from", 20, "--to", 30).code == 0
    assert export(bucket, "orders", "-o", out, "--last", 10).code == 0
    window = [(0, at) for at in (*range(20, 30), *range(90, 100))] + [(1, at) for at in range(40, 50)]
    assert sorted(places(out)) == window
    assert "120 records in 3 new files" in export(bucket, "orders", "-o", out).stderr
    assert sorted(places(out)) == [(0, at) for at in range(100)] + [(1, at) for at in range(50)]


def test_one_file_gets_what_is_chosen(bucket: Bucket, tmp_path: Path) -> None:
    chosen = ("-p", 0, "--from", 3, "--grep", "v.*5", "-n", 2, "-o", tmp_path / "some.jsonl")
    assert export(bucket, "orders", *chosen).code == 0
    rows = [json.loads(line)["offset"] for line in (tmp_path / "some.jsonl").read_text().splitlines()]
    assert rows == [5, 15]
    lines = tmp_path / "lines.txt"
    assert export(bucket, "orders", "-p", 1, "-n", 2, "--format", r"%p %o\n", "-o", lines).code == 0
    assert lines.read_text() == "1 0\n1 1\n"


def test_an_export_that_cannot_work_is_one_sentence_and_no_file(bucket: Bucket, tmp_path: Path) -> None:
    done = export(bucket, "orders", "-o", tmp_path / "orders.parquet", "--format", "csv")
    assert (done.code, "a name for parquet" in done.stderr) == (2, True)
    assert not (tmp_path / "orders.parquet").exists()
    assert export(bucket, "orders", "-o", "-").code == 2
    done = export(bucket, "ordrs", "-o", tmp_path / "out")
    assert (done.code, "orders" in done.stderr) == (3, True)
    (tmp_path / "file").write_text("")
    (schema := tmp_path / "schema.json").write_text('{"n": "int64"}')
    for kind in ("json", "avro"):
        done = export(bucket, "orders", "-o", tmp_path / "out", "--value", f"ordrs={kind}:{schema}")
        assert (done.code, "given for ordrs, but the command reads orders" in done.stderr) == (2, True)
    done = export(bucket, "orders", "-o", tmp_path / "file" / "folder")
    assert (done.code, done.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "out").exists()
