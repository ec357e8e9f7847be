"""A separate folder for the temporary folders of each working tree's tests.

pytest numbers the folders of all runs of a user. A run that ends releases its number before it removes its lock. By
then the lock may belong to a new run with that number. The next run that ends would then delete the folder in use.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path


def folder_of(tree: Path) -> Path:
    """Return a folder for the runs of this tree only."""
    folder = Path(tempfile.gettempdir(), f"tieredstore-{zlib.crc32(os.fsencode(tree)):08x}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
