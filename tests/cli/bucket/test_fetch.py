"""``fetch``: the range grammar, and leftovers of an incomplete run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cli.cli_process import TXN, command, environment, stored_files, tieredstore, write_settings
from tests.support.waiting import wait_until
from tieredstore.cli.bucket.fetch import parse_range
from tieredstore.cli.terminal.output_file import output_to
from tieredstore.errors import ConfigError

LOG = (TXN / "00000000000000000605.log").read_bytes()
BOUND = st.none() | st.integers(-60, 60) | st.integers()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings_path = write_settings(tmp_path_factory.mktemp("fetch"), {"compression.enabled": "true"}, chunk_size=10_000)
    assert tieredstore("upload", "-c", settings_path, TXN).code == 0
    return settings_path


def written(bound: int | None) -> str:
    return "" if bound is None else str(bound)


@given(start=BOUND, stop=BOUND, size=st.integers(0, 50))
def test_a_range_takes_what_a_python_slice_takes(start: int | None, stop: int | None, size: int) -> None:
    data = bytes(range(size))
    assert data[parse_range(f"{written(start)}:{written(stop)}")] == data[start:stop]


@pytest.mark.parametrize("text", ["", "5", "1:2:3", "a:b", "1-2", "1.5:", "0x1:", ":٣", "--1:", ":" + "9" * 41, "1_0:"])
def test_an_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a range"):
        parse_range(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (":", slice(None)),
        ("0:100", slice(0, 100)),
        ("9999:10001", slice(9999, 10001)),
        ("-100:", slice(-100, None)),
        (":-297000", slice(None, -297000)),
        ("150000:999999999", slice(150000, None)),
        ("100:100", slice(0, 0)),
        ("200:100", slice(0, 0)),
        ("999999999:", slice(0, 0)),
    ],
)
def test_fetch_writes_the_range_to_stdout(settings: Path, text: str, wanted: slice) -> None:
    for option in (["--range", text], [f"--range={text}"]):
        done = tieredstore("fetch", "-c", settings, "txn", 0, 605, *option)
        assert (done.code, done.stdout, done.stderr) == (0, LOG[wanted], "")


def test_fetch_to_a_file_leaves_the_file_alone(settings: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.log"
    target.write_bytes(b"older")
    done = tieredstore("fetch", "-c", settings, "txn", 0, 605, "-o", target)
    assert (done.code, done.stdout, done.stderr) == (0, b"", "")
    assert target.read_bytes() == LOG
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("content", [None, b"precious"])
def test_nothing_is_written_through_a_link(content: bytes | None, settings: Path, tmp_path: Path) -> None:
    link, real = tmp_path / "link", tmp_path / "real"
    link.symlink_to(real)
    if content is not None:
        real.write_bytes(content)
    done = tieredstore("fetch", "-c", settings, "txn", 0, 605, "-o", link)
    assert (done.code, f"{link} is a symbolic link to {real}: name the file itself" in done.stderr) == (2, True)
    assert link.is_symlink()
    assert (real.read_bytes() if real.exists() else None) == content


def test_a_link_that_comes_meanwhile_is_replaced(settings: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "folder", tmp_path / "out"
    folder.mkdir()
    out.symlink_to(folder)  # a link to a folder is followed: the caller chose it
    (folder / "real").write_bytes(b"precious")
    with output_to(out / "file") as file:
        file.write(b"content")
        (folder / "file").symlink_to(folder / "real")
    assert not (folder / "file").is_symlink()
    assert ((folder / "file").read_bytes(), (folder / "real").read_bytes()) == (b"content", b"precious")


def test_a_device_is_written_and_not_replaced(settings: Path, tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")
    for device in (Path("/dev/null"), tmp_path / "null"):
        assert tieredstore("fetch", "-c", settings, "txn", 0, 605, "-o", device).code == 0
        assert device.is_char_device()


def test_a_failed_fetch_leaves_no_file(tmp_path: Path) -> None:
    settings = write_settings(tmp_path, chunk_size=10_000)
    assert tieredstore("upload", "-c", settings, TXN / "00000000000000000605.log").code == 0
    (log,) = stored_files(tmp_path, "log")
    os.truncate(log, 250_000)
    out = tmp_path / "out"
    out.mkdir()
    tieredstore("fetch", "-c", settings, "txn", 0, 605, "-o", out / "x.log").fails(4, "shorter than its manifest says")
    assert list(out.iterdir()) == []


def test_a_file_that_cannot_be_written_is_one_sentence(settings: Path, tmp_path: Path) -> None:
    done = tieredstore("fetch", "-c", settings, "txn", 0, 605, "-o", tmp_path / "no" / "x")
    assert (done.code, done.stdout) == (1, b"")
    assert done.stderr == f"tieredstore: {tmp_path / 'no' / 'x'} cannot be written: No such file or directory\n"
    assert "Is a directory" in tieredstore("fetch", "-c", settings, "txn", 0, 605, "-o", tmp_path).stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("fetch", "txn", 0, 0), ("ls", "--json"), ("inspect", "txn", 0, 0, "--chunks")])
def test_a_reader_that_has_enough_is_no_error_to_talk_of(settings: Path, arguments: tuple[object, ...]) -> None:
    running = subprocess.Popen(
        command(*arguments, "-c", settings), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert running.stdout is not None
    running.stdout.close()  # before the command writes its first byte
    assert running.stderr is not None
    with running.stderr as stderr:
        assert stderr.read() == b""
    assert running.wait() == 141


# A shell starts background jobs, and so whole test runs, with interrupts ignored.
INTERRUPTIBLE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.slow
def test_an_interrupted_fetch_leaves_no_file_and_exits_130(settings: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.log"
    slow = tmp_path / "slow.properties"
    slow.write_text("storage.backend.class=tests.support.cli.cli_stores:StuckStore\nchunk.size=10000\n")
    slow.write_text(slow.read_text() + f"storage.root={settings.parent / 'store'}\n")
    started = tmp_path / "started"
    running = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *command("fetch", "-c", slow, "txn", 0, 605, "-o", target)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(STUCK_MARK=str(started)),
    )
    wait_until(started.exists)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=120)
    assert (running.returncode, stderr) == (130, b"")
    assert not target.exists()
    assert not list(tmp_path.glob("*.part"))


def test_names_of_kafkas_files_are_names_of_indexes(settings: Path) -> None:
    ours_by_kafkas = {
        "index": "offset",
        "timeindex": "timestamp",
        ".timeindex": "timestamp",
        "snapshot": "producer-snapshot",
        "leader-epoch-checkpoint": "leader-epoch",
        "txnindex": "transaction",
    }
    for kafkas, ours in ours_by_kafkas.items():
        by_kafkas, by_ours = (
            tieredstore("inspect", "-c", settings, "txn", 0, 605, "--index", name) for name in (kafkas, ours)
        )
        assert (by_kafkas.code, by_kafkas.stdout) == (0, by_ours.stdout)
    for words in ("inspect", "fetch"):
        tieredstore(words, "-c", settings, "txn", 0, 605, "--index", "time").fails(
            2,
            "tieredstore: --index is 'time'; it must be one of offset, timestamp, producer-snapshot, leader-epoch, "
            "transaction, index, timeindex, snapshot, leader-epoch-checkpoint, txnindex\n",
        )


def test_an_index_comes_whole_and_alone(settings: Path, tmp_path: Path) -> None:
    target = tmp_path / "605.txnindex"
    assert tieredstore("fetch", "-c", settings, "txn", 0, 605, "--index", "txnindex", "-o", target).clean().text == ""
    assert target.read_bytes() == (TXN / "00000000000000000605.txnindex").read_bytes()
    refused = tieredstore("fetch", "-c", settings, "txn", 0, 605, "--index", "txnindex", "--range", "0:1")
    refused.fails(2, "--index and --range exclude each other")
    refused = tieredstore("inspect", "-c", settings, "txn", 0, 605, "--index", "txnindex", "--chunks")
    refused.fails(2, "--index and --chunks exclude each other")


def test_the_entries_of_an_index_end_with_how_many_there_are(settings: Path) -> None:
    rows, summary = tieredstore("inspect", "-c", settings, "txn", 0, 605, "--index", "txnindex", "--json").rows
    assert summary == {"entries": len(rows)} == {"entries": 6}


def test_a_segment_is_named_by_its_id_too(settings: Path) -> None:
    rows, summary = tieredstore("inspect", "-c", settings, "txn", 0, 605, "--json").rows
    assert (len(rows), summary) == (1, {"damaged": 0})
    by_id = tieredstore("fetch", "-c", settings, "txn", 0, rows[0]["segment_id"])
    assert by_id.clean().stdout == LOG
