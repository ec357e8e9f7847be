"""Detection of repeated Messages in a read partition. A producer, a broker or ``gc --adopt`` may store a Message twice.

Two Messages are the same if their headers are equal. A header includes the producer's request id.

The window of seen Messages is not stored. Each reader rebuilds the window from the queue's last entries, so that all
readers at a position skip the same Messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from tieredstore.backends.base import Buffer
from tieredstore.errors import CorruptDataError, ObjectNotFoundError
from tieredstore.pubsub.errors import MessageCorruptError
from tieredstore.pubsub.format.batches import BatchIndex, headers_in
from tieredstore.pubsub.format.messages import MessageHeader, ProducerRequest, check_crc, parse_message_header
from tieredstore.pubsub.queue.topics import BatchLog, QueuedBatch


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A producer's request seen in a batch. The header is None if the request id comes from the batch's notification
    and no object was read.
    """

    batch: QueuedBatch
    number: int
    header: MessageHeader | None


class SeenMessages:
    """Messages of one partition within ``pubsub.dedup.window.ms`` before the batch being read. Not thread-safe.

    Most objects are not read, because their notifications list the requests. Notifications of MemQ list none, so their
    objects are read. An object is also read to confirm a repetition, because a copy is skipped only if the first
    Message exists undamaged.
    """

    def __init__(self, log: BatchLog, partition: int) -> None:
        self._log = log
        self._partition = partition
        self._window_ms = log.settings.dedup_window_ms
        self._seen: dict[ProducerRequest, list[_Sighting]] = {}
        self._order: deque[tuple[int, ProducerRequest]] = deque()
        self._is_rebuilt = False

    def doubles(self, batch: QueuedBatch, body: Buffer | None) -> frozenset[int]:
        """Return the numbers of a batch's Messages that repeat earlier Messages. Remember its other Messages as seen.

        Without the object's ``body``, fetch its headers."""
        if not self._is_rebuilt:
            self._rebuild(batch)
            self._is_rebuilt = True
        repeated: set[int] = set()
        headers = self._log.headers(batch) if body is None else headers_in(body, batch.key)
        for number, header in headers:
            # Never count a Message without a request id as repeated, because the producer may have sent it twice on
            # purpose.
            if not isinstance(header, MessageHeader) or (request := header.request) is None:
                continue
            if any(self._is_earlier(sighting, batch, number, header) for sighting in self._seen.get(request, ())):
                repeated.add(number)
            else:
                self._note(request, _Sighting(batch, number, header))
        self._forget(batch.appended_ms - self._window_ms)
        return frozenset(repeated)

    def _is_earlier(self, sighting: _Sighting, batch: QueuedBatch, number: int, header: MessageHeader) -> bool:
        before = sighting.batch
        if (before.offset, sighting.number) >= (batch.offset, number):
            # The batch is being read a second time. The Message remembered from the first time is this Message, or a
            # later one.
            return False
        if before.appended_ms < batch.appended_ms - self._window_ms:
            return False
        if sighting.header is not None and sighting.header != header:
            return False
        return self._is_whole(before, header)

    def _is_whole(self, batch: QueuedBatch, header: MessageHeader) -> bool:
        """Return True if the batch has this Message undamaged. If the Message is damaged, a later copy must be read
        instead."""
        try:
            body = self._log.store.get(batch.key)
            index = BatchIndex(body, batch.key, len(body))
        except (ObjectNotFoundError, MessageCorruptError):
            return False
        for place, message in index.messages(body):
            try:
                if parse_message_header(message, place) == header:
                    check_crc(header, message[header.size :], place)
                    return True
            except MessageCorruptError:
                continue
        return False

    # --- rebuild the window from the queue ---

    def _rebuild(self, batch: QueuedBatch) -> None:
        queue, least_ms = self._log.queue, batch.appended_ms - self._window_ms
        begin = max(queue.start(self._partition), queue.offset_at(self._partition, least_ms))
        for entry in queue.walk(self._partition, begin, batch.offset, lambda _: None):  # lost entries were not returned
            try:
                for request, sighting in self._sightings(self._log.batch_of(self._partition, entry)):
                    self._note(request, sighting)
            except (CorruptDataError, ObjectNotFoundError, ValueError):
                continue  # the batch is unreadable, so none of its records were returned

    def _sightings(self, batch: QueuedBatch) -> Iterator[tuple[ProducerRequest, _Sighting]]:
        facts = batch.notification.facts
        if facts is not None and facts.producers:
            for request in facts.requests(batch.notification.message_count):
                yield request, _Sighting(batch, -1, None)
            return
        for number, header in self._log.headers(batch):
            # Skip damaged headers, because decoding reports them.
            if isinstance(header, MessageHeader) and header.request is not None:
                yield header.request, _Sighting(batch, number, header)

    def _note(self, request: ProducerRequest, sighting: _Sighting) -> None:
        sightings = self._seen.setdefault(request, [])
        if all(other.batch.offset != sighting.batch.offset or other.number != sighting.number for other in sightings):
            sightings.append(sighting)
            self._order.append((sighting.batch.appended_ms, request))

    def _forget(self, least_ms: int) -> None:
        while self._order and self._order[0][0] < least_ms:
            _, request = self._order.popleft()
            left = [each for each in self._seen.get(request, ()) if each.batch.appended_ms >= least_ms]
            if left:
                self._seen[request] = left
            else:
                self._seen.pop(request, None)
