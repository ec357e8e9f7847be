"""Caches shared by all clones: complete or absent, and a clone keeps its own when the cache is emptied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts.caches import cache_folder, cached, place, recipe_key


@pytest.fixture(autouse=True)
def _a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def make(folder: Path) -> None:
    (folder / "program").write_text("built")


def test_what_is_cached_is_made_once(tmp_path: Path) -> None:
    assert (cached("thing", make) / "program").read_text() == "built"
    assert (cached("thing", lambda folder: pytest.fail("made twice")) / "program").exists()


def test_what_fails_leaves_nothing() -> None:
    def fail(folder: Path) -> None:
        make(folder)
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        cached("thing", fail)
    assert list(cache_folder().iterdir()) == []


def test_two_that_make_the_same_at_once_both_have_it() -> None:
    def make_while_another_does(folder: Path) -> None:
        make(folder)
        cached("thing", make)

    assert (cached("thing", make_while_another_does) / "program").read_text() == "built"
    assert [path.name for path in cache_folder().iterdir()] == ["thing"]


def test_a_clone_keeps_what_it_has_when_the_cache_is_emptied(tmp_path: Path) -> None:
    place(cached("thing", make), tmp_path / "clone" / "thing")
    place(cached("thing", make), tmp_path / "clone" / "thing")
    shutil.rmtree(cache_folder())
    assert (tmp_path / "clone" / "thing" / "program").read_text() == "built"


def test_a_recipe_has_another_key_if_any_ingredient_differs() -> None:
    keys = {recipe_key("a", "b"), recipe_key("ab"), recipe_key("a", b"c"), recipe_key("a")}
    assert len(keys) == 4
    assert recipe_key("a", b"b") in keys
