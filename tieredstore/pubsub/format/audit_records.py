"""MemQ's audit records, which its clients write to a Kafka topic. The producer and each consumer of a Message report
the Message's records.

::

    key    the producer's address · 8 epoch · 8 request id
    value  2 length, cluster · 2 length, topic · 2 length, address · 8 epoch · 8 request id · 2 length, hash
           4 number of records · 1 producer (1) or consumer (0)

The hash is the XOR of the ids of all records of the Message.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from tieredstore.errors import CorruptDataError
from tieredstore.pubsub.format.messages import ProducerRequest

_LENGTH: Final = struct.Struct(">h")
_REQUEST: Final = struct.Struct(">qq")
_END: Final = struct.Struct(">iB")


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One Message, as sent by a producer or read by a consumer."""

    cluster: str
    topic: str
    request: ProducerRequest
    ids_hash: bytes
    record_count: int
    is_producer: bool

    def key(self) -> bytes:
        """Return the record's key. All audit records of one Message have the same key, so they are in one partition."""
        return self.request.address + _REQUEST.pack(self.request.epoch_ms, self.request.request_id)

    def to_bytes(self) -> bytes:
        """Return the record's value."""
        named = (self.cluster.encode(), self.topic.encode(), self.request.address)
        return b"".join(
            (
                *(_LENGTH.pack(len(field)) + field for field in named),
                _REQUEST.pack(self.request.epoch_ms, self.request.request_id),
                _LENGTH.pack(len(self.ids_hash)) + self.ids_hash,
                _END.pack(self.record_count, self.is_producer),
            )
        )


def parse_audit_record(raw: bytes, where: str) -> AuditRecord:
    """Parse an audit record. Raise CorruptDataError if the record is invalid; the error's text begins with
    ``where``."""
    at = 0

    def field() -> bytes:
        nonlocal at
        if len(raw) < at + _LENGTH.size:
            raise CorruptDataError(f"{where}: an audit record of {len(raw)} bytes ends too early")
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size + max(length, 0)
        if length < 0 or len(raw) < at:
            raise CorruptDataError(
                f"{where}: an audit record of {len(raw)} bytes has a field of {length} bytes, but fewer bytes follow"
            )
        return raw[at - length : at]

    cluster, topic, address = field(), field(), field()
    if len(raw) < at + _REQUEST.size:
        raise CorruptDataError(f"{where}: an audit record of {len(raw)} bytes ends too early")
    epoch_ms, request_id = _REQUEST.unpack_from(raw, at)
    at += _REQUEST.size
    ids_hash = field()
    if len(raw) != at + _END.size:
        raise CorruptDataError(
            f"{where}: an audit record has {len(raw)} bytes, but the lengths of its fields give {at + _END.size} bytes"
        )
    count, side = _END.unpack_from(raw, at)
    if count < 0 or side > 1:
        raise CorruptDataError(f"{where}: an audit record has an impossible count ({count}) or side ({side}; 0 or 1)")
    try:
        names = cluster.decode(), topic.decode()
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{where}: an audit record's topic is not UTF-8") from error
    return AuditRecord(*names, ProducerRequest(address, epoch_ms, request_id), ids_hash, count, bool(side))


class IdsHash:
    """The XOR of message ids, and the number of ids. Ids of different lengths are aligned at their first bytes, as in
    MemQ. Unlike MemQ, this class accepts all lengths.
    """

    def __init__(self) -> None:
        self._hash = self._size = 0
        self.count: int = 0

    def add(self, ids: Sequence[bytes]) -> None:
        """Add ids."""
        self.count += len(ids)
        for size, of_size in groupby(ids, len):
            joined, grown = 0, max(self._size, size)
            for message_id in of_size:
                joined ^= int.from_bytes(message_id)
            self._hash = (self._hash << 8 * (grown - self._size)) ^ (joined << 8 * (grown - size))
            self._size = grown

    def __bytes__(self) -> bytes:
        return self._hash.to_bytes(self._size)
