"""A topic of JSON records in a local broker, with its closed segments copied into a folder."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import TopicPartition

from tests.support.kafka.kafka_topics import make_topic, producer_of
from tests.support.servers.kafka import KafkaServer
from tieredstore.config import settings_from
from tieredstore.kafka.logdir import describe, discover
from tieredstore.model import Uuid
from tieredstore.remote import RemoteStorageManager

_WORDS: Final = tuple(f"{number:x}" for number in random.Random(7).choices(range(1 << 20, 1 << 24), k=4096))
_WORDS_A_NOTE: Final = 30


class TieredLog:
    """A topic in broker and bucket. The producer compresses batches by ``codec``. With ``compresses``, the bucket's
    segments are compressed by zstd."""

    def __init__(
        self,
        server: KafkaServer,
        folder: Path,
        records: int,
        *,
        codec: str = "none",
        compresses: bool = False,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.servers = server.bootstrap_servers
        sizes = config or {"segment.bytes": str((16 << 20) // partitions)}  # each partition closes as many
        self.topic = make_topic(server, {**sizes, "retention.ms": "-1"}, partitions=partitions)
        self.settings = {
            "storage.backend.class": "filesystem", "storage.root": str(folder), "chunk.size": str(4 << 20),
            "compression.enabled": str(compresses).lower(),
        }  # fmt: skip
        self.written_bytes = self._write(server, records, codec, partitions)
        self.seams = self._copy(server)
        self.stored_bytes = sum(path.stat().st_size for path in folder.rglob("*.log"))

    @property
    def seam(self) -> int:
        """The offset after the last copied record of the first partition."""
        return self.seams[0]

    @property
    def copied(self) -> int:
        """The number of copied records in all partitions."""
        return sum(self.seams.values())

    def places(self) -> list[TopicPartition]:
        """Return the starts of all partitions."""
        return [TopicPartition(self.topic, partition, 0) for partition in self.seams]

    def client(self, **own: Any) -> dict[str, Any]:
        """Return a consumer's properties, which include ``own`` (names with ``_`` for ``.``). If ``own`` has no mode,
        the properties suit a plain consumer."""
        named = {name.replace("_", "."): value for name, value in own.items()}
        store = {"tiered.storage.settings": self.settings} if "tiered.storage.mode" in named else {}
        return {
            "bootstrap.servers": self.servers, "group.id": "bench", "enable.auto.commit": False, "log_level": 2,
            "fetch.queue.backoff.ms": 2, **named, **store,
        }  # fmt: skip

    def _write(self, server: KafkaServer, records: int, codec: str, partitions: int) -> int:
        producer = producer_of(server, **{"batch.size": "65536", "compression.type": codec})
        written, draw = 0, random.Random(1)
        for at in range(records):
            note = " ".join(draw.choices(_WORDS, k=_WORDS_A_NOTE))
            value = json.dumps({"order": at, "customer": at * 7919 % 100_003, "note": note, "paid": True}).encode()
            written += len(value)
            producer.produce(self.topic, value, b"%d" % at, partition=at * partitions // records)
            if at % 10_000 == 0:
                producer.flush(60)
        assert producer.flush(60) == 0
        return written

    def _copy(self, server: KafkaServer) -> dict[int, int]:
        seams: dict[int, int] = {}
        with RemoteStorageManager(settings_from(self.settings)) as manager:
            mine = (segment for segment in discover(server.log_dir).segments if segment.topic == self.topic)
            for segment in map(describe, mine):
                if not segment.active:
                    manager.copy_log_segment_data(segment.to_metadata(Uuid.random()), segment.files)
                    seams[segment.partition] = max(seams.get(segment.partition, 0), segment.end_offset + 1)
        if not seams:
            raise ValueError(f"the broker closed no segment of {self.topic}: write more --records")
        return seams
