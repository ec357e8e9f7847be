"""The custom store of examples/: the whole contract, and settings that name it in each way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from examples.sqlite_store import SqliteObjectStore
from tests.support.cli.cli_process import ORIGINALS, spawn
from tests.support.installed_packages import install
from tests.support.paths import REPOSITORY
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.registry import store_from_settings
from tieredstore.config import settings_from
from tieredstore.errors import ConfigError, StoreUnavailableError
from tieredstore.testing.object_store_tests import ObjectStoreTests

pytestmark = pytest.mark.slow

EXAMPLES = REPOSITORY / "examples"


class TestSqliteObjectStore(ObjectStoreTests):
    # Each write is a synced transaction on a shared disk.
    largest_object = 16 << 20
    listed_objects = 250  # the store lists pages of 100
    race_rounds = 3

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        with closing(SqliteObjectStore(str(tmp_path / "objects.sqlite"))) as store:
            yield store


def texts(backend: str, folder: Path) -> dict[str, str]:
    file = str(folder / "objects.sqlite")
    return {"storage.backend.class": backend, "storage.sqlite.file": file, "chunk.size": "65536"}


@pytest.fixture
def _examples_on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the examples on the path like a user's own code. Afterwards remove the module, because other tests import the
    same file as ``examples.sqlite_store``.
    """
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    yield
    sys.modules.pop("sqlite_store", None)


@pytest.mark.usefixtures("_examples_on_the_path")
@pytest.mark.parametrize("backend", ["sqlite_store:SqliteObjectStore", "sqlite_store.SqliteObjectStore"])
def test_a_dotted_path_opens_the_class(backend: str, tmp_path: Path) -> None:
    with closing(store_from_settings(settings_from(texts(backend, tmp_path)))) as store:
        store.put("object", b"data")
    assert SqliteObjectStore(str(tmp_path / "objects.sqlite")).get("object") == b"data"


@pytest.mark.usefixtures("_examples_on_the_path")
def test_the_name_of_an_entry_point_opens_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path / "site", "sqlite_of_mine", {"sqlite": "sqlite_store:SqliteObjectStore"})
    with closing(store_from_settings(settings_from(texts("sqlite", tmp_path)))) as store:
        store.put("object", b"data")
    assert SqliteObjectStore(str(tmp_path / "objects.sqlite")).get("object") == b"data"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no_such_module_at_all:Store", "no module no_such_module_at_all"),
        ("tieredstore.model:Uuid", "not a class that derives from ObjectStore"),
        ("tieredstore", "neither"),
        ("a b:c", "neither"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_a_setting_s_fault(
    target: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path / "site", "broken_of_mine", {"broken": target})
    settings = settings_from(texts("broken", tmp_path))
    with pytest.raises(ConfigError, match=said):
        store_from_settings(settings)


def test_a_name_that_was_uninstalled_meanwhile_is_a_setting_s_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as installed:
        install(installed, tmp_path / "site", "passing", {"passing": "sqlite_store:SqliteObjectStore"})
        settings = settings_from(texts("passing", tmp_path))
    with pytest.raises(ConfigError, match="passing"):
        store_from_settings(settings)


def test_the_command_line_copies_into_it_and_reads_back(tmp_path: Path) -> None:
    settings = tmp_path / "store.properties"
    lines = texts("sqlite_store:SqliteObjectStore", tmp_path).items()
    settings.write_text("".join(f"{name}={text}\n" for name, text in lines))
    path = f"{REPOSITORY}:{EXAMPLES}"
    copied = spawn("upload", "-c", settings, ORIGINALS, PYTHONPATH=path)
    assert (copied.code, copied.stderr) == (0, "")
    log = next(ORIGINALS.rglob("*.log"))
    topic, _, partition = log.parent.name.rpartition("-")
    fetched = spawn("fetch", "-c", settings, topic, partition, int(log.stem), PYTHONPATH=path)
    assert (fetched.code, fetched.stdout) == (0, log.read_bytes())


def test_its_own_settings_are_asked_for(tmp_path: Path) -> None:
    given = texts("examples.sqlite_store:SqliteObjectStore", tmp_path)
    del given["storage.sqlite.file"]
    with pytest.raises(ConfigError, match=r"storage\.sqlite\.file is missing"):
        store_from_settings(settings_from(given))


def test_a_file_that_cannot_be_opened_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="unable to open"):
        SqliteObjectStore(str(tmp_path / "absent" / "objects.sqlite"))
