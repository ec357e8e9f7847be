"""A closed segment on the broker's disk that is not uploaded yet, and its pins (open files or hard links).

Three questions decide the segment's state. Does the broker's folder have the segment's file (named)? Does the file's
name end in ``.deleted`` (deleted)? Is the segment pinned?

========== ======= ======== ====== =============================================================================
state      named   deleted  pinned next
========== ======= ======== ====== =============================================================================
seen       yes     no       no     pinned: held; renamed: doomed; file gone: doomed; truncated: forgotten
held       yes     no       yes    renamed: doomed; file gone: only ours; ignored: seen; too many files: seen
doomed     yes     yes      any    file gone: only ours if pinned, else gone
only ours  no      -        yes    disk nearly full: lost; ignored: doomed, and gone
gone       no      -        no     a hole, once two listings agree
lost       any     any      any    a missing file arrives: seen; else quarantine and a hole
========== ======= ======== ====== =============================================================================

In every state, a segment is forgotten once it is uploaded, recorded as a hole, or truncated. A later leader epoch, or
another file under the segment's name, shows a truncation.

In every state, a segment is lost if three things hold: retention has deleted it, the log has had other leaders since,
and the segment was never known to be replicated.

A pin is dropped only if the segment is forgotten, its partition is ignored, too many files are open, or a disk is
nearly full.

Reading a segment leaves the system's page cache as it was, because a broker serves its consumers from this cache.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tieredstore.errors import TieredStoreError
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.kafka.held_segment import OpenSegment, open_segment, reopen_segment
from tieredstore.kafka.log_scan import scan_log
from tieredstore.kafka.logdir import FoundSegment, LogSegment
from tieredstore.uploader.links import Link

_BLOCK: Final = 1 << 20
_WOULD_WAIT: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK})


@dataclass(slots=True, eq=False)
class Segment:
    """A segment that the broker has closed. ``epochs`` are the partition's leader epochs at the time when the uploader
    noticed the segment.

    Open files (``held``) and hard links (``link``) are its pins. ``is_confirmed`` is true if a listing that began after
    the segment was pinned still has it. ``described`` is the description that was read from its log. If a file is
    missing, ``incomplete_since_s`` is the time when this was first seen. ``absences`` counts consecutive listings
    without the segment; ``unreadable`` counts failed reads of the disk. ``lost`` is the reason why the segment cannot
    be uploaded. ``fills_nothing`` is true if the segment could not fill a hole.
    It has many fields, because the state (see the module) follows from its files, its pins and its failures.
    """

    place: FoundSegment
    noticed_s: float
    epochs: LeaderEpochs
    held: OpenSegment | None = None
    link: Link | None = None
    is_confirmed: bool = False
    described: LogSegment | None = None
    incomplete_since_s: float | None = None
    absences: int = 0
    unreadable: int = 0
    lost: str | None = None
    is_replicated: bool = False
    fills_nothing: bool = False

    @property
    def base_offset(self) -> int:
        """The segment's first offset."""
        return self.place.base_offset

    @property
    def next_offset(self) -> int:
        """One more than the segment's last offset."""
        end = self.place.next_base_offset
        assert end is not None, "only closed segments are kept"
        return end

    @property
    def is_pinned(self) -> bool:
        """True if open files or links keep the bytes after the broker deletes the files."""
        return self.held is not None or self.link is not None

    @property
    def is_gone(self) -> bool:
        """True if the broker deleted the files before they were pinned.

        Two listings must agree that the files are gone, because one listing may miss a file that is being renamed.
        """
        return not self.is_pinned and self.absences > 1

    def may_be_cut(self, now: LeaderEpochs) -> bool:
        """Return True if the log now begins with a later leader's epoch, and so may have been truncated before the
        segment's end.
        """
        return not self.is_replicated and bool(self.epochs and now) and now[0][0] > self.epochs[-1][0]

    def meets(self, extents: Iterable[tuple[int, int]]) -> bool:
        """Return True if the segment overlaps one of these ranges of offsets (inclusive ends)."""
        return any(self.base_offset <= last and first < self.next_offset for first, last in extents)

    def may_fill(self, holes: Iterable[tuple[int, int]]) -> bool:
        """Return True if the segment overlaps one of these holes, and only a pin still keeps its files."""
        is_ours = self.is_pinned and self.place.is_deleted and self.lost is None and not self.fills_nothing
        return is_ours and self.meets(holes)

    @property
    def is_only_ours(self) -> bool:
        """True if the broker has deleted the log file, so that closing files and links frees disk space."""
        held, link = self.held, self.link
        with contextlib.suppress(OSError):
            if link is not None:
                return link.log.stat().st_nlink == 1
            return held is not None and os.fstat(held.log.descriptor).st_nlink == 0
        return False

    @property
    def disk(self) -> Path:
        """A folder on the file system of the pinned bytes. After the broker has moved the partition to another disk,
        this is still a folder on the old disk."""
        if self.link is not None:
            return self.link.root
        return (self.place if self.held is None else self.held.place).directory.parent

    def is_log(self, path: Path) -> bool:
        """Return True if ``path`` names the same file as the log that this segment keeps open or linked."""
        return _same(next(self._status_of_pins(), None), _status(path))

    def was_replaced(self, place: FoundSegment) -> bool:
        """Return True if the broker now has other files under the names of the pinned files."""
        names = (place.path("log"), place.snapshot_path(self.next_offset - 1))
        pairs = zip(self._status_of_pins(), map(_status, names), strict=False)
        return any(ours is not None and theirs is not None and not _same(ours, theirs) for ours, theirs in pairs)

    def _status_of_pins(self) -> Iterator[os.stat_result | None]:
        """Yield the file status of the pinned log and of the pinned producer snapshot."""
        held, link = self.held, self.link
        if held is not None:
            return map(_status, (held.log.descriptor, held.producer_snapshot.descriptor))
        return map(_status, () if link is None else (link.log, link.snapshot))

    @property
    def size_in_bytes(self) -> int:
        """The size of the log; 0 if the log is gone."""
        status = next(self._status_of_pins(), None) or _status(self.place.path("log"))
        return 0 if status is None else status.st_size

    def age_s(self, now_s: float) -> float:
        """Return the seconds since the segment was closed, by the time of its producer snapshot. If the segment has no
        pin, return the seconds since the uploader noticed the segment.
        """
        _, snapshot = list(self._status_of_pins()) or (None, None)
        return now_s - self.noticed_s if snapshot is None else max(0.0, time.time() - snapshot.st_mtime)

    def open(self) -> OpenSegment:
        """Open the files under new descriptors, which the caller closes. The caller holds the partition's lock.

        An open file of a network file system may become stale. Then close the files, and open them by their names.
        """
        if self.held is not None and _is_stale(self.held):
            self.close()
            self.described = None
        if self.held is not None:
            opened = reopen_segment(self.held)
        else:
            opened = open_segment(self.place if self.link is None else self.link.place(self.place))
        return replace(opened, place=self.place)  # a listing may have corrected the end since the files were opened

    def hold(self) -> OpenSegment:
        """Open the segment's files, so that they stay readable after the broker deletes them.

        Raise OSError or TieredStoreError if the files cannot be opened.
        """
        self.is_confirmed = self.is_confirmed and self.is_pinned
        self.held = held = self.open()
        self.incomplete_since_s = None
        return held

    def first_later(self, epoch: int, lock: AbstractContextManager[object]) -> int | None:
        """Return the first offset that a leader of a later epoch than ``epoch`` wrote. Return None if there is no such
        offset, or if the segment is unreadable. ``lock`` is the partition's.
        """
        with contextlib.suppress(TieredStoreError, OSError):
            with lock:
                held = self.open()
            with contextlib.closing(held):
                extent = scan_log(held.log.descriptor, held.size_in_bytes, self.base_offset, str(self.place))
                return next((start for own, start in extent.leader_epochs if own > epoch), None)
        return None

    def lose(self, reason: str) -> None:
        """Record why the segment cannot be uploaded, unless an earlier reason is recorded already."""
        self.lost = self.lost or reason

    def let_go(self, reason: str) -> None:
        """Close the open files and remove the hard links of the segment, to free disk space. The segment then counts as
        lost."""
        self.unpin()
        self.described = None
        self.lose(reason)

    def has_come(self) -> bool:
        """Return True if a missing file now exists, so that the segment is not lost after all."""
        if self.incomplete_since_s is None:
            return False
        with contextlib.suppress(TieredStoreError, OSError):
            self.open().close()
            self.lost = self.incomplete_since_s = None
            return True
        return False

    def take_link(self, link: Link | None) -> None:
        """Keep a hard link as a pin, and record in it the segment's end, and that the segment is replicated."""
        if link is not None and link.next_offset > self.next_offset:
            link = link.end_at(self.next_offset)
        self.link = link
        if link is not None and self.is_replicated:
            link.mark_replicated()

    def mark_replicated(self) -> None:
        """Record that the segment is below the high watermark, so that no clean election truncates it.

        If the segment has a hard link, the link keeps this information for a later process.
        """
        self.is_replicated = True
        if self.link is not None:
            self.link.mark_replicated()

    def close(self) -> None:
        """Close the open files; hard links stay."""
        held, self.held = self.held, None
        if held is not None:
            held.close()

    def unpin(self) -> None:
        """Close the open files, and remove the hard links."""
        self.close()
        link, self.link = self.link, None
        if link is not None:
            link.remove()


def is_stub(place: FoundSegment) -> bool:
    """Return True for an empty deleted log. A broker creates such a log when it begins to move a partition to another
    disk."""
    if not place.is_deleted:
        return False
    log = place.path("log")
    status = _status(log) or _status(log.with_suffix(""))
    return status is not None and status.st_size == 0


def _is_stale(held: OpenSegment) -> bool:
    try:
        os.fstat(held.log.descriptor)
    except OSError as error:
        return error.errno == errno.ESTALE
    return False


def _status(path: Path | int) -> os.stat_result | None:
    try:
        return path.stat() if isinstance(path, Path) else os.fstat(path)
    except OSError:
        return None


def _same(one: os.stat_result | None, other: os.stat_result | None) -> bool:
    return one is not None and other is not None and os.path.samestat(one, other)


@contextlib.contextmanager
def cache_as_it_was(descriptor: int) -> Generator[None]:
    """Drop the file's pages that the block read into the page cache. Keep pages that were cached before.

    ``descriptor`` must be the caller's own, not shared with another process. If the system cannot list cached pages,
    drop nothing.
    """
    absent = list(list_uncached(descriptor))
    try:
        yield
    finally:
        for start, length in absent:
            with contextlib.suppress(OSError):
                os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)


def list_uncached(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yield the uncached ranges (start, length) of a file, in blocks of 1 MiB. Yield nothing if the system cannot list
    cached pages."""
    size = os.fstat(descriptor).st_size
    start: int | None = None
    try:
        # Turn read-ahead off, because otherwise the check of an uncached page would also load the following pages.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for offset in range(0, size, _BLOCK):
            if _is_cached(descriptor, offset):
                if start is not None:
                    yield start, offset - start
                    start = None
            elif start is None:
                start = offset
    except OSError:  # the file system does not support RWF_NOWAIT
        return
    finally:
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_NORMAL)
    if start is not None:
        yield start, size - start


def _is_cached(descriptor: int, offset: int) -> bool:
    """Return True if the byte at ``offset`` can be read without waiting for the disk."""
    try:
        os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno in _WOULD_WAIT:
            return False
        raise
    return True
