"""Shell completion: names from the bucket, and silence if there is no answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cli.cli_process import spawn, tieredstore
from tests.support.golden.segments import case_path
from tieredstore.cli.app import completion

TXN = case_path("07-txn") / "rsm.properties"


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that gives bash's completions for the last of these words."""
    monkeypatch.delenv("TIEREDSTORE_SETTINGS", raising=False)
    monkeypatch.setattr(completion, "LOOK_S", 60.0)  # the machine may be busy

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
    assert offered(*words) == names


@pytest.mark.slow
def test_a_bucket_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    settings, pipe = tmp_path / "store.properties", tmp_path / "credentials"
    os.mkfifo(pipe)  # a read waits for a writer
    bucket = "storage.backend.class=s3\nstorage.s3.bucket.name=b\nstorage.s3.region=r\n"
    settings.write_text(f"{bucket}storage.aws.credentials.file={pipe}\n")
    line = f"tieredstore ls -c {settings} t"
    done = spawn(_TIEREDSTORE_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD="4")
    assert (done.code, done.stdout, done.stderr) == (-signal.SIGALRM, b"", "")


def test_names_that_a_shell_would_run_are_not_offered() -> None:
    names = ["good", "$(reboot)", "a b", "`x`", "x;y", "", "é", "a" * 250, "-rf", "t.o-p_1"]
    assert completion.legal_names(names) == ["good", "-rf", "t.o-p_1"]
