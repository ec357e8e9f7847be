"""Where a command's bytes go: to stdout, or to a file that is whole or absent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import sys
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from tieredstore.cli.terminal.output import complain
from tieredstore.cli.terminal.streams import OutputFailedError, ReaderGoneError
from tieredstore.errors import ConfigError
from tieredstore.process.interruption import at_sudden_end

_MARK: Final = ".tieredstore-"
_ENDING: Final = ".part"
_LONGEST_NAME: Final = 200
"""How many bytes of the target's name a draft's holds: file systems take 255 in all."""


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
        for draft in _remove_abandoned(target):
            complain(f"removed {draft}, which a command that was killed had left")
        with _renamed_when_whole(target) as file:
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
def _renamed_when_whole(target: Path) -> Generator[BinaryIO]:
    with _draft_of(target) as (draft, file):
        yield file
        os.fsync(file.fileno())
        draft.replace(target)
    _sync_folder(target.parent)


@contextlib.contextmanager
def _draft_of(target: Path) -> Generator[tuple[Path, BinaryIO]]:
    """A new file beside ``target``, locked for as long as this process lives; removed unless it was renamed."""
    with contextlib.ExitStack() as undone:
        while True:
            draft = target.with_name(f"{_prefix(target)}{secrets.token_hex(8)}{_ENDING}")
            remove = partial(draft.unlink, missing_ok=True)
            undone.enter_context(at_sudden_end(remove))
            undone.callback(remove)
            file = undone.enter_context(draft.open("xb", buffering=0))
            _lock(file)
            # Another command may have come in between, and have taken it for abandoned.
            if os.fstat(file.fileno()).st_nlink:
                break
        yield draft, file


def _lock(file: BinaryIO) -> None:
    # Where the file system knows no locks nobody can take one, and so nobody takes the draft for abandoned.
    with contextlib.suppress(OSError):
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)


def _remove_abandoned(target: Path) -> Iterator[Path]:
    """Remove the drafts of ``target`` whose writers are dead: they hold no lock any more. Gives what was removed."""
    pattern = re.compile(re.escape(_prefix(target)) + "[0-9a-f]{16}" + re.escape(_ENDING))
    with contextlib.suppress(OSError):  # a folder that may be written and not listed
        for path in target.parent.iterdir():
            if pattern.fullmatch(path.name) and _removed_if_abandoned(path):
                yield path


def _removed_if_abandoned(draft: Path) -> bool:
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError), os.fdopen(os.open(draft, flags), "wb", buffering=0) as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Still under its lock, so that a writer that was about to take it sees that the file is gone.
        draft.unlink()
        return True
    return False


def _prefix(target: Path) -> str:
    return f".{os.fsdecode(os.fsencode(target.name)[:_LONGEST_NAME])}{_MARK}"


def _sync_folder(folder: Path) -> None:
    """Make a rename in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explained(path: Path) -> Generator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGoneError(f"nobody reads {path} any more") from error
    except OSError as error:
        raise OutputFailedError(f"{path} cannot be written: {error.strerror}") from error
