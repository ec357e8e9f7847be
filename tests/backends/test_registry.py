from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.support.stores.url_settings import settings_at
from tieredstore import installation
from tieredstore.backends import registry
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.backends.registry import store_from_settings
from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.config import Settings


@dataclass
class _Storage:
    storage_backend: str
    storage_root: Path | None = None


def settings(backend: str, root: Path | None = None) -> Settings:
    """Return only the settings that these stores read."""
    return cast("Settings", _Storage(backend, root))


class UsersOwnStore(MemoryObjectStore):
    """A store whose ``from_settings`` it inherits."""


def store_at(url: str) -> ObjectStore:
    return store_from_settings(settings_at(url))


def test_a_file_url_opens_the_folder_it_names(tmp_path: Path) -> None:
    folder = tmp_path / "with space, % and ünïcödé #?"
    folder.mkdir()
    store = store_at(folder.as_uri())
    assert isinstance(store, FilesystemObjectStore)
    assert store.identity == folder.as_uri()
    assert store_at(folder.as_uri().replace("file://", "file://localhost")).identity == store.identity


@pytest.mark.parametrize(
    "url",
    [
        "", "path", "/path", "ftp://host/path", "C:\\folder", "file:relative", "file://host/path", "file:///tmp?a=b",
        "file:///tmp#a", "file:///no/such/folder", "memory://name/path", "memory://name?a", "http://[bad", "file:///a%00b",
    ],
)  # fmt: skip
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        store_at(url)


def test_settings_name_the_store(tmp_path: Path) -> None:
    assert store_from_settings(settings("filesystem", tmp_path)).identity == tmp_path.as_uri()
    assert isinstance(store_from_settings(settings("memory")), MemoryObjectStore)
    with pytest.raises(ConfigError, match=r"storage\.root"):
        store_from_settings(settings("filesystem"))


@pytest.mark.parametrize("separator", [":", "."])
def test_settings_name_a_user_s_own_class(separator: str) -> None:
    name = f"{__name__}{separator}UsersOwnStore"
    assert isinstance(store_from_settings(settings(name)), UsersOwnStore)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nonsense", "neither one of"),
        ("", "neither one of"),
        ("no_such_package.module:Class", "no module no_such_package"),
        ("tieredstore.backends.absent:Class", "no module tieredstore.backends.absent"),
        ("tieredstore.backends.memory:Absent", "not a class"),
        ("tieredstore.backends.memory.checked_key", "not a class"),
        ("tieredstore.model:Uuid", "not a class"),
        ("tieredstore.backends.base:ObjectStore", "from_settings"),
        ("a b:c", "neither one of"),
        ("..:Class", "neither one of"),
    ],
)
def test_a_backend_that_cannot_be_opened_is_a_setting_s_fault(path: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        store_from_settings(settings(path))


@pytest.fixture
def broken_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a store whose module imports a missing module."""
    (tmp_path / "store_with_sdk.py").write_text("import absent_sdk.client\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "store_with_sdk", raising=False)
    return "store_with_sdk"


def test_an_absent_sdk_names_the_extra_to_install(broken_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(installation.PACKAGES, "absent_sdk", "s3")
    monkeypatch.setitem(registry.BY_SETTING, "cloud", f"{broken_store}:Store")
    with pytest.raises(ConfigError, match=r"pip install .*\[cloud\]"):
        store_from_settings(settings("cloud"))


def test_any_other_absent_module_is_not_taken_for_the_sdk(broken_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BY_SETTING, "cloud", f"{broken_store}:Store")
    with pytest.raises(ModuleNotFoundError, match="absent_sdk"):
        store_from_settings(settings("cloud"))
