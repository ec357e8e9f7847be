"""What lies in the log directories: looked at again and again, and listed where something has changed."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.kafka.checkpoints import joined_epochs, parse_leader_epochs, parse_partition_metadata
from tieredstore.kafka.logdir import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    discover_deleted,
    partition_of,
)
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.process.forks import ForkSafeLock
from tieredstore.uploader.hold_dir import HoldDir
from tieredstore.uploader.partition import Partition

_logger: Final = logging.getLogger(__name__)

_RACY_NS: Final = 2_000_000_000
"""A folder that changed so shortly before it was listed may change again within the same tick of its clock."""


@dataclass(slots=True)
class _Folder:
    """A partition's folder: when it had changed as it was listed last, and whether it is to be listed again anyway."""

    partition: Partition | None = None
    listed_mtime_ns: int = -1
    is_settled: bool = False
    warned: str | None = None


class Folders:
    """The partitions that lie on the disks. ``sweep`` is for one thread; the rest is thread-safe."""

    def __init__(
        self,
        log_dirs: Iterable[Path],
        is_wanted: Callable[[str], bool],
        monotonic: Callable[[], float] = time.monotonic,
        links: HoldDir | None = None,
        made_id: Callable[[str], Uuid] | None = None,
    ) -> None:
        """``links``: what an earlier process has left is taken over from there. ``made_id`` gives ids to topics that
        have none."""
        self._made_id = made_id
        self._links = links
        self._log_dirs = tuple(log_dirs)
        self._is_wanted = is_wanted
        self._monotonic = monotonic
        self._lock = ForkSafeLock()
        self._folders: dict[Path, _Folder] = {}
        self._paths: dict[Path, dict[str, Path | None]] = {}
        self._touched: set[Path] = set()
        self._failed: set[Path] = set()
        self._identities: dict[Path, tuple[int, int]] = {}

    @property
    def failed(self) -> frozenset[Path]:
        """The log directories that could not be listed the last time."""
        return frozenset(self._failed)

    @property
    def partitions(self) -> list[Partition]:
        """All that are there now."""
        with self._lock:
            return [folder.partition for folder in self._folders.values() if folder.partition is not None]

    @property
    def is_whole(self) -> bool:
        """Whether the last sweep has seen all that is there."""
        with self._lock:
            return not self._failed and all(folder.partition is not None for folder in self._folders.values())

    def touch(self, folder: Path) -> None:
        """Something has happened in the folder: the next sweep lists it, whatever its times say."""
        with self._lock:
            self._touched.add(folder)

    def sweep(self) -> None:
        """Look at all folders, and list those that have changed. Of a log directory that cannot be listed all stays."""
        with self._lock:
            touched, self._touched = self._touched, set()
        seen: set[Path] = set()
        for log_dir in self._log_dirs:
            folders = self._folders_of(log_dir)
            if folders is None:
                seen |= {path for path in self._folders if path.parent == log_dir}
                continue
            for path, mtime_ns in folders:
                seen.add(path)
                folder = self._folders.get(path)
                if folder is None:
                    folder = _Folder()
                    with self._lock:
                        self._folders[path] = folder
                if path in touched or not folder.is_settled or mtime_ns != folder.listed_mtime_ns:
                    self._list(path, folder, mtime_ns)
        for path in self._folders.keys() - seen:
            self._drop(path)

    def sweep_touched(self) -> None:
        """List what something was told of since; of all the others the next :meth:`sweep` will see."""
        with self._lock:
            touched, self._touched = self._touched, set()
        for path in touched:
            folder = self._folders.get(path)
            if folder is None:
                continue
            try:
                mtime_ns = path.stat().st_mtime_ns
            except OSError:
                # Gone, or on its way elsewhere: with all others beside it, it is seen which.
                self.touch(path)
            else:
                self._list(path, folder, mtime_ns)

    def relist(self, partition: Partition) -> None:
        """List the folder of one partition now."""
        with self._lock:
            folder = self._folders.get(partition.folder)
        if folder is not None and folder.partition is partition:
            with contextlib.suppress(TieredStoreError):
                self._take(partition)

    def _drop(self, path: Path) -> None:
        """A folder is gone: with its topic, or to another log directory, where what is held of it is still needed."""
        gone = self._folders[path].partition
        if gone is not None:
            heirs = [
                partition for partition in self.partitions if partition.where == gone.where and partition is not gone
            ]
            if heirs and gone.is_busy:
                return
            for heir in heirs[:1]:
                heir.inherit(gone)
            gone.drop()
        with self._lock:
            del self._folders[path]

    def _folders_of(self, log_dir: Path) -> list[tuple[Path, int]] | None:
        """Those of partitions, and when each has changed; None if the disk does not tell."""
        folders: list[tuple[Path, int]] = []
        before, paths = self._paths.get(log_dir, {}), dict[str, Path | None]()
        try:
            self._require_same(log_dir)
            with os.scandir(log_dir) as entries:
                for entry in entries:
                    name = entry.name
                    path = paths[name] = before[name] if name in before else self._wanted(log_dir, name)
                    # Of each its time alone: as long as nothing happens in it, nobody lists it.
                    with contextlib.suppress(FileNotFoundError):
                        if path is not None and entry.is_dir():
                            folders.append((path, entry.stat().st_mtime_ns))
        except OSError as error:
            if log_dir not in self._failed:
                _logger.error("the log directory %s cannot be listed: %s", log_dir, error.strerror)  # noqa: TRY400
            self._failed.add(log_dir)
            return None
        self._failed.discard(log_dir)
        self._paths[log_dir] = paths
        return folders

    def _require_same(self, log_dir: Path) -> None:
        """OSError if another folder stands there: where a disk was unmounted there is an empty one, of which nothing
        is to be learned about what the disk has."""
        status = log_dir.stat()
        identity = status.st_dev, status.st_ino
        if self._identities.setdefault(log_dir, identity) != identity:
            raise OSError(
                errno.ESTALE, "another folder is there than at the start; start the uploader anew if that is right"
            )

    def _wanted(self, log_dir: Path, name: str) -> Path | None:
        """The folder of that name, if it is that of a partition of a topic that is wanted."""
        try:
            topic, _ = partition_of(Path(name))
        except ConfigError:
            return None
        return log_dir / name if self._is_wanted(topic) else None

    def _list(self, path: Path, folder: _Folder, mtime_ns: int) -> None:
        listed_ns = time.time_ns()
        try:
            partition = self._partition(path, folder)
            self._take(partition)
        except (TieredStoreError, OSError) as error:
            # A folder comes into being file by file; and one that stays so is told once.
            folder.is_settled = False
            self._warn(folder, f"{path} cannot be shipped now: {error}")
            return
        folder.warned = None
        folder.listed_mtime_ns = mtime_ns
        folder.is_settled = listed_ns - mtime_ns > _RACY_NS

    def _partition(self, path: Path, folder: _Folder) -> Partition:
        """The folder's partition: another one if the topic was made again since."""
        topic, number = partition_of(path)
        where = TopicIdPartition(self._topic_id(path, topic), topic, number)
        known = folder.partition
        if known is not None and known.where == where:
            return known
        if known is not None:
            known.drop()
        partition = Partition(where, path, is_moving=self._is_elsewhere(where, path))
        links = [] if self._links is None else self._links.kept(where)
        if links:
            # What an earlier process has linked belongs to what the first listing shows.
            self._take(partition)
            partition.adopt(links, self._monotonic())
        folder.partition = partition
        return partition

    def _is_elsewhere(self, where: TopicIdPartition, path: Path) -> bool:
        others = [self._folders.get(log_dir / path.name) for log_dir in self._log_dirs if log_dir != path.parent]
        return any(
            other is not None and other.partition is not None and other.partition.where == where for other in others
        )

    def _topic_id(self, path: Path, topic: str) -> Uuid:
        try:
            return parse_partition_metadata((path / PARTITION_METADATA).read_bytes())
        except FileNotFoundError:
            # Brokers before Kafka 2.8 have no ids, and the raw layout needs none.
            if self._made_id is None:
                raise
            return self._made_id(topic)

    def _take(self, partition: Partition) -> None:
        raw = (partition.folder / LEADER_EPOCH_CHECKPOINT).read_bytes()
        # The checkpoint first: an epoch that begins behind the last segment that is listed does no harm.
        checkpoint = parse_leader_epochs(raw)
        # A first epoch that was never seen before may have begun long before the log does now, and so may others before
        # it: a broker that was away takes the log up where its leader's begins. Readers follow a history that is cut,
        # by what other brokers have shipped; one that is wrong would have them pass over just that.
        is_whole = not checkpoint or any(epoch == checkpoint[0][0] for epoch, _ in partition.epochs)
        epochs = joined_epochs(partition.epochs, checkpoint) if is_whole else checkpoint
        partition.take(discover_deleted(partition.folder), epochs, self._monotonic())

    def _warn(self, folder: _Folder, sentence: str) -> None:
        # Said the second time: most such folders are whole a moment later.
        if folder.warned is None:
            folder.warned = ""
        elif folder.warned != sentence:
            folder.warned = sentence
            _logger.warning("%s", sentence)
