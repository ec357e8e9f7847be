"""Pins of closed segments: open files or hard links. A pinned segment can be uploaded after the broker deletes it.

Segments of followed partitions are pinned too, because this broker may lead next. This is a separate module because
limits of open files and disk space decide about pins, independently of uploads.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tieredstore.errors import ConfigError, CorruptDataError, TieredStoreError
from tieredstore.kafka.held_segment import SegmentIncompleteError
from tieredstore.process.log_once import LogOnce
from tieredstore.uploader.links import Links
from tieredstore.uploader.partition import Partition, Role
from tieredstore.uploader.segment import Segment
from tieredstore.uploader.settled import high_watermarks, read_last_epoch
from tieredstore.uploader.target import Target

_logger: Final = logging.getLogger(__name__)

INCOMPLETE_S: Final = 30.0
"""Seconds for which a file of a closed segment may be missing, because the broker writes some files a moment later."""

FILES_OF_A_SEGMENT: Final = 5
_OTHER_FILES: Final = 1024
"""File descriptors that pins must leave for the rest of the process."""

_TOO_MANY: Final = frozenset({errno.EMFILE, errno.ENFILE})

_Entry: TypeAlias = tuple[Partition, Segment]


@dataclass(frozen=True, slots=True)
class Held:
    """Totals of the present pins (open files and hard links). ``unlinked_bytes`` is the size of the logs that the
    broker deleted and only pins keep.
    """

    files: int
    unlinked_bytes: int
    incomplete: int
    unheld: int


class Pins:
    """Keeps segments by open files or hard links (pins), and releases them. Only one thread at a time may use this
    object."""

    def __init__(
        self, max_files: int, min_free_percent: int, links: Links, has_changed: Callable[[Partition, Segment], bool]
    ) -> None:
        """Set the limits. Hard links, if there is a folder for them, are not limited by ``max_files``.

        ``has_changed`` returns True if a segment's files are no longer those that were listed.
        """
        self._links, self._has_changed = links, has_changed
        self._max_files = max(FILES_OF_A_SEGMENT, min(max_files, _raise_limit(max_files)))
        self._min_free_percent = min_free_percent
        self._unlinked: set[Path] = set()
        """The partitions' folders whose links fail in this round. Links are not tried again until the next round."""
        self._log = LogOnce(_logger)

    def renew(self, partitions: Iterable[Partition], now_s: float) -> Held:
        """Pin closed segments within the limits, beginning with those that the broker is about to delete."""
        self._unlinked.clear()
        entries = [
            (partition, segment)
            for partition in partitions
            for segment in partition.pending()
            if segment.is_pinned or _is_wanted(partition, segment)
        ]
        files = sum(len(segment.held.files) for _, segment in entries if segment.held is not None)
        # Most of thousands of segments are open already, so sort only segments without open files.
        new = sorted((entry for entry in entries if _may_be_held(entry)), key=_turn)
        room: Iterator[_Entry] | None = None
        for partition, segment in new:
            if files + FILES_OF_A_SEGMENT > self._max_files:
                if self._only_link(partition, segment, now_s) or not segment.place.is_deleted:
                    continue
                room = room or iter(sorted(entries, key=_turn, reverse=True))
                files -= self._make_room(room)
                if files + FILES_OF_A_SEGMENT > self._max_files:
                    room = iter(())  # close no more files, because that makes no room
                    continue
            files += self._hold(partition, segment, now_s)
        # Link open segments whose earlier link failed (a full disk, or a refusal).
        for partition, segment in entries if self._links.is_on else ():
            if segment.held is not None and segment.link is None and segment.lost is None:
                with partition.lock:
                    self._link(partition, segment)
        ours = [entry for entry in entries if entry[1].place.is_deleted and entry[1].is_only_ours]
        # On a full disk, first drop segments of partitions that other brokers lead and can upload.
        self._spare_disks(sorted(ours, key=lambda entry: (entry[0].role is Role.LED, _turn(entry))))
        return Held(
            sum(len(segment.held.files) for _, segment in entries if segment.held is not None),
            sum(segment.size_in_bytes for _, segment in ours if segment.is_pinned),
            sum(segment.incomplete_since_s is not None for _, segment in entries),
            sum(not segment.is_pinned and segment.lost is None for _, segment in entries),
        )

    def _hold(self, partition: Partition, segment: Segment, now_s: float) -> int:
        """Open a segment's files and link them. Return the number of open files to count against the limit."""
        with partition.lock:
            if not partition.has(segment):
                return 0
            try:
                held = segment.hold()
            except SegmentIncompleteError as error:
                if segment.incomplete_since_s is None:
                    segment.incomplete_since_s = now_s
                elif now_s - segment.incomplete_since_s > INCOMPLETE_S and partition.role is Role.LED:
                    segment.lose(str(error))
                return 0
            except TieredStoreError as error:
                segment.lose(str(error))
                return 0
            except OSError as error:
                self._log.warn(f"cannot hold {segment.place}: {error}; retrying")
                return self._max_files if error.errno in _TOO_MANY else 0
            if segment.link is None and self._has_changed(partition, segment):
                segment.close()
                return 0
            if segment.next_offset <= partition.replicated_to:
                segment.mark_replicated()
            self._link(partition, segment)
            return len(held.files)

    def _link(self, partition: Partition, segment: Segment) -> None:
        held = segment.held
        if held is None or segment.link is not None or not partition.has(segment):
            return
        if held.place.directory not in self._unlinked:
            segment.take_link(self._links.make(partition.where, held, segment.epochs))
        if segment.link is None:
            self._unlinked.add(held.place.directory)

    def _only_link(self, partition: Partition, segment: Segment, now_s: float) -> bool:
        """Link a segment and close its files, because the limit of open files is reached. Return False if links are off
        or fail."""
        directory = segment.place.directory
        if not self._links.is_on or directory in self._unlinked:
            return False
        with partition.lock:
            if segment.link is None and self._hold(partition, segment, now_s):
                segment.close()
        return directory not in self._unlinked

    def _make_room(self, newest_first: Iterator[_Entry]) -> int:
        """Close the newest segment that the broker is not deleting; return the number of files closed."""
        for partition, segment in newest_first:
            with partition.lock:
                if segment.held is not None and not segment.place.is_deleted:
                    count = len(segment.held.files)
                    segment.close()
                    segment.described = None
                    return count
        return 0

    def _spare_disks(self, ours: Sequence[_Entry]) -> None:
        """While a disk is nearly full, drop the pins of its segments that the broker has deleted, the oldest first."""
        full: dict[Path, bool] = {}
        for partition, segment in ours:
            disk = segment.disk
            if full.get(disk, True):
                full[disk] = free_percent(disk) < self._min_free_percent
                if full[disk]:
                    with partition.lock:
                        segment.let_go(f"it was dropped because the disk of {disk} is nearly full")
                    if partition.role is not Role.LED:
                        _logger.warning(
                            "dropped %s without shipping it: the disk of %s is nearly full", segment.place, disk
                        )


def free_percent(folder: Path) -> float:
    """Return the percentage of the folder's disk that is free for users other than root, or 100 if unknown."""
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
    """Return True if the segment needs a pin (open files or hard links). The partition's role and progress decide
    this."""
    if partition.role is Role.FOLLOWED:
        # While it is unknown which segments the store has, pin only segments that the broker is deleting, because most
        # others are uploaded already.
        return partition.shipped is not None or segment.place.is_deleted
    return partition.role is Role.LED


def _raise_limit(max_files: int) -> int:
    """Raise the process's limit of open files as far as possible. Return the number of files that pins may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max_files + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
        soft = reachable
    if soft != resource.RLIM_INFINITY and soft < wanted:
        _logger.warning(
            "the process may open only %d files (ulimit -n), too few for uploader.hold.max.files=%d; it holds only %d",
            soft, max_files, soft // 2,
        )  # fmt: skip
        return soft // 2
    return max_files


_FIRST_PAUSE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 960.0
_AT_ONCE: Final = 50
"""Maximum number of upload watermarks to read in one round, so that thousands of new partitions cause no burst of
requests.
"""


@dataclass(slots=True)
class _Asked:
    """The time when a partition's upload watermark is read again, and the present interval between reads."""

    again_s: float = 0.0
    pause_s: float = _FIRST_PAUSE_S


class FollowedPartitions:
    """Slowly reads the upload watermarks of followed partitions, and releases the segments that their leaders have
    uploaded. Not thread-safe.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._asked: dict[Partition, _Asked] = {}

    def release(self, target: Target, partitions: Iterable[Partition]) -> None:
        """Read the upload watermarks of partitions with closed segments. A watermark that does not move is read less
        often.

        Raise StoreError if the store fails; then all segments stay pinned.
        """
        followed = [partition for partition in partitions if partition.role is Role.FOLLOWED]
        self._asked = {partition: self._asked.get(partition) or _Asked() for partition in followed}
        _mark_replicated(followed)
        now_s = self._monotonic()
        # ``partition.first`` is None if the partition has no closed segment left to upload.
        due = [partition for partition in followed if self._asked[partition].again_s <= now_s and partition.first]
        # Sort the partitions: first those whose upload watermark was never read.
        due.sort(key=lambda partition: (partition.shipped is not None, self._asked[partition].again_s))
        for partition in due[:_AT_ONCE]:
            self._ask(target, partition)

    def _ask(self, target: Target, partition: Partition) -> None:
        asked, before = self._asked[partition], partition.shipped
        try:
            watermark = target.watermarks.peek(partition.where)
        except (CorruptDataError, ConfigError) as error:
            # Only log a damaged upload watermark, because the leader's uploader repairs it, or reports how to repair
            # it.
            _logger.info("%s", error)
            watermark, passed = None, before or 0
        else:
            passed = 0 if watermark is None else watermark.next_offset
            partition.keep_early(passed, lambda: target.watermarks.begin(partition.where))
            if watermark is not None and (began := partition.epoch_began_after(watermark.leader_epoch)) is not None:
                # After an unclean election, the watermark says nothing about the later leader's records.
                passed = min(passed, began)
        # The holes of a damaged watermark are unknown, so any segment may fill one.
        partition.pass_to(passed, [(0, passed)] if watermark is None else watermark.missing_extents)
        asked.pause_s = _FIRST_PAUSE_S if passed != before else min(_LONGEST_PAUSE_S, 2 * asked.pause_s)
        asked.again_s = self._monotonic() + asked.pause_s * (0.5 + random.random() / 2)  # noqa: S311


def _mark_replicated(followed: Iterable[Partition]) -> None:
    """Mark segments as replicated if they are below the high watermark of the broker's checkpoint, because no clean
    election truncates such segments.
    """
    highs: dict[Path, dict[tuple[str, int], int]] = {}
    for partition in followed:
        folder = partition.folder
        if folder is None or not any(one.is_pinned and not one.is_replicated for one in partition.pending()):
            continue
        log_dir = folder.parent
        if log_dir not in highs:
            highs[log_dir] = high_watermarks(log_dir) or {}
        # If the log has a new epoch, it may have been truncated since the folder was listed.
        if read_last_epoch(folder) == partition.last_epoch:
            partition.mark_replicated(highs[log_dir].get(partition.name, 0))
