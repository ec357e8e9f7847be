"""Audit records of producers and consumers, paired: which Messages were sent and not read, or not read as sent.

Of each Message the producer's record and a consumer's should say the same: how many records, and the XOR of their ids.
Two equal records within a Message cancel each other out in the hash, so that the count is compared too, which MemQ's
analyzer does not do. A record does not say which group has read, so that several readers of a Message are no fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tieredstore.pubsub.counts import PairingCounts
from tieredstore.pubsub.format.audit_records import AuditRecord
from tieredstore.pubsub.format.messages import ProducerRequest
from tieredstore.pubsub.upkeep.audit import AuditFault, AuditFinding

SETTLE_MS: Final = 300_000
"""A Message that was sent so long ago should have been read, as MemQ's analyzer has it."""

_REMEMBERED_MS: Final = 3_600_000
"""So long, after ``settle_ms``, what was paired or lost is known, in case that more is said of it."""

_MOST_KNOWN: Final = 2_000_000
"""Messages that are known at once, some 300 bytes each; of more, the oldest are forgotten."""


@dataclass(slots=True)
class _Known:
    """What was said of a Message, and where first; of ``sent_ms`` and ``read_ms`` one may be None: it was not said."""

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
        """Whether the side that the record is of has spoken before."""
        return (self.sent_ms if record.is_producer else self.read_ms) is not None

    def note_side(self, record: AuditRecord, ms: int) -> None:
        if record.is_producer:
            self.sent_ms = ms
        else:
            self.read_ms = ms


class AuditPairs:
    """Pairs the audit records of one topic. For one thread.

    What was read before ``begin_ms``, by a record's time, or not long after it, may have been sent before it.
    """

    def __init__(
        self, *, settle_ms: int = SETTLE_MS, late_ms: int = SETTLE_MS, begin_ms: int = 0, most: int = _MOST_KNOWN
    ) -> None:
        self._settle_ms = settle_ms
        self._late_ms = late_ms
        self._begin_ms = begin_ms
        self._most = most
        self._waiting: dict[ProducerRequest, _Known] = {}  # for the other side
        self._settled: dict[ProducerRequest, _Known] = {}
        self.producers: set[tuple[bytes, int]] = set()
        self.counts = PairingCounts()

    def add(self, record: AuditRecord, ms: int, partition: int, offset: int) -> Iterator[AuditFinding]:
        """One record, which was written at ``ms``; what it shows to be wrong with its Message."""
        request, place = record.request, (partition, offset)
        self.counts.produced += record.is_producer
        known = self._waiting.get(request) or self._settled.get(request)
        if known is None:
            self._begin(record, ms, place)
            return
        is_altered = known.ids_hash != record.ids_hash or known.record_count != record.record_count
        if is_altered:
            self.counts.altered += 1
            yield _finding(AuditFault.ALTERED, request, _difference(known, record), place)
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
            yield _finding(AuditFault.LATE, request, f"it was read {lag_ms / 1000:.1f} s after it was sent", place)

    def overdue(self, now_ms: int) -> Iterator[AuditFinding]:
        """Of what the other side should have spoken by now, each once; what is too old is forgotten."""
        for request, known in list(self._waiting.items()):
            if known.since_ms < now_ms - self._settle_ms or len(self._waiting) > self._most:
                self._settled[request] = self._waiting.pop(request)
                yield from self._left_alone(request, known)
        while self._settled:
            oldest = next(iter(self._settled))
            known = self._settled[oldest]
            if known.since_ms >= now_ms - self._settle_ms - _REMEMBERED_MS and len(self._settled) <= self._most:
                break
            del self._settled[oldest]
            self._count_unread(known, -known.is_unread)

    def _left_alone(self, request: ProducerRequest, known: _Known) -> Iterator[AuditFinding]:
        if known.is_unread:
            self.counts.lost += 1
            yield _finding(AuditFault.LOST, request, "it was sent, and no consumer says to have read it", known.place)
        elif known.since_ms >= self._begin_ms + self._settle_ms:
            self.counts.unannounced += 1
            why = "it was read, and its producer does not say to have sent it"
            yield _finding(AuditFault.UNANNOUNCED, request, why, known.place)

    def pending(self) -> Iterator[AuditFinding]:
        """What was sent, not long ago, and not read yet."""
        for request, known in self._waiting.items():
            if known.is_unread:
                yield _finding(AuditFault.PENDING, request, "it was sent, and is not read yet", known.place)

    def _count_unread(self, known: _Known, by: int) -> None:
        self.counts.unread += by
        self.counts.unread_records += by * known.record_count


def _difference(known: _Known, record: AuditRecord) -> str:
    whence = "its producer" if record.is_producer else "a consumer"
    before = "its producer" if known.sent_ms is not None else "a consumer"
    ids = "other ids" if known.ids_hash != record.ids_hash else "ids of the same hash"
    return f"{whence} says {record.record_count} records of {ids}, and {before} said {known.record_count}"


def _finding(fault: AuditFault, request: ProducerRequest, why: str, place: tuple[int, int]) -> AuditFinding:
    producer = (request.address, request.epoch_ms)
    return AuditFinding(fault, producer, request.request_id, request.request_id, why, *place)
