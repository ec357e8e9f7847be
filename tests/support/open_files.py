"""Files that this process has open below a folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def open_below(folder: Path) -> list[str]:
    """Return a path per open descriptor. Other threads may open and close files outside ``folder`` during the call."""
    links: list[Path] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(descriptor.readlink())
    return sorted(str(link) for link in links if link.is_relative_to(folder.resolve()))
