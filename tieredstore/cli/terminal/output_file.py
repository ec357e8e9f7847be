"""Where a command's bytes go: to stdout, or to a file that is whole or absent."""

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
    """Where a command's bytes go: stdout for None and ``-``, else a file that appears whole at the end or not at all.

    The bytes gather in a draft beside it, which is flushed to disk and renamed. A device or a pipe is written directly.
    What a killed command left of the same file is removed. ConfigError for a symbolic link to a file: another user of
    the folder may have put it there, and would choose what is overwritten.
    """
    if path is None or str(path) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with _explained(path):
        # A name that becomes a link from here on is replaced by the rename, and not followed.
        target = path.resolve() if path.is_symlink() else path.parent.resolve() / path.name
        if path.is_symlink() and (target.is_file() or not target.exists()):
            raise ConfigError(f"{path} is a symbolic link to {target}: name the file itself, or remove the link")
        if target.exists() and not target.is_file():
            with target.open("wb", buffering=0) as device:
                yield device
            return
        with whole_file(target) as file:
            yield file


def binary_output_to(path: Path | None) -> contextlib.AbstractContextManager[BinaryIO]:
    """As ``output_to`` for bytes that are no text: ConfigError where they would go to a terminal unasked."""
    if path is None and sys.stdout.isatty():
        raise ConfigError(
            "this is binary and would upset a terminal: give -o FILE, or -o - to have it here all the same"
        )
    return output_to(path)


def write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write all of ``data``: an unbuffered file may take a part of it at a time."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


@contextlib.contextmanager
def _explained(path: Path) -> Generator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGoneError(f"nobody reads {path} any more") from error
    except OSError as error:
        raise OutputFailedError(f"{path} cannot be written: {error.strerror}") from error
