"""Topics of a real broker whose closed segments we copy into a bucket while the broker still has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions

from tests.support.kafka.kafka_topics import Produced, Row, make_topic, producer_of, send
from tests.support.servers.kafka import KafkaServer
from tests.support.spark.spark_session import read
from tieredstore.config import settings_from
from tieredstore.kafka.logdir import describe, discover
from tieredstore.model import RemoteLogSegmentMetadata, Uuid
from tieredstore.remote import RemoteStorageManager

SMALL_SEGMENTS = {"internal.segment.bytes": "20000"}
"""Topic settings for small segments: Kafka 4 makes segments under a megabyte only with this setting."""


class TieredTopic:
    """Topic, by default with small segments, and its bucket, which is in ``folder`` unless ``store`` has settings."""

    def __init__(
        self,
        server: KafkaServer,
        folder: Path,
        *,
        partitions: int = 1,
        name: str | None = None,
        config: Mapping[str, str] = SMALL_SEGMENTS,
        store: Mapping[str, str] | None = None,
    ) -> None:
        self.server = server
        self.topic = make_topic(server, config, partitions=partitions, name=name)
        if store is None:
            (folder / "bucket").mkdir(exist_ok=True)
            store = {"storage.backend.class": "filesystem", "storage.root": str(folder / "bucket")}
        self.store = dict(store)
        self.manager = RemoteStorageManager(settings_from(self.store | {"chunk.size": "8192"}))
        self.copied: dict[tuple[int, int], RemoteLogSegmentMetadata] = {}

    def produce(self, records: Sequence[Produced], *, codec: str = "none", partition: int = 0) -> None:
        """Write records without a transaction, in batches that fit a segment."""
        # Use one producer for all batches, because a new producer waits half a second for its producer id.
        producer = producer_of(self.server, **{"compression.type": codec})
        for at in range(0, len(records), 50):
            send(producer, self.topic, records[at : at + 50], partition=partition)

    def tier(self, *, but_last: int = 0) -> int:
        """Copy the new closed segments except the last ``but_last``; return the end offset of the copies."""
        # Do not describe a copied segment again, because its epochs may be truncated, and its files deleted at any
        # time.
        new = [
            log_file
            for log_file in discover(self.server.log_dir).segments
            if log_file.topic == self.topic and (log_file.partition, log_file.base_offset) not in self.copied
        ]
        described = [describe(log_file) for log_file in new]
        closed = sorted((s for s in described if not s.active), key=lambda s: (s.partition, s.base_offset))
        for segment in closed[: len(closed) - but_last]:
            metadata = segment.to_metadata(Uuid.random(), event_timestamp_ms=1000 + len(self.copied))
            self.manager.copy_log_segment_data(metadata, segment.files)
            self.copied[segment.partition, segment.base_offset] = metadata
        return max((metadata.end_offset + 1 for metadata in self.copied.values()), default=0)

    def options(self, **more: Any) -> dict[str, Any]:
        """Return the options of a query over bucket and broker."""
        live = {"kafka.bootstrap.servers": self.server.bootstrap_servers}
        return {**self.store, **live, "subscribe": self.topic, "includeHeaders": True, **more}

    def rows(self, spark: SparkSession, **more: Any) -> list[Row]:
        """Return the rows of a batch query, in the format of ``consumed``."""
        return plain_rows(read(spark, self.options(**more)))

    def close(self) -> None:
        self.manager.close()


def plain_rows(df: DataFrame) -> list[Row]:
    """Return rows by partition and offset, with times in milliseconds."""
    shown = df.withColumn("timestamp", functions.unix_millis("timestamp")).orderBy("partition", "offset")
    return [without(row.asDict(recursive=True), "topic", "partition") for row in shown.collect()]


def without(row: Mapping[str, Any], *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}
