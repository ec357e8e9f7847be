"""A part of an upload as the SDK takes it."""

from __future__ import annotations

import io
from typing import Any

from tieredstore.backends.http.deadlines import PIECE_BYTES, check_deadline, note_sent


class PartBody(io.RawIOBase):
    """A part as the file that the SDK wants, without a copy; it may be sent again from its start.

    Small pieces go to the socket one by one, so each has the whole network time-out, and the deadline is looked at
    between them.
    """

    def __init__(self, data: memoryview, what: str) -> None:
        super().__init__()
        self._data = data
        self._what = what
        self._position = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, size: int | None = -1, /) -> Any:
        """The next bytes, as a view: more than asked for, where that is little."""
        # Asked for more, the pieces before have gone out.
        note_sent(self._position)
        check_deadline(self._what)
        # http.client asks for 16 KiB at a time, sends whatever it gets, and each of these rounds costs processor time.
        stop = len(self._data) if size is None or size < 0 else self._position + max(size, PIECE_BYTES)
        piece = self._data[self._position : stop]
        self._position += len(piece)
        return piece

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """As of any file."""
        base = (0, self._position, len(self._data))[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """As of any file."""
        return self._position

    def seekable(self) -> bool:
        """Always."""
        return True

    def readable(self) -> bool:
        """Always."""
        return True


def sendable(data: memoryview, what: str) -> Any:
    """What the SDK sends ``data`` as. It asks before it sends a file ("100-continue"), which small bodies don't pay."""
    return bytes(data) if len(data) <= PIECE_BYTES else PartBody(data, what)
