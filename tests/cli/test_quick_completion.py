"""The quick answers to a shell are those of the commands themselves, and come without importing them."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from unittest import mock

import pytest

from tests.support.golden.segments import case_path
from tests.support.screens import all_commands
from tieredstore.cli import completion, entry, quick_completion
from tieredstore.cli.completion_table import command_row, keep_table, kept_table
from tieredstore.cli.main import complete, main, program

TXN = case_path("07-txn") / "rsm.properties"
LINES = [
    *("", "l", "keys ", "keys l", "hold ", "-", "--v", "-v ", "-v l", "nonsense ", "keys nonsense "),
    *(f"{command} {more}" for command in all_commands() for more in ("", "--s", "-v -")),
    *("cat t", "cat x", "cat txn ", "cat txn 0 ", "cat --topic-id x ", "cat txn --from ", "cat txn --from 1"),
    *("cat txn --partition ", "cat txn --partition 0, --from ", "cat txn --isolation ", "cat txn --isolation read_c"),
    *("cat txn --partition 0 --p", "cat txn 0 --from -5 --t", "fetch txn 0 ", "fetch txn 0 24", "fetch txn 0 0 --r"),
    *("du --by ", "du --by d", "du --topic ", "du --topic txn --partition ", "dump a b ", "ls txn 0 1 "),
    *("ls --nonsense ", "ls --topic-id=x ", "ls -- ", "ls 'tx", "cat -n ", "cat -n 3 ", "verify --level "),
    "keys check --retire ",
]


@pytest.fixture(autouse=True)
def _shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TIEREDSTORE_SETTINGS", str(TXN))
    monkeypatch.setattr(completion, "_WAIT_S", 60.0)


def asked(shell: str, line: str) -> dict[str, str]:
    """What a shell's script sets for ``tieredstore`` and such a line."""
    line = f"tieredstore {line}"
    at = str(len(line.split()) - (not line.endswith(" ")))
    fish = {"_TYPER_COMPLETE_FISH_ACTION": (line.endswith("s ") and "is-args") or "get-args"}
    words = {"COMP_WORDS": line, "COMP_CWORD": at} if shell == "bash" else {"_TYPER_COMPLETE_ARGS": line, **fish}
    return {"_TIEREDSTORE_COMPLETE": f"complete_{shell}", **words}


def quick(environment: dict[str, str]) -> tuple[int | None, str]:
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        code = quick_completion.quick_answer({**os.environ, **environment})
    return code, stdout.getvalue()


def thorough(environment: dict[str, str]) -> tuple[int | None, str]:
    with mock.patch.dict(os.environ, environment), contextlib.redirect_stdout(io.StringIO()) as stdout:
        code = main()
    return code, stdout.getvalue()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_quick_answer_is_the_commands_own(shell: str) -> None:
    keep_table(program())
    left: list[str] = []
    # The words are the same for all of them; only how they are written differs.
    for line in LINES if shell == "bash" else LINES[::7]:
        environment = asked(shell, line)
        code, text = quick(environment)
        if code is None:
            left.append(line)
            continue
        expected_code, expected = thorough(environment)
        assert (line, code, text.split()) == (line, expected_code, expected.split())
    out_of_the_ordinary = {"nonsense ", "keys nonsense ", "ls --nonsense ", "ls --topic-id=x ", "ls -- "}
    assert out_of_the_ordinary.issuperset(left)


def test_the_table_is_kept_by_the_first_answer_and_not_used_for_other_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = asked("bash", "du --by ")
    assert quick(environment) == (None, "")
    with mock.patch.dict(os.environ, environment), contextlib.redirect_stdout(io.StringIO()) as stdout:
        assert complete() == 0
    assert quick(environment) == (0, stdout.getvalue())
    assert kept_table() == command_row(program())
    monkeypatch.setattr("tieredstore.cli.completion_table.__file__", "/elsewhere/completion_table.py")
    assert quick(environment) == (None, "")


@pytest.mark.parametrize("content", ["[]", '["{}"]', '["", "{"]', '["[1]"]', '["{\\"is_group\\": true}"]'])
def test_a_table_that_is_none_is_left_alone(content: str, tmp_path: Path) -> None:
    keep_table(program())
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    path.write_text(content)
    assert quick(asked("bash", "l")) == (None, "")


def test_another_shell_is_answered_by_the_commands() -> None:
    keep_table(program())
    assert quick(asked("powershell", "l")) == (None, "")
    assert quick({"_TIEREDSTORE_COMPLETE": "source_bash"}) == (None, "")


def test_the_program_answers_a_shell_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_table(program())
    for name, value in asked("bash", "du --by d").items():
        monkeypatch.setenv(name, value)
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        assert entry._complete() == 0  # pyright: ignore[reportPrivateUsage]
    assert stdout.getvalue() == "day\n"
