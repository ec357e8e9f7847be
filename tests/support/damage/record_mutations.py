"""Logs with random damage, and checks that each gives either an error or consistent records."""

from __future__ import annotations

import random
import struct
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.support.records.record_batches import (
    CODECS,
    Row,
    compressed_batch,
    message,
    message_set,
    random_records,
    rows_of,
)
from tieredstore.errors import BatchCorruptError, InvalidSegmentError
from tieredstore.kafka._runs import BatchRun
from tieredstore.kafka.batches import FRAME_SIZE
from tieredstore.kafka.log_scan import scan_log
from tieredstore.kafka.records import RecordDecoder
from tieredstore.testing.batches import seal_batch

MAX_BATCH_BYTES = 1 << 20


@dataclass(frozen=True)
class Mutation:
    """Damaged batch. If ``is_sealed``, its CRCs were computed after the damage, so that parsers see the damage."""

    original: bytes
    damaged: bytes
    is_sealed: bool


def mutations(seed: int, count: int) -> Iterator[Mutation]:
    """Yield ``count`` mutations, the same ones for the same seed."""
    source = random.Random(seed)
    originals = _originals(source)
    for number in range(count):
        original = source.choice(originals)
        damaged = damage(source, bytearray(original), FRAME_SIZE)
        sealed = number % 3 != 0 and _seal(damaged)
        yield Mutation(original, bytes(damaged), sealed)


def check(mutation: Mutation, source: random.Random) -> bool:
    """Decode a mutation in a random way; return True if this gives records without an error."""
    decoder = RecordDecoder(
        on_corrupt=source.choice(("fail", "skip")),
        check_crc=source.random() < 0.9,
        target_bytes=source.choice((1, 300, 1 << 22)),
        max_batch_bytes=MAX_BATCH_BYTES,
    )
    piece = source.choice((7, 64, 1 << 20))
    pieces = [mutation.damaged[at : at + piece] for at in range(0, len(mutation.damaged), piece)]
    try:
        decoded = rows_of(decoder.decode(pieces, start_offset=source.choice((0, 3))))
    except BatchCorruptError:
        return False
    assert all(0 <= one["offset"] < two["offset"] for one, two in pairwise(decoded))
    return bool(decoded)


def run_over(log: bytes, source: random.Random) -> int:
    """Let a ``BatchRun`` with made-up indexes walk over a log, from its start or later. Return where the walk ended,
    usually 0.
    """
    places = array("i", sorted(source.sample(range(2_000), 5)))
    run = BatchRun(0, places, places, array("q", [1_000, 1_001]), array("i", [0, 3]))
    run.epoch, run.epoch_stop = source.choice((-1, 0)), source.choice((0, 1 << 40))
    run.follows_transactions = source.random() < 0.5
    run.begin_transaction(source.randrange(-1, 3))
    piece = memoryview(log)[source.choice((0, 0, 0, 61)) :]
    # Pass a separate copy, because a read past its end then leaves valid memory, which a sanitizer detects.
    return run.walk(bytes(piece), 0, -1, source.choice((None, (0, 100, 0, 3, 1_000, 0))))


def scan_over(log: bytes, source: random.Random) -> bool:
    """Return True if scanning the log as a file raises no error."""
    with tempfile.TemporaryFile() as file:
        file.write(log)
        file.flush()
        try:
            scan_log(file.fileno(), len(log), 0, "damaged", check_crcs=source.random() < 0.7)
        except (BatchCorruptError, InvalidSegmentError):
            return False
        return True


def contents(decoded: list[Row]) -> list[tuple[object, ...]]:
    """Return the fields covered by the CRC, which excludes offset and leader epoch."""
    return [(row["key"], row["value"], row["headers"], row["timestamp"], row["timestampType"]) for row in decoded]


def _originals(source: random.Random) -> list[bytes]:
    batches: list[bytes] = []
    for codec in CODECS:
        batches += [compressed_batch(random_records(source, size), source.randrange(100), codec) for size in (1, 4, 20)]
    for magic in (0, 1):
        inner = b"".join(message(magic, i, source.randbytes(20), b"key", 1_000 + i) for i in range(5))
        batches += [message_set(magic, 4, inner, codec, 2_000) for codec in CODECS[1:]]
        batches.append(inner)
    return batches


def damage(source: random.Random, batch: bytearray, least: int) -> bytearray:
    """Damage a batch in up to five places. The result has at least ``least`` bytes."""
    for _ in range(source.choice((1, 1, 1, 2, 5))):
        at = source.randrange(len(batch))
        match source.randrange(7):
            case 0:
                batch[at] ^= 1 << source.randrange(8)
            case 1:
                batch[at] = source.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF))
            case 2:
                batch[at : at + 2] = struct.pack(">h", source.choice((-1, 0, 11, 32767, -32768)))
            case 3:
                batch[at : at + 4] = struct.pack(">i", source.choice((-1, 0, 1, 2**31 - 1, -(2**31), len(batch))))
            case 4:
                del batch[at : at + source.randrange(1, 9)]
            case 5:
                batch[at:at] = source.randbytes(source.randrange(1, 9))
            case _:
                batch[at : at + 5] = b"\xff\xff\xff\xff\x0f"
        if len(batch) < least:
            batch += bytes(least)
    return batch


def _seal(batch: bytearray) -> bool:
    """Correct the batch's length and CRC, as an attacker would; return False if its header is not intact enough."""
    if len(batch) < 70 or batch[16] != 2:
        return False
    batch[8:FRAME_SIZE] = struct.pack(">i", len(batch) - FRAME_SIZE)
    seal_batch(batch)
    return True
