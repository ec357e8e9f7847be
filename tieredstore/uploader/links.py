"""Hard links to the files of closed segments. They keep a segment's bytes after the broker deletes its files, even
while no uploader runs.

A folder gets its final name only when all its links are made. Each segment has one folder::

    <hold.dir>/<topic>-<topic id>/<partition>/<base offset>-<next offset>/
        <base offset>.log .index .timeindex [.txnindex]   <next offset>.snapshot
        leader-epoch-checkpoint    the partition's epochs when they were last seen, in Kafka's own format
        settled                    an empty file, once all of the segment was below the high watermark
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.kafka.checkpoints import LeaderEpochs, format_leader_epochs, parse_leader_epochs
from tieredstore.kafka.held_segment import OpenSegment
from tieredstore.kafka.logdir import DELETED, LEADER_EPOCH_CHECKPOINT, FoundSegment
from tieredstore.model import TopicIdPartition, Uuid

_logger: Final = logging.getLogger(__name__)

_REPLICATED: Final = "settled"
_PART: Final = ".part"
_GONE: Final = ".gone"
_SEGMENT: Final = re.compile(r"(\d{20})-(\d{20})", re.ASCII)
_TOPIC: Final = re.compile(r"(.+)-([A-Za-z0-9_-]{22})", re.ASCII)
_LONGEST_TOPIC: Final = 232
_CUT: Final = "~"
"""A folder's name has at most 255 characters, and a topic id with its dash 23. So longer topics' names are cut, and end
in a character that no topic's name has.
"""
_DESCRIPTORS: Final = Path("/proc/self/fd")


@dataclass(frozen=True, slots=True)
class Link:
    """The hard links to one segment's files. ``next_offset`` is one more than the segment's last offset."""

    folder: Path
    base_offset: int
    next_offset: int
    links: Links = field(repr=False)

    def place(self, segment: FoundSegment) -> FoundSegment:
        """Return the segment with the paths of its links in this folder."""
        return FoundSegment(self.folder, segment.topic, segment.partition, self.base_offset, self.next_offset)

    @property
    def root(self) -> Path:
        """The folder of ``uploader.hold.dir``."""
        return self.folder.parents[2]

    @property
    def log(self) -> Path:
        """The path of the linked log."""
        return self.folder / f"{self.base_offset:020d}.log"

    @property
    def snapshot(self) -> Path:
        """The path of the linked producer snapshot, which the broker wrote when it closed the segment."""
        return self.folder / f"{self.next_offset:020d}.snapshot"

    @property
    def epochs(self) -> LeaderEpochs:
        """The partition's leader epochs when the links were made. Empty if absent or damaged; the uploader then takes
        the epochs in the record batches.
        """
        try:
            return parse_leader_epochs((self.folder / LEADER_EPOCH_CHECKPOINT).read_bytes())
        except (FileNotFoundError, TieredStoreError):
            return ()

    @property
    def is_replicated(self) -> bool:
        """True if the whole segment was replicated, so that no clean election can have truncated it."""
        return (self.folder / _REPLICATED).exists()

    def mark_replicated(self) -> None:
        """Record that the segment is replicated. On a full disk, do nothing."""
        with contextlib.suppress(OSError):
            (self.folder / _REPLICATED).touch()

    def end_at(self, next_offset: int) -> Link:
        """Give the links' segment an earlier end, by renaming, and return the renamed links. Its first end was wrong,
        because the listing at the time of linking had missed the next segment. The linked producer snapshot remains
        the snapshot of the first end. If the renaming fails, change nothing.
        """
        name = f"{self.base_offset:020d}-{next_offset:020d}"
        shorter = replace(self, folder=self.folder.with_name(name), next_offset=next_offset)
        if self.links.is_read_only:
            return self
        try:
            # The folder's name determines the snapshot's name. Add the snapshot's new name first, so that the renamed
            # folder has it even if the process is killed.
            with contextlib.suppress(FileExistsError):
                os.link(self.snapshot, self.folder / shorter.snapshot.name)
            self.folder.rename(shorter.folder)
        except OSError:
            return self
        with contextlib.suppress(OSError):
            (shorter.folder / self.snapshot.name).unlink()
        return shorter

    def remove(self) -> None:
        """Remove the links. First rename the folder, so that a half-empty folder never counts as a segment."""
        if self.links.is_read_only:
            return
        gone = self.folder.with_name(self.folder.name + _GONE)
        try:
            self.folder.rename(gone)
        except OSError:
            # A full disk may have no space for the new name. In this case, remove the links one by one, the log first,
            # because a folder without a log does not count as a segment.
            gone = self.folder
            with contextlib.suppress(OSError):
                self.log.unlink()
        shutil.rmtree(gone, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()
            self.folder.parent.parent.rmdir()


class Links:
    """The folders for hard links, at least one on each file system that has log directories. Thread-safe."""

    def __init__(self, folders: Iterable[Path], log_dirs: Sequence[Path]) -> None:
        """Lock the folders. Without any folder, the uploader makes no links.

        Raise ConfigError for a folder that is absent, inside a log directory, or in use by another uploader.
        """
        self._locks: list[int] = []
        self._failed: dict[Path, tuple[Path, str]] = {}
        """The partitions' folders whose last link failed, each with the folder for links and the reason."""
        self.is_read_only = False
        found = self._folders = tuple(dict.fromkeys(hold_dir_of(folder, log_dirs) for folder in folders))
        self._folder_by_log_dir = {log_dir: find_hold_dir(log_dir, found) for log_dir in log_dirs if found}
        for folder in found:
            try:
                otherwise = f"another uploader uses {folder} (uploader.hold.dir): give each uploader a separate folder"
                self._locks.append(lock_folder(folder, otherwise))
            except BaseException:
                self.close()
                raise

    @contextlib.contextmanager
    def read_only(self) -> Generator[None]:
        """Neither make nor remove links during the block."""
        self.is_read_only = True
        try:
            yield
        finally:
            self.is_read_only = False

    @property
    def is_on(self) -> bool:
        """True if there is a folder for links."""
        return bool(self._folders) and not self.is_read_only

    def make(self, where: TopicIdPartition, segment: OpenSegment, epochs: LeaderEpochs) -> Link | None:
        """Link the open files of a segment; return None if that fails. Log a failure, unless links of another
        partition in the same folder fail for the same reason.
        """
        # The partition may have moved to another disk since its files were opened. So use the folder where they were
        # opened.
        directory = segment.place.directory
        root = self._folder_by_log_dir.get(directory.parent)
        if self.is_read_only or root is None:
            return None
        next_offset = int(segment.producer_snapshot.path.name[:20])
        base_offset = segment.place.base_offset
        folder = _partition_folder(root, where) / f"{base_offset:020d}-{next_offset:020d}"
        link = Link(folder, base_offset, next_offset, self)
        try:
            if folder.exists():
                if _is_same(link.log, segment.log.descriptor):
                    return link
                link.remove()
            _link(link, segment, epochs)
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno == errno.EPERM:
                reason = "only their owner may link the broker's files: run the uploader as the broker's user"
            if (root, reason) not in self._failed.values():
                _logger.error(  # noqa: TRY400
                    "cannot make links in %s, so files are held only while the uploader runs: %s", folder.parent, reason
                )
            self._failed[directory] = root, reason
            return None
        self._failed.pop(directory, None)
        return link

    def find(self, where: TopicIdPartition) -> list[Link]:
        """Return the links to a partition's segments, in offset order.

        Raise OSError if a folder cannot be read, because segments that only its links keep would count as lost.
        """
        parents = [_partition_folder(folder, where) for folder in self._folders]
        listed = [entry for parent in parents for entry in self._segments(parent)]
        return sorted(listed, key=lambda entry: entry.base_offset)

    def orphans(self, known: Iterable[TopicIdPartition], is_wanted: Callable[[str], bool]) -> list[TopicIdPartition]:
        """Return the partitions that have links but are not ``known``. Log excluded topics that still have links."""
        here = {_partition_folder(Path(), where) for where in known}
        excluded: set[str] = set()
        orphans: dict[TopicIdPartition, None] = {}
        for parent in [path for root in self._folders for path in root.glob("*/*/")]:
            match = _TOPIC.fullmatch(parent.parent.name)
            if match is None or not parent.name.isdecimal() or Path(*parent.parts[-2:]) in here:
                continue
            if match[1].endswith(_CUT):
                continue  # the rest of the topic's name is unknown, so the links wait for the partition's folder
            if is_wanted(match[1]):
                with contextlib.suppress(ConfigError):
                    orphans[TopicIdPartition(Uuid.parse(match[2]), match[1], int(parent.name))] = None
            else:
                excluded.add(match[1])
        if excluded and not self.is_read_only:
            _logger.warning(
                "uploader.hold.dir still has segments of topics that are no longer shipped; remove them by hand to "
                "free the space: %s", ", ".join(sorted(excluded)),
            )  # fmt: skip
        return list(orphans)

    def _segments(self, parent: Path) -> Iterator[Link]:
        try:
            names = [entry.name for entry in parent.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            match = _SEGMENT.fullmatch(name)
            link = None if match is None else Link(parent / name, int(match[1]), int(match[2]), self)
            if link is not None and link.log in link.folder.iterdir():
                yield link
            elif not self.is_read_only and (link is not None or name.endswith((_PART, _GONE))):
                shutil.rmtree(parent / name, ignore_errors=True)

    def close(self) -> None:
        """Release the locks on the folders; the links stay."""
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks.clear()


def _partition_folder(root: Path, where: TopicIdPartition) -> Path:
    topic = where.topic
    if len(topic) > _LONGEST_TOPIC:
        topic = topic[: _LONGEST_TOPIC - len(_CUT)] + _CUT
    return root / f"{topic}-{where.topic_id}" / str(where.partition)


def _link(link: Link, segment: OpenSegment, epochs: LeaderEpochs) -> None:
    part = link.folder.with_name(link.folder.name + _PART)
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(mode=0o700, parents=True)
        descriptor = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for file in segment.files:
                # The broker may rename the file at any moment, so link by the descriptor. Python follows the symbolic
                # link in /proc only if the call also passes a folder's descriptor. That descriptor has no other effect,
                # because the path is absolute.
                os.link(
                    _DESCRIPTORS / str(file.descriptor),
                    part / file.path.name.removesuffix(DELETED),
                    src_dir_fd=descriptor,
                    follow_symlinks=True,
                )
        finally:
            os.close(descriptor)
        (part / LEADER_EPOCH_CHECKPOINT).write_bytes(format_leader_epochs(epochs))
        part.rename(link.folder)
    except OSError:
        # On a full disk, the links succeed but the checkpoint file fails. Remove the incomplete folder, because its
        # links would keep the log's bytes on disk.
        shutil.rmtree(part, ignore_errors=True)
        raise


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def hold_dir_of(path: Path, log_dirs: Sequence[Path]) -> Path:
    """Return a folder of ``uploader.hold.dir``; raise ConfigError if it is absent, on a failed disk, or inside a log
    directory."""
    folder = path.absolute()
    try:
        is_there = folder.is_dir()
    except OSError as error:
        way = "repair its disk, or name another folder"
        raise ConfigError(f"uploader.hold.dir: {folder} cannot be read: {error.strerror}; {way}") from error
    if not is_there:
        raise ConfigError(f"uploader.hold.dir: {folder} does not exist or is not a directory: create it")
    real = folder.resolve()
    for log_dir in log_dirs:
        if real.is_relative_to(log_dir.resolve()):
            raise ConfigError(
                f"uploader.hold.dir is {folder}, inside the log directory {log_dir}: a broker that finds a foreign "
                "folder there does not start; choose a folder outside it"
            )
    return real


def find_hold_dir(log_dir: Path, hold_dirs: Iterable[Path]) -> Path:
    """Return the first folder for links on the file system of a log directory. Raise ConfigError if there is none."""
    try:
        device = log_dir.stat().st_dev
        for folder in hold_dirs:
            if folder.stat().st_dev == device:
                return folder
    except OSError as error:
        raise ConfigError(f"{error.filename or log_dir} cannot be read: {error.strerror}") from error
    raise ConfigError(
        f"uploader.hold.dir has no folder on the file system of log directory {log_dir}, and hard links "
        "cannot cross file systems: add a folder there"
    )


def lock_folder(folder: Path, otherwise: str) -> int:
    """Open and lock a folder; return the descriptor. Closing the descriptor releases the lock.

    Raise ConfigError if the folder cannot be locked, with the text ``otherwise`` if another process holds the lock.
    """
    descriptor = -1
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        is_taken = isinstance(error, BlockingIOError)
        raise ConfigError(otherwise if is_taken else f"{folder} cannot be locked: {error.strerror}") from error
    return descriptor
