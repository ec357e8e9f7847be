"""A slow task of map_records that Spark duplicates speculatively: its rows are returned once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.records.topic_buckets import Bucket
from tests.support.spark.spark_session import CONF, environment
from tests.support.spark.spark_speculated_job import SLOW

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1200)]


def test_a_task_that_is_tried_twice_at_once_gives_its_rows_once(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    for _ in range(6):
        bucket.write(2_000)
    bucket.close()
    marks, rows, job = tmp_path / "marks", tmp_path / "rows.json", tmp_path / "job.json"
    marks.mkdir()
    options = bucket.options | {"subscribe": "orders", "maxSplitBytes": "30000", "chunk.size": "16384"}
    conf = {name: value for name, value in CONF.items() if name != "spark.master"}
    job.write_text(json.dumps({"conf": conf, "options": options, "marks": str(marks), "rows": str(rows)}))
    command = [sys.executable, "-m", "tests.support.spark.spark_speculated_job", str(job)]
    started = subprocess.Popen(
        command, env={**os.environ, **environment(tmp_path)}, cwd=REPOSITORY, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = started.communicate(timeout=1100)
    finally:
        # Master and workers are in the same process group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, output[-3000:]
    outcome = json.loads(rows.read_text())
    assert (outcome["equal"], outcome["rows"]) == (True, 12_000)
    assert outcome["tasks"] > SLOW
    assert {f"{SLOW}-begun-0", f"{SLOW}-begun-1", f"{SLOW}-done-1"} <= {mark.name for mark in marks.iterdir()}
