"""Commands on a terminal: golden screens of the demo's bucket, and tables that fit each width."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli.screens import FOLDER, RULE, all_commands, all_sessions, both_buckets, session_of, text_of
from tieredstore.cli.terminal.tables import cell_count

SESSIONS = all_sessions()
TABLES = [path.stem for path in sorted(FOLDER.glob("*.txt")) if RULE in path.read_text()]
WIDTHS = (60, 100, 200)  # tests/cli/terminal/test_tables.py takes every width


@pytest.fixture(scope="module")
def bucket() -> Iterator[Path]:
    with both_buckets() as folder:
        yield folder


@pytest.mark.parametrize("name", SESSIONS)
def test_a_command_shows_what_its_file_says(name: str, bucket: Path) -> None:
    """After a deliberate change: ``python -m tests.support.cli.screens``, and check the difference."""
    assert text_of(session_of(bucket, SESSIONS[name])) == (FOLDER / f"{name}.txt").read_text()


def test_each_command_has_a_file_of_what_it_shows() -> None:
    shown = {command for commands in SESSIONS.values() for command in commands if not command.endswith("--help")}
    without = [each for each in all_commands() if not any(f"{command} ".startswith(f"{each} ") for command in shown)]
    assert without == [], "add one: `python -m tests.support.cli.screens NAME 'COMMAND'` (CONTRIBUTING.md)"


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_a_row_is_a_line_however_wide_the_terminal_is(name: str, bucket: Path) -> None:
    sessions = {columns: session_of(bucket, SESSIONS[name], columns) for columns in WIDTHS}
    assert {len(session) for session in sessions.values()} == {len(SESSIONS[name])}
    for place, command in enumerate(SESSIONS[name]):
        shown = {columns: session[place] for columns, session in sessions.items()}
        assert len({screen.code for screen in shown.values()}) == 1
        tables = {columns: screen.text for columns, screen in shown.items() if RULE in screen.text}
        assert len({text.count("\n") for text in tables.values()}) <= 1
        if "--wide" not in command:
            for columns, text in tables.items():
                lines = (line for line in text.splitlines() if not line.startswith("tieredstore: "))
                assert max(map(cell_count, lines)) <= columns
