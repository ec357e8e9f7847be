"""Conditions for uploading a closed segment: no leader can remove its records, and no open transaction hides them."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tieredstore.errors import CorruptDataError, TieredStoreError
from tieredstore.kafka.checkpoints import LeaderEpochs, parse_producer_snapshot
from tieredstore.limits import MAX_INT64
from tieredstore.model import TopicPartition
from tieredstore.process.health import Health
from tieredstore.uploader.leadership import LeadershipView
from tieredstore.uploader.partition import Partition

if TYPE_CHECKING:
    from tieredstore.live.broker_state import BrokerState

REPLICATION_CHECKPOINT: Final = "replication-offset-checkpoint"

_NEW_S: Final = 5.0
_SOON_S: Final = 1.0

_LINE: Final = re.compile(r"([a-zA-Z0-9._-]{1,249}) (\d{1,10}) (\d{1,19})", re.ASCII)
_SNAPSHOT: Final = re.compile(r"(\d{20})\.snapshot", re.ASCII)


@dataclass(frozen=True, slots=True)
class Settled:
    """The settled part of a partition: both ends exclusive.

    ``leader_epoch`` is that of the leader that answered, None if unknown.
    """

    high_watermark: int
    stable: int
    leader_epoch: int | None

    def obstacle(self, end_offset: int, epochs: LeaderEpochs, *, is_deleted: bool) -> str | None:
        """Return the reason to wait with the segment that ends at ``end_offset`` (inclusive); None if it may be
        uploaded.

        Segments that the broker is about to delete do not wait for transactions, because retention does not either.
        """
        if end_offset >= self.high_watermark:
            return f"the high watermark is {self.high_watermark}"
        if self.leader_epoch is not None and epochs and epochs[-1][0] != self.leader_epoch:
            return f"the leader's epoch is {self.leader_epoch}, and that of the log here {epochs[-1][0]}"
        if end_offset >= self.stable and not is_deleted:
            return f"a transaction is open: the last stable offset is {self.stable}"
        return None


@dataclass(frozen=True, slots=True)
class Standing:
    """The knowledge about a partition at a step: its settled part, None if unknown.

    ``only_deleted``: its leader is unknown, so only segments that the broker is deleting may be uploaded.
    """

    settled: Settled | None
    only_deleted: bool = False


class Settling(Protocol):
    """The source of partitions' settled parts."""

    def ask(self, partitions: Iterable[Partition]) -> Mapping[TopicPartition, Settled]:
        """Return the present answers; raise TieredStoreError if there is none at all."""
        ...


class BrokerSettling:
    """Asks the leaders, for all partitions at once."""

    def __init__(self, broker: BrokerState) -> None:
        self._broker = broker

    def ask(self, partitions: Iterable[Partition]) -> Mapping[TopicPartition, Settled]:
        """Send two requests to each broker that leads one of the partitions."""
        names = [partition.name for partition in partitions]
        # In this order: a stable offset read first can only be too low.
        stable = self._broker.ends(names, stable=True)
        highs = self._broker.ends(names, stable=False)
        return {
            name: Settled(high.offset, stable[name].offset, high.leader_epoch)
            for name, high in highs.items()
            if name in stable and stable[name].leader_epoch == high.leader_epoch
        }


class DiskSettling:
    """Reads the broker's disk if no broker can be asked: a checkpoint that is at most five seconds old.

    Without that file every closed segment is settled: it is a copy of a disk, or the broker is stopped.
    """

    def __init__(self, log_dirs: Iterable[Path]) -> None:
        self._log_dirs = tuple(log_dirs)

    def ask(self, partitions: Iterable[Partition]) -> Mapping[TopicPartition, Settled]:
        """Read one file of each log directory, and the latest producer snapshot of each partition."""
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
                answers[partition.name] = Settled(high, min(high, stable_offset(folder, high)), None)
        return answers


def high_watermarks(log_dir: Path) -> dict[TopicPartition, int] | None:
    """Read the high watermarks that a broker writes every five seconds; None without the file."""
    try:
        lines = (log_dir / REPLICATION_CHECKPOINT).read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    matches = (_LINE.fullmatch(line) for line in lines[2:])
    return {(match[1], int(match[2])): int(match[3]) for match in matches if match}


def stable_offset(folder: Path, high_watermark: int) -> int:
    """Return the first open transaction's offset by the latest producer snapshot; ``high_watermark`` if none is
    open.
    """
    snapshots = sorted(int(match[1]) for match in (_SNAPSHOT.fullmatch(entry.name) for entry in _list(folder)) if match)
    for offset in reversed(snapshots):
        with contextlib.suppress(OSError, CorruptDataError):
            states = parse_producer_snapshot((folder / f"{offset:020d}.snapshot").read_bytes())
            first_open = [state.current_txn_first_offset for state in states if state.current_txn_first_offset >= 0]
            return min(first_open, default=high_watermark)
    return high_watermark


def _list(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


class Answers:
    """The last answer of each partition, while it is fresh."""

    def __init__(self, max_age_s: float = 60.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._max_age_s = max_age_s
        self._monotonic = monotonic
        self._answers: dict[TopicPartition, tuple[float, Settled]] = {}
        self._heard: set[TopicPartition] = set()

    def take(self, answers: Mapping[TopicPartition, Settled], asked: Iterable[TopicPartition] = ()) -> None:
        """Keep the answers; other ``asked`` partitions count as silent."""
        now_s = self._monotonic()
        self._answers.update({name: (now_s, settled) for name, settled in answers.items()})
        self._heard.difference_update(asked)
        self._heard.update(answers)

    def is_silent(self, name: TopicPartition) -> bool:
        """Return True if it did not answer the last time, or was never asked."""
        return name not in self._heard

    @property
    def are_any(self) -> bool:
        """True if any partition answered the last time."""
        return bool(self._heard)

    def are_new(self, name: TopicPartition) -> bool:
        """Return True if its answer is only seconds old."""
        answer = self._answers.get(name)
        return answer is not None and self._monotonic() - answer[0] <= _NEW_S

    def of(self, name: TopicPartition) -> Settled | None:
        """Return the answer, if it is fresh enough. An old one would also be true, except for its epoch."""
        answer = self._answers.get(name)
        return answer[1] if answer is not None and self._monotonic() - answer[0] <= self._max_age_s else None


class Inquiries:
    """The inquiries of two threads, each about other partitions; any thread may read the answers."""

    def __init__(
        self,
        settling: Settling,
        leadership: LeadershipView,
        shippable: Callable[[], Iterable[Partition]],
        health: Health,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask about ``shippable`` partitions, those with segments to upload."""
        self._settling, self._leadership, self._shippable = settling, leadership, shippable
        self._health, self._monotonic = health, monotonic
        self._answers = Answers(monotonic=monotonic)

    def ask(self, *, is_silent: bool) -> bool:
        """Ask about partitions that were silent the last time, or about the others; return True if one was waiting for
        it.

        A dead broker delays all answers of a request until its timeout.
        """
        soon_s = self._monotonic() + _SOON_S
        waiting = [
            partition
            for partition in self._shippable()
            if partition.turn.not_before_s <= soon_s
            and self._answers.is_silent(partition.name) is is_silent
            and (partition.turn.waits_for is not None or not self._answers.are_new(partition.name))
        ]
        if not waiting or not self._leadership.is_known:
            return False
        names = [partition.name for partition in waiting]
        try:
            answers = self._settling.ask(waiting)
        except TieredStoreError as error:
            self._answers.take({}, names)
            if not self._answers.are_any:
                self._health.fails("broker", f"the settled offsets of partitions are unknown: {error}")
            return False
        self._answers.take(answers, names)
        self._health.holds("broker")
        for partition in waiting:
            settled = self._answers.of(partition.name)
            last_epoch = partition.epochs[-1][0] if partition.epochs else -1
            if settled is not None and settled.leader_epoch in (None, last_epoch):
                partition.mark_replicated(settled.high_watermark)
        return any(partition.turn.waits_for is not None for partition in waiting)

    def standing(self, partition: Partition) -> Standing:
        """Return the knowledge about a partition for a step."""
        if self._leadership.is_known:
            return Standing(self._answers.of(partition.name))
        # While the leaders are unknown, only segments being deleted are uploaded, as far as the broker's own checkpoint
        # allows.
        folder = partition.folder
        high = 0 if folder is None else (high_watermarks(folder.parent) or {}).get(partition.name, 0)
        return Standing(Settled(high, high, None), only_deleted=True)
