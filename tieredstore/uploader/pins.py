"""Files of closed segments, held open or linked: what the broker deletes can still be shipped, within bounds.

A deleted file that is pinned keeps its room on the disk, and too full a disk stops a broker: where it is nearly full
the oldest deleted segments are let go, and are lost. So is what is deleted while too many files are held.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tieredstore.errors import TieredStoreError
from tieredstore.kafka.held_segment import SegmentIncomplete
from tieredstore.uploader.links import Links
from tieredstore.uploader.partition import Partition, Role, Segment

_logger: Final = logging.getLogger(__name__)

INCOMPLETE_S: Final = 30.0
"""How long a file that a broker writes just after the next log may be missing."""

FILES_OF_A_SEGMENT: Final = 5
_OTHER_FILES: Final = 1024
"""Descriptors that the rest of the process may need."""

_TOO_MANY: Final = frozenset({errno.EMFILE, errno.ENFILE})

_Entry: TypeAlias = tuple[Partition, Segment]


@dataclass(frozen=True, slots=True)
class Held:
    """What is pinned now. ``unlinked_bytes`` are of logs that only the pins keep."""

    files: int
    unlinked_bytes: int
    incomplete: int
    unheld: int


class Pins:
    """Pins and unpins; called by one thread at a time."""

    def __init__(self, max_files: int, min_free_percent: int, links: Links) -> None:
        """Files are linked too where there is a folder for that: more of them than may be open."""
        self._links = links
        self._max_files = max(FILES_OF_A_SEGMENT, min(max_files, _raise_limit(max_files)))
        self._min_free_percent = min_free_percent
        self._said: set[str] = set()

    def renew(self, partitions: Iterable[Partition], now_s: float) -> Held:
        """Pin what is closed, first what the broker is about to delete, as far as the bounds allow."""
        entries = [
            (partition, segment)
            for partition in partitions
            for segment in partition.pending()
            if segment.is_pinned or _is_wanted(partition, segment)
        ]
        files = sum(len(segment.held.files) for _, segment in entries if segment.held is not None)
        # Of thousands that wait most are held: each look costs what is new, and little for the others.
        new = sorted((entry for entry in entries if _may_be_held(entry)), key=_turn)
        room: Iterator[_Entry] | None = None
        for partition, segment in new:
            if files + FILES_OF_A_SEGMENT > self._max_files:
                if self._links.is_working:
                    self._only_link(partition, segment, now_s)
                    continue
                if not segment.place.is_deleted:
                    break
                room = room or iter(sorted(entries, key=_turn, reverse=True))
                files -= self._make_room(room)
                if files + FILES_OF_A_SEGMENT > self._max_files:
                    break
            files += self._hold(partition, segment, now_s)
        if self._links.is_on:
            self._link_again(entries)
        ours = [entry for entry in entries if entry[1].place.is_deleted and entry[1].is_only_ours]
        # What others can ship as well goes first.
        self._spare_disks(sorted(ours, key=lambda entry: (entry[0].role is Role.LED, _turn(entry))))
        return Held(
            sum(len(segment.held.files) for _, segment in entries if segment.held is not None),
            sum(segment.size_in_bytes for _, segment in ours if segment.is_pinned),
            sum(segment.incomplete_since_s is not None for _, segment in entries),
            sum(not segment.is_pinned and segment.lost is None for _, segment in entries),
        )

    def _hold(self, partition: Partition, segment: Segment, now_s: float) -> int:
        """Open the files of a segment, and link them; return how many count against the bound."""
        with partition.lock:
            if not partition.has(segment):
                return 0
            try:
                segment.held = segment.open()
            except SegmentIncomplete as error:
                if segment.incomplete_since_s is None:
                    segment.incomplete_since_s = now_s
                elif now_s - segment.incomplete_since_s > INCOMPLETE_S and partition.role is Role.LED:
                    segment.lost = str(error)
                return 0
            except TieredStoreError as error:
                segment.lost = str(error)
                return 0
            except OSError as error:
                self._say_once(f"{segment.place} cannot be held: {error}; it is tried again")
                return self._max_files if error.errno in _TOO_MANY else 0
            segment.incomplete_since_s = None
            if segment.next_offset <= partition.replicated_to:
                segment.mark_replicated()
            self._link(partition, segment)
            return len(segment.held.files)

    def _link(self, partition: Partition, segment: Segment) -> None:
        if segment.held is not None and segment.link is None and partition.has(segment):
            segment.take_link(self._links.make(partition.where, segment.held, segment.epochs))

    def _link_again(self, entries: Iterable[_Entry]) -> None:
        """Link what is only held since a disk was too full, or refused; after a failure not before the next look."""
        for partition, segment in entries:
            if segment.held is not None and segment.link is None and segment.lost is None:
                with partition.lock:
                    self._link(partition, segment)
                if not self._links.is_working:
                    return

    def _only_link(self, partition: Partition, segment: Segment, now_s: float) -> None:
        """Of what is too much to be held open the links are enough."""
        with partition.lock:
            if segment.link is None and self._hold(partition, segment, now_s):
                segment.close()

    def _make_room(self, newest_first: Iterator[_Entry]) -> int:
        """Close the newest segment that nobody deletes yet. Of those that are being deleted none is worth another."""
        for partition, segment in newest_first:
            with partition.lock:
                if segment.held is not None and not segment.place.is_deleted:
                    count = len(segment.held.files)
                    segment.close()
                    segment.described = None
                    return count
        return 0

    def _spare_disks(self, ours: Sequence[_Entry]) -> None:
        """Let the oldest deleted files go where a disk is nearly full."""
        full: dict[Path, bool] = {}
        for partition, segment in ours:
            disk = segment.disk
            if full.get(disk, True):
                full[disk] = free_percent(disk) < self._min_free_percent
                if full[disk]:
                    with partition.lock:
                        segment.unpin()
                        segment.described = None
                        segment.lost = segment.lost or f"it was let go: the disk of {disk} is nearly full"
                    if partition.role is not Role.LED:
                        _logger.warning("%s was let go unshipped: the disk of %s is nearly full", segment.place, disk)

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said and len(self._said) < 1000:
            self._said.add(sentence)
            _logger.warning("%s", sentence)


def free_percent(folder: Path) -> float:
    """Return how much of the folder's disk is free for users other than root; 100 if the system does not say."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return 100.0
    return 100.0 * disk.f_bavail / max(1, disk.f_blocks)


def _may_be_held(entry: _Entry) -> bool:
    partition, segment = entry
    is_new = segment.held is None and segment.lost is None and _is_wanted(partition, segment)
    return is_new and (not segment.absences or segment.link is not None)


def _turn(entry: _Entry) -> tuple[bool, bool, float, int]:
    partition, segment = entry
    return not segment.place.is_deleted, partition.role is not Role.LED, segment.noticed_s, segment.base_offset


def _is_wanted(partition: Partition, segment: Segment) -> bool:
    """Whether the segment is to be pinned; what is pinned counts for the bounds in any role."""
    if partition.role is Role.FOLLOWED:
        # As long as it is not known how far they are shipped, most are: only what is gone soon cannot wait.
        return partition.shipped is not None or segment.place.is_deleted
    return partition.role is Role.LED


def _raise_limit(max_files: int) -> int:
    """Raise the process's limit as far as it goes; return how many files can be held then."""
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
