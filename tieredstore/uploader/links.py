"""Hard links to the files of closed segments: they outlive the broker's deletion, even while no uploader runs.

One folder for each segment, made beside its final place and renamed when complete::

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
_DESCRIPTORS: Final = Path("/proc/self/fd")


@dataclass(frozen=True, slots=True)
class Link:
    """The links to one segment's files; ``next_offset`` is one more than its last offset."""

    folder: Path
    base_offset: int
    next_offset: int
    is_read_only: bool = False

    def place(self, segment: FoundSegment) -> FoundSegment:
        """Return the segment's place here."""
        return FoundSegment(self.folder, segment.topic, segment.partition, self.base_offset, self.next_offset)

    @property
    def root(self) -> Path:
        """The folder of ``uploader.hold.dir``."""
        return self.folder.parents[2]

    @property
    def log(self) -> Path:
        """Its log."""
        return self.folder / f"{self.base_offset:020d}.log"

    @property
    def snapshot(self) -> Path:
        """The producer snapshot after its last offset, which the broker wrote when it closed the segment."""
        return self.folder / f"{self.next_offset:020d}.snapshot"

    @property
    def epochs(self) -> LeaderEpochs:
        """The partition's epochs at that time; none if unreadable, and then the batches have them."""
        try:
            return parse_leader_epochs((self.folder / LEADER_EPOCH_CHECKPOINT).read_bytes())
        except (OSError, TieredStoreError):
            return ()

    @property
    def is_replicated(self) -> bool:
        """True if all of it was replicated, so that no clean election has removed it."""
        return (self.folder / _REPLICATED).exists()

    def mark_replicated(self) -> None:
        """Record that it is replicated, unless the disk is too full."""
        with contextlib.suppress(OSError):
            (self.folder / _REPLICATED).touch()

    def remove(self) -> None:
        """Remove the files. An incomplete folder is never taken for a segment."""
        if self.is_read_only:
            return
        gone = self.folder.with_name(self.folder.name + _GONE)
        try:
            self.folder.rename(gone)
        except OSError:
            # A full disk may have no space for a new name. A folder without its log is no segment either.
            gone = self.folder
            with contextlib.suppress(OSError):
                self.log.unlink()
        shutil.rmtree(gone, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()
            self.folder.parent.parent.rmdir()


class Links:
    """The folders for links, one on each file system with log directories. Thread-safe."""

    def __init__(self, folders: Iterable[str], log_dirs: Sequence[Path]) -> None:
        """Lock the folders. Raise ConfigError for one that is absent, inside a log directory, or another uploader's.

        Without a folder nothing is linked.
        """
        self._devices = {log_dir: log_dir.stat().st_dev for log_dir in log_dirs}
        self._locks: list[int] = []
        self._has_failed = False
        self.is_read_only = False
        usable = [_usable(Path(text).absolute(), log_dirs) for text in folders]
        self._by_device = {folder.stat().st_dev: folder for folder in reversed(usable)}
        for log_dir, device in self._devices.items():
            if usable and device not in self._by_device:
                raise ConfigError(
                    f"no folder of uploader.hold.dir is on the file system of the log directory {log_dir}, and no link "
                    "goes from one to another: add a folder there"
                )
        for folder in self._by_device.values():
            try:
                otherwise = f"another uploader holds files in {folder}: give each uploader a separate folder"
                self._locks.append(lock_folder(folder, otherwise))
            except BaseException:
                self.close()
                raise

    @property
    def is_on(self) -> bool:
        """True if there is a folder for links."""
        return bool(self._by_device) and not self.is_read_only

    @property
    def is_working(self) -> bool:
        """True if there is a folder, and the last link succeeded."""
        return self.is_on and not self._has_failed

    def make(self, where: TopicIdPartition, segment: OpenSegment, epochs: LeaderEpochs) -> Link | None:
        """Link open files; None if that fails, which is logged once."""
        # Their place when opened: the partition may have moved to another disk since.
        device = self._devices.get(segment.place.directory.parent)
        if not self.is_on or device is None:
            return None
        next_offset = int(segment.producer_snapshot.path.name[:20])
        base_offset = segment.place.base_offset
        folder = _partition_folder(self._by_device[device], where) / f"{base_offset:020d}-{next_offset:020d}"
        link = Link(folder, base_offset, next_offset)
        try:
            if folder.exists():
                if _is_same(link.log, segment.log.descriptor):
                    return link
                link.remove()
            _link(link, segment, epochs)
        except OSError as error:
            self._say_once(folder.parent, error)
            return None
        self._has_failed = False
        return link

    def find(self, where: TopicIdPartition) -> list[Link]:
        """Return the links to segments of a partition, in the order of offsets."""
        parents = [_partition_folder(folder, where) for folder in self._by_device.values()]
        listed = [entry for parent in parents for entry in _segments(parent, is_read_only=self.is_read_only)]
        return sorted(listed, key=lambda entry: entry.base_offset)

    def orphans(self, known: Iterable[TopicIdPartition], is_wanted: Callable[[str], bool]) -> list[TopicIdPartition]:
        """Return the partitions of which only links remain here; log those of topics that settings exclude."""
        here = {(f"{where.topic}-{where.topic_id}", str(where.partition)) for where in known}
        excluded: set[str] = set()
        orphans: dict[TopicIdPartition, None] = {}
        for parent in [path for root in self._by_device.values() for path in root.glob("*/*/")]:
            match = _TOPIC.fullmatch(parent.parent.name)
            if match is None or not parent.name.isdecimal() or (parent.parent.name, parent.name) in here:
                continue
            if is_wanted(match[1]):
                with contextlib.suppress(ConfigError):
                    orphans[TopicIdPartition(Uuid.parse(match[2]), match[1], int(parent.name))] = None
            else:
                excluded.add(match[1])
        if excluded and not self.is_read_only:
            _logger.warning(
                "uploader.hold.dir has segments of topics that are not shipped any more; they take room until they are "
                "removed by hand: %s", ", ".join(sorted(excluded)),
            )  # fmt: skip
        return list(orphans)

    def close(self) -> None:
        """Release the locks; the links stay."""
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks.clear()

    def _say_once(self, folder: Path, error: OSError) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        reason = error.strerror
        if error.errno == errno.EPERM:
            reason = "the system lets only their owner link the broker's files: run the uploader as the broker's user"
        _logger.error("no links are made in %s, and files are held only as long as this runs: %s", folder, reason)


def _partition_folder(root: Path, where: TopicIdPartition) -> Path:
    return root / f"{where.topic}-{where.topic_id}" / str(where.partition)


def _link(link: Link, segment: OpenSegment, epochs: LeaderEpochs) -> None:
    part = link.folder.with_name(link.folder.name + _PART)
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(mode=0o700, parents=True)
        descriptor = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for file in segment.files:
                # By its descriptor: the broker may rename the file at any moment. With a folder's descriptor,
                # irrelevant for an absolute path, Python follows the link in /proc.
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
        # On a full disk links succeed and the small file does not: half a link would keep the log's bytes for ever.
        shutil.rmtree(part, ignore_errors=True)
        raise


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _segments(parent: Path, *, is_read_only: bool) -> Iterator[Link]:
    try:
        names = [entry.name for entry in parent.iterdir()]
    except OSError:
        return
    for name in names:
        match = _SEGMENT.fullmatch(name)
        link = None if match is None else Link(parent / name, int(match[1]), int(match[2]), is_read_only)
        if link is not None and link.log.exists():
            yield link
        elif not is_read_only and (link is not None or name.endswith((_PART, _GONE))):
            shutil.rmtree(parent / name, ignore_errors=True)


def _usable(folder: Path, log_dirs: Sequence[Path]) -> Path:
    if not folder.is_dir():
        raise ConfigError(f"uploader.hold.dir is {folder}, which is not there, or is no folder: make it")
    real = folder.resolve()
    for log_dir in log_dirs:
        if real.is_relative_to(log_dir.resolve()):
            raise ConfigError(
                f"uploader.hold.dir is {folder}, inside the log directory {log_dir}: a broker does not start "
                "with a foreign folder there; choose one outside it"
            )
    return real


def lock_folder(folder: Path, otherwise: str) -> int:
    """Open and lock a folder until it is closed; raise ConfigError with ``otherwise`` if another process has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(otherwise) from error
    return descriptor
