"""Failures and losses of partitions, and their reports to the consumer's caller: never silence."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.lineage import Gap
from tieredstore.consumer.partition import Failed, Partition
from tieredstore.consumer.settings import PREFIX
from tieredstore.errors import DataLossError, SegmentNotFoundError, StoreUnavailableError, TieredStoreError
from tieredstore.model import TopicIdPartition, Uuid

if TYPE_CHECKING:
    from tieredstore.consumer.measures import Measures
    from tieredstore.consumer.settings import ConsumerSettings

_logger: Final = logging.getLogger(__name__)

_MOST_PAUSE_S: Final = 5.0
_NO_ID: Final = Uuid(bytes(16))


class LossPolicy:
    """Decides by the policy if a partition continues, and keeps the errors to raise."""

    def __init__(self, settings: ConsumerSettings, measures: Measures, first_pause_s: float) -> None:
        self._settings = settings
        self._measures = measures
        self._first_pause_s = first_pause_s
        self._to_raise: dict[str, Exception] = {}
        self._told: set[str] = set()

    def take_error(self) -> Exception | None:
        """Return an error for a call to raise, once."""
        return self._to_raise.pop(next(iter(self._to_raise))) if self._to_raise else None

    def note_failure(self, partition: Partition, error: Exception) -> float:
        """Note a possibly transient error; return the seconds until the retry. It is raised once it has lasted."""
        now, retry = time.monotonic(), partition.retry
        retry.tries += 1
        if retry.since is None:
            retry.since = now
        # A deletion by retention since the listing is no error, unless each new listing shows the segment again.
        is_passing = isinstance(error, TieredStoreError) and (
            error.retryable or isinstance(error, SegmentNotFoundError)
        )
        if not is_passing or now - retry.since >= self._settings.timeout_s:
            retry.since = now
            # Reported once for many partitions that fail for one reason.
            self._to_raise.setdefault(f"{type(error).__name__}: {error}", _as_unavailable(error, is_passing))
        _logger.info("%s is tried again: %s", partition, error)
        return self.pause_s(retry.tries)

    def pause_s(self, tries: int) -> float:
        """Return the pause before the next attempt."""
        return min(_MOST_PAUSE_S, self._first_pause_s * 2.0 ** min(tries - 1, 16))

    def loses(self, partition: Partition, start: int, stop: int) -> bool:
        """Report missing offsets (half-open); return True to continue after them."""
        lost = Gap(TopicIdPartition(partition.log.topic_id or _NO_ID, *partition.where), start, stop)
        sentence = f"offsets {start} to {stop - 1} of {partition} are in no segment, nor on the broker"
        if not self.accepts(partition, sentence):
            return False
        self.tell(lost)
        return True

    def tell(self, lost: Gap) -> None:
        """Count a loss, and call the user's callback."""
        self._measures.lost_offsets += lost.stop - lost.start
        if self._settings.loss_cb is not None:
            self._settings.loss_cb(lost)

    def accepts(self, partition: Partition, sentence: str) -> bool:
        """Report a loss; return True to continue. If not, each call raises it until a seek."""
        if self._settings.on_data_loss == "fail":
            way = f"seek behind them, or set {PREFIX}on.data.loss=report to go on with a warning"
            partition.phase = Failed(DataLossError(f"{sentence}; {way}"))
            return False
        self._warn(sentence)
        return True

    def accepts_damage(self, partition: Partition, error: Exception) -> bool:
        """Report unreadable records; return True to continue."""
        if self._settings.on_data_loss == "fail":
            partition.phase = Failed(error)
            return False
        self._warn(str(error))
        return True

    def note_reset(self, partition: Partition, offset: int, position: int | None) -> None:
        """Note an offset that neither log has."""
        self._measures.resets += 1
        where = "by auto.offset.reset" if position is None else f"to offset {position} by auto.offset.reset"
        _logger.warning(
            "offset %d of %s is neither in the bucket nor on the broker: it is reset %s", offset, partition, where
        )

    def note_side(self, partition: Partition, side: str) -> None:
        """Note the side from which a partition is read from now on."""
        before, partition.tally.side = partition.tally.side, side
        if before not in (None, side):
            partition.tally.changes += 1
            self._measures.side_changes += 1
            _logger.info("%s goes on in the %s at offset %s", partition, side, partition.position)

    def _warn(self, sentence: str) -> None:
        """Warn once: a partition that waits at a loss meets it at every look."""
        if sentence not in self._told:
            self._told.add(sentence)
            _logger.warning("%s", sentence)


def _as_unavailable(error: Exception, is_passing: bool) -> Exception:
    # A new one each time: it is raised on another thread than its own.
    if is_passing and isinstance(error, StoreUnavailableError):
        unavailable = type(error)(str(error))
        unavailable.__cause__ = error
        return unavailable
    return error
