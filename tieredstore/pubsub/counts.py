"""What producers, consumers and brokers of topics of batches count: for Prometheus as sums over topics, whose number is
not bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final

from tieredstore.metrics import Snapshots


@dataclass(slots=True)
class ProducerCounts:
    """Of one producer; changed under its lock alone. Records count when their Message is closed; what Prometheus sees
    has those of the open one too, and what is held now."""

    records: int = 0
    record_bytes: int = 0
    refused_records: int = 0
    blocked_sends: int = 0
    full_buffers: int = 0
    messages: int = 0
    delivered_batches: int = 0
    delivered_records: int = 0
    failed_records: int = 0

    def begin_again(self) -> None:
        """In a forked child: its producer has sent nothing."""
        for each in fields(self):
            setattr(self, each.name, 0)


@dataclass(slots=True)
class ConsumerCounts:
    """Of one consumer, which is one thread's."""

    records: int = 0
    batches: int = 0
    stored_bytes: int = 0
    looks: int = 0
    repeated_messages: int = 0
    damaged_messages: int = 0
    losses: int = 0
    commits: int = 0
    partitions: int = 0


@dataclass(slots=True)
class AuditingCounts:
    """Of one producer or consumer that writes audit records."""

    sent_records: int = 0
    failed_records: int = 0


@dataclass(slots=True)
class PairingCounts:
    """Of one pairing of audit records; Messages, but for ``paired_records``, ``lag_ms_max`` (from the producer's
    record to the consumer's, of what came last) and ``damaged_records``. The last three are what is the case now."""

    produced: int = 0
    paired: int = 0
    paired_records: int = 0
    altered: int = 0
    late: int = 0
    lost: int = 0
    unannounced: int = 0
    repeated: int = 0
    damaged_records: int = 0
    freed_records: int = 0
    unread: int = 0
    unread_records: int = 0
    lag_ms_max: int = 0


@dataclass(slots=True)
class BrokerCounts:
    """Of one broker; changed on its loop alone."""

    connections_opened: int = 0
    refused_connections: int = 0
    write_requests: int = 0
    read_requests: int = 0
    metadata_requests: int = 0
    invalid_requests: int = 0
    unauthorized_requests: int = 0
    redirected_requests: int = 0
    message_bytes: int = 0
    empty_messages: int = 0
    repeated: int = 0
    batches: int = 0
    stored_messages: int = 0
    stored_bytes: int = 0
    failed_messages: int = 0

    def snapshot(self, levels: Mapping[str, int]) -> dict[str, float]:
        """All of them, and what is the case now."""
        return {**asdict(self), **levels}


PRODUCERS: Final = Snapshots("tieredstore_pubsub_producer", levels=("held_bytes", "waiting_records"))
"""All producers of this process."""


def export(snapshots: Snapshots, counts: ConsumerCounts | AuditingCounts | PairingCounts) -> Callable[[], None]:
    """Have Prometheus see counts until the function that is returned is called."""
    return snapshots.add(lambda: asdict(counts))


CONSUMERS: Final = Snapshots("tieredstore_pubsub_consumer", levels=("partitions",))
"""All consumers of this process."""

AUDIT: Final = Snapshots("tieredstore_pubsub_audit", levels=("unread", "unread_records", "lag_ms_max"))
"""Audit records of this process: those that it writes, and those that it pairs."""

BROKERS: Final = Snapshots(
    "tieredstore_broker", levels=("connections", "held_bytes", "held_bytes_limit", "waiting_connections", "topics")
)
"""All brokers of this process."""
