"""Files that appear only when complete. A draft (unfinished file) in the same folder gets the final name at the end.
After an error, the draft is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from tieredstore.errors import ConfigError, ResourceNotFoundError
from tieredstore.process.interruption import at_sudden_end

_logger: Final = logging.getLogger(__name__)
_MARK: Final = ".tieredstore-"
_ENDING: Final = ".part"
_LONGEST_NAME: Final = 200
"""A draft's name has at most this many bytes of the target's name, because file systems allow 255 bytes for the whole
name.
"""


def read_named(path: Path, *, absent: str | None = None) -> bytes:
    """Read a file that the user named; raise ConfigError if it cannot be read.

    ``absent`` is advice for the user if the file does not exist; the error is then ResourceNotFoundError.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        if absent is not None and isinstance(error, FileNotFoundError):
            raise ResourceNotFoundError(f"there is no {path}: {absent}") from None
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None


@contextlib.contextmanager
def whole_file(target: Path, *, replaces: bool = True) -> Generator[BinaryIO]:
    """Open a new file. If the block succeeds, sync the file and replace ``target`` by it; otherwise leave ``target``
    unchanged. Unless ``replaces`` is true, raise FileExistsError if ``target`` exists at the end of the block.

    Also remove drafts (unfinished files) of ``target`` that killed processes have left behind.
    """
    _remove_abandoned(target)
    with _draft_of(target) as (draft, file):
        yield file
        file.flush()
        os.fsync(file.fileno())
        if replaces or not _link(draft, target):
            draft.replace(target)
    sync_folder(target.parent)


def _link(draft: Path, target: Path) -> bool:
    """Give a draft its final name, and return True; raise FileExistsError if that name is taken. On a file system
    without hard links, only claim the name by an empty file, and return False.
    """
    try:
        os.link(draft, target)
    except FileExistsError:
        raise
    except OSError:
        target.touch(exist_ok=False)
        return False
    return True


@contextlib.contextmanager
def _draft_of(target: Path) -> Generator[tuple[Path, BinaryIO]]:
    """Yield a new file beside ``target``. The file is locked while this process lives. After the block, remove the file
    if it was not renamed.
    """
    with contextlib.ExitStack() as undone:
        while True:
            draft = target.with_name(f"{_prefix(target)}{secrets.token_hex(8)}{_ENDING}")
            remove = partial(draft.unlink, missing_ok=True)
            undone.enter_context(at_sudden_end(remove))
            undone.callback(remove)
            file = undone.enter_context(draft.open("xb"))
            # On a file system without locks, continue without a lock. No process can lock drafts (unfinished files)
            # there, so no process removes them as abandoned.
            with contextlib.suppress(OSError):
                fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            # Make a new draft (unfinished file) if another command has removed this draft as abandoned before it was
            # locked.
            if os.fstat(file.fileno()).st_nlink:
                break
        yield draft, file


def _remove_abandoned(target: Path) -> None:
    """Remove the drafts (unfinished files) of ``target`` that no writer locks, because their writers are dead."""
    pattern = re.compile(re.escape(_prefix(target)) + "[0-9a-f]{16}" + re.escape(_ENDING))
    with contextlib.suppress(OSError):  # the folder may be writable but not listable
        for path in target.parent.iterdir():
            if pattern.fullmatch(path.name) and _remove_if_abandoned(path):
                _logger.warning("removed %s, left behind by a killed command", path)


def _remove_if_abandoned(draft: Path) -> bool:
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError), os.fdopen(os.open(draft, flags), "wb", buffering=0) as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Unlink under the lock, so that a writer that locks the draft afterwards sees that the file is gone.
        draft.unlink()
        return True
    return False


def _prefix(target: Path) -> str:
    return f".{os.fsdecode(os.fsencode(target.name)[:_LONGEST_NAME])}{_MARK}"


def sync_folder(folder: Path) -> None:
    """Make renames and deletions in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
