"""A segment that the broker has closed, and what is held of it until it is shipped."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tieredstore.errors import TieredStoreError
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.kafka.held_segment import OpenSegment, open_segment
from tieredstore.kafka.logdir import FoundSegment, LogSegment
from tieredstore.uploader.hold_dir import Kept


@dataclass(slots=True)
class ClosedSegment:
    """A segment that the broker has closed. ``epochs`` are those of the partition when it was last seen by name.

    ``incomplete_since_s``: a file is not there yet. ``absences`` counts the listings in a row that did not show it.
    ``lost`` says why it cannot be shipped; what ``is_cut`` is no part of the log any more, and no loss.
    ``unreadable`` counts how often the disk has failed to give what is in its files.
    ``held`` are its open files, ``kept`` the links to them, which say that it ``is_settled``. What ``fills_nothing``
    was tried for a hole of the watermark in vain.
    """

    place: FoundSegment
    noticed_s: float
    epochs: LeaderEpochs
    held: OpenSegment | None = None
    kept: Kept | None = None
    described: LogSegment | None = None
    incomplete_since_s: float | None = None
    absences: int = 0
    unreadable: int = 0
    lost: str | None = None
    is_cut: bool = False
    is_settled: bool = False
    fills_nothing: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether its files were deleted before anybody held them.

        One listing does not tell: it may miss a file that is renamed meanwhile.
        """
        return self.held is None and self.kept is None and self.absences > 1

    def may_be_cut(self, now: LeaderEpochs) -> bool:
        """Whether the log may have been cut before the segment's end: it begins anew, with a leader of later."""
        return not self.is_settled and bool(self.epochs and now) and now[0][0] > self.epochs[-1][0]

    def may_fill(self, holes: Iterable[tuple[int, int]]) -> bool:
        """Whether only what is held has offsets of these, as far as is known."""
        base, end = self.place.base_offset, self.next_offset
        is_ours = self.held is not None and self.place.is_deleted and self.lost is None and not self.fills_nothing
        return is_ours and any(base <= last and (end is None or first < end) for first, last in holes)

    @property
    def is_only_ours(self) -> bool:
        """Whether the broker has deleted its log: what it takes of the disk is given back as soon as it is let go."""
        held, kept = self.held, self.kept
        with contextlib.suppress(OSError):
            if kept is not None:
                return kept.log.stat().st_nlink == 1
            return held is not None and os.fstat(held.log.descriptor).st_nlink == 0
        return False

    @property
    def was_replaced(self) -> bool:
        """Whether the broker has other files under the names of those that are held, or linked, since it was seen."""
        held, kept = self.held, self.kept
        ours: list[os.stat_result | None] = []
        if held is not None:
            ours = [os.fstat(held.log.descriptor), os.fstat(held.producer_snapshot.descriptor)]
        elif kept is not None:
            ours = [_stat(kept.log), _stat(kept.snapshot)]
        end = self.next_offset
        names = [self.place.path("log"), *([] if end is None else [self.place.snapshot_path(end - 1)])]
        theirs = [_stat(name) for name in names]
        return any(one and other and not os.path.samestat(one, other) for one, other in zip(ours, theirs, strict=False))

    @property
    def size_in_bytes(self) -> int:
        """Bytes of its log; 0 if it is gone."""
        with contextlib.suppress(OSError):
            held, kept = self.held, self.kept
            if held is not None:
                return held.size_in_bytes
            return (self.place.path("log") if kept is None else kept.log).stat().st_size
        return 0

    def age_s(self, now_s: float) -> float:
        """How long it is closed: the broker writes its snapshot then. If that cannot be seen, how long it is known."""
        held = self.held
        with contextlib.suppress(OSError):
            if held is not None:
                return max(0.0, time.time() - os.fstat(held.producer_snapshot.descriptor).st_mtime)
            if self.kept is not None:
                return max(0.0, time.time() - self.kept.snapshot.stat().st_mtime)
        return now_s - self.noticed_s

    @property
    def next_offset(self) -> int | None:
        """Behind the segment; None where only its batches tell."""
        return self.place.next_base_offset

    def open(self) -> OpenSegment:
        """Its files, by their own names or by the links to them; it is for the caller to close them."""
        kept = self.kept
        return open_segment(self.place if kept is None else kept.place((self.place.topic, self.place.partition)))

    def has_come(self) -> bool:
        """Whether the file for which it was given up is there after all: it is no loss then."""
        if self.incomplete_since_s is None:
            return False
        with contextlib.suppress(TieredStoreError, OSError):
            self.open().close()
            self.lost = self.incomplete_since_s = None
            return True
        return False

    def let_go(self) -> None:
        """Close its files."""
        held, self.held = self.held, None
        if held is not None:
            held.close()

    def give_up(self) -> None:
        """Close its files, and remove the links to them: it is shipped, or not to be shipped any more."""
        self.let_go()
        kept, self.kept, self.is_settled = self.kept, None, False
        if kept is not None:
            kept.remove()


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
