"""Windows of a pipeline that were written, as its commands show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.cli.output import JsonValue, counted, print_json_line, print_lines
from tieredstore.model import human_bytes

if TYPE_CHECKING:
    from tieredstore.pipelines.entries import Entry, WrittenWindow


def window_json(window: WrittenWindow) -> JsonValue:
    """A window of an entry, as all commands that write show it."""
    return {
        "topic": window.topic,
        "partition": window.partition,
        "first_offset": window.start,
        "last_offset": window.stop - 1,
        "records": window.records,
        "filtered": window.filtered,
        "quarantined": window.quarantined,
        "output_keys": [one.key for one in window.files],
    }


def window_line(window: WrittenWindow) -> str:
    """The same for people."""
    if window.start == window.stop:
        return f"{window.topic}-{window.partition} begins at offset {window.start}"
    out = f", {window.filtered} left out" if window.filtered else ""
    aside = f", {window.quarantined} put aside" if window.quarantined else ""
    return f"{extent(window)}: {counted(window.records, 'record')} in {counted(len(window.files), 'file')}{out}{aside}"


def extent(window: WrittenWindow) -> str:
    """Partition and offsets, for people."""
    return f"{window.topic}-{window.partition} {window.start} … {window.stop - 1}"


class Written:
    """The sums of what a command has written."""

    def __init__(self) -> None:
        self._files = self._records = self._filtered = self._quarantined = self._size = 0

    def tell(self, entry: Entry, *, as_json: bool) -> None:
        """Show the windows of an entry, and count them."""
        self._files += len(entry.files)
        self._size += sum(one.size for one in entry.files)
        for window in entry.windows:
            self._records += window.records
            self._filtered += window.filtered
            self._quarantined += window.quarantined
            if as_json:
                print_json_line(window_json(window))
            else:
                print_lines([window_line(window)])

    def sum_up(self, *, as_json: bool) -> None:
        """All of it."""
        if as_json:
            print_json_line({
                "summary": {
                    "records": self._records, "filtered": self._filtered, "quarantined": self._quarantined,
                    "files": self._files, "stored_size": self._size,
                }
            })  # fmt: skip
            return
        files = counted(self._files, "new file")
        print_lines([f"{counted(self._records, 'record')} in {files} ({human_bytes(self._size)})"])
