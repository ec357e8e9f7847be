"""kill -9 at every operation of a copy: the next run completes it, each segment once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli.cli_process import ORIGINALS, environment
from tests.support.examples import SOAK

MOMENTS = ("before", "during", "after")


@pytest.mark.slow
def test_after_kill_9_at_any_store_operation_a_second_run_leaves_each_segment_committed_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.cli.cli_kill_sweep", str(tmp_path), str(ORIGINALS)],
        capture_output=True,
        env=environment(**({"TIEREDSTORE_SOAK": "1"} if SOAK else {})),
        check=False,
        timeout=800,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    # The operations are a head for the key layout, a list, and six for each of three segments: a head of its manifest,
    # three writes, and before the last write a head of each other object. `make test` kills only at the first of each
    # kind, and at the very last. Two operations lack a moment: no kill is possible in the middle of an empty list, or
    # after a head that finds nothing.
    deaths = {moment: sum(run["died"] for run in runs if run["moment"] == moment) for moment in MOMENTS}
    segments, last = (3, 0) if SOAK else (1, 1)
    assert deaths == {
        "before": 2 + segments * 6 + last, "during": 1 + segments * 6 + last, "after": 1 + segments * 5 + last
    }  # fmt: skip
    assert len(runs) == 3 * (2 + segments * 6 + last)
    for run in runs:
        whole = [row["base_offset"] for row in run["segments"] if row["complete"]]
        assert whole == [0, 1, 2], run
        committed = [row for row in run["segments"] if "rsm-manifest" not in row["missing"]]
        assert len(committed) == 3, run
        shown_before = sum(row["complete"] for row in run["visible"])
        assert run["second_run"][0] == 0
        assert run["second_run"][1]["kept"] == shown_before
        assert run["second_run"][1]["done"] == 3 - shown_before
        assert run["third_run"][0] == 0
        assert run["third_run"][1]["codes"] == {"there": 3}
        assert not run["third_run_added"]
        assert run["equal"]
