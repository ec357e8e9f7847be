"""The destination of a command's bytes: stdout, or a file that is complete or absent."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from tieredstore.cli.terminal.streams import OutputFailedError, ReaderGoneError
from tieredstore.errors import ConfigError
from tieredstore.process.whole_files import whole_file


@contextlib.contextmanager
def output_to(path: Path | None) -> Generator[BinaryIO]:
    """Open the destination: stdout for None and ``-``, otherwise a file. The file appears only when it is complete.

    The bytes go to a draft (unfinished file) in the same folder. At the end the draft is synced and renamed. A device
    or a pipe is written directly. Drafts that an earlier, killed command left behind are removed.

    Raise ConfigError for a symbolic link to a file. Another user of the folder may have created the link to choose the
    file that is overwritten.
    """
    if path is None or str(path) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with _explain_errors(path):
        # Check for a link before the write. If the name becomes a link later, the rename replaces the link and does not
        # follow it.
        target = path.resolve() if path.is_symlink() else path.parent.resolve() / path.name
        if path.is_symlink() and (target.is_file() or not target.exists()):
            raise ConfigError(f"{path} is a symbolic link to {target}: name the file itself, or remove the link")
        if target.exists() and not target.is_file():
            with target.open("wb") as device:
                yield device
            return
        with whole_file(target) as file:
            yield file


def refuse_binary(path: Path | None) -> None:
    """Raise ConfigError if binary data would go to a terminal. The path ``-`` allows it."""
    if path is None and sys.stdout.isatty():
        raise ConfigError("binary output would garble a terminal: give -o FILE, or -o - to write it anyway")


@contextlib.contextmanager
def _explain_errors(path: Path) -> Generator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGoneError(f"the process that reads {path} has closed the pipe") from error
    except OSError as error:
        raise OutputFailedError(f"{path} cannot be written: {error.strerror}") from error
