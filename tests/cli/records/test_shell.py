"""``tieredstore query`` on a terminal without SQL: a shell with history and completion over one snapshot."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cli.forked_commands import ForkedCommands, Running
from tests.support.cli.terminal import CTRL_C, Terminal
from tests.support.records.topic_buckets import FIRST_ID, Bucket
from tests.support.waiting import wait_until
from tieredstore.cli.records import shell
from tieredstore.model import TopicIdPartition
from tieredstore.testing.segments import Record, build_batch

pytestmark = pytest.mark.slow

PROMPT = b"tieredstore> "
ENDLESS = b"SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
CTRL_D, CTRL_P = b"\x04", b"\x10"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedCommands]:
    modules = ("tieredstore.duckdb.query_tables", "tieredstore.cli.records.shell")
    with ForkedCommands(tmp_path_factory.mktemp("commands"), modules) as forked:
        yield forked


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    topics = Bucket(tmp_path / "bucket")
    yield topics
    topics.close()


def add(bucket: Bucket, start: int, stop: int) -> None:
    batch = build_batch([Record(b'{"amount": 1}') for _ in range(start, stop)], start)
    bucket.copy(TopicIdPartition(FIRST_ID, "payments", 0), [batch], range(start, stop))


def answer(terminal: Terminal, keys: bytes, shown: bytes) -> None:
    """Type ``keys``, and wait until the terminal shows ``shown`` and then the next prompt."""
    terminal.shown = b""
    terminal.press(keys)
    terminal.wait_for(shown)
    _, _, terminal.shown = terminal.shown.partition(shown)
    terminal.wait_for(PROMPT)


def test_a_shell_completes_keeps_its_snapshot_and_outlives_errors(
    bucket: Bucket, tmp_path: Path, commands: ForkedCommands
) -> None:
    add(bucket, 0, 7)
    environment = {"XDG_STATE_HOME": str(tmp_path / "state"), "TERM": "dumb"}

    def begin(terminal: Terminal) -> Running:
        running = commands.start(
            "query", "--store", bucket.root.as_uri(), "-n", "3", terminal=terminal.path, environment=environment
        )
        terminal.wait_for(PROMPT)
        return running

    with Terminal() as terminal:
        running = begin(terminal)
        answer(terminal, b".tables\n", b"payments")
        answer(terminal, b"help\n", b"SQL ends with a semicolon")
        answer(terminal, b"SELECT count(*) AS n\nFROM paym\t;\n", b"\r\n7\r\n")
        add(bucket, 7, 9)
        answer(terminal, b"SELECT count(*) AS n FROM payments;\n", b"\r\n7\r\n")
        answer(
            terminal,
            b'SELECT "offset" FROM payments ORDER BY 1;\n',
            b"\r\nthe first 3 rows; start the shell with -n N for more",
        )
        answer(terminal, b"SELECT amount FROM payments;\n", b"value->>'$.amount'")
        answer(terminal, b"CREATE TEMP TABLE kept AS SELECT 42 AS n;\n", b"Count")
        terminal.press(b"SELECT 1")
        terminal.wait_for(b"SELECT 1")
        # Python's line editor overlooks Ctrl-C until the next key, unless it waits for a key already.
        wait_until(running.is_asleep)
        answer(terminal, CTRL_C, b"\r\n")
        answer(terminal, b"FROM kept;\n", b"\r\n42\r\n")
        # At the prompt, Ctrl-C would only drop the line, so wait until DuckDB is at work.
        terminal.press(b"COPY (" + ENDLESS + b") TO '" + bytes(tmp_path / "sum.csv") + b"';\n")
        wait_until(lambda: any(tmp_path.glob("*sum.csv")))
        answer(terminal, CTRL_C, b"the query was interrupted")
        terminal.press(CTRL_D)
        end = running.wait(60)
    assert end is not None
    assert end.code == 0
    history = tmp_path / "state" / "tieredstore" / "query_history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert history.read_text().splitlines()[2:4] == ["SELECT count(*) AS n", "FROM payments;"]
    with Terminal() as terminal:
        running = begin(terminal)
        answer(terminal, CTRL_P * 2 + b"\n", b"FROM kept;")
        terminal.press(b"exit\n")
        end = running.wait(60)
    assert end is not None
    assert end.code == 0


def test_ctrl_c_outside_of_a_query_does_not_end_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    complaints: list[str] = []

    def complain(text: str) -> None:
        complaints.append(text)
        interrupt()

    lines = iter(["SELECT 1;", "SELECT 2;", "exit"])
    tables: Any = SimpleNamespace(words=list, interrupt=lambda: None, run_any=interrupt, drop_failed=interrupt)
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    monkeypatch.setattr(shell, "complain", complain)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    shell.run_shell(tables, 3)
    assert complaints == ["the query was interrupted"] * 2


def test_without_a_terminal_the_topics_are_listed(bucket: Bucket, commands: ForkedCommands) -> None:
    add(bucket, 0, 1)
    end = commands.start("query", "--store", bucket.root.as_uri()).wait(60)
    assert end is not None
    assert (end.code, end.stdout.split()[-1]) == (0, b"payments")
