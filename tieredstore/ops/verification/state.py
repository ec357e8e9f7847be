"""Remembers sound segments in a file. Nightly runs then check new segments, and each old segment only once a month.

The file is a SQLite database with a row for each sound segment. A row has the versions of the segment's objects, the
level and time of the check, and the segment's offsets. If a run is stopped or killed, only the results of its last
moments are lost.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Generator
from datetime import timedelta
from pathlib import Path
from typing import Final

from tieredstore.catalog.listing import SegmentObjects
from tieredstore.catalog.planning import Stamp
from tieredstore.errors import ConfigError
from tieredstore.ops.verification.selection import ClaimedOffsets, Level, SoundSegment
from tieredstore.process.closing import Closing
from tieredstore.versions import VERIFY_STATE

RECHECK_AFTER: Final = timedelta(days=30)
"""A segment is checked again after this time, even if unchanged."""

_FORMAT: Final = "tieredstore verify "
"""The start of the text that identifies the file's format. The version follows."""
_SAVE_AFTER_ROWS: Final = 500
_SAVE_AFTER_S: Final = 2.0
_FORGET_AFTER: Final = 3
"""A row that was not renewed for this many intervals belongs to a deleted segment."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS bucket (format TEXT NOT NULL, identity TEXT NOT NULL, prefix TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS sound (
    path TEXT PRIMARY KEY, stamps TEXT NOT NULL, depth INTEGER NOT NULL, checked_ms INTEGER NOT NULL,
    end_offset INTEGER NOT NULL, epochs TEXT NOT NULL, log_size INTEGER NOT NULL
) WITHOUT ROWID;
"""


class VerifyState(Closing):
    """The state file of one bucket. Not thread-safe; close it."""

    def __init__(
        self,
        path: Path,
        identity: str,
        prefix: str,
        *,
        recheck_after: timedelta = RECHECK_AFTER,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Open the file. Raise ConfigError if ``verify`` did not write it, or if it is of another bucket."""
        self._path = path
        self._recheck_ms = recheck_after // timedelta(milliseconds=1)
        self._now_ms = now_ms
        self._unsaved, self._saved_at = 0, time.monotonic()
        with self._explain_errors():
            self._database = sqlite3.connect(path, timeout=5.0)
        try:
            with self._explain_errors():
                self._open(identity, prefix)
        except ConfigError:
            self._database.close()
            raise

    def find(self, objects: SegmentObjects, level: Level) -> SoundSegment | None:
        """Return the result of a recent check of a segment at this level or deeper. Return None if there was no such
        check, if it found a fault, or if the segment has changed since.

        A check in the future does not count, because the clock was ahead then, and the age of the check is unknown.
        """
        now_ms = self._now_ms()
        with self._explain_errors():
            row = self._database.execute(
                "SELECT stamps, end_offset, epochs, log_size FROM sound "
                "WHERE path = ? AND depth >= ? AND checked_ms > ? AND checked_ms <= ?",
                (objects.main_path, level.depth, now_ms - self._recheck_ms, now_ms),
            ).fetchone()
            if row is None or not _matches(row[0], objects):
                return None
            epochs: list[tuple[int, int]] = json.loads(row[2])
            known = tuple((int(epoch), int(start)) for epoch, start in epochs)
            return SoundSegment(ClaimedOffsets(int(row[1]), known), int(row[3]))

    def keep(self, objects: SegmentObjects, level: Level, sound: SoundSegment) -> None:
        """Record that a segment is sound."""
        epochs = json.dumps(sound.claimed.epochs)
        values = (level.depth, self._now_ms(), sound.claimed.end, epochs, sound.log_size)
        with self._explain_errors():
            self._database.execute(
                "INSERT OR REPLACE INTO sound VALUES (?, ?, ?, ?, ?, ?, ?)",
                (objects.main_path, _stamps_of(objects), *values),
            )
        self._count()

    def forget(self, objects: SegmentObjects) -> None:
        """Remove the record of a segment that is not sound."""
        with self._explain_errors():
            self._database.execute("DELETE FROM sound WHERE path = ?", (objects.main_path,))
        self._count()

    def save(self) -> None:
        """Write all records to disk."""
        with self._explain_errors():
            self._database.commit()
        self._unsaved, self._saved_at = 0, time.monotonic()

    def close(self) -> None:
        """Save and close the file. Delete rows of segments that no run has checked for long."""
        with contextlib.closing(self._database):
            with self._explain_errors():
                oldest = self._now_ms() - _FORGET_AFTER * self._recheck_ms
                self._database.execute("DELETE FROM sound WHERE checked_ms < ?", (oldest,))
            self.save()

    def _open(self, identity: str, prefix: str) -> None:
        has_tables = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,)
        row = has_tables and self._database.execute("SELECT format, identity, prefix FROM bucket").fetchone()
        if row:
            version = str(row[0]).removeprefix(_FORMAT)
            VERIFY_STATE.refuse_newer(int(version) if version.isdecimal() else 0, str(self._path))
        self._database.executescript(_TABLES)
        form = f"{_FORMAT}{VERIFY_STATE.version}"
        if not row:
            self._database.execute("INSERT INTO bucket VALUES (?, ?, ?)", (form, identity, prefix))
            self._database.commit()
        elif row != (form, identity, prefix):
            raise ConfigError(f"{self._path} is the state of another bucket ({row[1]}): name another file for this one")

    def _count(self) -> None:
        self._unsaved += 1
        if self._unsaved >= _SAVE_AFTER_ROWS or time.monotonic() - self._saved_at > _SAVE_AFTER_S:
            self.save()

    @contextlib.contextmanager
    def _explain_errors(self) -> Generator[None]:
        try:
            yield
        except ConfigError:
            raise
        except (sqlite3.Error, ValueError, TypeError) as error:  # the last two: a damaged value in a row
            raise ConfigError(
                f"{self._path} cannot be used as a state file ({error}): if no other run is using it, name another "
                "file, or remove it to check everything again"
            ) from error


def _stamps_of(objects: SegmentObjects) -> str:
    """Return the versions of all objects as JSON; null for unknown values."""
    return json.dumps([(suffix.value, info.size, info.etag, info.modified_ms) for suffix, info in objects.objects])


def _matches(stamps: str, objects: SegmentObjects) -> bool:
    known: list[tuple[str, int, str | None, int | None]] = json.loads(stamps)
    return len(known) == len(objects.objects) and all(
        name == suffix.value and Stamp(size, etag, modified_ms).matches(Stamp.of(info))
        for (name, size, etag, modified_ms), (suffix, info) in zip(known, objects.objects, strict=True)
    )
