"""The markers that end transactions, and the transactions in a log's batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tieredstore.kafka.batches import BatchHeader
from tieredstore.kafka.indexes import AbortedTransaction

ABORT: Final = 0
MARKER_BYTES: Final = 64
"""Bytes that suffice to parse an end marker's record up to its key."""


@dataclass(frozen=True, slots=True)
class TransactionStep:
    """The first batch of a producer's transaction in a log (``aborts`` is None), or the marker that ends the
    transaction.
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
    """Return the aborted transactions among ``steps``, and the first offset of each producer whose transaction is open.

    ``opened`` are the transactions known to be open before the first step.
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
    """Return what a control batch does, from the key of its first record: 0 aborts, 1 commits; None without such a
    key.
    """
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
    key = record[position : position + 4]
    return int.from_bytes(key[2:], "big") if len(key) == 4 and numbers[-1] == 4 else None
