"""A reader's position in a log that an election or retention may have truncated. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tieredstore.catalog.lineage import NO_EPOCH
from tieredstore.partitions.history import last_epoch

if TYPE_CHECKING:
    from tieredstore.live import EpochEnd
    from tieredstore.partitions.log import PartitionLog


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset to read, and the leader epoch of the record before this offset (None if unknown)."""

    offset: int
    epoch: int | None = None

    @property
    def epoch_number(self) -> int:
        """The epoch in Kafka's form: -1 for none."""
        return -1 if self.epoch is None else self.epoch


@dataclass(frozen=True, slots=True)
class Standing:
    """The result of comparing a position with the present log. Reading continues at offset ``at``.

    | kind | when | a loss |
    |---|---|---|
    | ``cut`` | a leader epoch later than the position's begins before the position | yes |
    | ``before`` | the log begins after the position | yes |
    | ``beyond`` | the log ends before the position | yes |
    | ``stale`` | only the bucket exists, and ends in an older epoch: a reader waits for later segments | no |
    | ``stands`` | otherwise | no |
    """

    kind: Literal["stands", "cut", "before", "beyond", "stale"]
    at: int


def stand(position: Position, log: PartitionLog, answer: EpochEnd | None = None) -> Standing:
    """Decide where a reader continues. ``answer`` is the broker's answer to where the position's leader epoch ends."""
    begins = _begins_below(position, log, answer)
    if begins is not None:
        return Standing("cut", max(begins, log.earliest))
    if position.offset < log.earliest:
        return Standing("before", log.earliest)
    if position.offset > log.end:
        return Standing("beyond", log.end)
    if is_stale(position, log):
        return Standing("stale", position.offset)
    return Standing("stands", position.offset)


def is_stale(position: Position, log: PartitionLog) -> bool:
    """Return True if no broker was asked, and the bucket's last record is after the position but has an older epoch."""
    if position.epoch is None or log.lineage is None or log.live_epoch is not None:
        return False
    is_older = NO_EPOCH < last_epoch(log.lineage) < position.epoch
    return is_older and log.lineage.earliest_offset <= position.offset < log.lineage.end_offset


def needs_answer(position: Position, log: PartitionLog) -> bool:
    """Return True if the leader has a later epoch, so that the broker must be asked where the position's epoch ends."""
    return position.epoch is not None and log.live_epoch is not None and log.live_epoch > position.epoch


def _begins_below(position: Position, log: PartitionLog, answer: EpochEnd | None) -> int | None:
    """If an epoch later than the position's begins before the position, return the offset where this epoch begins.
    Otherwise, return None."""
    offset, epoch, cut = position.offset, position.epoch, log.cut
    begins: list[int] = []
    # The cut compares only the bucket's last epoch. So if the broker knows the position's epoch, use the broker's
    # answer instead.
    is_answered = answer is not None and answer.epoch == epoch
    if cut is not None and not is_answered and (epoch is None or epoch <= cut.left):
        begins.append(cut.at)
    if epoch is not None:
        begins += [] if log.lineage is None else [start for later, start in log.lineage.epochs if later > epoch]
        begins += [] if answer is None else [answer.end]
    first = min(begins, default=offset)
    return first if first < offset else None
