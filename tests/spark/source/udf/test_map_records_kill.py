"""Kills (-9) of an executor and of a worker during map_records, whose tasks are retried: each row is returned once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.records.topic_buckets import Bucket
from tests.support.spark.spark_mapped_job import TROUBLED
from tests.support.spark.spark_session import CONF, environment

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1200)]


def test_what_was_killed_or_raised_is_done_again_and_gives_each_row_once(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    for partition in range(2):
        for _ in range(4):
            bucket.write(2_000, partition=partition)
    bucket.close()
    marks, rows, job = tmp_path / "marks", tmp_path / "rows.json", tmp_path / "job.json"
    marks.mkdir()
    options = bucket.options | {"subscribe": "orders", "maxSplitBytes": "30000", "chunk.size": "16384"}
    job.write_text(json.dumps({"conf": dict(CONF), "options": options, "marks": str(marks), "rows": str(rows)}))
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.spark.spark_mapped_job", str(job)],
        env={**os.environ, **environment(tmp_path)}, cwd=REPOSITORY, capture_output=True, text=True, timeout=1100,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(rows.read_text())
    assert (outcome["equal"], outcome["rows"]) == (True, 16_000)
    assert outcome["tasks"] > max(TROUBLED)
    for task in TROUBLED:
        assert (marks / f"begun-{task}").exists()
        assert (marks / f"done-{task}").exists()
