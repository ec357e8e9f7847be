"""The segment of abort markers after a log that ends in open transactions.

In the log's own cluster a coordinator would write these markers; in another cluster no coordinator knows the
transactions. Separate from ``segment_copy``, because these batches do not come from the bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tieredstore.kafka.batches import read_batch_headers
from tieredstore.kafka.checkpoints import ProducerState
from tieredstore.kafka.end_markers import TransactionStep, format_end_marker, play_markers
from tieredstore.kafka.index_builder import IndexBuilder
from tieredstore.kafka.indexes import format_txn_index
from tieredstore.restore.logdir.producers import Producers


@dataclass(frozen=True)
class AbortMarkers:
    """One marker for each of ``opened``, the producers with an open transaction at ``start``, the end of the log.

    All replicas must have the same bytes, so a marker has the time of its producer's last batch.
    """

    start: int
    opened: tuple[ProducerState, ...]

    @property
    def stop(self) -> int:
        """The offset after the last marker."""
        return self.start + len(self.opened)

    @cached_property
    def log(self) -> bytes:
        """The batches."""
        return b"".join(
            format_end_marker(
                offset, state.producer_id, state.producer_epoch, commit=False, timestamp_ms=state.timestamp,
                # Coordinators of a new cluster begin with epoch 0, and none may be lower than the last one.
                coordinator_epoch=max(state.coordinator_epoch, 0),
            )
            for offset, state in enumerate(self.opened, self.start)
        )  # fmt: skip

    def indexes(self) -> Mapping[str, bytes]:
        """Return the segment's indexes by their suffixes."""
        built = IndexBuilder(self.start)
        for header in read_batch_headers(self.log):
            built.add(header.position, header.size_in_bytes, header.last_offset, header.max_timestamp)
        began = {state.producer_id: state.current_txn_first_offset for state in self.opened}
        steps = (TransactionStep(producer, offset, aborts=True) for offset, producer in enumerate(began, self.start))
        aborted, _ = play_markers(steps, began)
        return {
            "index": bytes(built.offset_index), "timeindex": built.close(), "txnindex": format_txn_index(aborted),
        }  # fmt: skip

    def end_transactions(self, producers: Producers) -> None:
        """Append the markers to the log of ``producers``."""
        for header in read_batch_headers(self.log):
            producers.append(header, self.log[header.position : header.position + header.size_in_bytes])
