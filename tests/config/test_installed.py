"""Stores that installed packages offer by name: found, refused, and never mistaken for a built-in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.installed_packages import install
from tieredstore.config import Settings, settings_from
from tieredstore.config.named_class import STORES, installed_class
from tieredstore.errors import ConfigError


def settings_of(backend: str, **more: str) -> Settings:
    return settings_from({"storage.backend.class": backend, "chunk.size": "1", **more})


def test_an_installed_name_selects_the_store_and_opens_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, "tapes", {"tape-1": "tapes.store:TapeStore", "old_tape": "tapes.old:Store"})
    assert installed_class(STORES, "tape-1") == "tapes.store:TapeStore"
    settings = settings_of("tape-1", **{"storage.tape.drive": "/dev/st0"})
    assert settings.storage_backend == "tape-1"
    assert [name for name, _ in settings.storage_options] == ["tape.drive"]
    assert settings_of("old_tape").storage_backend == "old_tape"


def test_the_broken_module_of_a_store_is_not_imported_by_reading_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, "broken_tapes", {"tape": "broken_tapes:Store"}, code="raise SystemExit('imported')")
    assert settings_of("tape").storage_backend == "tape"


@pytest.mark.parametrize("name", ["tape", "s-3", "S3", "", "tape 1", "tape=x", "a" * 101, "täpe", "tape\n"])
def test_a_name_that_nobody_installed_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, "tapes", {"other": "tapes:Store"})
    assert installed_class(STORES, name) is None
    with pytest.raises(ConfigError, match="an installed store"):
        settings_of(name)


def test_our_own_names_cannot_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, "thief", {"memory": "thief:Store"})
    assert settings_of("memory").storage_options == ()
    with pytest.raises(ConfigError, match=r"storage\.shelf is not known"):
        settings_of("memory", **{"storage.shelf": "7"})


def test_two_packages_that_mean_different_classes_by_a_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path / "1", "tapes", {"tape": "tapes:Store"})
    install(monkeypatch, tmp_path / "2", "more_tapes", {"tape": "more_tapes:Store"})
    with pytest.raises(ConfigError, match=r"several classes under this name \(more_tapes:Store and tapes:Store\)"):
        settings_of("tape")


def test_a_package_seen_twice_on_the_path_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path / "1", "tapes", {"tape": "tapes:Store"})
    install(monkeypatch, tmp_path / "2", "tapes", {"tape": "tapes:Store"})
    assert settings_of("tape").storage_backend == "tape"
