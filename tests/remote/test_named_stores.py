"""Every way to name a store, and the errors where none is named."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tieredstore.config import Settings, settings_from
from tieredstore.errors import ConfigError
from tieredstore.remote import RemoteStorageManager
from tieredstore.remote.stores import SETTINGS_VARIABLE, keyword_properties, manager_of, settings_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def settings(root: Path) -> Settings:
    return settings_from({"storage.backend.class": "filesystem", "storage.root": root})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(
        "broker.id=1\nrsm.config.storage.backend.class=filesystem\n"
        "rsm.config.storage.root=store\nrsm.config.key.prefix=p/\n"
    )
    return path


def test_each_kind_of_source_names_the_same_store(
    root: Path, settings: Settings, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTINGS_VARIABLE, str(file))
    with RemoteStorageManager(settings) as manager:
        sources: list[Any] = [
            str(root),
            root,
            root.as_uri(),
            {"storage.backend.class": "filesystem", "storage.root": root},
        ]
        assert {settings_of(source).storage_root for source in [*sources, settings, manager]} == {root}
        assert {settings_of(source).storage_root for source in (file, str(file), None)} == {root}


def test_what_is_added_takes_the_place_of_what_a_file_says(file: Path, root: Path) -> None:
    extra = keyword_properties({"chunk_size": 1 << 20, "fetch_manifest_cache_retention_ms": timedelta(minutes=1)})
    settings = settings_of(file, extra=extra)
    assert (settings.key_prefix, settings.chunk_size) == ("p/", 1 << 20)
    assert settings.fetch.manifest_cache.retention_ms == 60_000
    other = settings_of(file, store="s3://logs/prod/", extra={"storage.s3.region": "eu-central-1"})
    assert (other.storage_backend, other.key_prefix) == ("s3", "prod/")
    assert settings_of(None, store=f"{root}/not-there-yet").storage_root == root / "not-there-yet"


@pytest.mark.parametrize(
    ("source", "how", "sentence"),
    [
        ("prod", {}, "there is no file or folder 'prod'; URLs begin with file://, s3://, gs://, az://"),
        ("absent.properties", {}, "absent.properties: there is no such settings file"),
        ("/dev/null", {}, "/dev/null is a pipe or a device: settings are read several times, so give a file"),
        ("s3:/logs", {}, "'s3:/logs' is not a URL; did you mean s3://logs?"),
        ("https://u:hush@host/x", {}, "the URL of a store starts with one of file://, s3://, gs://, az://"),
        (42, {}, "an object of the type int names no store: give a path, a URL, a mapping of settings, Settings, or"),
        (b"prod", {}, "an object of the type bytes names no store: give a path"),
        (None, {}, "no store is named: give a path"),
        ("s3://logs", {"store": "gs://logs"}, "two stores are named"),
        (
            "gs://logs",
            {"extra": {"chunk.sise": 1}},
            "the store gs://logs: chunk.sise is not known; did you mean chunk",
        ),
        ({"storage.backend.class": "memory", "chunk.size": "4MiB"}, {}, "settings: chunk.size is '4MiB'; it must be"),
        (None, {"store": "s3:logs"}, "'s3:logs' is not a URL; did you mean s3://logs?"),
    ],
)
def test_what_names_no_store_is_told_in_one_sentence(
    source: Any, how: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SETTINGS_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}") as caught:
        settings_of(source, **how)
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_that_were_read_are_not_changed_in_passing(settings: Settings) -> None:
    ways: list[dict[str, Any]] = [{"store": "s3://logs"}, {"extra": {"chunk.size": 1}}]
    for how in ways:
        with pytest.raises(ConfigError, match="loaded settings cannot be changed"):
            settings_of(settings, **how)


def test_a_manager_is_opened_once_and_closed_by_who_opened_it(settings: Settings, root: Path) -> None:
    with RemoteStorageManager(root) as manager:
        assert manager_of(manager) == (manager, False)
    own, is_own = manager_of(settings)
    with own:
        assert is_own
