"""Golden screens: command output on an 80-column terminal, on the demo's bucket.

    python -m tests.support.cli.screens                                    rewrite all files; review them like code
    python -m tests.support.cli.screens du-day 'du --by day'               add one file, or change its commands
    python -m tests.support.cli.screens keys-add 'keys add key2' 'keys list'    a session: commands in order

Each file contains its own commands, in the lines that begin with ``$ tieredstore``. The commands of a file run in a
fresh working folder. The folder has ``store.properties`` with ``store`` and ``key1``, the log directories in ``kafka``,
``kept.properties`` of a pipeline into ``kept``, a MemQ ``batch``, and ``odd.properties`` with the store ``odd`` (see
``odd_bucket``). ``safe`` is a key management service.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest

from tests.support.cli.cli_process import own_logging, tieredstore
from tests.support.cli.odd_bucket import make_it_odd
from tests.support.cli.safe_key_service import install_safe
from tests.support.paths import GOLDEN, REPOSITORY
from tieredstore.cli.app.main import main, program
from tieredstore.model import Uuid

FOLDER: Final = REPOSITORY / "tests" / "cli" / "screens"
RULE: Final = "──"
"""Characters that only a table's output contains."""

_CASES: Final = ("01-none", "07-txn", "12-smallbatch")
_SETTINGS: Final = """\
storage.backend.class=filesystem
storage.root={root}
chunk.size=1048576
compression.enabled=true
uploader.log.dirs=kafka
uploader.leadership=static
"""
_PIPELINE: Final = """\
pipeline.name=kept
output.storage.backend.class=filesystem
output.storage.root=kept
"""
_MOST_LINES: Final = 30
_COPIED_AT_NS: Final = 1_767_312_000_000_000_000
_TEN_DAYS_NS: Final = 864_000_000_000_000
_CHANGING: Final = {
    r"\d+(\.\d)? [KMG]iB/s|until \d{4}-\d\d-\d\dT[\d:.]+Z|\"(seconds|bytes_per_second)\": [\d.]+": "…",
    # Timings that ``doctor`` measures on this machine.
    r"\bin \d+(\.\d)? (ms|s)\b": "in … ms",
    r"Python 3\.[\d.]+": "Python 3",
    r"user \d+, group \d+": "user 1000, group 1000",
}
_PROMPT: Final = "$ tieredstore "


@dataclass(frozen=True)
class Screen:
    """Command output on a terminal, stderr below stdout."""

    command: str
    text: str
    code: int

    def __str__(self) -> str:
        lines = self.text.splitlines()
        if len(lines) > _MOST_LINES and not self.command.endswith("--help"):
            lines[_MOST_LINES:] = [f"[{len(lines) - _MOST_LINES} lines more]"]
        ending = [f"[exit code {self.code}]"] if self.code else []
        return "".join(f"{line}\n" for line in [f"{_PROMPT}{self.command}", *lines, *ending])


def all_commands() -> list[str]:
    """Return all commands: ``ls``, ``keys list``."""
    return sorted(dict(commands_below(program())))


def commands_below(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each command of a group and its subgroups, with the words that call it."""
    for name, command in group.commands.items():
        yield from (
            commands_below(command, f"{path}{name} ") if hasattr(command, "commands") else [(path + name, command)]
        )


def all_sessions() -> dict[str, list[str]]:
    """Return the commands of each screen file, as read from the file itself."""
    return {path.stem: _commands_in(path) for path in sorted(FOLDER.glob("*.txt"))}


@contextlib.contextmanager
def demo_bucket() -> Generator[Path]:
    """Yield the working folder of the demo's bucket, with fixed ids and times."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        for case in _CASES:
            shutil.copytree(GOLDEN / case / "original", folder / "kafka", dirs_exist_ok=True)
        (folder / "store").mkdir()
        (folder / "backup").mkdir()
        (folder / "kept").mkdir()
        shutil.copy(next((REPOSITORY / "tests/pubsub/golden/batches").glob("v05*")), folder / "batch")
        shutil.copy(REPOSITORY / "examples" / "prices.toml", folder)
        settings = folder / "store.properties"
        settings.write_text(_SETTINGS.format(root="store") + tieredstore("keys", "new", "key1").text)
        source = (line for line in settings.read_text().splitlines() if not line.startswith("uploader."))
        (folder / "kept.properties").write_text("\n".join([*source, _PIPELINE]))
        ids = (Uuid(bytes([0x54, *([number] * 15)])) for number in range(1, 100))
        with (
            mock.patch("tieredstore.ops.copies.shipping.time.time_ns", return_value=_COPIED_AT_NS),
            mock.patch.object(Uuid, "random", side_effect=ids),
        ):
            assert tieredstore("upload", "-c", settings, "kafka").code == 0
        yield folder


@contextlib.contextmanager
def both_buckets() -> Generator[Path]:
    """Yield the working folder of a session: the demo's bucket, with an odd bucket next to it."""
    with demo_bucket() as folder:
        shutil.copytree(folder / "store", folder / "odd")
        odd = folder / "odd.properties"
        odd.write_text((folder / "store.properties").read_text().replace("storage.root=store", "storage.root=odd"))
        make_it_odd(folder / "odd", odd)
        with pytest.MonkeyPatch.context() as monkeypatch:
            install_safe(monkeypatch, folder / "packages")
            yield folder


def session_of(bucket: Path, commands: Sequence[str], columns: int = 80) -> list[Screen]:
    """Run commands in order, in a copy of the folder of ``both_buckets``, on a terminal of this width."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        # Objects are never overwritten, so hard links suffice.
        shutil.copytree(bucket, name, dirs_exist_ok=True, copy_function=_link_or_copy)
        return [_screen_of(command, Path(name), columns) for command in commands]


def text_of(session: Sequence[Screen]) -> str:
    """Return a session as its file stores it."""
    return "".join(map(str, session))


def _screen_of(command: str, folder: Path, columns: int) -> Screen:
    with (
        mock.patch.dict(os.environ, {"COLUMNS": str(columns), "TIEREDSTORE_SETTINGS": "store.properties"}),
        mock.patch("tieredstore.api.usage.time.time_ns", return_value=_COPIED_AT_NS + _TEN_DAYS_NS),
        own_logging(),
        contextlib.redirect_stdout(_TerminalText()) as stdout,
        contextlib.redirect_stderr(io.StringIO()) as stderr,
    ):
        code = main(shlex.split(command))
    text = (stdout.getvalue() + stderr.getvalue()).replace(str(folder), "/demo")
    for changing, instead in _CHANGING.items():
        text = re.sub(changing, instead, text)
    return Screen(command, text, code)


def _link_or_copy(source: str, target: str) -> None:
    if source.endswith((".properties", ".pem")):
        shutil.copy2(source, target)
    else:
        os.link(source, target)


class _TerminalText(io.TextIOWrapper):
    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    def getvalue(self) -> str:
        return self._bytes.getvalue().decode()


def _commands_in(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [line.removeprefix(_PROMPT) for line in lines if line.startswith(_PROMPT)]


def write_screens(sessions: Mapping[str, Sequence[str]]) -> None:
    """Write the files of ``sessions``."""
    with both_buckets() as bucket:
        texts = {name: text_of(session_of(bucket, commands)) for name, commands in sessions.items()}
    for name, text in texts.items():
        (FOLDER / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    write_screens({sys.argv[1]: sys.argv[2:]} if sys.argv[2:] else all_sessions())
    sys.stdout.write(f"{FOLDER} has {len(list(FOLDER.iterdir()))} screens\n")
