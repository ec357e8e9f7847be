"""The programs of docs/how-to, as they are written there, each run twice."""

from __future__ import annotations

import re
import shutil
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.api.test_first_programs import run
from tests.support.paths import GOLDEN, REPOSITORY

PAGES = REPOSITORY / "docs" / "how-to"


_FENCE = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [textwrap.dedent(code) for kind, code in _FENCE.findall(page.read_text()) if kind == language]


def programs(page: str) -> tuple[list[str], list[str]]:
    """The programs of a page, and its settings files."""
    return blocks(PAGES / page, "python"), blocks(PAGES / page, "properties")


def test_uploading(tmp_path: Path, disk: Path) -> None:
    (upload, look, _), (settings, _) = programs("upload.md")
    (tmp_path / "store").mkdir()
    (tmp_path / "store.properties").write_text(settings)
    assert "5 segments to upload" in run(upload, tmp_path, str(disk))
    again = run(upload, tmp_path, str(disk))
    assert "0 segments to upload" in again
    assert "0 uploaded, 5 already there" in again
    first, second = (run(look, tmp_path) for _ in range(2))
    assert first == second
    assert "txn 5 segments" in first


@pytest.mark.skipif(find_spec("tieredstore.uploader") is None, reason="the core alone")
def test_uploading_beside_a_broker(tmp_path: Path, disk: Path) -> None:
    (*_, ship), (_, settings) = programs("upload.md")
    (tmp_path / "store").mkdir()
    disk.rename(tmp_path / "kafka-logs")
    (tmp_path / "uploader.properties").write_text(settings)
    first, second = (run(ship, tmp_path) for _ in range(2))
    assert "would upload txn 0 605" in first
    assert second == "0 partitions have something left: []\n"


def test_rotating_keys(tmp_path: Path) -> None:
    (rotate,), (ring,) = programs("keys.md")
    folder = tmp_path / "case"
    shutil.copytree(GOLDEN / "08-keyring", folder)
    given = (folder / "rsm.properties").read_text().splitlines()
    store = [line for line in given if not line.startswith("encryption")]
    settings = [*store, *ring.splitlines(), "encryption.key.pair.id=key2"]
    (folder / "store.properties").write_text("\n".join(settings))
    first, second = (run(rotate, folder) for _ in range(2))
    assert not first.startswith("0 data keys")
    assert second.startswith("0 data keys to wrap")
    assert "key1" not in second
