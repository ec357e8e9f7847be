"""Files of closed segments, held open: what the broker deletes can still be shipped, within bounds.

A deleted file that is held keeps its room on the disk, and too full a disk stops a broker: where it is nearly full the
oldest deleted segments are let go, and are lost. So is what is deleted while too many files are held.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tieredstore.errors import TieredStoreError
from tieredstore.kafka.held_segment import SegmentIncomplete
from tieredstore.uploader.closed_segment import ClosedSegment
from tieredstore.uploader.hold_dir import HoldDir
from tieredstore.uploader.partition import Partition

_logger: Final = logging.getLogger(__name__)

INCOMPLETE_S: Final = 30.0
"""How long a file that a broker writes just after the next log may be missing."""

FILES_OF_A_SEGMENT: Final = 5
_OTHER_FILES: Final = 1024
"""Descriptors that the rest of the process may need."""

_TOO_MANY: Final = frozenset({errno.EMFILE, errno.ENFILE})


@dataclass(frozen=True, slots=True)
class Held:
    """What is held now. ``unlinked_bytes`` are of logs that have no name any more."""

    files: int
    unlinked_bytes: int
    incomplete: int
    unheld: int


class Holds:
    """Opens and lets go; called by one thread at a time."""

    def __init__(self, max_files: int, min_free_percent: int, links: HoldDir | None = None) -> None:
        """``links``: files are linked there too, which more may be than open."""
        self._links = links
        self._max_files = max(FILES_OF_A_SEGMENT, min(max_files, _raised_limit(max_files)))
        self._min_free_percent = min_free_percent
        self._said: set[str] = set()

    def renew(self, partitions: Iterable[Partition], now_s: float) -> Held:
        """Hold what is closed, those first that the broker is about to delete, as far as the bounds let it."""
        all_of_them = list(partitions)
        entries = [(partition, segment) for partition in all_of_them for segment in _segments(partition)]
        files = sum(len(segment.held.files) for _, segment in entries if segment.held is not None)
        # Of thousands that wait most are held: each look costs what is new, and little for the others.
        new = sorted((entry for entry in entries if _may_be_held(entry[1])), key=_turn)
        room: Iterator[tuple[Partition, ClosedSegment]] | None = None
        for partition, segment in new:
            if files + FILES_OF_A_SEGMENT > self._max_files:
                if self._links is not None and self._links.is_working:
                    self._only_link(partition, segment, now_s)
                    continue
                if not segment.place.is_deleted:
                    break
                room = room or iter(sorted(entries, key=_turn, reverse=True))
                files -= self._make_room(room)
                if files + FILES_OF_A_SEGMENT > self._max_files:
                    break
            files += self._hold(partition, segment, now_s)
        ours = [entry for entry in entries if entry[1].place.is_deleted and entry[1].is_only_ours]
        # What another broker leads is let go first.
        self._spare_disks(sorted(ours, key=lambda entry: (not entry[0].is_followed, _turn(entry))))
        held = [segment.held for _, segment in entries if segment.held is not None]
        return Held(
            sum(len(segment.files) for segment in held),
            sum(segment.size_in_bytes for _, segment in ours if segment.held is not None or segment.kept is not None),
            sum(segment.incomplete_since_s is not None for _, segment in entries),
            sum(segment.held is None and segment.kept is None and segment.lost is None for _, segment in entries),
        )

    def _hold(self, partition: Partition, segment: ClosedSegment, now_s: float) -> int:
        with partition.lock:
            try:
                segment.held, partition.is_unheld = segment.open(), False
            except SegmentIncomplete as error:
                if segment.incomplete_since_s is None:
                    segment.incomplete_since_s = now_s
                elif now_s - segment.incomplete_since_s > INCOMPLETE_S and not partition.is_followed:
                    segment.lost = str(error)
                return 0
            except TieredStoreError as error:
                segment.lost = str(error)
                return 0
            except OSError as error:
                self._say_once(f"{segment.place} cannot be held: {error}; it is tried again")
                return self._max_files if error.errno in _TOO_MANY else 0
            segment.incomplete_since_s = None
            if self._links is not None and segment.kept is None:
                segment.kept = self._links.keep(partition.where, segment.held, segment.epochs)
            return len(segment.held.files)

    def _only_link(self, partition: Partition, segment: ClosedSegment, now_s: float) -> None:
        """Of what is too much to be held open the links are enough."""
        with partition.lock:
            if segment.kept is None and self._hold(partition, segment, now_s):
                segment.let_go()

    def _make_room(self, newest_first: Iterator[tuple[Partition, ClosedSegment]]) -> int:
        """Let go the newest segment that nobody deletes yet. Of those that are being deleted none is worth another."""
        for partition, segment in newest_first:
            if segment.held is not None and not segment.place.is_deleted:
                return _let_go(partition, segment)
        return 0

    def _spare_disks(self, ours: Sequence[tuple[Partition, ClosedSegment]]) -> None:
        """Let the oldest deleted files go where a disk is nearly full."""
        full: dict[Path, bool] = {}
        for partition, segment in ours:
            disk = segment.place.directory.parent
            if full.get(disk, True):
                full[disk] = free_percent(disk) < self._min_free_percent
                if full[disk]:
                    _give_up(partition, segment, f"it was let go: the disk of {disk} is nearly full")

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said and len(self._said) < 1000:
            self._said.add(sentence)
            _logger.warning("%s", sentence)


def free_percent(folder: Path) -> float:
    """How much of the folder's disk is free for whoever is not root; 100 if that cannot be told."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return 100.0
    return 100.0 * disk.f_bavail / max(1, disk.f_blocks)


def _may_be_held(segment: ClosedSegment) -> bool:
    return segment.held is None and segment.lost is None and (not segment.absences or segment.kept is not None)


def _turn(entry: tuple[Partition, ClosedSegment]) -> tuple[bool, bool, float, int]:
    partition, segment = entry
    place = segment.place
    return not place.is_deleted, partition.is_followed, segment.noticed_s, place.base_offset


def _segments(partition: Partition) -> list[ClosedSegment]:
    with partition.lock:
        segments = list(partition.segments.values())
        if not partition.is_followed or partition.followed_to is not None:
            return segments
        # As long as it is not known how far they are shipped, most are: only what is gone soon cannot wait.
        return [segment for segment in segments if segment.place.is_deleted or segment.held is not None]


def _let_go(partition: Partition, segment: ClosedSegment) -> int:
    """How many files were closed; none of a segment that is being shipped."""
    with partition.lock:
        if segment.held is None or (partition.is_busy and segment is partition.first):
            return 0
        count = len(segment.held.files)
        segment.let_go()
        segment.described = None
        return count


def _give_up(partition: Partition, segment: ClosedSegment, lost: str) -> None:
    """Let the files go, the links to them too, unless it is being shipped."""
    with partition.lock:
        if not (partition.is_busy and segment is partition.first):
            segment.give_up()
            segment.described = None
            segment.lost = segment.lost or lost


def _raised_limit(max_files: int) -> int:
    """How many files can be held after the process's limit was raised as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max_files + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
        soft = reachable
    if soft != resource.RLIM_INFINITY and soft < wanted:
        _logger.warning(
            "the process may open %d files (ulimit -n), too few to hold %d: %d are held at most",
            soft, max_files, soft // 2,
        )  # fmt: skip
        return soft // 2
    return max_files
