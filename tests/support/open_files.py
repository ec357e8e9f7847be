"""Which files of a folder this process has open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def open_below(folder: Path) -> list[str]:
    """Once for each descriptor. What lies elsewhere may be opened and closed meanwhile, by threads of other tests."""
    links: list[Path] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(descriptor.readlink())
    return sorted(str(link) for link in links if link.is_relative_to(folder.resolve()))
