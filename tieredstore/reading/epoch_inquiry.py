"""Decides, with few requests, if the bucket's and the broker's log of a partition are parts of one log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tieredstore.catalog.lineage import NO_EPOCH
from tieredstore.catalog.watermark import StoredWatermarks, find_watermark
from tieredstore.errors import BrokerUnavailableError
from tieredstore.model import TopicIdPartition, TopicPartition
from tieredstore.partitions.history import History, cut_by_broker, cut_by_watermark, epoch_to_ask, last_epoch

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.live import EpochEnd, LiveCluster
    from tieredstore.remote import RemoteStorageManager


class BothSides(NamedTuple):
    """A partition's log in the bucket, and the start and leader epoch of its log at the broker."""

    lineage: Lineage
    live_start: int
    live_epoch: int | None

    @property
    def is_left_behind(self) -> bool:
        """True if the leader's epoch is later than that of the bucket's last record."""
        return self.live_epoch is not None and NO_EPOCH < last_epoch(self.lineage) < self.live_epoch

    def is_as(self, history: History) -> bool:
        """Return True if ``history`` was computed from the same state of both logs, in bucket and broker."""
        now = last_epoch(self.lineage), self.lineage.end_offset, self.live_epoch
        return now == (history.stored_epoch, history.stored_end, history.live_epoch)


class EpochInquiry:
    """Asks the broker where the leader epochs of the bucket's last records end. If the broker cannot answer, reads the
    watermarks in the bucket. A watermark records at which uploaded offset a later leader epoch began.

    The broker's answers are reused until the bucket's log or the leader changes. ``known`` holds earlier answers.
    ``watermarks`` holds the watermark objects that the caller has already read.
    """

    def __init__(
        self,
        source: RemoteStorageManager,
        cluster: LiveCluster | None,
        known: Mapping[TopicIdPartition, History] | None = None,
        watermarks: StoredWatermarks | None = None,
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._known = dict(known or {})
        self._watermarks = StoredWatermarks(source) if watermarks is None else watermarks

    def histories(
        self, partitions: Mapping[TopicPartition, BothSides], timeout_s: float | None = None
    ) -> dict[TopicPartition, History]:
        """Return the histories of the partitions whose leader has a later epoch than the bucket. All partitions share
        one request, and a further one if a broker names an epoch that the bucket does not have. ``timeout_s`` overrides
        the timeout of each request.

        Raise BrokerUnavailableError if the broker does not answer and no watermark in the bucket shows where the leader
        epoch ends.
        """
        behind = {where: both for where, both in partitions.items() if both.is_left_behind}
        asked = {
            where: last_epoch(both.lineage)
            for where, both in behind.items()
            if (history := self._known.get(both.lineage.partition)) is None or not both.is_as(history)
        }
        cluster = self._cluster
        if cluster is not None and timeout_s is not None:
            cluster = cluster.within(timeout_s)
        answers: dict[TopicPartition, EpochEnd] = {}
        wanted = asked
        while cluster is not None and wanted:
            told = cluster.epoch_ends(wanted)
            answers = {where: answer for where, answer in answers.items() if where not in wanted} | told
            earlier = {where: epoch_to_ask(behind[where].lineage, answer) for where, answer in told.items()}
            wanted = {where: epoch for where, epoch in earlier.items() if epoch is not None and epoch < wanted[where]}
        for where in asked:
            both = behind[where]
            self._known[both.lineage.partition] = self._history(both, answers.get(where))
        return {where: self._known[both.lineage.partition] for where, both in behind.items()}

    def look_at_watermarks(self, lineages: Iterable[Lineage]) -> None:
        """Read the bucket's watermarks for logs that the broker does not have. One listing finds all of them. Skip logs
        without leader epochs."""
        self._watermarks.look(lineage.partition for lineage in lineages if last_epoch(lineage) > NO_EPOCH)

    def stored_history(self, lineage: Lineage) -> History | None:
        """Return the history of a log that the broker does not have. The log's watermark in the bucket gives the
        history.

        Return None if no later epoch truncated the log.
        """
        left = last_epoch(lineage)
        cut = cut_by_watermark(lineage, self._watermarks.of(lineage.partition)) if left > NO_EPOCH else None
        return None if cut is None else History(left, lineage.end_offset, None, cut)

    def _history(self, both: BothSides, answer: EpochEnd | None) -> History:
        lineage, left = both.lineage, last_epoch(both.lineage)
        assert both.live_epoch is not None
        cuts = [None if answer is None else cut_by_broker(lineage, answer)]
        # The broker's log may begin after the end of the epoch. The leader then no longer knows the epoch, and answers
        # with the start of its log. Only the watermark in the bucket can then show where the log was truncated.
        if answer is None or answer.end <= both.live_start:
            cuts.append(cut_by_watermark(lineage, find_watermark(self._source, lineage.partition)))
            if answer is None and cuts == [None, None]:
                raise BrokerUnavailableError(
                    f"the broker did not say where leader epoch {left} of {lineage.partition} ends (the bucket's last "
                    f"epoch; the leader's is {both.live_epoch})"
                )
        cut = min((known for known in cuts if known is not None), key=lambda known: known.at, default=None)
        return History(left, lineage.end_offset, both.live_epoch, cut)
