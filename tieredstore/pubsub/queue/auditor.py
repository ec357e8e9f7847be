"""Auditing of producers and consumers: the auditor that the settings name, and the Messages that a consumer has handed
out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.backends.base import Buffer
from tieredstore.pubsub.format.audit_records import IdsHash
from tieredstore.pubsub.format.batches import headers_in
from tieredstore.pubsub.format.messages import MessageHeader
from tieredstore.pubsub.queue.queues import Position
from tieredstore.pubsub.settings import BatchSettings

if TYPE_CHECKING:
    from tieredstore.pubsub.queue.kafka_audit import Auditor


def auditor_of(settings: BatchSettings, topic: str, *, is_producer: bool) -> Auditor | None:
    """Return an auditor that writes to ``pubsub.audit.topic``; None if that setting is unset."""
    if settings.audit_topic is None:
        return None
    from tieredstore.pubsub.queue.kafka_audit import Auditor  # noqa: PLC0415  imports the Kafka client, an extra

    return Auditor(settings, topic, is_producer=is_producer)


class ReadMessages:
    """The Messages of one object that a consumer has decoded but not completely handed out. Not thread-safe.

    After a Message's last record is handed out, the auditor reports the Message with the ids of all its records. The
    ids may include those of records before ``position``, which another member of the group has handed out.
    """

    def __init__(self, auditor: Auditor, body: Buffer, name: str, position: Position) -> None:
        """Begin at ``position``, because the earlier reader of the partition has reported the Messages before it."""
        self._auditor = auditor
        self._headers = dict(headers_in(body, name))
        first = self._headers.get(position.message)
        if isinstance(first, MessageHeader) and first.record_count <= position.record:
            del self._headers[position.message]
        self._hashes: dict[int, IdsHash] = {}

    def note_ids(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the record batches unchanged, and note their message ids. The batches must have all records of each
        Message."""
        for batch in batches:
            runs, begin = pc.run_end_encode(batch.column("message")), 0
            for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
                ids = batch.column("message_id").slice(begin, end - begin)
                self._hashes.setdefault(number, IdsHash()).add_column(ids)
                begin = end
            yield batch

    def note_handed_out(self, message: int, record: int) -> None:
        """Report the Messages that are handed out completely: all records up to ``record`` of ``message`` (inclusive)
        are handed out."""
        while self._hashes:
            number = next(iter(self._hashes))  # the first Message: Messages are decoded in order
            header = self._headers.get(number)
            is_within = isinstance(header, MessageHeader) and record + 1 < header.record_count
            if number > message or (number == message and is_within):
                return
            hashed = self._hashes.pop(number)
            if isinstance(header, MessageHeader) and header.request is not None:
                self._auditor.tell(header.request, bytes(hashed), hashed.count)
