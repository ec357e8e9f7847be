"""Checks of producers' requests by the headers of Messages. The checks find requests that are lost, stored twice, late
or altered.

A producer numbers its requests from 0 without gaps. A missing number between stored requests therefore means a loss. If
a producer's last requests are lost, no number is missing, and the loss goes unnoticed.

MemQ's producers also number requests without records, which no broker stores. So a missing request of a MemQ producer
is lost or was empty. A broker of this project records empty requests, so that lost requests are known.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import Final, TypeAlias

from tieredstore.errors import CorruptDataError, ObjectNotFoundError
from tieredstore.ops.offsets import without
from tieredstore.pubsub.errors import MessageCorruptError, NotificationCorruptError
from tieredstore.pubsub.format.batches import BatchIndex
from tieredstore.pubsub.format.messages import (
    MessageHeader,
    ProducerRequest,
    check_crc,
    checksum,
    is_own_address,
    parse_message_header,
)
from tieredstore.pubsub.queue.queues import QueuedNotification
from tieredstore.pubsub.queue.topics import BatchLog, QueuedBatch

LATE_MS: Final = 60_000
"""A request is late if it was stored this many ms after a request of the same producer with a higher id."""


Producer: TypeAlias = tuple[bytes, int]
"""A producer's address and epoch."""


class AuditFault(enum.StrEnum):
    """A fault of some requests.

    Three of these kinds may be harmless. A ``pending`` request may still arrive. A ``lost_or_empty`` request may have
    had no records. An ``unannounced`` Message was read, but its producer has not reported it."""

    LOST = "lost"
    LOST_OR_EMPTY = "lost_or_empty"
    DOUBLED = "doubled"
    LATE = "late"
    ALTERED = "altered"
    PENDING = "pending"
    UNANNOUNCED = "unannounced"


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """Requests ``first`` to ``last`` of a producer, and their place: read partition, offset and object.

    For a batch with unreadable headers, ``producer``, ``first`` and ``last`` are None.
    """

    fault: AuditFault
    producer: Producer | None
    first: int | None
    last: int | None
    why: str
    partition: int | None = None
    offset: int | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A Message that is stored, or that should be stored. The header is None if the Message's object is missing."""

    request_id: int
    batch: QueuedBatch
    number: int
    header: MessageHeader | None

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Sort key: the Message's time in the queue, then its place."""
        return self.batch.appended_ms, self.batch.partition, self.batch.offset, self.number

    @property
    def whence(self) -> tuple[int, int, str]:
        """Partition, offset and key, for a finding."""
        return self.batch.partition, self.batch.offset, self.batch.key


def _make_finding(
    fault: AuditFault, batch: QueuedBatch, why: str, request: ProducerRequest | None = None
) -> AuditFinding:
    producer = None if request is None else (request.address, request.epoch_ms)
    first = None if request is None else request.request_id
    return AuditFinding(fault, producer, first, first, why, batch.partition, batch.offset, batch.key)


@dataclass(slots=True)
class TopicAudit:
    """One audit of a topic. It covers the queue from its start to the end that the queue has when the audit begins.

    An audit takes a GET per batch, or a small GET per Message if Messages are large. With ``bodies`` it reads every
    object and compares the checksums. An audit holds about 200 bytes of memory per Message.

    A missing request counts as pending if the producer's next stored Message is younger than ``settle_ms``.

    Half of the many fields are options, the others are totals for the report.
    """

    log: BatchLog
    now_ms: int
    settle_ms: int
    late_ms: int = LATE_MS
    bodies: bool = False
    messages: int = 0
    records: int = 0
    batches: int = 0
    """Number of batches whose headers were read. With ``bodies``, the whole objects were read."""
    batch_bytes: int = 0
    requests: Counter[AuditFault] = field(default_factory=Counter[AuditFault])
    """Number of requests per fault; an unreadable batch counts as one."""
    _sightings: dict[Producer, list[_Sighting]] = field(default_factory=dict[Producer, list[_Sighting]])
    _empty: dict[Producer, list[tuple[int, int]]] = field(default_factory=dict[Producer, list[tuple[int, int]]])
    """First and last ids of sequences of requests without records, as brokers of this project recorded them."""
    _is_cut: bool = False

    @property
    def producers(self) -> int:
        """Number of producers."""
        return len(self._sightings)

    def run(self) -> Iterator[AuditFinding]:
        """Yield findings: first the damage, batch by batch, then the other findings, producer by producer."""
        for finding in self._findings():
            known = finding.first is not None and finding.last is not None
            self.requests[finding.fault] += (finding.last or 0) - (finding.first or 0) + 1 if known else 1
            yield finding

    def _findings(self) -> Iterator[AuditFinding]:
        queue = self.log.queue
        for partition in range(queue.partitions):
            start, end = queue.start(partition), queue.end(partition)
            self._is_cut = self._is_cut or start > 0
            for entry in queue.walk(partition, start, end):
                yield from self._entry(partition, entry)
        for producer, sightings in sorted(self._sightings.items(), key=lambda item: (item[0][1], item[0][0])):
            yield from self._producer(producer, sightings)

    # --- batches ---

    def _entry(self, partition: int, entry: QueuedNotification) -> Iterator[AuditFinding]:
        try:
            batch = self.log.batch_of(partition, entry)
        except NotificationCorruptError as error:
            yield AuditFinding(AuditFault.ALTERED, None, None, None, str(error), partition, entry.offset)
            return
        notification = batch.notification
        for runs in () if notification.facts is None else notification.facts.empty:
            self._empty.setdefault((bytes.fromhex(runs.address), runs.epoch), []).extend(runs.pairs)
        try:
            headers = self._headers(batch)
        except ObjectNotFoundError:
            yield from self._absent(batch)
            return
        except CorruptDataError as error:
            yield _make_finding(AuditFault.ALTERED, batch, str(error))
            return
        self.batches, self.batch_bytes = self.batches + 1, self.batch_bytes + notification.total_size
        facts = notification.facts
        announced = set[ProducerRequest]() if facts is None else set(facts.requests(notification.message_count))
        for number, header in headers:
            if isinstance(header, MessageCorruptError):
                yield _make_finding(AuditFault.ALTERED, batch, str(header))
            elif header.request is not None:
                self._see(batch, number, header, header.request)
                if announced and header.request not in announced:
                    why = f"{batch.key}: Message {number} is not listed in its notification"
                    yield _make_finding(AuditFault.ALTERED, batch, why, header.request)

    def _see(self, batch: QueuedBatch, number: int, header: MessageHeader | None, request: ProducerRequest) -> None:
        if header is not None:
            self.messages += 1
            self.records += header.record_count
        sighting = _Sighting(request.request_id, batch, number, header)
        self._sightings.setdefault((request.address, request.epoch_ms), []).append(sighting)

    def _headers(self, batch: QueuedBatch) -> Sequence[tuple[int, MessageHeader | MessageCorruptError]]:
        if not self.bodies:
            headers = list(self.log.headers(batch))
        else:
            body = self.log.store.get(batch.key)
            headers = _check_bodies(body, batch.key)
            # Check the whole object only if no Message is damaged, because a damaged Message is reported more precisely
            # below.
            if not any(isinstance(header, MessageCorruptError) for _, header in headers):
                batch.check(checksum(body))
        batch.check_count(len(headers))
        return headers

    def _absent(self, batch: QueuedBatch) -> Iterator[AuditFinding]:
        """For a batch whose object is missing, note the requests in its notification as absent. If the notification
        lists no requests, yield one finding for the batch."""
        facts = batch.notification.facts
        if facts is None or not facts.producers:
            yield _make_finding(AuditFault.LOST, batch, f"the object {batch.key} is missing")
            return
        for request in facts.requests(batch.notification.message_count):
            self._see(batch, 0, None, request)

    # --- producers ---

    def _producer(self, producer: Producer, sightings: list[_Sighting]) -> Iterator[AuditFinding]:
        standing: dict[int, list[_Sighting]] = {}
        absent: dict[int, _Sighting] = {}
        for sighting in sorted(sightings, key=lambda each: each.order):
            if sighting.header is None:
                absent[sighting.request_id] = sighting
            else:
                standing.setdefault(sighting.request_id, []).append(sighting)
        for request_id in sorted(absent.keys() - standing.keys()):
            where = absent[request_id].whence
            why = f"the object {where[-1]} is missing"
            yield AuditFinding(AuditFault.LOST, producer, request_id, request_id, why, *where)
        yield from self._holes(producer, sorted(standing.keys() | absent.keys()), standing)
        for request_id in sorted(standing):
            yield from _copies(producer, standing[request_id])
        yield from self._latecomers(producer, standing)

    def _holes(
        self, producer: Producer, seen: Sequence[int], standing: dict[int, list[_Sighting]]
    ) -> Iterator[AuditFinding]:
        # Retention may have freed the entries with the first requests. In this case, begin at the first request that is
        # left.
        begin = seen[0] if self._is_cut else 0
        empty = sorted((first, last + 1) for first, last in self._empty.get(producer, ()))
        absent = AuditFault.LOST if is_own_address(producer[0]) else AuditFault.LOST_OR_EMPTY
        for first, stop in without(merge(((each, each + 1) for each in seen), empty), (begin, seen[-1])):
            request_id = seen[bisect_left(seen, stop)]  # the next stored request
            behind = standing.get(request_id)
            is_young = behind is not None and behind[0].batch.appended_ms > self.now_ms - self.settle_ms
            missing = str(first) if stop == first + 1 else f"{first} to {stop - 1}"
            why = f"request {request_id} is stored, but not {missing}"
            yield AuditFinding(
                AuditFault.PENDING if is_young else absent, producer, first, stop - 1, f"{why} yet" if is_young else why
            )

    def _latecomers(self, producer: Producer, standing: dict[int, list[_Sighting]]) -> Iterator[AuditFinding]:
        late: list[AuditFinding] = []
        earliest_ms, earliest_id = None, 0
        for request_id in sorted(standing, reverse=True):
            first = standing[request_id][0]
            stored_ms = first.batch.appended_ms
            if earliest_ms is not None and stored_ms - earliest_ms > self.late_ms:
                why = f"stored {(stored_ms - earliest_ms) / 1000:.1f} s after request {earliest_id}"
                late.append(AuditFinding(AuditFault.LATE, producer, request_id, request_id, why, *first.whence))
            elif earliest_ms is None or stored_ms < earliest_ms:
                earliest_ms, earliest_id = stored_ms, request_id
        yield from reversed(late)


def _check_bodies(body: bytes, key: str) -> list[tuple[int, MessageHeader | MessageCorruptError]]:
    """Return each Message's header, or its error; check the bodies' checksums."""
    checked: list[tuple[int, MessageHeader | MessageCorruptError]] = []
    for place, message in BatchIndex(body, key, len(body)).messages(body):
        try:
            header = parse_message_header(message, place)
            check_crc(header, message[header.size :], place)
            checked.append((place.number, header))
        except MessageCorruptError as error:
            checked.append((place.number, error))
    return checked


def _copies(producer: Producer, sightings: Sequence[_Sighting]) -> Iterator[AuditFinding]:
    first = sightings[0]
    for other in sightings[1:]:
        whence = f"partition {first.batch.partition}, offset {first.batch.offset}"
        if other.header == first.header:
            fault, why = AuditFault.DOUBLED, f"the same Message is at {whence}"
        else:
            fault, why = AuditFault.ALTERED, f"another Message with this request is at {whence}"
        yield AuditFinding(fault, producer, other.request_id, other.request_id, why, *other.whence)
