"""The lock of a folder: waiting for it has a deadline, and its holder never waits for a disk."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.simulated_time import SimulatedClock
from tieredstore.backends.filesystem import FilesystemObjectStore, folders
from tieredstore.errors import StoreUnavailableError


@pytest.fixture
def store(tmp_path: Path) -> FilesystemObjectStore:
    store = FilesystemObjectStore(tmp_path)
    store.put("orders/0/a", b"first")
    return store


@pytest.fixture
def _simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimulatedClock()
    monkeypatch.setattr(folders, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Open the folder a second time and lock it, as another process would."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


Change = Callable[[FilesystemObjectStore], object]
CHANGES: dict[str, Change] = {
    "put": lambda store: store.put("orders/0/b", b"second"),
    "put if absent": lambda store: store.put("orders/0/b", b"second", if_absent=True),
    "replace": lambda store: store.replace("orders/0/a", b"other", store.head("orders/0/a").etag or ""),
    "prepare and publish": lambda store: store.publish(store.prepare("orders/0/b", [b"s"], staging_prefix="staged/")),
    "delete": lambda store: store.delete(["orders/0/a"]),
}


@pytest.mark.usefixtures("_simulated_time")
@pytest.mark.parametrize("name", CHANGES)
def test_a_lock_that_a_stopped_process_holds_is_an_error_that_may_pass(
    store: FilesystemObjectStore, tmp_path: Path, name: str
) -> None:
    with locked(tmp_path / "orders/0"):
        with pytest.raises(
            StoreUnavailableError, match="has held the lock of the folder orders/0 for 30 s: end that process if it"
        ):
            CHANGES[name](store)
        assert store.get("orders/0/a") == b"first"
        assert [info.key for info in store.list("")] == ["orders/0/a"]
    CHANGES[name](store)


@pytest.mark.usefixtures("_simulated_time")
def test_what_was_prepared_is_published_once_the_lock_is_free(store: FilesystemObjectStore, tmp_path: Path) -> None:
    prepared = store.prepare("orders/0/b", [b"second"], staging_prefix="staged/")
    with locked(tmp_path / "orders/0"), pytest.raises(StoreUnavailableError):
        store.publish(prepared)
    store.publish(prepared)
    assert store.get("orders/0/b") == b"second"


@pytest.mark.parametrize("name", CHANGES)
def test_no_disk_is_waited_for_under_the_lock(
    store: FilesystemObjectStore, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def fsync(descriptor: int) -> None:
        with suppress(FileNotFoundError), locked(tmp_path / "orders/0"):
            synced.append(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    CHANGES[name](store)
    assert synced
