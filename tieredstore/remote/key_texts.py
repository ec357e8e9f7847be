"""Texts of keys and passphrases, read from a file, an environment variable or an open descriptor."""

from __future__ import annotations

import os
import select
import stat
import threading
from pathlib import Path
from typing import Final

from tieredstore.errors import KeyRingError
from tieredstore.process.deadline import Deadline
from tieredstore.transform.pem import MAX_BYTES, key_file_content

_PIPE_TIMEOUT_S: Final = 30.0
_lock: Final = threading.Lock()
_from_pipes: Final[dict[tuple[int, int, int], bytes]] = {}
"""Texts that were read from pipes, by descriptor, device and inode. A pipe gives its text only once, but settings may
be loaded several times.
"""


def passphrase_in(path: Path) -> bytes:
    """Return a file's first line without its line end. Raise KeyRingError if the file is unreadable or the line is
    empty."""
    passphrase = key_file_content(path).partition(b"\n")[0].removesuffix(b"\r")
    if not passphrase:
        raise KeyRingError(f"the first line of {path} is empty, and a passphrase is expected there")
    return passphrase


def variable_content(name: str, what: str) -> bytes:
    """Return the content of an environment variable. Raise KeyRingError if the variable is not set or empty."""
    text = os.environb.get(os.fsencode(name))
    if not text:
        raise KeyRingError(f"the environment variable {name}, which holds the {what}, is not set in this process")
    return text


def descriptor_content(number: int, what: str, *, timeout_s: float = _PIPE_TIMEOUT_S) -> bytes:
    """Read an open descriptor to its end. Raise KeyRingError if the text is empty, or if a pipe does not end within
    ``timeout_s``."""
    try:
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode):
            # Read at an explicit position, because other processes may share the descriptor and move its position.
            return os.pread(number, MAX_BYTES, 0)
        place = number, status.st_dev, status.st_ino
        with _lock:
            if place not in _from_pipes:
                _from_pipes[place] = _to_end(number, timeout_s)
            return _from_pipes[place]
    except OSError as error:
        raise KeyRingError(
            f"descriptor {number}, which gives the {what}, cannot be read in this process: {error.strerror}"
        ) from error


def _to_end(number: int, timeout_s: float) -> bytes:
    parts: list[bytes] = []
    deadline = Deadline.after(timeout_s)
    while sum(map(len, parts)) < MAX_BYTES:
        # Wait with a deadline. If nothing is written to the descriptor, as on a terminal, a read would block forever.
        if not select.select([number], [], [], max(0.0, deadline.remaining_s()))[0]:
            raise KeyRingError(f"descriptor {number} gave no key within {timeout_s:g} s; close its other end")
        part = os.read(number, MAX_BYTES)
        if not part:
            break
        parts.append(part)
    return b"".join(parts)
