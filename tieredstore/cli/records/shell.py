"""Interactive SQL over topics: ``tieredstore query`` starts it on a terminal if the command has no SQL argument.

This module is separate from ``query``, because only the shell needs the terminal's line editor. The duckdb wheel has no
shell. This shell uses Python's ``readline`` for history and completion. DuckDB lists the keywords and functions to
complete.
"""

from __future__ import annotations

import contextlib
import os
import re
import readline
import sqlite3
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tieredstore.cli.records.row_output import GivenRows, print_rows
from tieredstore.cli.terminal.output import complain, print_lines, quantity
from tieredstore.errors import TieredStoreError
from tieredstore.process.interruption import KeyboardInterrupts, keyboard_interrupts

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.duckdb.query_tables import QueryTables

_PROMPT: Final = "tieredstore> "
_CONTINUED: Final = "        ...> "
_HELP: Final = (
    "SQL ends with a semicolon; topics are its tables (SHOW TABLES). A table does not change after its first query.",
    "TAB completes, Ctrl-C leaves a query, Ctrl-D leaves the shell; help shows these lines again.",
)
_MOST_LINES: Final = 1_000
_MOST_ROWS: Final = 100
_WORD_BREAKS: Final = " \t\n()[]{},;=<>+-*/%|&!:'`"
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def run_shell(tables: QueryTables, most_rows: int | None) -> None:
    """Answer statements from the terminal until the end of its input. Errors are reported, and the shell goes on.

    ``most_rows`` is the number of rows to show of each answer.
    """
    print_lines(_HELP)
    with _line_editor(_completer(tables.words())), keyboard_interrupts(tables.interrupt) as interruptible:
        while (statement := _read_statement(interruptible)) is not None:
            try:
                with interruptible:
                    _answer(tables, statement, most_rows or _MOST_ROWS)
            except TieredStoreError as error:
                complain(str(error))
            except KeyboardInterrupt:
                complain("the query was interrupted")
            tables.drop_failed()
    print_lines([""])


def _read_statement(interruptible: KeyboardInterrupts) -> str | None:
    """Return the next statement, which may take several lines. Return None at the end of input.

    The words ``exit``, ``help`` and ``.tables`` need no semicolon.
    """
    lines: list[str] = []
    while True:
        try:
            with interruptible:
                lines.append(input(_CONTINUED if lines else _PROMPT))
        except EOFError:
            return None
        except KeyboardInterrupt:
            print_lines([""])
            lines.clear()
            continue
        text = "\n".join(lines).strip()
        match text.rstrip(";").lower():
            case "":
                lines.clear()
            case "exit" | "quit" | ".exit" | ".quit":
                return None
            case "help" | ".help":
                print_lines(_HELP)
                lines.clear()
            case ".tables":
                return "SHOW TABLES"
            case _ if sqlite3.complete_statement(text):
                return text.rstrip("; \n")
            case _:
                pass


def _answer(tables: QueryTables, statement: str, most: int) -> None:
    """Print the first rows of a statement's result. The other rows are never read, because DuckDB drops the result when
    its reader is closed.
    """
    rows = tables.run_any(statement)
    if rows is None:
        return
    left, has_more = most, False

    def first() -> Generator[pa.RecordBatch]:
        nonlocal left, has_more
        for batch in rows:
            has_more = batch.num_rows > left
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if has_more:
                return

    print_rows(GivenRows(rows.schema, first()))
    if has_more:
        print_lines([f"the first {quantity(most, 'row')}; start the shell with -n N for more"])


@contextlib.contextmanager
def _line_editor(complete: Callable[[str, int], str | None]) -> Generator[None]:
    """Edit lines with completion, and with the history of the user's earlier shells."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    history = state / "tieredstore" / "query_history"
    with contextlib.suppress(OSError):
        history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        history.touch(mode=0o600)
        readline.read_history_file(history)
    readline.set_history_length(_MOST_LINES)
    readline.set_completer(complete)
    readline.set_completer_delims(_WORD_BREAKS)
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(history)


def _completer(words: Iterable[str]) -> Callable[[str, int], str | None]:
    """Return readline's completion function for these words. Case does not matter."""
    known = sorted({word if _PLAIN_NAME.fullmatch(word) else f'"{word}"' for word in words}, key=str.lower)
    found: list[str] = []

    def complete(text: str, state: int) -> str | None:
        if state == 0:
            found[:] = [word for word in known if word.lower().startswith(text.lower())]
        return found[state] if state < len(found) else None

    return complete
