"""The files of a generation that its commit log says are there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

from tieredstore.backends.base import Prepared

if TYPE_CHECKING:
    from tieredstore.pipelines.log.commit_log import CommitLog
    from tieredstore.pipelines.log.entries import Entry, OutputFile, WrittenWindow

_NOTHING: Final = Prepared("", 0, "", "")


@dataclass(slots=True)
class CommittedFile:
    """A file, the window that it is of, and the number of the entry."""

    file: OutputFile
    window: WrittenWindow
    number: int


@dataclass(slots=True)
class Committed:
    """Files by their keys. ``going``: those that the last entry deletes, which may still be there."""

    files: dict[str, CommittedFile] = field(default_factory=dict[str, CommittedFile])
    going: set[str] = field(default_factory=set[str])
    topics: set[str] = field(default_factory=set[str])

    @classmethod
    def of(cls, log: CommitLog, *, prepared: bool = True) -> Self:
        """By all entries of the log, which is read to its end; none once it is dropped.

        Without ``prepared`` files do not tell what the store had prepared, which is half of what an output of many
        takes in memory, and of use only to who publishes or commits them.
        """
        log.read()
        committed = cls()
        for entry in log.entries():
            committed.take(entry if prepared else _without_prepared(entry))
        if log.state.closed == "drop":
            committed.files.clear()
        return committed

    def take(self, entry: Entry) -> None:
        """Go on by one entry."""
        for window in entry.windows:
            self.topics.add(window.topic)
            self.files |= {file.key: CommittedFile(file, window, entry.number) for file in window.files}
        if entry.kind == "replaced":
            self.going = self.going | set(entry.removed) if entry.windows else set()
        elif entry.files:
            self.going = set(entry.removed)
        for key in entry.removed:
            self.files.pop(key, None)


def _without_prepared(entry: Entry) -> Entry:
    windows = (
        replace(window, files=tuple(replace(file, prepared=_NOTHING) for file in window.files))
        for window in entry.windows
    )
    return replace(entry, windows=tuple(windows))
