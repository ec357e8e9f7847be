"""Shell completion: names from the bucket, a cache without secrets, and silence if there is no answer."""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cli.cli_process import tieredstore
from tests.support.golden.segments import case_path
from tieredstore.cli.app import completion

TXN = case_path("07-txn") / "rsm.properties"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TIEREDSTORE_SETTINGS", raising=False)
    monkeypatch.setattr(completion, "select", SimpleNamespace(select=select_patiently))


def select_patiently(reading: list[int], writing: list[int], failing: list[int], timeout_s: float) -> object:
    """Wait long for a child, because the machine may be busy and these tests need the answer."""
    return select.select(reading, writing, failing, timeout_s and 60.0)


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that gives bash's completions for the last of these words."""

    def ask(*words: object) -> list[str]:
        monkeypatch.setenv("_TIEREDSTORE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(map(str, ("tieredstore", *words))))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        done = tieredstore().clean()
        return done.text.split()

    return ask


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("cat -c TXN t", ["txn"]),
        ("cat -c TXN x", []),
        ("ls -c TXN t", ["txn"]),
        ("ls -c TXN txn -p ", ["0"]),
        ("ls -c TXN none txn -p ", ["0"]),
        ("ls txn -c TXN -p 0 --from 6", ["605"]),
        ("du --store STORE t", ["txn"]),
        ("du -c TXN txn -p 4,7-9,", ["4,7-9,0"]),
        ("gc --store STORE -p ", []),
        ("cat -c TXN txn -p ", ["0"]),
        ("cat -c TXN txn --from 1", ["1209", "1815"]),
        ("cat -c TXN txn -p 0 --to 6", ["605"]),
        ("cat -c TXN txn -p 7 --from ", []),
        ("fetch -c TXN txn 0 ", ["0", "605", "1209", "1815", "2420"]),
        ("fetch --store STORE txn 0 24", ["2420"]),
        ("cat -c nowhere.properties t", []),
        ("cat t", []),
        ("l", ["ls"]),
        ("keys l", ["list"]),
        ("pipeline ba", ["backfill"]),
        ("du --by d", ["day"]),
        ("cat --isolation read_c", ["read_committed"]),
        ("cat --fr", ["--from"]),
        ("--v", ["--verbose", "--version"]),
        ("ls -v --s", ["--settings", "--store"]),
    ],
)
def test_names_of_the_bucket_commands_options_and_choices_are_offered(
    line: str, names: list[str], offered: Callable[..., list[str]]
) -> None:
    places = {"TXN": TXN, "STORE": TXN.parent.joinpath("store").as_uri()}
    words = [places.get(word, word) for word in line.split(" ")]
    for _ in range(2):
        assert offered(*words) == names


def context(**params: Any) -> Any:
    """Return a context as typer passes it to completion functions."""
    return SimpleNamespace(params={"settings": TXN, "store": None, **params}, args=[])


def test_of_a_list_the_last_partition_is_completed() -> None:
    assert completion.complete_partition(context(topic="txn"), "4,7-9,") == ["4,7-9,0"]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the wait of each lookup, and skip the lookup."""
    waited: list[float] = []

    def note(_reading: list[int], _writing: list[int], _failing: list[int], timeout_s: float) -> object:
        waited.append(timeout_s)
        return [], [], []

    assert completion.complete_topic(context(), "") == ["txn"]
    monkeypatch.setattr(os, "fork", lambda: -1)
    monkeypatch.setattr(completion, "select", SimpleNamespace(select=note))
    return waited


def test_an_answer_is_kept_for_a_minute_and_one_that_is_too_old_is_better_than_none(
    tmp_path: Path, waits: list[float]
) -> None:
    assert completion.complete_topic(context(), "") == ["txn"]
    assert waits == []
    for age_s in (3_600, 100_000):
        then = time.time() - age_s
        for path in (tmp_path / "cache").rglob("*"):
            os.utime(path, (then, then))
        assert completion.complete_topic(context(), "") == ["txn"]
    # An hour-old answer is returned at once, while a child process looks again. A day-old answer is returned only if
    # the child is too slow.
    assert waits == [0, 0.8]


def test_a_look_that_takes_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "select", select)
    begun = time.monotonic()
    completion._look_in_child(signal.pause, wait_s=0.05)  # pyright: ignore[reportPrivateUsage]
    assert time.monotonic() - begun < 40
    # Failures in the child process are silent.
    completion._look_in_child(lambda: 1 // 0, wait_s=60)  # pyright: ignore[reportPrivateUsage]


def test_names_that_a_shell_would_run_are_not_offered() -> None:
    names = ["good", "$(reboot)", "a b", "`x`", "x;y", "", "é", "a" * 250, "-rf", "t.o-p_1"]
    assert completion.legal_names(names) == ("good", "-rf", "t.o-p_1")


def test_the_cache_has_no_secrets_and_is_this_users_alone(tmp_path: Path) -> None:
    paths = [
        completion.answer_path(None, f"s3://key:{secret}@bucket/prefix?token={secret}", "topics")
        for secret in ("secret", "another")
    ]
    assert paths[0] == paths[1] != completion.answer_path(None, "s3://bucket/prefix", "topics")
    path = paths[0]
    completion.write_answer(path, ("orders",))
    answer = completion.read_answer(path)
    assert answer is not None
    assert answer[0] == ("orders",)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [path]
    assert json.loads(path.read_text()) == ["orders"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"[", b"\xff", b"null", b"[" * 100_000])
def test_a_file_that_is_none_of_ours_is_no_answer(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "topics"
    path.write_bytes(content)
    assert completion.read_answer(path) is None
    assert completion.read_answer(tmp_path / "another question") is None


def test_the_oldest_answers_go(tmp_path: Path) -> None:
    for number in range(203):
        completion.write_answer(tmp_path / str(number), ())
    assert len([*tmp_path.iterdir()]) == 200
    assert completion.read_answer(tmp_path / "202") is not None


def test_another_settings_file_has_other_answers(tmp_path: Path) -> None:
    settings = tmp_path / "s.properties"
    settings.write_text("a=1")
    before = completion.answer_path(str(settings), None, "topics")
    settings.write_text("a=12")
    assert completion.answer_path(str(settings), None, "topics") != before
