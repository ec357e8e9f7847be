"""Comparison of the bucket's log with the broker's by leader epochs: one history, or the offset where they diverge.
Pure.

Leader epoch and offset identify a record. After an unclean election the bucket may hold records of a deposed leader
that the log left behind. On the broker, its last epoch then ends before the bucket does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tieredstore.catalog.lineage import NO_EPOCH

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.catalog.watermark import MoveBack
    from tieredstore.live import EpochEnd


@dataclass(frozen=True, slots=True)
class Cut:
    """At offset ``at`` a later epoch replaced ``left``, the bucket's last one: no other log has the bucket's records
    from there on.
    """

    at: int
    left: int
    source: Literal["broker", "watermark"]

    def sentence(self, lineage: Lineage) -> str:
        """Describe the cut of the bucket's log, once: it is no loss."""
        return (
            f"offsets {self.at} to {lineage.end_offset - 1} of {lineage.partition} in the bucket are of leader epoch "
            f"{self.left} or before, which the log left behind at offset {self.at}: they are not read"
        )

    def applied(self, lineage: Lineage) -> Lineage | None:
        """Return the bucket's log without its abandoned part; unchanged if the bucket has a later epoch by now."""
        return lineage.until(self.at) if last_epoch(lineage) == self.left else lineage


@dataclass(frozen=True, slots=True)
class History:
    """The known history of a partition. Valid while its first three fields stay the same.

    ``live_epoch`` is None if no broker was asked.
    """

    stored_epoch: int
    stored_end: int
    live_epoch: int | None
    cut: Cut | None = None


def last_epoch(lineage: Lineage) -> int:
    """Return the leader epoch of the bucket's last record; -1 if no segment has it."""
    return lineage.epochs[-1][0] if lineage.epochs else NO_EPOCH


def cut_by_broker(lineage: Lineage, answer: EpochEnd) -> Cut | None:
    """Return the cut that the broker's answer for the bucket's last epoch shows; None for one history up to the
    bucket's end.

    ``answer`` names the broker's greatest epoch up to that one, and where it ends.
    """
    above = [start for epoch, start in lineage.epochs if epoch > answer.epoch]
    at = min([answer.end, *above])
    return Cut(at, last_epoch(lineage), "broker") if at < lineage.end_offset else None


def cut_by_watermark(lineage: Lineage, moves: Iterable[MoveBack]) -> Cut | None:
    """Return the cut recorded by an uploader that met a newer leader epoch below the offsets already uploaded."""
    left = last_epoch(lineage)
    at = min((move.to_offset for move in moves if move.leader_epoch > left), default=lineage.end_offset)
    return Cut(at, left, "watermark") if at < lineage.end_offset else None
