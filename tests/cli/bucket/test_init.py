"""``tieredstore init``: a new settings file from a broker's file or from answers, checked, and never over another."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import javaproperties
import pytest

from tests.support.cli.cli_process import Result, environment, measured_command, tieredstore
from tests.support.faulty_server.s3 import S3Service
from tests.support.faulty_server.server import FaultyServer
from tests.support.golden.segments import settings_text
from tests.support.paths import GOLDEN
from tieredstore.config import load_settings

SECRET = "a-secret-that-must-not-be-told"
BROKER = {
    "broker.id": "1",
    "log.dirs": "/var/lib/kafka",
    "remote.log.storage.manager.class.name": "io.aiven.kafka.tieredstorage.RemoteStorageManager",
}
CACHE = {"fetch.chunk.cache.class": "MemoryChunkCache", "fetch.chunk.cache.size": "1000000", "upload.max.age.ms": "1"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def broker_file(folder: Path, own: dict[str, str], prefix: str = "rsm.config.") -> Path:
    declared = {} if prefix == "rsm.config." else {"remote.log.storage.manager.impl.prefix": prefix}
    path = folder / "broker" / "server.properties"
    path.parent.mkdir(exist_ok=True)
    texts = BROKER | declared | {prefix + name: text for name, text in own.items()}
    path.write_text(javaproperties.dumps(texts, timestamp=False))
    return path


def golden_broker(folder: Path, prefix: str = "rsm.config.") -> Path:
    """Write a broker's settings file. It names a folder with its keys, which is beside the file, by a relative path."""
    path = broker_file(folder, settings_text("08-keyring") | {"storage.root": "store"} | CACHE, prefix)
    for name in ("store", "keys"):  # a copy, because a check of the store writes into it
        shutil.copytree(GOLDEN / "08-keyring" / name, path.parent / name)
    return path


@pytest.mark.parametrize("prefix", ["rsm.config.", "my.plugin."])
def test_a_broker_s_file_becomes_settings_that_read_its_bucket(prefix: str, folder: Path) -> None:
    done = tieredstore("init", golden_broker(folder, prefix))
    assert (done.code, done.stderr) == (0, "")
    first, second, *checks = done.text.splitlines()
    left = "fetch.chunk.cache.class, fetch.chunk.cache.size, upload.max.age.ms"
    assert first == f"store.properties: 12 settings of {folder}/broker/server.properties, without {left}"
    assert second == "next: tieredstore ls -c store.properties"
    assert any(line.startswith("ok      keys        2 key pairs, key2 active") for line in checks)
    assert (folder / "store.properties").stat().st_mode & 0o777 == 0o600
    assert "keyring" in tieredstore("ls", "-c", "store.properties").clean().text
    assert len(tieredstore("cat", "-c", "store.properties", "keyring", "--last", 2, "--json").clean().lines) == 2


def test_a_failed_check_ends_with_its_code_and_keeps_the_file(folder: Path) -> None:
    own = {"storage.backend.class": "filesystem", "storage.root": "absent", "chunk.size": "4194304"}
    done = tieredstore("init", broker_file(folder, own), "--file", "mine.properties")
    assert done.code == 2
    assert "bad     store" in done.text
    assert load_settings(folder / "mine.properties").storage_root == folder / "broker" / "absent"


def test_an_existing_file_is_never_changed(folder: Path) -> None:
    (folder / "store.properties").write_text("mine\n")
    tieredstore("init", golden_broker(folder)).fails(
        2, "tieredstore: store.properties exists already, and init never changes a file: choose another one with --file"
    )
    assert (folder / "store.properties").read_text() == "mine\n"


WRONG = {
    "absent": ("absent.properties: there is no such settings file", None),
    "no plugin": ("has no settings of tiered storage: in a broker's file they begin with rsm.config.", {}),
    "no store": ("has no settings of tiered storage", {"chunk.size": "1"}),
    "invalid": ("chunk.size", {"storage.backend.class": "filesystem", "storage.root": "x", "chunk.size": "big"}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_one_sentence_and_writes_nothing(case: str, folder: Path) -> None:
    said, own = WRONG[case]
    path = Path("absent.properties") if own is None else broker_file(folder, own)
    refused = tieredstore("init", path)
    refused.fails(2, said)
    assert refused.stderr.count("\n") == 1
    assert not (folder / "store.properties").exists()


def test_without_a_terminal_it_does_not_ask(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        tieredstore("init").fails(
            2, "init asks for the settings, and stdin is not a terminal: name a broker's server.properties\n"
        )
    assert list(folder.iterdir()) == []


def answered(answers: Sequence[str], *arguments: str) -> Result:
    """Run ``init`` on its own terminal, and type each answer after its question. The result's text includes stderr."""
    keyboard, terminal = pty.openpty()
    asking = subprocess.Popen(
        measured_command("init", *arguments), stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=environment(), start_new_session=True,
    )  # fmt: skip
    with asking, os.fdopen(keyboard, "wb", buffering=0) as keys, os.fdopen(terminal):
        assert asking.stdout is not None
        text, left = b"", list(answers)
        while piece := os.read(asking.stdout.fileno(), 65536):
            text += piece
            # The line end of a hidden answer may come late.
            if left and text.endswith(b" ") and text.rstrip().endswith(b":"):
                keys.write(left.pop(0).encode() + b"\n")
        asking.wait(600)
    assert not left
    return Result(asking.returncode, text, "")


@pytest.mark.slow
def test_answers_become_settings(folder: Path) -> None:
    keys = GOLDEN / "08-keyring" / "keys"
    done = answered(
        [str(GOLDEN / "08-keyring" / "store"), "key2", f"{keys}/key2.public.pem", f"{keys}/key2.private.pem"],
        "--file", "mine.properties",
    )  # fmt: skip
    assert done.code == 0, done
    assert "mine.properties: 7 settings of the answers\nnext: tieredstore ls -c mine.properties\n" in done.text
    assert "keyring" in tieredstore("ls", "-c", "mine.properties").text
    encryption = load_settings(folder / "mine.properties").encryption
    assert encryption is not None
    assert encryption.key_pair_id == "key2"


@pytest.mark.slow
def test_a_secret_is_written_and_never_shown(folder: Path) -> None:
    with FaultyServer(S3Service()) as server:
        done = answered(["s3://bucket/prod", "eu-north-1", server.url, "AKIA", SECRET, ""])
    assert done.code == 0, done
    assert SECRET not in done.text
    assert (folder / "store.properties").stat().st_mode & 0o777 == 0o600
    s3 = load_settings(folder / "store.properties").s3
    assert s3 is not None
    assert (s3.bucket_name, s3.region, s3.endpoint_url) == ("bucket", "eu-north-1", server.url)
    assert s3.credentials.secret_access_key is not None
    assert s3.credentials.secret_access_key.get_secret_value() == SECRET


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (["no-such-folder"], "there is no file or folder 'no-such-folder'; URLs begin with"),
        (["s3://"], "'s3://' names no bucket"),
        ([".", "\x04"], "the questions ended before the last answer: nothing is written"),
    ],
)
def test_a_wrong_answer_is_one_sentence_and_writes_nothing(answers: list[str], said: str, folder: Path) -> None:
    done = answered(answers)
    assert done.code == 2
    assert said in done.text.splitlines()[-1]
    assert "Traceback" not in done.text
    assert list(folder.iterdir()) == []
