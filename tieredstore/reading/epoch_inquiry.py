"""Decides if the bucket's logs and the broker's are one history, with as few requests as possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tieredstore.catalog.lineage import NO_EPOCH
from tieredstore.catalog.watermark import StoredMoves, read_moves
from tieredstore.errors import BrokerUnavailableError
from tieredstore.model import TopicIdPartition, TopicPartition
from tieredstore.partitions.history import History, cut_by_broker, cut_by_watermark, last_epoch

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.live import EpochEnd, LiveCluster
    from tieredstore.remote.source import SegmentSource


class BothSides(NamedTuple):
    """The bucket's log of a partition, and the start of the broker's, whose leader has ``live_epoch``."""

    lineage: Lineage
    live_start: int
    live_epoch: int | None

    @property
    def is_left_behind(self) -> bool:
        """True if the leader's epoch is later than that of the bucket's last record."""
        return self.live_epoch is not None and NO_EPOCH < last_epoch(self.lineage) < self.live_epoch

    def is_as(self, history: History) -> bool:
        """Return True if ``history`` still describes both sides."""
        now = last_epoch(self.lineage), self.lineage.end_offset, self.live_epoch
        return now == (history.stored_epoch, history.stored_end, history.live_epoch)


class EpochInquiry:
    """Asks the broker where the bucket's last leader epochs end, and reads watermarks where the broker cannot answer.

    Each request is made once until something changes. ``known`` are earlier answers, ``moves`` the watermarks read
    before.
    """

    def __init__(
        self,
        source: SegmentSource,
        cluster: LiveCluster | None,
        known: Mapping[TopicIdPartition, History] | None = None,
        moves: StoredMoves | None = None,
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._known = dict(known or {})
        self._moves = StoredMoves(source) if moves is None else moves

    def histories(self, partitions: Mapping[TopicPartition, BothSides]) -> dict[TopicPartition, History]:
        """Return the histories of partitions whose leaders have later epochs than the bucket, with one inquiry for all.

        Raise BrokerUnavailableError if neither broker nor watermark answers.
        """
        behind = {where: both for where, both in partitions.items() if both.is_left_behind}
        asked = {
            where: last_epoch(both.lineage)
            for where, both in behind.items()
            if (history := self._known.get(both.lineage.partition)) is None or not both.is_as(history)
        }
        answers = {} if self._cluster is None or not asked else self._cluster.epoch_ends(asked)
        for where in asked:
            both = behind[where]
            self._known[both.lineage.partition] = self._history(both, answers.get(where))
        return {where: self._known[both.lineage.partition] for where, both in behind.items()}

    def look_at_watermarks(self, lineages: Iterable[Lineage]) -> None:
        """Read the watermarks of logs that no broker has, with one listing; not of those without leader epochs."""
        self._moves.look(lineage.partition for lineage in lineages if last_epoch(lineage) > NO_EPOCH)

    def stored_history(self, lineage: Lineage) -> History | None:
        """Return the history by the watermark for a log that no broker has; None if no later epoch is known to have
        left it.
        """
        left = last_epoch(lineage)
        cut = cut_by_watermark(lineage, self._moves.of(lineage.partition)) if left > NO_EPOCH else None
        return None if cut is None else History(left, lineage.end_offset, None, cut)

    def _history(self, both: BothSides, answer: EpochEnd | None) -> History:
        lineage, left = both.lineage, last_epoch(both.lineage)
        assert both.live_epoch is not None
        cuts = [None if answer is None else cut_by_broker(lineage, answer)]
        # A log that begins after the epoch's end returns its own beginning: it does not know earlier epochs.
        if answer is None or answer.end <= both.live_start:
            cuts.append(cut_by_watermark(lineage, read_moves(self._source, lineage.partition)))
            if answer is None and cuts == [None, None]:
                raise BrokerUnavailableError(
                    f"the broker does not tell where leader epoch {left} of {lineage.partition} ends, the last one in "
                    f"the bucket; its leader's is {both.live_epoch}"
                )
        cut = min((known for known in cuts if known is not None), key=lambda known: known.at, default=None)
        return History(left, lineage.end_offset, both.live_epoch, cut)
