"""The state of idempotent producers that brokers keep, computed from the batches of a log.

This module is separate from ``planning``, because this module uses no bucket. It computes states from batches, like
Kafka's ProducerStateManager.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tieredstore.kafka.batches import HEADER_SIZE
from tieredstore.kafka.checkpoints import ProducerState
from tieredstore.kafka.end_markers import MARKER_BYTES, coordinator_epoch
from tieredstore.limits import MAX_INT32

if TYPE_CHECKING:
    from tieredstore.kafka.batches import BatchHeader

_NONE: Final = -1


class Producers:
    """The producers of a log, updated batch by batch. ``known`` has the producers at the log's beginning."""

    def __init__(self, known: Iterable[ProducerState] = ()) -> None:
        self._states = {state.producer_id: state for state in known}

    @property
    def states(self) -> tuple[ProducerState, ...]:
        """The producers and their states after the last batch."""
        return tuple(self._states.values())

    @property
    def in_transactions(self) -> tuple[ProducerState, ...]:
        """The producers with an open transaction, in the order in which their transactions began."""
        opened = (state for state in self._states.values() if state.current_txn_first_offset >= 0)
        return tuple(sorted(opened, key=lambda state: state.current_txn_first_offset))

    def append(self, header: BatchHeader, batch: memoryview | bytes) -> None:
        """Update the producers' states with the log's next batch."""
        producer = header.producer_id
        if producer < 0:
            return
        before = self._states.get(producer) or ProducerState(producer, _NONE, _NONE, _NONE, 0, _NONE, _NONE, _NONE)
        if header.is_control:
            self._states[producer] = _end(before, header, coordinator_epoch(marker_of(batch)))
            return
        began, size = before.current_txn_first_offset, header.last_offset - header.base_offset
        self._states[producer] = ProducerState(
            producer, header.producer_epoch, _last_sequence(header.base_sequence, size), header.last_offset, size,
            header.max_timestamp, before.coordinator_epoch,
            header.base_offset if began < 0 and header.is_transactional else began,
        )  # fmt: skip


def _end(before: ProducerState, header: BatchHeader, epoch: int) -> ProducerState:
    after = replace(
        before, producer_epoch=header.producer_epoch, timestamp=header.max_timestamp, coordinator_epoch=epoch,
        current_txn_first_offset=_NONE,
    )  # fmt: skip
    if before.producer_epoch == header.producer_epoch:
        return after
    # The coordinator has raised the producer's epoch, either to fence the producer, or at the end of a transaction
    # (since KIP-890). Sequence numbers begin again in the new epoch.
    return replace(after, last_sequence=_NONE, last_offset=_NONE, offset_delta=0)


def marker_of(batch: memoryview | bytes) -> bytes:
    """Return the first bytes of the records of a control batch, which suffice to parse its marker."""
    return bytes(batch[HEADER_SIZE : HEADER_SIZE + MARKER_BYTES])


def _last_sequence(first: int, size: int) -> int:
    """Return the sequence number of a batch's last record. The number after 2^31 - 1 is 0."""
    return _NONE if first < 0 else (first + size) % (MAX_INT32 + 1)
