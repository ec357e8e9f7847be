"""The first programs that a new user writes, each run twice."""

from __future__ import annotations

import ast
import itertools
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import tieredstore as ts
from tests.support.paths import GOLDEN, REPOSITORY
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.testing.segments import Record, build_batch, write_segment

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
    bucket.upload(sys.argv[1], "orders-*")
    with bucket.segments("orders", 0)[-1].open() as log:
        log.seek(-100, 2)
        tail = log.read()
    frame = bucket.read("orders", start="yesterday", value="json").to_polars()
    rows = bucket.query("SELECT count(*) FROM orders").to_arrow()
print(len(tail), frame["value"].str.json_path_match("$.id").to_list(), rows[0][0])
"""


@pytest.mark.slow
def test_uploading_a_disk(tmp_path: Path, disk: Path, run: Callable[..., str]) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store.properties").write_text("storage.backend.class=filesystem\nstorage.root=store\n")
    first, second = (run(UPLOAD, tmp_path, str(disk)).splitlines() for _ in range(2))
    assert [("done" in line, "kept" in line) for line in first] == [(True, False)] * 5
    assert [("done" in line, "kept" in line) for line in second] == [(False, True)] * 5


@pytest.mark.slow
def test_rotating_keys(tmp_path: Path, run: Callable[..., str]) -> None:
    folder = tmp_path / "case"
    shutil.copytree(GOLDEN / "08-keyring", folder)
    first, second = (run(ROTATE, folder) for _ in range(2))
    assert "done=0" not in first
    assert "done=0" in second


@pytest.mark.slow
def test_what_one_would_like_to_write(tmp_path: Path, disk: Path, run: Callable[..., str]) -> None:
    (tmp_path / "store").mkdir()
    now = time.time_ns() // 1_000_000
    for topic, number in itertools.product(("orders", "orders-eu"), range(2)):
        orders = [Record(b'{"id": %d, "customer": "a"}' % n, None, now) for n in range(10)]
        where = TopicIdPartition(Uuid(topic.encode().ljust(16)), topic, 0)
        write_segment(disk, [build_batch(orders, number * 10)], partition=where, base_offset=number * 10)
    with ts.open(tmp_path / "store", chunk_size=1 << 20) as bucket:
        bucket.upload(disk, "orders")
    first, second = (run(LIKE, tmp_path, str(disk)) for _ in range(2))
    assert first == second == f"100 {[str(n) for n in range(10)] * 2} 20\n"
    assert first == second


@pytest.mark.slow
def test_a_typed_program(tmp_path: Path, disk: Path, run: Callable[..., str]) -> None:
    """`make test` checks the program by mypy and by pyright, both strict."""
    (tmp_path / "store").mkdir()
    program = (REPOSITORY / "examples" / "typed_program.py").read_text()
    first, second = (run(program, tmp_path, "store", str(disk), "txn") for _ in range(2))
    assert first.splitlines()[-2:] == second.splitlines()[-2:]
    assert second.splitlines()[-2:] == [
        "5 segments, 2357 records from 0 on; 100 bytes", "a removal would delete [0]",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_notebook(bucket: ts.Bucket, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all cells in one namespace, twice; show each cell's last value as a notebook does."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store.properties").write_text(f"storage.backend.class=filesystem\nstorage.root={root}\n")
    notebook: dict[str, Any] = json.loads((REPOSITORY / "examples" / "first_look.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"] == [[]] * len(cells)
    for _ in range(2):
        names: dict[str, Any] = {}
        shown = [show(cell.replace("orders", "txn"), names) for cell in cells]
        assert shown[0] == f"Bucket({root.as_uri() + '/'!r})"
        assert "<td>txn</td>" in str(shown[1])
        assert str(shown[2]).count("<tr>") == 1 + len(bucket.segments("txn"))
        assert len(names["frame"]) == 100
        assert "2357" in str(shown[4])
        assert shown[-2:] == ["<p>no rows</p>", None]
        late: Any = bucket.read("txn").to_arrow().filter(pc.field("offset") >= 100)
        assert names["per_minute"]["records"].sum() == len(late)
        assert [line.get_label() for line in names["rates"].axes[0].lines] == ["partition 0"]
        assert names["sizes"].rows()[0][:2] == ("first", 2357)
        assert [bar.get_height() for bar in names["shares"].axes[0].patches] == names["sizes"]["bytes"].to_list()


def show(cell: str, names: dict[str, Any]) -> str | None:
    """Run a cell, and return its last value as a notebook shows it."""
    *before, last = ast.parse(cell).body
    if not isinstance(last, ast.Expr):
        before, last = [*before, last], ast.Expr(ast.Constant(None))
    exec(compile(ast.Module(before, []), "<cell>", "exec"), names)
    value: Any = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    if value is None:
        return None
    return str(value._repr_html_()) if hasattr(value, "_repr_html_") else repr(value)
