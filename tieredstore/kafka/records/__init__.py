"""Kafka's record batches decoded into Arrow columns by a compiled kernel. Needs ``tieredstore[arrow]``."""

from __future__ import annotations

from tieredstore.kafka.records.columns import COLUMNS
from tieredstore.kafka.records.decoder import RecordDecoder, SkippedBatch

__all__ = ["COLUMNS", "RecordDecoder", "SkippedBatch"]
