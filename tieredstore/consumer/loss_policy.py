"""The policy for failures and lost records of partitions. Errors are logged, or a later call to the consumer raises
them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.lineage import Gap
from tieredstore.consumer.partition import Failed, Partition
from tieredstore.consumer.settings import PREFIX
from tieredstore.errors import DataLossError, SegmentNotFoundError, StoreUnavailableError, TieredStoreError
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.process.log_once import LogOnce

if TYPE_CHECKING:
    from tieredstore.consumer.assembly import Measures
    from tieredstore.consumer.settings import ConsumerSettings

_logger: Final = logging.getLogger(__name__)

_MOST_PAUSE_S: Final = 5.0
_NO_ID: Final = Uuid(bytes(16))


class LossPolicy:
    """Decides by ``on.data.loss`` if a partition continues, and keeps errors for the next call to raise."""

    def __init__(
        self, settings: ConsumerSettings, measures: Measures, first_pause_s: float, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._measures = measures
        self._first_pause_s = first_pause_s
        self._clock = clock
        self._to_raise: dict[str, Exception] = {}
        # Log each loss once, because while a partition waits before lost offsets, every look-up finds the same loss
        # again.
        self._log = LogOnce(_logger)

    def take_error(self) -> Exception | None:
        """Return an error for the current call to raise. Each error is returned once."""
        return self._to_raise.pop(next(iter(self._to_raise))) if self._to_raise else None

    def note_failure(self, partition: Partition, error: Exception, lasted_s: float = 0.0) -> float:
        """Record the error of a look-up or read that has lasted ``lasted_s``. Return the seconds until the retry.

        The consumer's next call raises a permanent error. A transient error is raised only if the failures have lasted
        for ``timeout.ms``.
        """
        now, retry = self._clock(), partition.retry
        retry.tries += 1
        if retry.since is None:
            retry.since = now - lasted_s
        # A missing segment is a transient error, because retention may have deleted it since the last listing, and the
        # next listing omits it.
        is_passing = isinstance(error, TieredStoreError) and (
            error.retryable or isinstance(error, SegmentNotFoundError)
        )
        if not is_passing or now - retry.since >= self._settings.timeout_s:
            retry.since = now
            # Many partitions may fail for the same reason, so keep one error for all of them.
            self._to_raise.setdefault(f"{type(error).__name__}: {error}", _as_unavailable(error, is_passing))
        _logger.info("retrying %s: %s", partition, error)
        return self.pause_s(retry.tries)

    def pause_s(self, tries: int) -> float:
        """Return the pause before the next attempt."""
        return min(_MOST_PAUSE_S, self._first_pause_s * 2.0 ** min(tries - 1, 16))

    def loses(self, partition: Partition, start: int, stop: int) -> bool:
        """Report the missing offsets from ``start`` up to ``stop`` (exclusive). Return True if the partition may
        continue after them.
        """
        lost = Gap(TopicIdPartition(partition.log.topic_id or _NO_ID, *partition.where), start, stop)
        sentence = f"offsets {start} to {stop - 1} of {partition} are neither in the bucket nor on the broker"
        if not self.accepts(partition, sentence):
            return False
        self.tell(lost)
        return True

    def tell(self, lost: Gap) -> None:
        """Count a loss and call the user's callback."""
        self._measures.lost_offsets += lost.stop - lost.start
        if self._settings.loss_cb is not None:
            self._settings.loss_cb(lost)

    def accepts(self, partition: Partition, sentence: str) -> bool:
        """Apply the policy to a loss. If the policy accepts the loss, log a warning and return True. Otherwise, fail
        the partition: each call then raises the error until a seek.
        """
        if self._settings.on_data_loss == "fail":
            way = f"seek to another offset, or set {PREFIX}on.data.loss=report to continue with a warning"
            partition.phase = Failed(DataLossError(f"{sentence}; {way}"))
            return False
        self._log.warn(sentence)
        return True

    def accepts_damage(self, partition: Partition, error: Exception) -> bool:
        """Apply the policy to unreadable records; return True if the partition may continue after them."""
        if self._settings.on_data_loss == "fail":
            partition.phase = Failed(error)
            return False
        self._log.warn(str(error))
        return True

    def note_damage(self, partition: Partition, error: Exception) -> None:
        """Log damage in the bucket, after which the partition's records are read from the broker."""
        self._log.warn(f"{error}; {partition} is read from the broker from offset {partition.left_at} on")

    def note_reset(self, partition: Partition, offset: int, position: int | None) -> None:
        """Count and log a reset to ``position``, because neither bucket nor broker has ``offset``."""
        self._measures.resets += 1
        target = "" if position is None else f" to offset {position}"
        _logger.warning(
            "offset %d of %s is neither in the bucket nor on the broker: auto.offset.reset moves the position%s",
            offset, partition, target,
        )  # fmt: skip

    def note_side(self, partition: Partition, side: str) -> None:
        """Record the ``side`` (bucket or broker) from which a partition is now read. Count and log a change."""
        before, partition.tally.side = partition.tally.side, side
        if before not in (None, side):
            partition.tally.changes += 1
            self._measures.side_changes += 1
            _logger.info("%s continues from the %s at offset %s", partition, side, partition.position)


def _as_unavailable(error: Exception, is_passing: bool) -> Exception:
    # Create a new error object each time, because another thread has caught the original error.
    if is_passing and isinstance(error, StoreUnavailableError):
        unavailable = type(error)(str(error))
        unavailable.__cause__ = error
        return unavailable
    return error
