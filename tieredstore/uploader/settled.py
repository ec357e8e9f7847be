"""Finds which closed segments are settled: no election removes their records, and no open transaction hides them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tieredstore.errors import CorruptDataError, TieredStoreError
from tieredstore.kafka.checkpoints import (
    LeaderEpochs,
    OffsetCheckpoint,
    open_transactions,
    parse_leader_epochs,
    parse_offset_checkpoint,
    parse_producer_snapshot,
)
from tieredstore.kafka.logdir import LEADER_EPOCH_CHECKPOINT
from tieredstore.limits import MAX_INT64
from tieredstore.model import TopicIdPartition, TopicPartition
from tieredstore.process.health import Health
from tieredstore.process.log_once import LogOnce
from tieredstore.uploader.leadership import LeadershipView
from tieredstore.uploader.partition import Partition
from tieredstore.uploader.segment import Segment

if TYPE_CHECKING:
    from tieredstore.live.broker_state import BrokerState

_log: Final = LogOnce(logging.getLogger(__name__))

REPLICATION_CHECKPOINT: Final = "replication-offset-checkpoint"

_CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"

_NEW_S: Final = 5.0
_OLD_S: Final = 60.0
"""Maximum age of an answer that is still used. The leader epoch of an older one may be out of date."""

_SOON_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Settled:
    """The ends of a partition's final records: the high watermark and the last stable offset, both exclusive.

    ``leader_epoch`` is the epoch of the leader that gave these offsets, or the log's last epoch when they were read
    from disk. None means that the log is a copy, whose leader does not matter.
    """

    high_watermark: int
    stable: int
    leader_epoch: int | None

    def obstacle(self, end_offset: int, epochs: LeaderEpochs, *, is_deleted: bool) -> str | None:
        """Return why the segment that ends at ``end_offset`` (inclusive) must wait, or None if it may be uploaded.

        Retention does not wait for transactions. So a segment that the broker is about to delete does not wait for them
        either.
        """
        if end_offset >= self.high_watermark:
            return f"the high watermark is {self.high_watermark}"
        if self.leader_epoch is not None and epochs and epochs[-1][0] != self.leader_epoch:
            return f"the leader's epoch is {self.leader_epoch}, but the local log's is {epochs[-1][0]}"
        if end_offset >= self.stable and not is_deleted:
            return f"a transaction is open: the last stable offset is {self.stable}"
        return None


@dataclass(frozen=True, slots=True)
class Standing:
    """The offsets of a partition that may be uploaded now. ``settled`` is None if the high watermark is unknown.

    If ``only_deleted`` is true, the partition's leader is unknown. Only segments that the broker is deleting may then
    be uploaded.
    """

    settled: Settled | None
    only_deleted: bool = False


class Settling(Protocol):
    """A source of the partitions' high watermarks and last stable offsets."""

    def ask(self, partitions: Iterable[Partition]) -> Mapping[TopicPartition, Settled]:
        """Ask for the high watermarks and last stable offsets. Raise TieredStoreError if no partition has an answer."""
        ...


class BrokerSettling:
    """Asks the partitions' leaders, many partitions in one request."""

    def __init__(self, broker: BrokerState) -> None:
        self._broker = broker

    def ask(self, partitions: Iterable[Partition]) -> Mapping[TopicPartition, Settled]:
        """Send two requests to each broker that leads one of the partitions."""
        names = [partition.name for partition in partitions]
        # Read the last stable offset before the high watermark. It may then be out of date, but it is never above the
        # high watermark.
        stable = self._broker.ends(names, stable=True)
        highs = self._broker.ends(names, stable=False)
        return {
            name: Settled(high.offset, stable[name].offset, high.leader_epoch)
            for name, high in highs.items()
            if name in stable and stable[name].leader_epoch == high.leader_epoch
        }


class DiskSettling:
    """Takes high watermarks from the broker's checkpoint file (at most five seconds old) if no broker can be asked.

    Without a checkpoint, every closed segment is settled, because the disk is then a copy, or the broker is stopped.
    """

    def __init__(self, log_dirs: Iterable[Path]) -> None:
        self._log_dirs = tuple(log_dirs)

    def ask(self, partitions: Iterable[Partition]) -> Mapping[TopicPartition, Settled]:
        """Read the checkpoint of each log directory and the latest producer snapshot of each partition."""
        highs = {folder: high_watermarks(folder) for folder in self._log_dirs}
        answers: dict[TopicPartition, Settled] = {}
        for partition in partitions:
            folder = partition.folder
            if folder is None:
                continue
            known = highs.get(folder.parent)
            if known is None:
                answers[partition.name] = Settled(MAX_INT64, MAX_INT64, None)
            elif partition.name in known:
                high = known[partition.name]
                # Read the log's last epoch after the high watermark. The uploader's listing of the folder may be older,
                # and may have records that the broker has truncated since. The epochs then differ, and the uploader
                # waits.
                stable, epoch = min(high, stable_offset(folder, high)), read_last_epoch(folder)
                if epoch is not None:
                    answers[partition.name] = Settled(high, stable, epoch)
        return answers


def high_watermarks(log_dir: Path) -> OffsetCheckpoint | None:
    """Read the file of high watermarks that a broker writes every five seconds. Return None if there is no file. If the
    file is unreadable or damaged, log a warning, and return no high watermarks, because the segments may not be
    replicated.
    """
    path = log_dir / REPLICATION_CHECKPOINT
    try:
        return parse_offset_checkpoint(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, TieredStoreError) as error:
        _log.warn(f"{path} cannot be read, so its high watermarks are unknown until a broker writes it again: {error}")
        return {}


def read_last_epoch(folder: Path) -> int | None:
    """Read the last leader epoch of a partition's log: -1 if the log has no epochs, None if they cannot be read."""
    with contextlib.suppress(OSError, TieredStoreError):
        epochs = parse_leader_epochs((folder / LEADER_EPOCH_CHECKPOINT).read_bytes())
        return epochs[-1][0] if epochs else -1
    return None


def stable_offset(folder: Path, high_watermark: int) -> int:
    """Return the first offset of the oldest open transaction in the latest readable producer snapshot.

    Return ``high_watermark`` if no transaction is open.
    """
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob("*.snapshot"), reverse=True):
            with contextlib.suppress(OSError, CorruptDataError):
                states = parse_producer_snapshot(path.read_bytes())
                return min(open_transactions(states).values(), default=high_watermark)
    return high_watermark


def is_compacted(partition: Partition, segment: Segment) -> bool:
    """Return True if the broker has compacted the log beyond the segment, according to the log cleaner's checkpoint.

    Return False for a segment marked as deleted, because the segment after it may be gone.
    """
    folder = partition.folder
    if folder is None or segment.place.is_deleted:
        return False
    with contextlib.suppress(OSError, TieredStoreError):
        cleaned = parse_offset_checkpoint((folder.parent / _CLEANER_CHECKPOINT).read_bytes())
        return segment.next_offset <= cleaned.get(partition.name, 0)
    return False


class Inquiries:
    """Asks for the high watermarks and last stable offsets of partitions. Any thread may read the answers.

    Two threads divide the partitions: one asks about silent partitions, one about all others.
    """

    def __init__(
        self,
        settling: Settling,
        leadership: LeadershipView,
        shippable: Callable[[], Iterable[Partition]],
        health: Health,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the inquiries. ``shippable`` yields the partitions with something to upload."""
        self._settling, self._leadership, self._shippable = settling, leadership, shippable
        self._health, self._monotonic = health, monotonic
        self._answers: dict[TopicIdPartition, tuple[float, Settled]] = {}
        """The time and content of each partition's last answer, by topic id, because an answer says nothing about a
        re-created topic."""
        self._heard: dict[TopicPartition, TopicIdPartition] = {}
        """The partitions that the last request brought an answer for. They are stored by name, so that an answer about
        an earlier topic ends with the first request about a re-created one."""

    def ask(self, *, is_silent: bool) -> bool:
        """Ask about silent partitions, or about all other partitions. Return True if one of these partitions was
        waiting for an answer.

        A partition is silent if its leader did not answer the last time. Silent partitions get separate requests,
        because a dead broker delays all answers of a request until the request's timeout.
        """
        soon_s = self._monotonic() + _SOON_S
        waiting = [
            partition
            for partition in self._shippable()
            if partition.turn.not_before_s <= soon_s
            and (self._heard.get(partition.name) != partition.where) is is_silent
            and (partition.turn.waits_for is not None or self._last_answer(partition, _NEW_S) is None)
        ]
        if not waiting or not self._leadership.is_known:
            return False
        try:
            answers = self._settling.ask(waiting)
        except TieredStoreError as error:
            self._take({}, waiting)
            if not self._heard:
                self._health.fails("broker", f"high watermarks are unknown: {error}")
            return False
        self._take(answers, waiting)
        self._health.holds("broker")
        for partition in waiting:
            settled = self._last_answer(partition)
            if settled is not None and settled.leader_epoch in (None, partition.last_epoch):
                partition.mark_replicated(settled.high_watermark)
        return any(partition.turn.waits_for is not None for partition in waiting)

    def standing(self, partition: Partition) -> Standing:
        """Return the offsets up to which the uploader is allowed to upload the partition now."""
        if self._leadership.is_known:
            return Standing(self._last_answer(partition))
        # The partition's leader is unknown, so only the broker's own checkpoint shows what is replicated.
        folder = partition.folder
        high = 0 if folder is None else (high_watermarks(folder.parent) or {}).get(partition.name, 0)
        epoch = None if folder is None else read_last_epoch(folder)
        return Standing(None if epoch is None else Settled(high, high, epoch), only_deleted=True)

    def _take(self, answers: Mapping[TopicPartition, Settled], asked: Iterable[Partition]) -> None:
        """Record the answers. Partitions in ``asked`` without an answer count as silent."""
        now_s = self._monotonic()
        for partition in asked:
            self._heard.pop(partition.name, None)
            if partition.name in answers:
                self._heard[partition.name] = partition.where
                self._answers[partition.where] = now_s, answers[partition.name]

    def _last_answer(self, partition: Partition, most_s: float = _OLD_S) -> Settled | None:
        """Return the last answer about the partition if it is at most ``most_s`` old."""
        answered_s, settled = self._answers.get(partition.where, (0.0, None))
        return settled if self._monotonic() - answered_s <= most_s else None
