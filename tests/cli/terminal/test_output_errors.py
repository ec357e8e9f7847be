"""Output errors give one message and a nonzero exit code, in every command."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli.cli_process import ORIGINALS, TXN, command, environment, store_of, tieredstore, write_settings
from tests.support.cli.forked_commands import CLOSED, Ended, ForkedCommands

pytestmark = pytest.mark.slow

FULL = Path("/dev/full")
LOG_FILE = TXN / "00000000000000000605.log"
COMMANDS = [
    "--help", "--version", "ls", "ls --json", "ls txn -p 0", "inspect txn 0 605", "inspect txn 0 605 --json",
    "fetch txn 0 605", "fetch txn 0 605 --index offset", "inspect txn 0 605 --index offset", "cat txn",
    "cat txn --json", "cat txn -p 0 --from 605 --to 606", "rm txn -p 0 --segment 605",
    "verify", "verify --json",
    f"upload {TXN}", f"upload {TXN} --json",
    f"show {LOG_FILE}", f"show {LOG_FILE} --json", f"show {LOG_FILE} --records",
    "keys new key1 -d FOLDER", "du", "du --json", "gc", "gc --json", "rm txn", "rm txn -p 0 --json",
    "holds list --json", "mirror STORE", "mirror STORE --json",
]  # fmt: skip
NEED_NO_STORE = ("-", "show", "keys")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings_path = write_settings(tmp_path_factory.mktemp("output"))
    assert tieredstore("upload", "-c", settings_path, TXN).code == 0
    return settings_path


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedCommands]:
    with ForkedCommands(tmp_path_factory.mktemp("commands"), ("tieredstore.reading.reader",)) as forked:
        yield forked


def run(
    commands: ForkedCommands,
    words: str,
    settings: Path,
    folder: Path,
    *,
    stdout: Path | None = None,
    stderr: Path | None = None,
) -> Ended:
    if "STORE" in words:
        (folder / "target").mkdir(parents=True)
    arguments = words.replace("FOLDER", str(folder)).replace("STORE", str(folder / "target")).split()
    path = None if arguments[0].startswith(NEED_NO_STORE) else settings
    ended = commands.start(*arguments, stdout=stdout, stderr=stderr, settings=path).wait(60)
    assert ended is not None
    return ended


REASONS = {FULL: "No space left on device", CLOSED: "it is closed"}


def check_stdout(commands: ForkedCommands, words: str, settings: Path, folder: Path, stdout: Path) -> None:
    ended = run(commands, words, settings, folder, stdout=stdout)
    said = f"tieredstore: standard output cannot be written: {REASONS[stdout]}\n"
    assert (words, ended) == (words, Ended(1, b"", said))


def test_a_stdout_that_cannot_be_written_is_one_sentence(
    commands: ForkedCommands, settings: Path, tmp_path: Path
) -> None:
    for number, (words, stdout) in enumerate(zip(COMMANDS, itertools.cycle(REASONS), strict=False)):
        check_stdout(commands, words, settings, tmp_path / str(number), stdout)


@pytest.mark.soak
@pytest.mark.parametrize("stdout", list(REASONS), ids=["full", "closed"])
def test_every_command_has_the_sentence_for_every_stdout(
    commands: ForkedCommands, settings: Path, tmp_path: Path, stdout: Path
) -> None:
    for number, words in enumerate(COMMANDS):
        check_stdout(commands, words, settings, tmp_path / str(number), stdout)


def test_what_cannot_be_said_is_told_by_the_exit_code(commands: ForkedCommands, settings: Path, tmp_path: Path) -> None:
    empty = write_settings(tmp_path)
    for stderr in (FULL, CLOSED):
        assert run(commands, "ls --json", settings, tmp_path, stderr=stderr).code == 0, "nothing was to be said"
        assert run(commands, "ls", empty, tmp_path, stderr=stderr) == Ended(1, b"", "")
        assert run(commands, "fetch txn 0 7", settings, tmp_path, stderr=stderr) == Ended(3, b"", "")
        assert run(commands, "ls", settings, tmp_path, stdout=CLOSED, stderr=stderr) == Ended(1, b"", "")


def test_a_file_takes_what_a_closed_stdout_does_not(commands: ForkedCommands, settings: Path, tmp_path: Path) -> None:
    target = tmp_path / "605.log"
    assert run(commands, f"fetch txn 0 605 -o {target}", settings, tmp_path, stdout=CLOSED) == Ended(0, b"", "")
    assert target.read_bytes() == LOG_FILE.read_bytes()


def test_a_full_device_in_place_of_a_file_is_one_sentence(
    commands: ForkedCommands, settings: Path, tmp_path: Path
) -> None:
    for words in ("fetch txn 0 605", "fetch txn 0 605 --index offset"):
        ended = run(commands, f"{words} -o {FULL}", settings, tmp_path)
        assert ended == Ended(1, b"", f"tieredstore: {FULL} cannot be written: No space left on device\n")


def begin(redirection: str, *words: object) -> Ended:
    """Run a command as a process of its own, with a redirection of the shell."""
    line = ["/bin/sh", "-c", f'"$@" {redirection}', "sh", *command(*words)]
    done = subprocess.run(line, capture_output=True, env=environment(), check=False, timeout=60)
    return Ended(done.returncode, done.stdout, done.stderr.decode())


@pytest.mark.slow
def test_a_process_of_its_own_begins_with_a_closed_stdout(settings: Path) -> None:
    said = "tieredstore: standard output cannot be written: it is closed\n"
    assert begin(">&-", "ls", "-c", settings) == Ended(1, b"", said)


@pytest.mark.slow
def test_a_process_of_its_own_begins_with_a_closed_stdin(tmp_path: Path) -> None:
    ended = begin("<&-", "init", "--file", tmp_path / "new")
    assert ended.code == 2
    assert ended.stderr.startswith("tieredstore: init asks for the settings, and stdin is not a terminal")


def test_an_error_of_the_command_goes_before_one_of_its_output(
    commands: ForkedCommands, settings: Path, tmp_path: Path
) -> None:
    damaged = store_of(tmp_path, ORIGINALS)
    (tmp_path / "store").joinpath(next((tmp_path / "store").rglob("*.rsm-manifest"))).write_bytes(b"{}")
    assert run(commands, "ls", damaged, tmp_path).code == 4
