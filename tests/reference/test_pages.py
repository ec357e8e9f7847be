"""docs/reference: generated pages are what their generators make of the product today, and examples run."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from tests.project.test_docs import blocks
from tests.support.paths import GOLDEN
from tests.support.reference.pages import FOLDER, PAGES, render_page
from tieredstore.config import load_settings
from tieredstore.pipelines import load_pipeline


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == render_page(name), "make docs"


def test_every_name_in_json_has_a_meaning() -> None:
    assert "TODO" not in render_page("json.md")


def test_the_first_program_of_python_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(GOLDEN / "07-txn", tmp_path / "case")
    (tmp_path / "case" / "rsm.properties").rename(tmp_path / "case" / "store.properties")
    (code,) = blocks(FOLDER / "python.md", "python")
    with contextlib.chdir(tmp_path / "case"):
        exec(compile(code.replace('"orders"', '"txn"'), "<page>", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_metrics_are_served(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks(FOLDER / "metrics.md", "python")
    exec(compile(code.replace("(9464)", "(0)"), "<page>", "exec"), {})
    assert capsys.readouterr().out == "http://127.0.0.1:9464/metrics\n"


def test_the_first_settings_are_read(tmp_path: Path) -> None:
    (text,) = blocks(FOLDER / "settings.md", "properties")
    (tmp_path / "store.properties").write_text(text)
    assert load_settings(tmp_path / "store.properties").chunk_size == 4194304
    (text,) = blocks(FOLDER / "pipeline-settings.md", "properties")
    (tmp_path / "backup.properties").write_text(text)
    assert load_pipeline(tmp_path / "backup.properties").own.name == "backup"
