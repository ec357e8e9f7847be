"""Counts of producers, consumers and brokers of topics of batches.

Prometheus gets sums over all topics, because the number of topics is unlimited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Final

from tieredstore.metrics.counting import Snapshots


@dataclass(slots=True)
class ProducerCounts:
    """Counts of one producer, changed only under its lock.

    Records are counted when their Message is closed. The export to Prometheus adds the records of the open Message, and
    two gauges (held bytes, waiting records)."""

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
        """Reset the counts in a forked child, because the child's producer has sent nothing."""
        for each in fields(self):
            setattr(self, each.name, 0)


@dataclass(slots=True)
class ConsumerCounts:
    """Counts of one consumer, changed by its one thread."""

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
    """Counts of one producer or consumer that writes audit records."""

    sent_records: int = 0
    failed_records: int = 0


@dataclass(slots=True)
class PairingCounts:
    """Counts of Messages, made by pairing the audit records of producers with the records of consumers.

    ``paired_records`` and ``damaged_records`` count records. ``lag_ms_max`` is the lag of the latest pair: the time
    from the producer's audit record to the consumer's. The export takes the maximum over all readers.

    The last three fields are gauges.
    """

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
    """Counts of one broker, changed only on the broker's event loop. Each field is a metric."""

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


PRODUCERS: Final = Snapshots("tieredstore_pubsub_producer", levels=("held_bytes", "waiting_records"))
"""Summed counts of all producers of this process."""


def export(snapshots: Snapshots, counts: ConsumerCounts | AuditingCounts | PairingCounts) -> Callable[[], None]:
    """Export counts to Prometheus until the returned function is called."""
    return snapshots.add(lambda: asdict(counts))


CONSUMERS: Final = Snapshots("tieredstore_pubsub_consumer", levels=("partitions",))
"""Summed counts of all consumers of this process."""

AUDIT: Final = Snapshots("tieredstore_pubsub_audit", levels=("unread", "unread_records", "lag_ms_max"))
"""Summed counts of the audit records that this process writes, or reads to compare sent and read Messages."""

BROKERS: Final = Snapshots(
    "tieredstore_broker", levels=("connections", "held_bytes", "held_bytes_limit", "waiting_connections", "topics")
)
"""Summed counts of all brokers of this process."""
