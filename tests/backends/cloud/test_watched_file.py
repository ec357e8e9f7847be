"""A credentials file that changes under a running process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.simulated_time import SimulatedClock
from tieredstore.backends.cloud.watched_file import MAX_FILE_BYTES, WatchedFile
from tieredstore.errors import ConfigError


def parse(raw: bytes) -> str:
    if raw.startswith(b"bad"):
        raise ConfigError("it is bad")
    return raw.decode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    credentials = tmp_path / "credentials"
    credentials.write_text("one")
    return credentials


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def watched(path: Path, clock: SimulatedClock) -> WatchedFile[str]:
    return WatchedFile(path, parse, interval_s=10, monotonic=clock)


def replace(path: Path, text: str) -> None:
    """Replace the file by a new one, as rotation does."""
    new = path.with_name("new")
    new.write_text(text)
    new.replace(path)


def test_a_change_is_seen_after_the_interval(path: Path, clock: SimulatedClock, watched: WatchedFile[str]) -> None:
    assert (watched.get(), watched.version) == ("one", 1)
    replace(path, "two")
    clock.now = 9.9
    assert (watched.get(), watched.version) == ("one", 1)
    clock.now = 10
    assert (watched.get(), watched.version) == ("two", 2)


def test_a_file_of_the_same_size_and_time_but_another_inode_is_a_change(
    path: Path, clock: SimulatedClock, watched: WatchedFile[str]
) -> None:
    stamp = path.stat()
    assert watched.get() == "one"
    replace(path, "two")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    clock.now = 10
    assert watched.get() == "two"


def test_an_unchanged_file_is_not_parsed_again(path: Path, clock: SimulatedClock) -> None:
    parsed: list[bytes] = []
    watched = WatchedFile(path, parsed.append, interval_s=1, monotonic=clock)
    for clock.now in range(5):
        watched.get()
    assert len(parsed) == 1


@pytest.mark.parametrize("damage", ["absent", "bad", "folder", "huge"])
def test_credentials_that_were_taken_away_do_not_live_on(
    path: Path, clock: SimulatedClock, watched: WatchedFile[str], damage: str
) -> None:
    assert watched.get() == "one"
    if damage == "bad":
        replace(path, "bad: secret")
    elif damage == "huge":
        path.write_bytes(bytes(MAX_FILE_BYTES + 1))
    else:
        path.unlink()
        if damage == "folder":
            path.mkdir()
    for clock.now in (10, 11, 30):
        with pytest.raises(ConfigError, match="credentials") as caught:
            watched.get()
        assert "secret" not in str(caught.value)


def test_a_file_that_comes_back_is_read(path: Path, clock: SimulatedClock, watched: WatchedFile[str]) -> None:
    watched.get()
    path.unlink()
    clock.now = 10
    with pytest.raises(ConfigError):
        watched.get()
    path.write_text("three")
    assert watched.get() == "three"
