"""Private terminal for a test: records the output and accepts key presses."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

CTRL_C: Final = b"\x03"
_DEADLINE_S: Final = 60
_MARK: Final = b"<end of output>"


class Terminal:
    """Context manager of a terminal; ``path`` is the device on which to start a command."""

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self._screen, self._device = pty.openpty()
        fcntl.ioctl(self._device, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.path = Path(os.ttyname(self._device))
        self.shown = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._screen)
        os.close(self._device)

    def press(self, keys: bytes) -> None:
        """Type something."""
        os.write(self._screen, keys)

    def wait_for(self, text: bytes) -> None:
        """Read until ``text`` is shown; AssertionError if it never is."""
        deadline = time.monotonic() + _DEADLINE_S
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            self._read(0.1)

    def read_all(self) -> bytes:
        """Return all output of commands that have ended."""
        while self._read(0):
            pass  # makes room for the mark
        os.write(self._device, _MARK)
        self.wait_for(_MARK)
        self.shown = self.shown.removesuffix(_MARK)
        return self.shown

    def _read(self, timeout_s: float) -> bool:
        readable, _, _ = select.select([self._screen], [], [], timeout_s)
        if readable:
            self.shown += os.read(self._screen, 65536)
        return bool(readable)
