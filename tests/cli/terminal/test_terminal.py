"""Commands on a terminal: bars, colours, key presses, and a pipe without a reader."""

from __future__ import annotations

import os
import re
import select
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli.cli_process import TXN, store_of, stored_files, write_settings
from tests.support.cli.forked_commands import Ended, ForkedCommands, Running
from tests.support.cli.terminal import CTRL_C, Terminal
from tieredstore.cli.terminal.tables import cell_count

pytestmark = pytest.mark.slow

END_S = 60
COLOUR = re.compile(rb"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|38;[0-9;]+)m")
SHOW_CURSOR = b"\x1b[?25h"
PLAIN = {"TERM": "xterm-256color", "COLORTERM": "", "NO_COLOR": ""}


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedCommands]:
    modules = ("tieredstore.remote", "tieredstore.cli.terminal.bars", "tieredstore.reading.reader")
    with ForkedCommands(tmp_path_factory.mktemp("commands"), modules) as forked:
        yield forked


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """Make an empty store that accepts at most 1 MiB per second."""
    return write_settings(tmp_path, {"upload.rate.limit.bytes.per.second": str(1 << 20)})


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Make a store of five segments."""
    return store_of(tmp_path, TXN)


def ended(running: Running) -> Ended:
    end = running.wait(END_S)
    assert end is not None
    return end


def test_a_copy_has_a_bar_in_colour_and_leaves_its_sums(settings: Path, commands: ForkedCommands) -> None:
    with Terminal() as terminal:
        running = commands.start("upload", "-c", settings, TXN, terminal=terminal.path, environment=PLAIN)
        assert ended(running).code == 0
        shown = terminal.read_all()
    assert b" of 1.4 MiB" in shown
    assert COLOUR.search(shown)
    assert SHOW_CURSOR in shown
    last = shown.decode().splitlines()[-1]
    assert re.search(r"5 copied \(1\.4 MiB as 1\.4 MiB, ratio 0\.99, \d+\.\d [KM]iB/s\)$", last), shown


@pytest.mark.parametrize(
    ("arguments", "line", "count"),
    [
        (("rm", "txn"), r"would be deleted  txn-\S+  \(\d+\.\d KiB\)", 4),
        (("rm", "txn", "--yes"), r"deleted  txn-\S+  \(\d+\.\d KiB\)", 4),
        (("mirror", "target", "--dry-run"), r"would be copied  verbatim  txn-\S+  \(\d+\.\d KiB\)", 4),
        (("mirror", "target"), r"copied  verbatim  txn-\S+  \(\d+\.\d KiB\)", 4),
        (
            ("verify",),
            r"gap: txn-0 \(\S+\): offsets 605 to 1208 are in no segment; .* are there \(1\)",
            1,
        ),
        (("gc", "--min-age=48h"), r"would be deleted  without manifest  txn-\S+  \(.*1970-01-01 00:00:00", 1),
        (("gc", "--min-age=48h", "--yes"), r"deleted  without manifest  txn-\S+  \(.*1970-01-01 00:00:00", 1),
        (("upload", TXN), r"tieredstore: stored segment \S+ lost its \.indexes and is treated as not copied", 1),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_each_line_is_whole_and_above_the_bar(
    arguments: tuple[object, ...], line: str, count: int, stored: Path, commands: ForkedCommands, tmp_path: Path
) -> None:
    (tmp_path / "target").mkdir()
    spoil(tmp_path, "indexes" if arguments[0] == "upload" else "rsm-manifest")
    words = [str(tmp_path / "target") if word == "target" else word for word in arguments]
    with Terminal(80) as terminal:
        assert ended(commands.start(*words, "-c", stored, terminal=terminal.path, environment=PLAIN)).code in (0, 3)
        shown = terminal.read_all().decode()
    pieces = re.split(r"[\r\n]|\x1b\[\d*[AK]", re.sub(r"\x1b\[[\d;]*m|\x1b\[\?25[lh]", "", shown))
    assert any(re.search(r"(?<!\d)0:\d\d:\d\d|-:--:--", piece) for piece in pieces), shown
    assert "1 leftovers" not in shown
    found = [piece for piece in pieces if re.fullmatch(line, piece)]
    assert len(found) == count, shown
    assert any(len(piece) > 80 for piece in found)


def spoil(folder: Path, suffix: str) -> None:
    """Remove one object of a stored segment, and make what is left of the segment old enough for gc."""
    lost = stored_files(folder, suffix)[1]
    lost.unlink()
    for left in lost.parent.glob(f"{lost.stem}.*"):
        os.utime(left, (0, 0))


@pytest.mark.parametrize("environment", [{**PLAIN, "NO_COLOR": "1"}, {**PLAIN, "TERM": "dumb"}])
def test_no_color_means_none(environment: dict[str, str], settings: Path, commands: ForkedCommands) -> None:
    with Terminal() as terminal:
        running = commands.start("upload", "-c", settings, TXN, terminal=terminal.path, environment=environment)
        assert ended(running).code == 0
        shown = terminal.read_all()
    assert not COLOUR.search(shown), shown
    assert b"5 copied" in shown
    if environment["TERM"] == "dumb":
        assert b"\x1b" not in shown


def test_ctrl_c_says_what_was_done_and_how_to_go_on(settings: Path, commands: ForkedCommands, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    for number in range(8):
        shutil.copytree(TXN, logs / f"txn-{number}")
    with Terminal() as terminal:
        running = commands.start("upload", "-c", settings, logs, terminal=terminal.path, environment=PLAIN)
        terminal.wait_for(b" of 11.3 MiB")
        terminal.press(CTRL_C)
        assert ended(running).code == 130
        shown = terminal.read_all()
    assert re.search(rb"tieredstore: stopped; \d+ of 40 copied; run it again to continue\r\n", shown), shown
    assert b"Traceback" not in shown
    assert shown.count(SHOW_CURSOR) >= 1
    assert len(stored_files(tmp_path, "log")) == len(stored_files(tmp_path, "rsm-manifest"))


@pytest.mark.parametrize(("more", "left"), [((), 15), (("--yes",), 12)])
def test_rm_does_not_ask(
    more: tuple[str, ...], left: int, stored: Path, commands: ForkedCommands, tmp_path: Path
) -> None:
    arguments = "rm", "-c", stored, "txn", "-p", 0, "--segment", 605, *more
    with Terminal() as terminal:
        running = commands.start(*arguments, terminal=terminal.path, environment=PLAIN)
        assert ended(running).code == 0
        shown = terminal.read_all()
    assert shown.endswith(b"1 segment deleted (292.7 KiB)\r\n" if more else b"nothing was deleted: --yes does it\r\n")
    assert len(stored_files(tmp_path)) == left


RANGE = ("fetch", "txn", 0, 605, "--range=0:900")
INDEX = ("fetch", "txn", 0, 605, "--index", "txnindex")


@pytest.mark.parametrize("arguments", [RANGE, INDEX], ids=["fetch", "index"])
def test_bytes_do_not_go_to_a_terminal_unasked(
    arguments: tuple[object, ...], stored: Path, commands: ForkedCommands
) -> None:
    with Terminal() as terminal:
        running = commands.start(*arguments, "-c", stored, terminal=terminal.path, environment=PLAIN)
        assert ended(running).code == 2
        assert terminal.read_all() == (
            b"tieredstore: binary output would garble a terminal: give -o FILE, or -o - to write it anyway\r\n"
        )
        asked = commands.start(*arguments, "-c", stored, "-o", "-", terminal=terminal.path, environment=PLAIN)
        assert ended(asked).code == 0
        assert len(terminal.read_all()) > 200


def test_a_table_fits_the_terminal_that_it_is_on(stored: Path, commands: ForkedCommands) -> None:
    lines: dict[int, list[str]] = {}
    for columns in (60, 100):
        with Terminal(columns) as terminal:
            running = commands.start("ls", "-c", stored, "txn", "-p", 0, terminal=terminal.path, environment=PLAIN)
            assert ended(running).code == 0
            lines[columns] = terminal.read_all().decode().splitlines()
    assert len(lines[60]) == len(lines[100]) == 9
    assert max(map(cell_count, lines[60])) <= 60
    assert max(map(cell_count, lines[100])) > 60


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_pipe_that_nobody_reads_any_more_ends_a_command_quietly(
    more: tuple[str, ...], stored: Path, commands: ForkedCommands, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with Terminal() as terminal:
        running = commands.start(
            *("cat", "txn", "-c", stored, *more),
            stdout=pipe,
            stdout_has_reader=True,
            terminal=terminal.path,
            environment=PLAIN,
        )
        select.select([reader], [], [], END_S)
        assert os.read(reader, 10)
        os.close(reader)
        assert ended(running).code == 141
        assert terminal.read_all() == b""
