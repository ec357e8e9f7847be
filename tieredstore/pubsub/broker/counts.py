"""What a broker counts, and how Prometheus sees it: sums over topics, since their number is not bounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from tieredstore.metrics import Snapshots


@dataclass(slots=True)
class BrokerCounts:
    """Changed on the broker's loop alone."""

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


_LEVELS: Final = ("connections", "held_bytes", "held_bytes_limit", "waiting_connections", "topics")

SNAPSHOTS: Final = Snapshots("tieredstore_broker", levels=_LEVELS)
"""All brokers of this process."""
