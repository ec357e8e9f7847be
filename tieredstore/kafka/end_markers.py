"""The markers that end transactions, and the transactions in a log's batches."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import crc32c

from tieredstore.kafka.batches import BatchHeader
from tieredstore.kafka.indexes import AbortedTransaction

ABORT: Final = 0
MARKER_BYTES: Final = 64
"""Bytes that suffice to parse an end marker's record."""

_KEY_SIZE: Final = 4
_VALUE_SIZE: Final = 6
_TRANSACTIONAL: Final = 16
_CONTROL: Final = 32

# The parts of an end marker (see `batches`): the header up to its checksum, the rest of the header, and the only
# record. The record has length, attributes, time and offset delta, key (size, version, kind), value (size, version,
# coordinator epoch) and number of headers. Its sizes are varints (zig-zag) below 64, so each is one byte that has
# twice the number.
_UNCOVERED: Final = struct.Struct(">qiibI")
_AFTER_LENGTH: Final = _UNCOVERED.size - 12
_COVERED: Final = struct.Struct(">hiqqqhii")
_RECORD: Final = struct.Struct(">BBBBBhhBhiB")


@dataclass(frozen=True, slots=True)
class TransactionStep:
    """The beginning or the end of a producer's transaction in a log.

    For the first batch of the transaction, ``aborts`` is None. For its end marker, ``aborts`` is True or False.
    """

    producer_id: int
    offset: int
    aborts: bool | None = None


def transaction_steps(
    headers: Iterable[BatchHeader], marker_at: Callable[[BatchHeader], bytes]
) -> Iterator[TransactionStep]:
    """Yield the beginnings and ends of transactions in a log.

    ``marker_at`` returns the first bytes of a control batch's records.
    """
    opened: set[int] = set()
    for header in headers:
        producer = header.producer_id
        if not header.is_transactional:
            continue
        if header.is_control:
            kind = marker_kind(marker_at(header))
            yield TransactionStep(producer, header.last_offset, kind == ABORT)
            opened.discard(producer)
        elif producer not in opened:
            opened.add(producer)
            yield TransactionStep(producer, header.base_offset)


def play_markers(
    steps: Iterable[TransactionStep], opened: Mapping[int, int]
) -> tuple[tuple[AbortedTransaction, ...], dict[int, int]]:
    """Return the aborted transactions among ``steps``, and the first offset of each open transaction, by producer id.

    ``opened`` holds the transactions that were open before the first step.
    """
    still_open = dict(opened)
    aborted: list[AbortedTransaction] = []
    for step in steps:
        if step.aborts is None:
            still_open.setdefault(step.producer_id, step.offset)
            continue
        first = still_open.pop(step.producer_id, step.offset)
        if step.aborts:
            stable = min(still_open.values(), default=step.offset + 1)
            aborted.append(AbortedTransaction(step.producer_id, first, step.offset, stable))
    return tuple(aborted), still_open


def marker_kind(record: bytes) -> int | None:
    """Return the effect of a control batch: 0 for an abort, 1 for a commit. ``record`` is its first record. Return None
    if the record has no key of four bytes.
    """
    at = _key_at(record)
    return None if at is None else int.from_bytes(record[at + 2 : at + 4], "big")


def coordinator_epoch(record: bytes) -> int:
    """Return the epoch of the coordinator that ended a transaction. ``record`` is the first record of the end marker.
    The result is -1 if the marker has no epoch.
    """
    at = _key_at(record)
    # The value follows the key: skip one byte of length and two bytes of version.
    value = b"" if at is None else record[at + 7 : at + 11]
    return int.from_bytes(value, "big", signed=True) if len(value) == 4 else -1


def _key_at(record: bytes) -> int | None:
    """Return the position of a control record's key. Return None unless the key has four bytes."""
    position, numbers = 0, list[int]()
    # Skip five fields: record length, attributes (one byte), time and offset delta, key length. The key itself is a
    # version and the kind.
    for field in range(5):
        if field == 1:
            position += 1
            continue
        value = shift = 0
        while position < len(record) and shift < 70:
            byte = record[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        numbers.append((value >> 1) ^ -(value & 1))
    return position if len(record) >= position + 4 and numbers[-1] == 4 else None


def format_end_marker(
    offset: int, producer_id: int, producer_epoch: int, *, commit: bool, timestamp_ms: int, coordinator_epoch: int
) -> bytes:
    """Return the control batch that ends a producer's transaction, with leader epoch 0."""
    record = _RECORD.pack(
        2 * (_RECORD.size - 1), 0, 0, 0, 2 * _KEY_SIZE, 0, int(commit), 2 * _VALUE_SIZE, 0, coordinator_epoch, 0
    )
    covered = _COVERED.pack(
        _TRANSACTIONAL | _CONTROL, 0, timestamp_ms, timestamp_ms, producer_id, producer_epoch, -1, 1
    )
    covered += record
    return _UNCOVERED.pack(offset, _AFTER_LENGTH + len(covered), 0, 2, crc32c.crc32c(covered)) + covered
