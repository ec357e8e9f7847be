"""Finds out whether the bucket's logs and the broker's are one history, with as few questions as possible."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from tieredstore.catalog.lineage import NO_EPOCH
from tieredstore.catalog.watermark import read_watermark
from tieredstore.errors import BrokerUnavailable, CorruptData
from tieredstore.model import TopicIdPartition, TopicPartition
from tieredstore.partitions.history import Cut, History, cut_by_broker, cut_by_watermark, last_epoch

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.live import EpochEnd, LiveCluster
    from tieredstore.remote.source import SegmentSource

_logger: Final = logging.getLogger(__name__)


class BothSides(NamedTuple):
    """What the bucket has of a partition, and where the broker's log begins, whose leader is of ``live_epoch``."""

    lineage: Lineage
    live_start: int
    live_epoch: int | None

    @property
    def is_left_behind(self) -> bool:
        """Whether the leader is of a later epoch than the bucket's last record."""
        return self.live_epoch is not None and NO_EPOCH < last_epoch(self.lineage) < self.live_epoch

    def is_as(self, history: History) -> bool:
        """Whether what was found out holds still."""
        now = last_epoch(self.lineage), self.lineage.end_offset, self.live_epoch
        return now == (history.stored_epoch, history.stored_end, history.live_epoch)


class EpochInquiry:
    """Asks the broker where the bucket's last leader epochs end, and watermarks where it cannot tell.

    Each is asked once as long as nothing has changed. ``known`` are earlier answers.
    """

    def __init__(
        self,
        source: SegmentSource,
        cluster: LiveCluster | None,
        known: Mapping[TopicIdPartition, History] | None = None,
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._known = dict(known or {})

    def histories(self, partitions: Mapping[TopicPartition, BothSides]) -> dict[TopicPartition, History]:
        """What is found out of those whose leaders are of later epochs than the bucket; one inquiry for all of them.

        BrokerUnavailable if neither broker nor watermark tells it.
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

    def _history(self, both: BothSides, answer: EpochEnd | None) -> History:
        lineage, left = both.lineage, last_epoch(both.lineage)
        assert both.live_epoch is not None
        cuts = [None if answer is None else cut_by_broker(lineage, answer)]
        # A log that begins behind the epoch's end tells its beginning: what ruled before that it does not know.
        if answer is None or answer.end <= both.live_start:
            cuts.append(self._cut_by_watermark(lineage))
            if answer is None and cuts == [None, None]:
                raise BrokerUnavailable(
                    f"the broker does not tell where leader epoch {left} of {lineage.partition} ends, the last one in "
                    f"the bucket; its leader's is {both.live_epoch}"
                )
        cut = min((known for known in cuts if known is not None), key=lambda known: known.at, default=None)
        return History(left, lineage.end_offset, both.live_epoch, cut)

    def _cut_by_watermark(self, lineage: Lineage) -> Cut | None:
        try:
            mark = read_watermark(self._source.store, self._source.layout.prefix, lineage.partition)
        except CorruptData as error:
            _logger.warning("%s", error)
            return None
        return None if mark is None else cut_by_watermark(lineage, mark.moved_back)
