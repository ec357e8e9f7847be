"""The audit topic in Kafka, read for the records of one topic of batches: once to its end, or as it grows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from tieredstore.errors import ConfigError, CorruptData, DataLoss, TieredStoreError
from tieredstore.process.closing import Closing
from tieredstore.process.health import Health
from tieredstore.process.service import Service
from tieredstore.process.stopping import Stop, nothing_under_way
from tieredstore.pubsub.format.audit_records import parse_audit_record
from tieredstore.pubsub.queue.kafka_queue import KafkaQueue
from tieredstore.pubsub.queue.queues import QueuedNotification
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.pubsub.upkeep.audit import AuditFault, AuditFinding
from tieredstore.pubsub.upkeep.audit_pairs import AuditPairs

_LOOK_S: Final = 1.0
_BEAT_S: Final = 120.0
_PAIRING: Final = "pairing"


class AuditLog(Closing):
    """The audit records of ``topic``, into pairs. For one thread."""

    def __init__(self, topics: Topics, topic: str, pairs: AuditPairs, since_ms: int | None = None) -> None:
        """From the records on that were written at ``since_ms``; from the first that is there without it."""
        settings = topics.batches
        properties = {name: text.get_secret_value() for name, text in settings.kafka}
        if settings.audit_topic is None or not properties.get("bootstrap.servers"):
            raise ConfigError(
                "there are no audit records to read: set pubsub.audit.topic and pubsub.kafka.bootstrap.servers, which "
                "producers and consumers need too"
            )
        self.pairs = pairs
        self.requests: Counter[AuditFault] = Counter()
        self._cluster, self._topic = settings.cluster, topic
        self._log = KafkaQueue(properties, settings.audit_topic, settings.audit_topic)
        self._since_ms = since_ms
        self._next: dict[int, int] = {}
        self._forget_counts = pairs.counts.export()

    def close(self) -> None:
        """Let the client go."""
        self._log.close()
        self._forget_counts()

    def read(self, now_ms: Callable[[], int], *, wait: Callable[[], bool] = lambda: False) -> Iterator[AuditFinding]:
        """What is wrong, by all that is there now; ``wait()`` is asked between reads, and True ends it."""
        for partition in range(self._log.partitions):
            end = self._log.end(partition)
            while self._place(partition) < end and not wait():
                for finding in self._take(partition, end):
                    yield self._counted(finding)
        for finding in self.pairs.overdue(now_ms()):
            yield self._counted(finding)

    def pending(self) -> Iterator[AuditFinding]:
        """What was sent and not read yet."""
        for finding in self.pairs.pending():
            yield self._counted(finding)

    def _counted(self, finding: AuditFinding) -> AuditFinding:
        self.requests[finding.fault] += 1
        return finding

    def _place(self, partition: int) -> int:
        """Where to read on; partitions that were added are read from their start."""
        place = self._next.get(partition)
        if place is None:
            since_ms = self._since_ms
            place = self._log.start(partition) if since_ms is None else self._log.offset_at(partition, since_ms)
            self._next[partition] = place
        return place

    def _take(self, partition: int, end: int) -> Iterator[AuditFinding]:
        place = self._next[partition]
        try:
            entries = self._log.read(partition, place)
        except DataLoss:
            start = self._log.start(partition)
            self.pairs.counts.freed_records += max(0, start - place)
            self._next[partition] = max(start, place)
            return
        for entry in entries:
            yield from self._pair(partition, entry)
        # Nothing may lie before the end: markers of transactions, what compaction took.
        self._next[partition] = entries[-1].offset + 1 if entries else end

    def _pair(self, partition: int, entry: QueuedNotification) -> Iterator[AuditFinding]:
        try:
            record = parse_audit_record(entry.raw, f"audit record {partition}/{entry.offset}")
        except CorruptData as error:
            self.pairs.counts.damaged_records += 1
            yield AuditFinding(AuditFault.ALTERED, None, None, None, str(error), partition, entry.offset)
            return
        if (record.cluster, record.topic) == (self._cluster, self._topic):
            yield from self.pairs.add(record, entry.appended_ms, partition, entry.offset)


def audit_service(
    topics: Topics, log: AuditLog, tell: Callable[[AuditFinding], None], *, look_s: float = _LOOK_S
) -> Service:
    """A service that goes on reading, and tells what is wrong when it shows; a broker that is away is waited for."""
    health = Health({_PAIRING: "the audit topic was not read to its end yet"})

    def follow(stop: Stop) -> None:
        while True:
            try:
                findings = log.read(now_ms, wait=lambda: stop.is_asked)
                while (finding := _next(findings)) is not None:
                    tell(finding)
            except TieredStoreError as error:
                if not error.retryable:
                    raise
                health.fails(_PAIRING, f"the audit topic cannot be read: {type(error).__name__}")
            else:
                health.holds(_PAIRING)
            health.beat("pairs", within_s=_BEAT_S)
            if stop.wait(look_s):
                break
        health.rest("pairs")

    return Service("audit", {"pairs": follow}, health=health, listen=topics.batches.audit_pages)


def _next(findings: Iterator[AuditFinding]) -> AuditFinding | None:
    """A stop does not wait for what is read: the next run reads it again."""
    with nothing_under_way():
        return next(findings, None)


def now_ms() -> int:
    """This machine's time."""
    return time.time_ns() // 1_000_000
