"""Reader of the audit records of one topic of batches. It reads the audit topic in Kafka once to the end, or
continuously."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tieredstore.errors import ConfigError, CorruptDataError, DataLossError, TieredStoreError
from tieredstore.process.closing import Closing
from tieredstore.process.health import Health
from tieredstore.process.service import Service
from tieredstore.process.stopping import Stop, nothing_under_way
from tieredstore.pubsub.counts import AUDIT, PairingCounts, export
from tieredstore.pubsub.format.audit_records import AuditRecord, parse_audit_record
from tieredstore.pubsub.format.messages import ProducerRequest
from tieredstore.pubsub.queue.kafka_queue import KafkaQueue
from tieredstore.pubsub.queue.queues import QueuedNotification
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.pubsub.upkeep.audit import AuditFault, AuditFinding, Producer

_LOOK_S: Final = 1.0
_BEAT_S: Final = 120.0
_PAIRING: Final = "pairing"


class AuditLog(Closing):
    """Reads the audit records of ``topic`` and adds them to ``pairs``. Not thread-safe."""

    def __init__(self, topics: Topics, topic: str, pairs: AuditPairs, since_ms: int | None = None) -> None:
        """Begin with the audit records written at ``since_ms`` or later. If ``since_ms`` is None, begin with the first
        available record.
        """
        settings = self.settings = topics.batches
        properties = {name: text.get_secret_value() for name, text in settings.kafka}
        if settings.audit_topic is None or not properties.get("bootstrap.servers"):
            raise ConfigError(
                "there are no audit records to read: set pubsub.audit.topic and pubsub.kafka.bootstrap.servers, also "
                "for producers and consumers"
            )
        self.pairs = pairs
        self.requests: Counter[AuditFault] = Counter()
        self._cluster, self.topic = settings.cluster, topic
        self._log = KafkaQueue(properties, settings.audit_topic, settings.audit_topic)
        self._since_ms = since_ms
        self._next: dict[int, int] = {}
        self._forget_counts = export(AUDIT, pairs.counts)

    def close(self) -> None:
        """Close the client."""
        self._log.close()
        self._forget_counts()

    def read(self, now_ms: Callable[[], int], *, wait: Callable[[], bool] = lambda: False) -> Iterator[AuditFinding]:
        """Yield findings from all available records. Before each read, call ``wait``. Once it returns True, read no
        more records."""
        for partition in range(self._log.partitions):
            end = self._log.end(partition)
            while self._place(partition) < end and not wait():
                yield from map(self._count, self._take(partition, end))
        yield from map(self._count, self.pairs.overdue(now_ms()))

    def pending(self) -> Iterator[AuditFinding]:
        """Return Messages that were sent but not read yet."""
        return map(self._count, self.pairs.pending())

    def _count(self, finding: AuditFinding) -> AuditFinding:
        self.requests[finding.fault] += 1
        return finding

    def _place(self, partition: int) -> int:
        """Return the partition's next offset to read. The offset is initialized at its first use."""
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
        except DataLossError:
            start = self._log.start(partition)
            self.pairs.counts.freed_records += max(0, start - place)
            self._next[partition] = max(start, place)
            return
        for entry in entries:
            yield from self._pair(partition, entry)
        # If nothing was read, go on to the partition's end, because the offsets before the end are transaction markers
        # or compacted records.
        self._next[partition] = entries[-1].offset + 1 if entries else end

    def _pair(self, partition: int, entry: QueuedNotification) -> Iterator[AuditFinding]:
        try:
            record = parse_audit_record(entry.raw, f"audit record {partition}/{entry.offset}")
        except CorruptDataError as error:
            self.pairs.counts.damaged_records += 1
            yield AuditFinding(AuditFault.ALTERED, None, None, None, str(error), partition, entry.offset)
            return
        if (record.cluster, record.topic) == (self._cluster, self.topic):
            yield from self.pairs.add(record, entry.appended_ms, partition, entry.offset)


def audit_service(log: AuditLog, tell: Callable[[AuditFinding], None], *, look_s: float = _LOOK_S) -> Service:
    """Return a service that keeps reading and calls ``tell`` with each finding. The service waits while the broker is
    unavailable.
    """
    health = Health({_PAIRING: "audit topic not read to its end yet"}, servers={_PAIRING: "audit topic"})

    def follow(stop: Stop) -> None:
        while True:
            try:
                findings = log.read(now_ms, wait=lambda: stop.is_asked)
                while (finding := _next(findings)) is not None:
                    tell(finding)
            except TieredStoreError as error:
                if not error.retryable:
                    raise
                health.fails(_PAIRING, f"cannot read the audit topic: {type(error).__name__}")
            else:
                health.holds(_PAIRING)
            health.beat("pairs", within_s=_BEAT_S)
            if stop.wait(look_s):
                break
        health.rest("pairs")

    return Service("audit", {"pairs": follow}, health=health, listen=log.settings.audit_pages)


def _next(findings: Iterator[AuditFinding]) -> AuditFinding | None:
    """Return the next finding. A stop of the service may interrupt this read, because the next run repeats it."""
    with nothing_under_way():
        return next(findings, None)


def now_ms() -> int:
    """Return this machine's time."""
    return time.time_ns() // 1_000_000


SETTLE_MS: Final = 300_000
"""Time in ms within which consumers should read a Message, as in MemQ's analyzer."""

_REMEMBERED_MS: Final = 3_600_000
"""Time after ``settle_ms`` for which a paired or lost Message is remembered, so that its late audit records are
recognized.
"""

_MOST_KNOWN: Final = 2_000_000
"""Maximum number of remembered Messages, of about 300 bytes each. Beyond that, the oldest are dropped."""


@dataclass(slots=True)
class _Known:
    """A Message's audit facts, and where they were first reported. ``sent_ms`` and ``read_ms`` are None until
    reported.
    """

    ids_hash: bytes
    record_count: int
    since_ms: int
    place: tuple[int, int]
    sent_ms: int | None = None
    read_ms: int | None = None

    @property
    def is_unread(self) -> bool:
        return self.read_ms is None

    def has_side(self, record: AuditRecord) -> bool:
        """Return True if the record's side (producer or consumer) has already reported this Message."""
        return (self.sent_ms if record.is_producer else self.read_ms) is not None

    def note_side(self, record: AuditRecord, ms: int) -> None:
        if record.is_producer:
            self.sent_ms = ms
        else:
            self.read_ms = ms


class AuditPairs:
    """Pairs the audit records of one topic: the producer's record of a Message with the consumer's. Not thread-safe.

    A Message that was read before or soon after ``begin_ms`` is not reported as unannounced, because its producer may
    have reported it before ``begin_ms``.
    """

    def __init__(
        self, *, settle_ms: int = SETTLE_MS, late_ms: int = SETTLE_MS, begin_ms: int = 0, most: int = _MOST_KNOWN
    ) -> None:
        self._settle_ms = settle_ms
        self._late_ms = late_ms
        self._begin_ms = begin_ms
        self._most = most
        self._waiting: dict[ProducerRequest, _Known] = {}  # not yet reported by both producer and consumer
        self._settled: dict[ProducerRequest, _Known] = {}
        self.producers: set[Producer] = set()
        self.counts: PairingCounts = PairingCounts()

    def add(self, record: AuditRecord, ms: int, partition: int, offset: int) -> Iterator[AuditFinding]:
        """Add a record written at ``ms``; yield findings about its Message."""
        request, place = record.request, (partition, offset)
        self.counts.produced += record.is_producer
        known = self._waiting.get(request) or self._settled.get(request)
        if known is None:
            self._begin(record, ms, place)
            return
        is_altered = known.ids_hash != record.ids_hash or known.record_count != record.record_count
        if is_altered:
            self.counts.altered += 1
            yield _make_finding(AuditFault.ALTERED, request, _difference(known, record), place)
        if known.has_side(record):
            self.counts.repeated += not is_altered
            return
        known.note_side(record, ms)
        self._settled[request] = self._waiting.pop(request, known)
        if not record.is_producer:
            self._count_unread(known, -1)
        if not is_altered:
            yield from self._pair(request, known, place)

    def _begin(self, record: AuditRecord, ms: int, place: tuple[int, int]) -> None:
        known = _Known(record.ids_hash, record.record_count, ms, place)
        known.note_side(record, ms)
        self._waiting[record.request] = known
        self.producers.add(record.request[:2])
        if record.is_producer:
            self._count_unread(known, 1)

    def _pair(self, request: ProducerRequest, known: _Known, place: tuple[int, int]) -> Iterator[AuditFinding]:
        lag_ms = max(0, (known.read_ms or 0) - (known.sent_ms or 0))
        self.counts.lag_ms_max = lag_ms
        self.counts.paired += 1
        self.counts.paired_records += known.record_count
        if lag_ms > self._late_ms:
            self.counts.late += 1
            yield _make_finding(AuditFault.LATE, request, f"read {lag_ms / 1000:.1f} s after it was sent", place)

    def overdue(self, now_ms: int) -> Iterator[AuditFinding]:
        """Yield a finding for each Message that was reported only as sent or only as read until ``settle_ms`` had
        passed. Forget the oldest Messages.
        """
        for request, known in list(self._waiting.items()):
            if known.since_ms < now_ms - self._settle_ms or len(self._waiting) > self._most:
                self._settled[request] = self._waiting.pop(request)
                yield from self._find_unpaired(request, known)
        while self._settled:
            oldest = next(iter(self._settled))
            known = self._settled[oldest]
            if known.since_ms >= now_ms - self._settle_ms - _REMEMBERED_MS and len(self._settled) <= self._most:
                break
            del self._settled[oldest]
            self._count_unread(known, -known.is_unread)

    def _find_unpaired(self, request: ProducerRequest, known: _Known) -> Iterator[AuditFinding]:
        if known.is_unread:
            self.counts.lost += 1
            yield _make_finding(AuditFault.LOST, request, "sent, but not reported as read by any consumer", known.place)
        elif known.since_ms >= self._begin_ms + self._settle_ms:
            self.counts.unannounced += 1
            why = "read, but not reported as sent by its producer"
            yield _make_finding(AuditFault.UNANNOUNCED, request, why, known.place)

    def pending(self) -> Iterator[AuditFinding]:
        """Yield Messages that were sent recently and not read yet."""
        for request, known in self._waiting.items():
            if known.is_unread:
                yield _make_finding(AuditFault.PENDING, request, "sent, but not read yet", known.place)

    def _count_unread(self, known: _Known, by: int) -> None:
        self.counts.unread += by
        self.counts.unread_records += by * known.record_count


def _difference(known: _Known, record: AuditRecord) -> str:
    whence = "its producer" if record.is_producer else "a consumer"
    before = "its producer" if known.sent_ms is not None else "a consumer"
    ids = "other message ids" if known.ids_hash != record.ids_hash else "message ids of the same hash"
    return f"{whence} reports {record.record_count} records of {ids}, but {before} reported {known.record_count}"


def _make_finding(fault: AuditFault, request: ProducerRequest, why: str, place: tuple[int, int]) -> AuditFinding:
    producer = (request.address, request.epoch_ms)
    return AuditFinding(fault, producer, request.request_id, request.request_id, why, *place)
