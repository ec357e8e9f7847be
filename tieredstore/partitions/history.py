"""Compares a partition's log in the bucket with the log at the broker, by leader epochs. Finds where the two diverge.
No I/O.

Leader epoch and offset identify a record. After an unclean election, the bucket may have records of a former leader
that are no longer part of the log. Then this leader's epoch ends at a lower offset at the broker than in the bucket,
which shows where the logs diverge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tieredstore.catalog.lineage import NO_EPOCH

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.catalog.watermark import Watermark
    from tieredstore.live import EpochEnd


@dataclass(frozen=True, slots=True)
class Cut:
    """A truncation of the log under a later leader. The bucket's records from offset ``at`` on are no longer part of
    the log.

    ``left`` is the bucket's last leader epoch.
    """

    at: int
    left: int
    source: Literal["broker", "watermark"]

    def sentence(self, lineage: Lineage) -> str:
        """Return a sentence about the cut, for the log file. It is no error, because a cut loses no records of the
        present log."""
        return (
            f"offsets {self.at} to {lineage.end_offset - 1} of {lineage.partition} in the bucket are not read: a later "
            f"leader epoch than {self.left} truncated the log at offset {self.at}"
        )

    def apply(self, lineage: Lineage) -> Lineage | None:
        """Return the bucket's log up to this cut. If the bucket's last epoch has changed, the cut no longer applies, so
        return the log unchanged.
        """
        return lineage.until(self.at) if last_epoch(lineage) == self.left else lineage


@dataclass(frozen=True, slots=True)
class History:
    """The result of comparing the bucket's log with the broker's. It is valid while the first three fields are equal to
    the values of the present logs.

    ``live_epoch`` is None if no broker was asked.
    """

    stored_epoch: int
    stored_end: int
    live_epoch: int | None
    cut: Cut | None = None


def last_epoch(lineage: Lineage) -> int:
    """Return the leader epoch of the bucket's last record; -1 if the segments' metadata has no epochs."""
    return lineage.epochs[-1][0] if lineage.epochs else NO_EPOCH


def epoch_to_ask(lineage: Lineage, answer: EpochEnd) -> int | None:
    """Return the bucket's last leader epoch before the epoch of ``answer``, which the bucket does not have. Return None
    if the bucket has it, or no earlier one.

    Both logs may then differ even before this offset, so the end of the earlier epoch must be asked for.
    """
    epochs = [epoch for epoch, _ in lineage.epochs if NO_EPOCH < epoch <= answer.epoch]
    return epochs[-1] if epochs and epochs[-1] != answer.epoch else None


def cut_by_broker(lineage: Lineage, answer: EpochEnd) -> Cut | None:
    """Return the offset where the two logs diverge; None if the broker's log has all of the bucket's records.

    ``answer.epoch`` is the broker's greatest leader epoch that is not above the bucket's last epoch. ``answer.end`` is
    the end of this epoch at the broker.
    """
    above = [start for epoch, start in lineage.epochs if epoch > answer.epoch]
    at = min([answer.end, *above])
    return Cut(at, last_epoch(lineage), "broker") if at < lineage.end_offset else None


def cut_by_watermark(lineage: Lineage, mark: Watermark | None) -> Cut | None:
    """Return the cut that an uploader recorded in the watermark; None if there is none.

    An uploader records a cut if a newer leader epoch begins at an offset that it has already uploaded. The new leader
    may also have records of an earlier epoch there. So a cut ends where the last upload since then ends, but only if
    ``lineage`` has that segment. Otherwise, ``lineage`` may be the log that the new leader replaced.
    """
    left = last_epoch(lineage)
    moves = () if mark is None else mark.moved_back
    at = min((move.to_offset for move in moves if move.leader_epoch > left), default=lineage.end_offset)
    if mark is not None and mark.segment is not None and at < lineage.end_offset:
        kept = (*(span.segment for span in lineage.spans), *lineage.covered)
        if any(str(segment.remote_log_segment_id.id) == mark.segment.id for segment in kept):
            at = max(at, mark.segment.end_offset + 1)
    return Cut(at, left, "watermark") if at < lineage.end_offset else None
