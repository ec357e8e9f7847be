"""Where the tests of a tree have their temporary folders.

pytest numbers those of all runs of a user. One that ends gives its number free before it removes its folder's lock,
which is then that of whoever has the number by now: the next run to end removes the folder of one that goes on.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path


def folder_of(tree: Path) -> Path:
    """The folder under which the runs of this tree have theirs, and no others."""
    folder = Path(tempfile.gettempdir(), f"tieredstore-{zlib.crc32(os.fsencode(tree)):08x}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
