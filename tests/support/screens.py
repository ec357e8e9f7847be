"""The screens of the golden files: what each command shows of the demo's bucket on a terminal of 80 columns.

    python -m tests.support.screens

writes the files anew, to be reviewed like code.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unittest import mock

from tests.support.cli_process import tieredstore
from tests.support.paths import GOLDEN
from tieredstore.cli.main import main
from tieredstore.model import Uuid

FOLDER: Final = Path(__file__).resolve().parent.parent / "cli" / "screens"
_CASES: Final = ("01-none", "07-txn", "12-smallbatch")
_SETTINGS: Final = """\
storage.backend.class=filesystem
storage.root=store
chunk.size=1048576
compression.enabled=true
"""
_MOST_LINES: Final = 30
_COPIED_AT_NS: Final = 1_767_312_000_000_000_000
_TIMED: Final = re.compile(r"\d+\.\d [KMG]iB/s|until \d{4}-\d\d-\d\dT[\d:.]+Z|\"(seconds|bytes_per_second)\": [\d.]+")

TXN: Final = "txn 0 605"
LOG: Final = "kafka/txn-0/00000000000000000605"
TABLES: Final[Mapping[str, str]] = {
    "ls": "ls",
    "ls-wide": "ls --wide",
    "ls-partition": "ls txn 0",
    "ls-partition-wide": "ls txn 0 --wide",
    "inspect": f"inspect {TXN} --chunks",
    "index-offset": f"index {TXN} offset",
    "index-timestamp": f"index {TXN} timeindex",
    "index-transaction": f"index {TXN} txnindex",
    "index-producer-snapshot": f"index {TXN} snapshot",
    "index-leader-epoch": f"index {TXN} leader-epoch",
    "offsets": "offsets txn",
    "cat": "cat txn --from 600 --to 606 --isolation read_uncommitted",
    "cat-grep": "cat smallbatch --grep 7 -n 3",
    "keys-list": "keys list",
    "du": "du",
    "du-partition": "du --by partition",
    "du-day": "du --by day",
    "dump-log": f"dump {LOG}.log",
    "dump-snapshot": f"dump {LOG}.snapshot {LOG}.txnindex",
}
"""Commands that show tables, by the name of their screen."""

OTHERS: Final[Mapping[str, str]] = {
    "copy-again": "copy kafka",
    "copy-dry-run": "copy kafka --dry-run",
    "delete-dry-run": f"delete {TXN} --dry-run",
    "verify": "verify --level data",
    "gc": "gc",
    "rm": "rm txn 0 --before 1209",
    "hold-list": "hold list",
    "keys-rotate": "keys rotate --dry-run",
    "keys-check": "keys check --retire key0",
    "fetch": f"fetch {TXN}",
    "cat-last": "cat txn --from -3",
    "cat-text": "cat txn -n 1 --text",
    "cat-format": "cat txn --partition 0 --format '%t [%p] at offset %o: key %k, %S bytes\\n' -n 3",
    "cat-json": "cat txn --from 3 -n 1 --json --json-bytes text",
    "cat-behind-the-end": "cat txn --from 20260101",
    "no-such-partition": "cat txn --partition 0,4-7",
    "no-such-topic": "ls tnx",
    "no-such-segment": "inspect txn 0 606",
    "no-such-index": f"index {TXN} time",
    "no-such-option": "ls --bucket x",
    "help-cat": "cat --help",
    "help-ls": "ls --help",
    "help-delete": "delete --help",
}
"""Commands that show something else."""


@dataclass(frozen=True)
class Screen:
    """What one command shows on a terminal, stderr below stdout."""

    command: str
    text: str
    code: int

    def __str__(self) -> str:
        lines = self.text.splitlines()
        if len(lines) > _MOST_LINES:
            lines[_MOST_LINES:] = [f"[{len(lines) - _MOST_LINES} lines more]"]
        ending = [f"[exit code {self.code}]"] if self.code else []
        return "".join(f"{line}\n" for line in [f"$ tieredstore {self.command}", *lines, *ending])


@contextlib.contextmanager
def demo_bucket() -> Iterator[Path]:
    """The working folder of a bucket as the demo makes it, but with the same ids and times each time."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        for case in _CASES:
            shutil.copytree(GOLDEN / case / "original", folder / "kafka", dirs_exist_ok=True)
        (folder / "store").mkdir()
        settings = folder / "store.properties"
        settings.write_text(_SETTINGS + tieredstore("keys", "generate", "key1").text)
        ids = (Uuid(bytes([0x54, *([number] * 15)])) for number in range(1, 100))
        with (
            mock.patch("tieredstore.ops.shipping.time.time_ns", return_value=_COPIED_AT_NS),
            mock.patch.object(Uuid, "random", side_effect=ids),
        ):
            assert tieredstore("copy", "-c", settings, "kafka").code == 0
        yield folder


def screen_of(command: str, columns: int = 80) -> Screen:
    """Run a command in the working folder of ``demo_bucket``, on a terminal so wide."""
    with (
        mock.patch.dict(os.environ, {"COLUMNS": str(columns), "TIEREDSTORE_SETTINGS": "store.properties"}),
        contextlib.redirect_stdout(_TerminalText()) as stdout,
        contextlib.redirect_stderr(io.StringIO()) as stderr,
    ):
        code = main(shlex.split(command))
    text = _TIMED.sub("…", stdout.getvalue() + stderr.getvalue())
    return Screen(command, text, code)


class _TerminalText(io.TextIOWrapper):
    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    def getvalue(self) -> str:
        return self._bytes.getvalue().decode()


def write_screens() -> None:
    """Write all files of ``FOLDER`` anew."""
    with demo_bucket():
        screens = {name: screen_of(command) for name, command in {**TABLES, **OTHERS}.items()}
    for path in FOLDER.glob("*.txt"):
        path.unlink()
    for name, screen in screens.items():
        (FOLDER / f"{name}.txt").write_text(str(screen))


if __name__ == "__main__":
    write_screens()
    sys.stdout.write(f"{FOLDER} has {len(list(FOLDER.iterdir()))} screens\n")
