"""The first programs that a new user writes, each run twice."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.paths import GOLDEN

UPLOAD = """\
import sys, tieredstore as ts
with ts.open("store.properties") as bucket:
    bucket.upload(sys.argv[1], on_outcome=print)
"""

ROTATE = """\
import tieredstore as ts
with ts.open("rsm.properties") as bucket:
    print(bucket.rotate_keys().apply())
    assert not bucket.keys("key1")
"""

LIKE = """\
import sys, tieredstore as ts
with ts.open("store", chunk_size=1 << 20) as bucket:
    bucket.upload(sys.argv[1], "tx*")
    with bucket.segments("txn", 0)[-1].open() as log:
        log.seek(-100, 2)
        tail = log.read()
    frame = bucket.read("txn", start="2026-01-01").to_polars()
    rows = bucket.query("SELECT count(*) FROM txn").to_arrow()
print(len(tail), frame.height, rows[0][0])
"""


def run(program: str, folder: Path, *arguments: str) -> str:
    file = folder / "program.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, file.name, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_uploading_a_disk(tmp_path: Path, disk: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store.properties").write_text("storage.backend.class=filesystem\nstorage.root=store\n")
    first, second = (run(UPLOAD, tmp_path, str(disk)).splitlines() for _ in range(2))
    assert [("done" in line, "kept" in line) for line in first] == [(True, False)] * 5
    assert [("done" in line, "kept" in line) for line in second] == [(False, True)] * 5


def test_rotating_keys(tmp_path: Path) -> None:
    folder = tmp_path / "case"
    shutil.copytree(GOLDEN / "08-keyring", folder)
    first, second = (run(ROTATE, folder) for _ in range(2))
    assert "done=0" not in first
    assert "done=0" in second


def test_what_one_would_like_to_write(tmp_path: Path, disk: Path) -> None:
    (tmp_path / "store").mkdir()
    assert [run(LIKE, tmp_path, str(disk)).split()[0] for _ in range(2)] == ["100", "100"]
