"""The programs of docs/how-to, unchanged, each run twice."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import tieredstore as ts
from tests.support.paths import GOLDEN, REPOSITORY

PAGES = REPOSITORY / "docs" / "how-to"


_FENCE = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [textwrap.dedent(code) for kind, code in _FENCE.findall(page.read_text()) if kind == language]


def programs(page: str) -> tuple[list[str], list[str]]:
    """Return the programs of a page, and its settings files."""
    return blocks(PAGES / page, "python"), blocks(PAGES / page, "properties")


@pytest.mark.slow
def test_uploading(tmp_path: Path, disk: Path, run: Callable[..., str]) -> None:
    (upload,), (settings,) = programs("upload.md")
    (tmp_path / "store").mkdir()
    (tmp_path / "store.properties").write_text(settings)
    assert "5 segments to upload" in run(upload, tmp_path, str(disk))
    again = run(upload, tmp_path, str(disk))
    assert "0 segments to upload" in again
    assert "0 uploaded, 5 already there" in again
    with ts.open(tmp_path / "store.properties") as bucket:
        assert [(topic.name, topic.segments) for topic in bucket.topics()] == [("txn", 5)]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("tieredstore.uploader") is None, reason="the core alone")
def test_the_uploaders_page(tmp_path: Path, disk: Path, run: Callable[..., str]) -> None:
    (ship, of_ones_own), (settings, *_) = programs("uploader.md")
    (tmp_path / "store").mkdir()
    disk.rename(tmp_path / "kafka-logs")
    (tmp_path / "uploader.properties").write_text(settings)
    first, second = (run(ship, tmp_path) for _ in range(2))
    assert "would upload txn 0 605" in first
    assert second == "0 partitions have something left: []\n"
    (tmp_path / "assigned.py").write_text(of_ones_own)
    (tmp_path / "uploader.properties").write_text(settings.replace("=static", "=assigned.Assigned"))
    assert run(ship, tmp_path) == "0 partitions have something left: []\n"


@pytest.mark.skipif(find_spec("tieredstore.uploader") is None, reason="the core alone")
def test_the_uploaders_page_has_each_metric() -> None:
    metrics = import_module("tieredstore.uploader.metrics")
    table = (PAGES / "uploader.md").read_text().partition("metric `tieredstore_uploader_…` |")[2]
    shown = [
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[0] if "|" in row else "")
    ]
    by_topic = [f"topic_{name}" for name in metrics.LAG]
    assert sorted(shown) == sorted([*(f"{name}_total" for name in metrics.COUNTERS), *metrics.GAUGES, *by_topic])


@pytest.fixture
def store(tmp_path: Path, disk: Path) -> Path:
    """Make a folder with ``store.properties`` and a bucket that has the five segments of topic txn."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store.properties").write_text("storage.backend.class=filesystem\nstorage.root=store\n")
    with ts.open(tmp_path / "store.properties") as bucket:
        assert bucket.upload(disk).done == 5
    return tmp_path


def first_of(page: str) -> str:
    """Return the first program of a page, with its topic and date replaced by those of the bucket."""
    (program, *_), _ = programs(page)
    return program.replace("2026-01-15", "2100-01-01").replace('"orders"', '"txn"').replace('"order*"', '"tx*"')


@pytest.mark.slow
def test_verifying(store: Path, run: Callable[..., str]) -> None:
    assert run(first_of("verify.md"), store) == "5 segments, 0 findings\n"
    next((store / "store").rglob("*.log")).write_bytes(b"damaged")
    assert "damage log-size" in run(first_of("verify.md"), store)


@pytest.mark.slow
def test_mirroring(store: Path, run: Callable[..., str]) -> None:
    (store / "backup").mkdir()
    assert run(first_of("mirror.md"), store).splitlines()[-1] == "5 copied, 0 already there"
    assert run(first_of("mirror.md"), store).splitlines()[-1] == "0 copied, 5 already there"


@pytest.mark.slow
def test_cleaning_up(store: Path, run: Callable[..., str]) -> None:
    assert run(first_of("cleanup.md"), store).count(" planned\n") == 5
    assert list((store / "store").rglob("*.log")) == []


@pytest.mark.slow
@pytest.mark.skipif(find_spec("tieredstore.pubsub") is None, reason="the core alone")
def test_publishing_batches(store: Path, run: Callable[..., str]) -> None:
    (publish, *_), _ = programs("batches.md")
    assert run(publish, store).endswith("\n1 record\n")


@pytest.mark.slow
def test_rotating_keys(tmp_path: Path, run: Callable[..., str]) -> None:
    (rotate,), (ring,) = programs("keys.md")
    folder = tmp_path / "case"
    shutil.copytree(GOLDEN / "08-keyring", folder)
    given = (folder / "rsm.properties").read_text().splitlines()
    store = [line for line in given if not line.startswith("encryption")]
    settings = [*store, *ring.splitlines()]
    (folder / "store.properties").write_text("\n".join(settings))
    first, second = (run(rotate, folder) for _ in range(2))
    assert not first.startswith("0 data keys")
    assert second.startswith("0 data keys to wrap")
    assert "key1" not in second
