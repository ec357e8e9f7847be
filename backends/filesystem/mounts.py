"""What kind of file system a path lies on, as Linux tells."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_TABLE: Final = Path("/proc/self/mountinfo")
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")


def is_on_nfs(path: str) -> bool:
    """Whether the path lies on NFS; False where the system does not tell of mounts."""
    try:
        table = _TABLE.read_bytes()
    except OSError:
        return False
    return file_system_in(table, path).startswith("nfs")


def file_system_in(table: bytes, path: str) -> str:
    """The type of the file system that holds ``path``, by a table in the form of ``/proc/self/mountinfo``; empty where
    it says nothing. Of several mounts over one another the last is the one that is seen."""
    kind, longest = "", -1
    wanted = os.fsencode(path)
    for line in table.splitlines():
        before, _, after = line.partition(b" - ")
        fields, about = before.split(), after.split()
        if len(fields) < 5 or not about:
            continue
        point = _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), fields[4]).rstrip(b"/")
        if (wanted == point or wanted.startswith(point + b"/")) and len(point) >= longest:
            kind, longest = about[0].decode("ascii", "replace"), len(point)
    return kind
