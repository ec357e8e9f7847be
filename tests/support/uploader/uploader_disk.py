"""Simulated broker's disk that writes, rolls and deletes segments, and its uploader, step by step in one process."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path

import pytest

from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import Scope, list_segments
from tieredstore.catalog.stored import StoredSegment, load_segment
from tieredstore.catalog.watermark import Watermark, watermark_key
from tieredstore.config import Settings, settings_from
from tieredstore.errors import ObjectNotFoundError
from tieredstore.kafka.checkpoints import LeaderEpochs, format_leader_epochs
from tieredstore.kafka.logdir import LEADER_EPOCH_CHECKPOINT
from tieredstore.limits import MAX_INT64
from tieredstore.model import TopicIdPartition, TopicPartition
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.batches import Record, build_batch
from tieredstore.testing.segments import PARTITION, write_segment
from tieredstore.uploader import Uploader
from tieredstore.uploader.partition import Partition
from tieredstore.uploader.settings import UploaderSettings, uploader_settings_from
from tieredstore.uploader.settled import Settled

RECORDS = 10
"""Records per segment, two per batch."""

STORE = {"storage.backend.class": "memory", "chunk.size": "256"}


@dataclass
class BrokerDisk:
    """Log directory of one partition: segments of ten records each, the last one active."""

    log_dir: Path
    partition: TopicIdPartition = PARTITION
    epochs: LeaderEpochs = ((0, 0),)
    end: int = 0
    bases: list[int] = field(default_factory=list[int])
    segments: InitVar[int] = field(default=0, kw_only=True)

    def __post_init__(self, segments: int) -> None:
        self.grow(segments)

    @property
    def folder(self) -> Path:
        return self.log_dir / f"{self.partition.topic}-{self.partition.partition}"

    def values(self, base: int, epoch: int) -> list[bytes]:
        return [b"%d at %d" % (epoch, offset) for offset in range(base, base + RECORDS)]

    def batches(self, base: int, epoch: int) -> list[bytes]:
        values = self.values(base, epoch)
        return [
            build_batch(
                [Record(b"k", value, 1000 + base + at) for value in values[at : at + 2]], base + at, leader_epoch=epoch
            )
            for at in range(0, RECORDS, 2)
        ]

    def grow(self, segments: int = 1) -> None:
        """Write this many segments; each closes the previous one."""
        for _ in range(segments):
            batches = self.batches(self.end, self.epochs[-1][0])
            write_segment(
                self.log_dir, batches, partition=self.partition, base_offset=self.end, leader_epochs=self.epochs
            )
            self.bases.append(self.end)
            self.end += RECORDS

    def lead(self, epoch: int) -> None:
        """Begin a later leader epoch at the end of the log."""
        self.epochs = (*self.epochs, (epoch, self.end))
        self.write_epochs()

    def write_epochs(self) -> None:
        (self.folder / LEADER_EPOCH_CHECKPOINT).write_bytes(format_leader_epochs(self.epochs))

    def files(self, base: int) -> list[Path]:
        """Return the files of a segment under their current names."""
        named = [self.folder / f"{base:020d}.{suffix}" for suffix in ("log", "index", "timeindex")]
        named.append(self.folder / f"{base + RECORDS:020d}.snapshot")
        marked = [path.with_name(path.name + ".deleted") for path in named]
        return [path for path in (*named, *marked) if path.exists()]

    def mark_deleted(self, count: int = 1) -> None:
        """Mark the first segments as deleted, as retention does: rename them, and truncate the epoch checkpoint."""
        if not count:
            return
        for _ in range(count):
            for path in self.files(self.bases.pop(0)):
                path.rename(path.with_name(path.name + ".deleted"))
        start = self.bases[0] if self.bases else self.end
        later = [entry for entry in self.epochs if entry[1] > start]
        in_force = [entry for entry in self.epochs if entry[1] <= start][-1]
        self.epochs = ((in_force[0], start), *later)
        self.write_epochs()

    def delete(self, count: int = 0) -> None:
        """Mark ``count`` more segments, then delete all marked ones, as a broker does a minute later."""
        self.mark_deleted(count)
        for path in self.folder.glob("*.deleted"):
            path.unlink()

    def copy_to(self, log_dir: Path) -> BrokerDisk:
        """Copy the partition to another log directory, as a broker does to move it. The copy has only live data.

        A broker begins each copy with a segment at 0. If the log begins later, the broker then truncates this segment,
        and marks it for deletion.
        """
        copy = BrokerDisk(log_dir, self.partition, self.epochs, self.end, list(self.bases))
        copy.folder.mkdir(parents=True)
        for path in self.folder.iterdir():
            if not path.name.endswith(".deleted"):
                shutil.copyfile(path, copy.folder / path.name)
        if self.bases and self.bases[0]:
            (copy.folder / f"{0:020d}.log.deleted").write_bytes(b"")
            for suffix in ("index", "timeindex"):
                (copy.folder / f"{0:020d}.{suffix}.deleted").write_bytes(bytes(240))
        return copy

    def leave(self) -> None:
        """Mark the folder for deletion, because the partition has moved to another log directory or broker."""
        self.folder.rename(self.folder.with_name(f"{self.folder.name}.0123456789abcdef0123456789abcdef-delete"))

    def cut(self, base: int) -> None:
        """Truncate the log: delete the segments that begin at ``base`` or later; ``grow`` writes them anew."""
        for path in [path for at in self.bases if at >= base for path in self.files(at)]:
            path.unlink()
        self.bases = [at for at in self.bases if at < base]
        self.end = base


@dataclass
class SaidSettling:
    """Substitute for the broker's answers on which records are settled; by default, all are."""

    high: int = MAX_INT64
    stable: int = MAX_INT64
    epoch: int | None = None
    asked: int = 0

    def ask(self, partitions: Iterable[Partition]) -> Mapping[TopicPartition, Settled]:
        self.asked += 1
        return {partition.name: Settled(self.high, self.stable, self.epoch) for partition in partitions}


def skipping_uploader(
    settings: Settings,
    own: UploaderSettings,
    store: ObjectStore,
    settling: SaidSettling | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Uploader:
    """Return an uploader whose runs skip their pauses: at a pause, its time goes on until the next partition is due."""
    skipped_s = 0.0

    def now() -> float:
        return clock() + skipped_s

    def skip(seconds: float) -> None:
        nonlocal skipped_s
        now_s = now()
        due_s = [one.turn.not_before_s for one in uploader.disk.partitions if one.turn.not_before_s > now_s]
        skipped_s += max(seconds, min(due_s, default=now_s) - now_s)

    uploader = Uploader(settings, own, store=store, settling=settling, monotonic=now, sleep=skip)
    return uploader


def still_clock() -> float:
    """Return 0. With this clock, the machine's speed does not decide how often an uploader saves its watermark."""
    return 0.0


def ticking_clock() -> Callable[[], float]:
    """Return a clock that goes on by over a second at each look, so that an uploader saves each watermark at once."""
    return itertools.count(0.0, 1.1).__next__


def uploader_of(
    log_dir: Path,
    store: ObjectStore,
    settling: SaidSettling | None = None,
    clock: Callable[[], float] = time.monotonic,
    /,
    **settings: str,
) -> Uploader:
    """Return an uploader of a disk, with ``uploader.*`` settings (underscores for dots)."""
    own = {f"uploader.{name.replace('_', '.')}": text for name, text in settings.items()}
    defaults = {"uploader.leadership": "static", "uploader.log.dirs": str(log_dir), "uploader.broker.id": "1"}
    uploader_settings = uploader_settings_from({**STORE, **defaults, **own})
    return skipping_uploader(settings_from(STORE), uploader_settings, store, settling, clock)


def run_once(
    log_dir: Path,
    store: ObjectStore,
    settling: SaidSettling | None = None,
    clock: Callable[[], float] = still_clock,
    /,
    **settings: str,
) -> list[str]:
    """Run a new uploader once; return the reasons for the segments left to upload."""
    with uploader_of(log_dir, store, settling, clock, **settings) as uploader:
        return [str(left.reason) for left in uploader.run_once(tries=2)]


def stored(store: ObjectStore, partition: TopicIdPartition = PARTITION, prefix: str = "") -> list[StoredSegment]:
    """Return the complete segments of a partition, in key order."""
    listed = list_segments(store, prefix, Scope.of(partition))
    return [load_segment(store, objects) for objects in listed if not objects.missing]


def extents(store: ObjectStore, partition: TopicIdPartition = PARTITION, prefix: str = "") -> list[tuple[int, int]]:
    """Return the first and last offset of each complete segment."""
    metadata = [segment.metadata for segment in stored(store, partition, prefix)]
    return [(segment.start_offset, segment.end_offset) for segment in metadata]


def watermark_of(store: ObjectStore, partition: TopicIdPartition = PARTITION) -> Watermark:
    """Return the partition's stored watermark."""
    return Watermark.parse(store.get(watermark_key("", partition)), partition)


def shipped_to(store: ObjectStore) -> int:
    """Return the next offset of the stored watermark; 0 if there is none."""
    with contextlib.suppress(ObjectNotFoundError):
        return watermark_of(store).next_offset
    return 0


def holes_of(store: ObjectStore) -> list[tuple[int, int]]:
    """Return the first and last offset of each hole of the partition's watermark."""
    return [(hole.first_offset, hole.last_offset) for hole in watermark_of(store, PARTITION).holes]


def logs_of(store: ObjectStore) -> list[bytes]:
    """Return the logs of the complete segments, in key order."""
    with RemoteStorageManager(settings_from(STORE), store=store) as manager:
        return [manager.open(segment.metadata).read() for segment in stored(store)]


@pytest.fixture
def disk(tmp_path: Path) -> BrokerDisk:
    """Return a disk with three closed segments, of offsets 0 to 29, and an active one."""
    return BrokerDisk(tmp_path / "logs", segments=4)


@pytest.fixture
def store() -> MemoryObjectStore:
    """Return an empty store."""
    return MemoryObjectStore()
