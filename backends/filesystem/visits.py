"""Many files of one folder in one visit to the system, by compiled code where that is built.

Each function may leave files out, and all of them in a checkout whose compiled parts are older than it: whoever asks
looks at those one by one, and says what is wrong with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.backends.values import ObjectInfo

try:
    from tieredstore.backends.filesystem._files import look_at_files, names_of_files, read_files
except ImportError:

    def names_of_files(_folder: int, /) -> list[str] | None:
        """Nothing is told of any folder."""
        return None

    def look_at_files(_folder: int, _path: str, _names: list[str], /) -> list[ObjectInfo | None] | None:
        """Nothing is told of any."""
        return None

    def read_files(_folder: int, _start: int, keys: list[str], _longest: int, /) -> list[bytes | None]:
        """None is read."""
        return [None] * len(keys)


__all__ = ["look_at_files", "names_of_files", "read_files"]
