"""The partitions in the broker's log directories, found by repeated checks.

Each check lists only the folders that have changed. Events of the file system only make the next check come earlier, so
a lost event does no harm.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.installation import Extra
from tieredstore.kafka.checkpoints import (
    have_same_leaders,
    join_epochs,
    parse_leader_epochs,
    parse_partition_metadata,
)
from tieredstore.kafka.logdir import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    discover_deleted,
    partition_of,
)
from tieredstore.model import TopicIdPartition, TopicPartition, Uuid
from tieredstore.process.forks import ForkSafeLock
from tieredstore.uploader.links import Links
from tieredstore.uploader.partition import Partition
from tieredstore.uploader.segment import Segment

if TYPE_CHECKING:
    from watchdog.observers.api import ObservedWatch

_logger: Final = logging.getLogger(__name__)

_RACY_NS: Final = 2_000_000_000
"""If a folder changed less than two seconds before its listing, list it again, because a later change may get the same
modification time."""

_MOST_LISTINGS: Final = 3
"""Maximum number of further listings of a folder while its leader epoch checkpoint keeps changing."""


@dataclass(slots=True)
class _Folder:
    """A folder's partition, and the folder's modification time at the last check.

    While ``is_settled`` is true, the uploader lists the folder again only if its modification time changes.
    """

    where: TopicIdPartition | None = None
    looked_mtime_ns: int = -1
    is_settled: bool = False
    warned: str | None = None


@dataclass(slots=True)
class _LogDir:
    """The names in a log directory's last listing. ``identity`` is the directory's device and inode number at the first
    listing.

    ``has_failed`` is true while the directory cannot be listed.
    """

    paths: dict[str, Path | None] = field(default_factory=dict[str, "Path | None"])
    identity: tuple[int, int] | None = None
    has_failed: bool = False


class Disk:
    """The partitions in the log directories. One thread calls ``sweep``; the other methods are thread-safe.

    A partition is identified by topic id and number; its folder may change. While a broker moves a partition to another
    log directory, both directories have a folder of the partition. The uploader reads the first folder until the broker
    deletes it.
    """

    def __init__(
        self,
        log_dirs: Iterable[Path],
        is_wanted: Callable[[str], bool],
        links: Links,
        monotonic: Callable[[], float],
        derived_id: Callable[[str], Uuid | None],
        failed: Iterable[Path],
    ) -> None:
        """Watch the log directories, and reuse the hard ``links`` that an earlier process left.

        ``derived_id`` returns the id of a topic without a topic id, or None if the store's layout needs topic ids.
        ``failed`` are further log directories, which failed before the start. They are not read, and nobody knows their
        partitions.
        """
        self._log_dirs = {path: _LogDir() for path in log_dirs}
        self._is_wanted, self._links, self._monotonic, self.derived_id = is_wanted, links, monotonic, derived_id
        self._lock = ForkSafeLock()
        self._folders: dict[Path, _Folder] = {}
        self._partitions: dict[TopicIdPartition, Partition] = {}
        self._touched: set[Path] = set()
        self._failed_before = frozenset(failed)
        self._awaited: set[TopicPartition] | None = None
        """The names of folders that were not identified when links were last adopted; None before the first time."""

    @property
    def failed(self) -> frozenset[Path]:
        """The log directories that had failed at the start, or whose last listing failed."""
        return self._failed_before.union(path for path, known in self._log_dirs.items() if known.has_failed)

    @property
    def unreadable(self) -> dict[TopicPartition, str]:
        """The partitions whose folders could not be read in the last two checks, each with a sentence that says why.
        Partitions that are read from another log directory are left out.
        """
        warned = {path: folder.warned for path, folder in list(self._folders.items()) if folder.warned}
        read = {one.name for one in self.partitions if one.folder and one.folder not in warned} if warned else ()
        return {name: sentence for path, sentence in warned.items() if (name := partition_of(path)) not in read}

    @property
    def unidentified(self) -> set[TopicPartition]:
        """The names of the folders whose topic ids could not be read yet."""
        return {partition_of(path) for path, folder in list(self._folders.items()) if folder.where is None}

    @property
    def names(self) -> set[TopicPartition]:
        """The names of all partitions, also of unidentified folders."""
        return self.unidentified | {partition.name for partition in self.partitions}

    @property
    def partitions(self) -> list[Partition]:
        """Return all partitions that have a folder or pins (open files or links that keep segments)."""
        with self._lock:
            return list(self._partitions.values())

    def touch(self, folder: Path) -> None:
        """Record an event in the folder, so that the next sweep lists the folder even if its modification time is
        unchanged."""
        with self._lock:
            self._touched.add(folder)

    def sweep(self, *, only_touched: bool = False) -> None:
        """Check all folders and list the changed ones. With ``only_touched``, check only folders that had events.

        If a log directory cannot be listed, its partitions stay known to the uploader.
        """
        with self._lock:
            touched, self._touched = self._touched, set()
        if only_touched:
            self._look_at(touched)
            return
        seen: set[Path] = set()
        for log_dir in self._log_dirs:
            folders = self._folders_of(log_dir)
            if folders is None:
                seen |= {path for path in self._folders if path.parent == log_dir}
                continue
            for path, mtime_ns in folders:
                seen.add(path)
                folder = self._folders.setdefault(path, _Folder())
                if path in touched or not folder.is_settled or mtime_ns != folder.looked_mtime_ns:
                    self._look(path, folder, mtime_ns)
        for path in self._folders.keys() - seen:
            del self._folders[path]
        self._locate()
        if self._awaited is None or self._awaited:
            self._adopt_orphans()

    def relist(self, partition: Partition) -> bool:
        """List the folder of one partition now. Return False if the listing fails, for example because the partition
        has moved."""
        folder = partition.folder
        with contextlib.suppress(TieredStoreError, OSError):
            return folder is not None and self._list(partition, folder)
        return False

    def has_changed(self, partition: Partition, segment: Segment) -> bool:
        """Return True if the partition's folder has other records at the segment's offsets than when it was listed: the
        topic was re-created, or a later leader has truncated the log. Call this after opening files by their names.
        """
        folder = partition.folder
        if folder is None:
            return False
        try:
            epochs = parse_leader_epochs((folder / LEADER_EPOCH_CHECKPOINT).read_bytes())
            are_same = have_same_leaders(segment.epochs, epochs, segment.base_offset, segment.next_offset - 1)
            return not are_same or self._identify(folder) != partition.where
        except FileNotFoundError:
            # The broker has renamed the folder since the files were opened. A new folder has these two files before it
            # has a closed segment.
            return False
        except (TieredStoreError, OSError):
            return True

    def remove(self, partition: Partition) -> None:
        """Forget a partition that has neither a folder nor segments kept by open files or links (pins)."""
        with self._lock:
            if self._partitions.get(partition.where) is partition:
                del self._partitions[partition.where]

    # The parts of a sweep

    def _look_at(self, touched: Iterable[Path]) -> None:
        for path in touched:
            folder = self._folders.get(path)
            if folder is None:
                continue
            try:
                mtime_ns = path.stat().st_mtime_ns
            except OSError:
                # Do nothing for a folder that was deleted or moved, because the next complete sweep handles it.
                self.touch(path)
            else:
                self._look(path, folder, mtime_ns)

    def _adopt_orphans(self) -> None:
        """Add the partitions that only hard links keep. An unidentified folder may belong to such a partition, so do
        not add partitions of its name until it is identified or gone.
        """
        unknown = self.unidentified
        awaited = unknown if self._awaited is None else self._awaited & unknown
        if self.failed or awaited == self._awaited:
            return
        self._awaited = awaited
        orphans: list[TopicIdPartition] = []
        with _log_unreadable_links():
            orphans = self._links.orphans(self._partitions, self._is_wanted)
        for where in orphans:
            if (where.topic, where.partition) not in awaited:
                with _log_unreadable_links():
                    self._add(where, None)

    def _locate(self) -> None:
        """Find the new folder of each partition whose folder is gone or now belongs to a re-created topic.

        If a log directory cannot be listed, or a folder cannot be read, its partitions keep their folders, unless
        another log directory has the partition. The broker may have copied the partition there from other brokers.
        """
        failed = self.failed
        bad = {path for path, folder in self._folders.items() if folder.warned or path.parent in failed}
        for partition in self.partitions:
            path = partition.folder
            folder = None if path is None else self._folders.get(path)
            is_there = folder is not None and folder.where == partition.where
            if is_there and path not in bad:
                continue
            places = (path for path, other in self._folders.items() if other.where == partition.where)
            elsewhere = min(places, key=bad.__contains__, default=None)
            if is_there and elsewhere in bad:
                continue
            if partition.folder is not None or elsewhere is not None:
                partition.lie_in(elsewhere)
            if elsewhere is not None:
                self.relist(partition)
            elif not partition.has_pins and not partition.turn.is_busy:
                self.remove(partition)

    def _folders_of(self, log_dir: Path) -> list[tuple[Path, int]] | None:
        """Return the partitions' folders with their modification times; None if the disk does not answer."""
        folders: list[tuple[Path, int]] = []
        known, paths, unreadable = self._log_dirs[log_dir], dict[str, Path | None](), dict[Path, OSError]()
        try:
            self._require_same(log_dir)
            with os.scandir(log_dir) as entries:
                for entry in entries:
                    name = entry.name
                    path = paths[name] = known.paths[name] if name in known.paths else self._find_wanted(log_dir, name)
                    if path is None:
                        continue
                    # An unchanged folder is not listed, so read only its modification time.
                    try:
                        if entry.is_dir():
                            folders.append((path, entry.stat().st_mtime_ns))
                    except FileNotFoundError:
                        continue
                    except OSError as error:
                        unreadable[path] = error
            if unreadable and not folders:
                raise next(iter(unreadable.values()))
        except OSError as error:
            if not known.has_failed:
                _logger.error("cannot list log directory %s: %s", log_dir, error.strerror)  # noqa: TRY400
            known.has_failed = True
            return None
        known.paths, known.has_failed = paths, False
        # If only some folders are unreadable, list them at each check, as if they had changed just now. The disk may
        # be able to read them, and otherwise a warning names them.
        return [*folders, *((path, time.time_ns()) for path in unreadable)]

    def _require_same(self, log_dir: Path) -> None:
        """Raise OSError if the path is now another folder. It may be the empty mount point of an unmounted disk, which
        proves nothing about the disk's contents.
        """
        status = log_dir.stat()
        identity = status.st_dev, status.st_ino
        known = self._log_dirs[log_dir]
        known.identity = known.identity or identity
        if known.identity != identity:
            raise OSError(
                errno.ESTALE, "the folder is not the one found at startup; if that is intended, restart the uploader"
            )

    def _find_wanted(self, log_dir: Path, name: str) -> Path | None:
        """Return the folder of that name if it is a partition of a selected topic."""
        try:
            topic, _ = partition_of(Path(name))
        except ConfigError:
            return None
        return log_dir / name if self._is_wanted(topic) else None

    def _look(self, path: Path, folder: _Folder, mtime_ns: int) -> None:
        """Identify the folder's partition. List the folder, unless the partition now has another folder."""
        looked_ns = time.time_ns()
        try:
            folder.where = self._identify(path)
            partition = self._partitions.get(folder.where)
            if partition is None:
                partition = self._add(folder.where, path)
            elif partition.folder is None:
                partition.lie_in(path)
            if partition.folder == path:
                self._list(partition, path)
        except (TieredStoreError, OSError) as error:
            # The broker creates a folder file by file, so warn only if it stays incomplete.
            folder.is_settled = False
            self._warn(folder, f"cannot ship {path} now: {error}")
            return
        folder.warned = None
        folder.looked_mtime_ns = mtime_ns
        folder.is_settled = partition.folder == path and looked_ns - mtime_ns > _RACY_NS

    def _add(self, where: TopicIdPartition, folder: Path | None) -> Partition:
        """Add a new partition, with the hard links that an earlier process left."""
        partition = Partition(where, folder)
        partition.adopt(self._links.find(where), self._monotonic())
        with self._lock:
            self._partitions[where] = partition
        return partition

    def _identify(self, folder: Path) -> TopicIdPartition:
        topic, number = partition_of(folder)
        try:
            topic_id = parse_partition_metadata((folder / PARTITION_METADATA).read_bytes())
        except FileNotFoundError:
            # Brokers before Kafka 2.8 write no topic id. For Pinterest's raw layout, which needs none, derive an id
            # from the topic's name.
            derived = self.derived_id(topic)
            if derived is None:
                raise FileNotFoundError(
                    f"it has no {PARTITION_METADATA}: set the brokers' inter.broker.protocol.version to 2.8 or later"
                ) from None
            topic_id = derived
        return TopicIdPartition(topic_id, topic, number)

    def _list(self, partition: Partition, folder: Path) -> bool:
        with partition.listing:
            return self._list_alone(partition, folder)

    def _list_alone(self, partition: Partition, folder: Path) -> bool:
        """List the folder. The caller holds the lock ``listing``, because otherwise a slow, older listing could undo a
        newer listing."""
        if partition.folder != folder:
            return False
        pinned = [segment for segment in partition.pending() if segment.is_pinned]
        checkpoint, listed = (folder / LEADER_EPOCH_CHECKPOINT).read_bytes(), discover_deleted(folder)
        for _ in range(_MOST_LISTINGS):
            # Read the checkpoint again after the listing, so that the checkpoint has the leader epoch of every listed
            # segment.
            before, checkpoint = checkpoint, (folder / LEADER_EPOCH_CHECKPOINT).read_bytes()
            if checkpoint == before:
                break
            listed = discover_deleted(folder)
        # Identify the folder after the listing, because the topic may have been re-created meanwhile.
        if self._identify(folder) != partition.where:
            return False
        # A broker creates the checkpoint empty, and writes it before the log's first record.
        is_new = not checkpoint and len(listed) <= 1 and not partition.segments
        epochs = () if is_new else parse_leader_epochs(checkpoint)
        # Keep the known epochs that the checkpoint no longer has, but only if the checkpoint's first epoch was known
        # before. A broker that was down for a long time restarts its log at the leader's first offset. In its new
        # checkpoint, the first epoch begins at this offset, although this epoch may have begun long before. The epochs
        # known before would then seem to last until this offset, and readers would ignore other brokers' uploads with
        # the true epochs. Epochs that are missing do no harm, because readers add them from other brokers' uploads.
        is_whole = not epochs or any(epoch == epochs[0][0] for epoch, _ in partition.epochs)
        if is_whole:
            epochs = join_epochs(partition.epochs, epochs)
        if not partition.take(listed, epochs, self._monotonic()):
            return False
        for segment in pinned:
            segment.is_confirmed = True
        return True

    def _warn(self, folder: _Folder, sentence: str) -> None:
        # Warn only at the second failure, because most incomplete folders are complete a moment later.
        if folder.warned is None:
            folder.warned = ""
        elif folder.warned != sentence:
            folder.warned = sentence
            _logger.warning("%s", sentence)


@contextlib.contextmanager
def _log_unreadable_links() -> Generator[None]:
    try:
        yield
    except OSError as error:
        stay = "stay as they are until the uploader is restarted"
        _logger.error("links of partitions without a folder cannot be read, and %s: %s", stay, error)  # noqa: TRY400


_EVENTS: Final = ("FileCreatedEvent", "FileMovedEvent", "FileDeletedEvent")


class _Handler:
    """Receives a folder's file system events: watchdog calls ``dispatch``, and the next listing finds the file."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change

    def dispatch(self, _: object) -> None:
        self._on_change()


class FolderWatch:
    """Calls ``on_change`` with the folder in which a file was created, deleted or renamed. Appends cause no call.

    If file system events are lost or unsupported (a full table of watches, a network disk), the uploader notices
    changes later. The first failure to watch is logged.
    """

    def __init__(self, on_change: Callable[[Path], None]) -> None:
        self._on_change = on_change
        self._watches: dict[Path, ObservedWatch] = {}
        self._observer: Any = None
        """None if changes cannot be watched."""
        self._events: Any = None
        try:
            with Extra("it", "uploader"):
                from watchdog import events  # noqa: PLC0415  an extra that --once does without
                from watchdog.observers import Observer  # noqa: PLC0415
        except ConfigError as error:
            self._give_up(str(error))
            return
        self._events = events
        try:
            self._observer = Observer()
            self._observer.start()
        except OSError as error:
            self._give_up(str(error))

    def watch(self, folders: Iterable[Path]) -> bool:
        """Watch exactly these folders. Return True if a folder is new. The caller must then list it, because its
        earlier events were missed."""
        if self._observer is None:
            return False
        wanted = set(folders)
        for folder in self._watches.keys() - wanted:
            with contextlib.suppress(Exception):  # a deleted folder no longer has a watch
                self._observer.unschedule(self._watches[folder])
            del self._watches[folder]
        before = len(self._watches)
        for folder in wanted - self._watches.keys():
            try:
                self._watches[folder] = self._add(folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._give_up(f"{folder} cannot be watched: {error.strerror}")
                return False
        return len(self._watches) > before

    def close(self) -> None:
        """Stop watching."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            observer.join(2.0)

    def _add(self, folder: Path) -> ObservedWatch:
        kinds = [getattr(self._events, name) for name in _EVENTS]
        watch: ObservedWatch = self._observer.schedule(
            _Handler(partial(self._on_change, folder)), str(folder), event_filter=kinds
        )
        return watch

    def _give_up(self, reason: str) -> None:
        _logger.warning(
            "the system reports no file changes, so folders are scanned every uploader.scan.interval.ms: %s",
            reason,
        )
        self.close()
