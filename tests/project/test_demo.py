"""The demo runs, and its output matches its text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.test_docs import installed
from tests.support.golden.records import expected_rows
from tests.support.golden.segments import segments
from tests.support.paths import REPOSITORY
from tests.support.spark.spark_session import jvm_of_seconds

QUERIED = [("none", 0, "01-none"), ("none", 1, "01-none"), ("smallbatch", 0, "12-smallbatch"), ("txn", 0, "07-txn")]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("store", ["filesystem", pytest.param("s3", marks=pytest.mark.soak)])
def test_the_demo_brings_every_segment_back_identical_and_queries_them(store: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "examples/demo.py", "--store", store, str(tmp_path / "out")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        env=installed(**jvm_of_seconds(tmp_path)),
        check=False,
        timeout=1700,
    )
    # A command that takes ten seconds or more reports its progress on stderr.
    told = [line for line in done.stderr.splitlines() if not line.endswith(" so far")]
    assert (done.returncode, told) == (0, [])
    stored, queried = done.stdout.split("\nall 11 segments identical\n")
    check_queries(queried)
    check_filed(stored)
    assert "$ tieredstore" not in queried
    assert stored.count("$ tieredstore upload") == 2
    assert all(re.search(rf"page-{page} +{count}", stored) for page, count in ((0, 334), (1, 333), (2, 333)))
    assert "11 copied" in done.stdout
    assert "11 skipped" in done.stdout
    assert "MB/s" in done.stdout
    assert done.stdout.count("$ tieredstore fetch") == 11
    assert ("SeaweedFS" in done.stdout) == (store == "s3")
    assert "secret" not in done.stdout


def check_filed(shown: str) -> None:
    """Check that the output by month has all records of both partitions, and that verify found no problems."""
    months = re.findall(r"^filed/none/month=(2026-\d\d)  2 files, ", shown, re.MULTILINE)
    assert months == sorted(set(months))
    values = [json.loads(row["value"]) for partition in (0, 1) for row in expected_rows("01-none", partition)]
    assert months == sorted({value["ts"][:7] for value in values})
    assert f"{len(values):,} records" in shown
    assert "no problems found" in shown


def check_queries(shown: str) -> None:
    """Check that Spark counts the records of a read_committed consumer, and that the splits together have all bytes."""
    everything, recent = shown.split("\n>>> spark.read")[1:]
    for topic, partition, case in QUERIED:
        rows = expected_rows(case, partition, "read_committed")
        size = sum(len(row["value"]) for row in rows)
        counted = [topic, partition, len(rows), rows[0]["offset"], rows[-1]["offset"], size]
        assert [str(cell) for cell in counted] in cells_of(everything)
    sizes = split_sizes(everything)
    logs = [segment.original("log") for case in {case for *_, case in QUERIED} for segment in segments(case)]
    assert sum(sizes) >= sum(path.stat().st_size for path in logs)
    assert max(sizes) <= 512 * 1024
    assert sum(split_sizes(recent)) < sum(sizes) / 10
    times = [
        row["timestamp"] - 1_767_225_600_000 for partition in (0, 1) for row in expected_rows("01-none", partition)
    ]
    for second in (10, 11):
        records = sum(time // 1000 == second for time in times)
        assert [f"2026-01-01 00:00:{second}", str(records), "2"] in cells_of(recent)


def cells_of(shown: str) -> list[list[str]]:
    """Return the rows of the tables that Spark prints."""
    lines = [line for line in shown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def split_sizes(shown: str) -> list[int]:
    """Return the bytes of the printed splits, one per task of Spark."""
    sizes = re.findall(r"^\S+ +\d+ +[\d,]+ +[\d,]+ +([\d,]+)$", shown, re.MULTILINE)
    planned = re.search(r"^(\d+) splits, .*; Spark runs (\d+) tasks$", shown, re.MULTILINE)
    assert planned is not None
    assert [int(count) for count in planned.groups()] == [len(sizes)] * 2
    return [int(size.replace(",", "")) for size in sizes]
