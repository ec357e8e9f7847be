"""What the skeleton of a cloud's store asks of the cloud's client and its answers."""

from __future__ import annotations

from typing import Protocol


class ClosableClient(Protocol):
    """What a cloud's client has to have, beside what its store asks of it."""

    def close(self) -> None:
        """Close all connections."""
        ...


class Answer(Protocol):
    """The answer to a request for bytes, of which only the headers were read; either method checks what it reads."""

    @property
    def size(self) -> int:
        """How many bytes the body has."""
        ...

    def read(self) -> bytes:
        """The body."""
        ...

    def fill(self, buffer: memoryview) -> None:
        """The body, which is as long as ``buffer``, into it."""
        ...
