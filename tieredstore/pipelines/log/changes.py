"""What was done to an output, entry by entry: for whoever follows it without listing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.pipelines.log.commit_log import CommitLog
    from tieredstore.pipelines.log.entries import EntryKind, OutputFile


@dataclass(frozen=True, slots=True)
class Change:
    """An entry that changed what a listing shows, or will in a moment: it is the last, and not wholly published yet.

    ``kind`` ``drop``: all files of the generation go. ``directories`` are those that are complete from now on
    (``finalize``), that are not for as long as files of them give way to another generation's (``replacing`` to
    ``replaced``), or whose ``_SUCCESS`` is replaced, since late records were filed there.
    """

    number: int
    kind: EntryKind
    added: tuple[OutputFile, ...]
    removed: tuple[str, ...]
    directories: tuple[str, ...] = ()


def changes_since(log: CommitLog, number: int) -> Iterator[Change]:
    """Those behind entry ``number`` (-1: all), in their order. Bad messages, which no reader sees, are left out."""
    for entry in log.entries(number + 1):
        seen = tuple(file for file in entry.new_files if file.kind != "quarantine")
        removed = tuple(key for key in entry.removed if "/quarantine/" not in key)
        if seen or removed or entry.kind == "drop" or entry.directories:
            yield Change(entry.number, entry.kind, seen, removed, entry.directories)
