"""Runs of the command line, in this process or a separate one, and the stores that they use."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.paths import COVERAGE_VARIABLE, GOLDEN, REPOSITORY
from tieredstore.cli.app.main import main

ORIGINALS = GOLDEN / "11-single-record" / "original"  # three segments of one record
TXN = GOLDEN / "07-txn" / "original" / "txn-0"  # five segments of 300 KB


@dataclass(frozen=True)
class Result:
    """Exit code and output of a command."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[Any]:
        """The JSON values of stdout, which has one per line."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def rows(self) -> tuple[list[Any], dict[str, Any]]:
        """The JSON values of stdout, one per line, and the summary from the last line."""
        *rows, last = self.lines
        return rows, last["summary"]

    def clean(self) -> Result:
        """Assert success, and no stderr except the progress lines that a slow machine shows; return self."""
        said = [line for line in self.stderr.splitlines() if not line.endswith(" so far")]
        assert (self.code, said) == (0, []), self
        return self

    def fails(self, code: int, *words: str) -> None:
        """Assert this exit code, no output, and these words on stderr."""
        assert (self.code, self.stdout) == (code, b""), self
        assert all(each in self.stderr for each in words), self.stderr
        assert "Traceback" not in self.stderr


@contextlib.contextmanager
def own_logging() -> Generator[None]:
    """Restore the logging configuration after the block. A service's handlers would otherwise stay for later tests."""
    loggers = [logging.getLogger(name) for name in ("tieredstore", "tieredstore.pipelines.config.settings")]
    before = [(logger, list(logger.handlers), logger.level) for logger in loggers]
    try:
        yield
    finally:
        for logger, handlers, level in before:
            logger.handlers = handlers
            logger.setLevel(level)


def tieredstore(*arguments: object) -> Result:
    """Run a command in this process."""
    stdout, stderr = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with own_logging(), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = main([str(argument) for argument in arguments])
    written: list[bytes] = []
    for stream in (stdout, stderr):
        raw = stream.detach()
        assert isinstance(raw, io.BytesIO)
        written.append(raw.getvalue())
    return Result(code, written[0], written[1].decode())


def command(*arguments: object) -> list[str]:
    """Return the command line for a separate process."""
    return [sys.executable, "-m", "tieredstore.cli", *map(str, arguments)]


def measured_command(*arguments: object) -> list[str]:
    """Return the command line for a separate process that is included in coverage, if coverage is measured."""
    if COVERAGE_VARIABLE not in os.environ:
        return command(*arguments)
    begin = "import tests.support.measured_process\nfrom tieredstore.cli.app.entry import run\nrun()"
    return [sys.executable, "-c", begin, *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    """Return a process environment in which the command line is found."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIEREDSTORE_")}
    return {**kept, "PYTHONPATH": str(REPOSITORY), **more}


def spawn(*arguments: object, **more: str) -> Result:
    """Run a command in a separate process; ``more`` are environment variables."""
    done: subprocess.CompletedProcess[bytes] = subprocess.run(
        command(*arguments), capture_output=True, env=environment(**more), check=False, timeout=600
    )
    return Result(done.returncode, done.stdout, done.stderr.decode())


def write_settings(folder: Path, more: Mapping[str, str] | None = None, *, chunk_size: int = 65536) -> Path:
    """Write a settings file into ``folder``, next to the empty store that it names."""
    texts = {"storage.backend.class": "filesystem", "storage.root": "store", "chunk.size": str(chunk_size)}
    (folder / "store").mkdir(exist_ok=True)
    path = folder / "store.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in {**texts, **(more or {})}.items()))
    return path


def store_of(folder: Path, *sources: object, more: Mapping[str, str] | None = None) -> Path:
    """Call ``write_settings``, and upload these log directories to its store; return the settings file."""
    settings = write_settings(folder, more)
    for source in sources:
        assert tieredstore("upload", "-c", settings, source).code == 0
    return settings


def stored_files(folder: Path, suffix: str = "*") -> list[Path]:
    """Return the files of all objects in the store of ``write_settings``, in key order."""
    return sorted((folder / "store").rglob(f"*.{suffix}"))
