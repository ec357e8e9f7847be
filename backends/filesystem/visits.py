"""Many files of one folder in one visit to the system, by compiled code where that is built.

Each function may leave files out, and all of them in a checkout whose compiled parts are older than it: whoever asks
looks at those one by one, and says what is wrong with them.
"""

from __future__ import annotations

try:
    from tieredstore.backends.filesystem._files import look_at_files, read_files
except ImportError:

    def look_at_files(_folder: int, _names: list[bytes], /) -> list[tuple[int, int] | None] | None:
        """Nothing is told of any."""
        return None

    def read_files(_folder: int, names: list[bytes], _longest: int, /) -> list[bytes | None]:
        """None is read."""
        return [None] * len(names)


__all__ = ["look_at_files", "read_files"]
