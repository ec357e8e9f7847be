"""MemQ batches for tests: random records, batches of them, and damage."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias
from zlib import crc32

from tests.support.damage.record_mutations import Mutation, damage
from tests.support.paths import REPOSITORY
from tieredstore.kafka.batches import Buffer
from tieredstore.pubsub.errors import MessageCorruptError
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.batches import BatchIndex, batch_index
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.format.messages import Compression, Headers, ProducerRequest, seal_message

GOLDEN = REPOSITORY / "tests/pubsub/golden"
REQUEST = ProducerRequest(bytes([127, 0, 0, 1]), 1_700_000_000_000, 7)
MAX_EXPANDED = 1 << 20

Row: TypeAlias = dict[str, Any]

RecordFields: TypeAlias = tuple[bytes, bytes | None, Headers | None, bytes | None, int]
"""A record's value, key, headers, message id and timestamp in ms, in the order of ``BodyWriter``'s arguments."""


def golden_batches() -> dict[str, bytes]:
    """Return the golden objects that MemQ's client wrote, by the name of the test vector."""
    return {path.name.split(".")[0]: path.read_bytes() for path in sorted((GOLDEN / "batches").iterdir())}


def random_record(source: random.Random) -> RecordFields:
    """Return one record, often with empty parts."""
    headers = [(f"имя-{i}" if i % 2 else f"name-{i}", source.randbytes(source.randrange(9))) for i in range(4)]
    return (
        source.randbytes(source.choice((0, 1, 20, 300))),
        source.choice((None, b"", source.randbytes(8))),
        source.choice((None, [], headers[: source.randrange(1, 5)])),
        source.choice((None, b"", source.randbytes(8), source.randbytes(255))),
        source.choice((0, -1, 1_700_000_000_000, 2**63 - 1, -(2**63))),
    )


def message_of(
    records: Sequence[RecordFields],
    compression: Compression = Compression.NONE,
    request: ProducerRequest | None = REQUEST,
) -> bytes:
    """Encode the records as a Message."""
    body = BodyWriter(1 << 30)
    assert all(body.take(*record) >= 0 for record in records)
    return seal_message(body, body.count, request, compression)


def build_batch(messages: Sequence[Buffer]) -> bytes:
    """Return the object that holds these Messages."""
    return b"".join([batch_index(messages), *messages])


def row_of(record: RecordFields, message: int, number: int) -> Row:
    """Return the expected row of a record."""
    value, key, headers, message_id, timestamp = record
    return {
        "key": key or None,
        "value": value,
        "headers": [{"key": name, "value": content} for name, content in headers] if headers else None,
        "message_id": message_id or None,
        "timestamp": timestamp,
        "message": message,
        "record": number,
    }


def rows_of(batch: bytes, decoder: BatchDecoder | None = None) -> list[Row]:
    """Decode a whole object."""
    return [row for rows in (decoder or BatchDecoder()).decode(batch, "batch") for row in rows.to_pylist()]


def mutations(seed: int, count: int) -> Iterator[Mutation]:
    """Yield ``count`` mutations, the same ones for the same seed."""
    source = random.Random(seed)
    originals = [*golden_batches().values()]
    for compression in Compression:
        for size in (1, 4, 20):
            records = [random_record(source) for _ in range(size)]
            originals.append(build_batch([message_of(records[: i + 1], compression) for i in range(min(size, 3))]))
    for number in range(count):
        original = source.choice(originals)
        damaged = damage(source, bytearray(original), 1)
        sealed = _sealed(damaged) if number % 3 else None
        yield Mutation(original, bytes(damaged) if sealed is None else sealed, sealed is not None)


def check(mutation: Mutation, source: random.Random) -> bool:
    """Decode a mutation with random options; return True if this gives records without an error."""
    decoder = BatchDecoder(
        on_corrupt=source.choice(("fail", "skip")),
        target_bytes=source.choice((1, 300, 1 << 22)),
        max_expanded_bytes=MAX_EXPANDED,
    )
    try:
        decoded = rows_of(mutation.damaged, decoder)
    except MessageCorruptError:
        return False
    if not mutation.is_sealed:
        expected = contents(rows_of(mutation.original))
        assert all(content in expected for content in contents(decoded))
    return bool(decoded)


def contents(rows: Sequence[Row]) -> list[str]:
    """Return the fields covered by a Message's CRC."""
    return [repr({name: row[name] for name in ("key", "value", "headers", "message_id", "timestamp")}) for row in rows]


def _sealed(damaged: bytearray) -> bytes | None:
    """Return the batch with its CRCs corrected, as an attacker would do it; None if its index is unreadable."""
    batch = bytearray(damaged)
    try:
        index = BatchIndex(batch, "damaged")
    except MessageCorruptError:
        return None
    for number in range(len(index)):
        start, stop = index.byte_range(number)
        extra = int.from_bytes(batch[start + 4 : start + 6], "big")
        if stop > len(batch) or start + 19 + extra > stop:
            return None
        batch[start + 6 + extra : start + 10 + extra] = crc32(batch[start + 19 + extra : stop]).to_bytes(4, "big")
    return bytes(batch)
