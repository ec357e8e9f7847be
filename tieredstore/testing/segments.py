"""Synthetic segments in the form that a broker leaves on disk, for tests, examples and benchmarks."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tieredstore.kafka.batches import CompressionType, read_batch_headers
from tieredstore.kafka.checkpoints import (
    LeaderEpochs,
    ProducerState,
    format_leader_epochs,
    format_partition_metadata,
    format_producer_snapshot,
)
from tieredstore.kafka.indexes import AbortedTransaction, IndexBuilder, format_txn_index
from tieredstore.kafka.logdir import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, FoundSegment, LogSegment, describe
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker, move_batch

__all__ = [
    "PARTITION",
    "IndexBuilder",
    "Producer",
    "Record",
    "build_batch",
    "build_end_marker",
    "build_segment",
    "json_records",
    "write_segment",
]

PARTITION: Final = TopicIdPartition(Uuid.parse("VGVzdFRvcGljSWRlbnRpZg"), "events", 0)
"""The partition of the synthetic segments, unless the caller names another."""

_FIRST_TIMESTAMP_MS: Final = 1_767_225_600_000
# Batches repeat after this many bytes. zstd does not notice the repetition, because at its default level it finds
# repetitions only within 2 MiB.
_POOL_SIZE: Final = 8 * 1024 * 1024
_WRITE_SIZE: Final = 1024 * 1024

_SERVICES: Final = ("checkout", "catalog", "search", "payments", "identity", "shipping", "recommendations")
_PATHS: Final = ("/api/v1/cart/items", "/api/v1/orders", "/api/v2/products/search", "/login", "/healthz")
_AGENTS: Final = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5)",
    "okhttp/4.12.0",
)


def write_segment(
    log_dir: Path,
    batches: Iterable[bytes | bytearray],
    *,
    partition: TopicIdPartition = PARTITION,
    base_offset: int = 0,
    end_offset: int | None = None,
    leader_epochs: LeaderEpochs = ((0, 0),),
    producers: Sequence[ProducerState] = (),
    aborted: Sequence[AbortedTransaction] = (),
) -> LogSegment:
    """Write the log of a closed segment with ``batches``, and the segment's other files, into
    ``log_dir/<topic>-<partition>``.

    Batches are written as they arrive, so memory is bounded. Each batch must have magic 2, and offsets after those of
    the previous batch. Pass the ``leader_epochs`` of the whole partition, because they replace the partition's
    checkpoint.

    The segment gets a ``.txnindex`` only if ``aborted`` is given. The segment ends with its last batch. With a later
    ``end_offset`` (inclusive), it looks as if compaction had removed its last batches. A segment without batches covers
    at least its base offset.
    """
    directory = log_dir / f"{partition.topic}-{partition.partition}"
    directory.mkdir(parents=True, exist_ok=True)
    files = FoundSegment(directory, partition.topic, partition.partition, base_offset, None)
    indexes = IndexBuilder(base_offset)
    last_offset = _write_log(files.path("log"), batches, indexes)
    if end_offset is not None or last_offset < base_offset:
        last_offset = max(last_offset, base_offset, end_offset or 0)
    files.path("index").write_bytes(indexes.offset_index)
    files.path("timeindex").write_bytes(indexes.close())
    if aborted:
        files.path("txnindex").write_bytes(format_txn_index(aborted))
    (directory / LEADER_EPOCH_CHECKPOINT).write_bytes(format_leader_epochs(leader_epochs))
    (directory / PARTITION_METADATA).write_bytes(format_partition_metadata(partition.topic_id))
    (directory / f"{last_offset + 1:020d}.snapshot").write_bytes(format_producer_snapshot(producers))
    return describe(FoundSegment(directory, partition.topic, partition.partition, base_offset, last_offset + 1))


def build_segment(
    log_dir: Path,
    target_size: int,
    *,
    partition: TopicIdPartition = PARTITION,
    base_offset: int = 0,
    leader_epochs: LeaderEpochs = ((0, 0),),
    batch_size: int = 16 * 1024,
    compression: CompressionType = CompressionType.NONE,
    first_timestamp_ms: int = _FIRST_TIMESTAMP_MS,
    seed: int = 0,
) -> LogSegment:
    """Write a closed segment of JSON records that look like a web service's log. Equal arguments give equal records.

    The segment has as many whole batches as fit into ``target_size``, but at least one. ``batch_size`` is a batch's
    size before compression. A record takes about 490 bytes of the log, and zstd makes it 3.2 to 3.6 times smaller.
    Memory is bounded for any size.
    """
    pool_size = min(_POOL_SIZE, max(target_size, 1))
    records = json_records(random.Random(seed), first_timestamp_ms)  # noqa: S311 - nothing secret
    pool = _build_pool(records, pool_size, batch_size, compression)
    batches = _repeat_batches(pool, target_size, base_offset)
    return write_segment(log_dir, batches, partition=partition, base_offset=base_offset, leader_epochs=leader_epochs)


def json_records(source: random.Random, timestamp_ms: int = _FIRST_TIMESTAMP_MS) -> Iterator[Record]:
    """Yield endless records of a web service's log. Keys are users. Consecutive records are a few milliseconds
    apart."""
    for number in itertools.count():
        timestamp_ms += source.randrange(1, 4)
        user = source.randrange(50_000)
        value = _json_event(source, number, user, timestamp_ms)
        yield Record(key=b"user-%d" % user, value=value, timestamp_ms=timestamp_ms)


def _json_event(source: random.Random, number: int, user: int, timestamp_ms: int) -> bytes:
    service = source.choice(_SERVICES)
    event = {
        "timestamp": timestamp_ms,
        "level": source.choices(("INFO", "WARN", "ERROR"), (95, 4, 1))[0],
        "service": service,
        "host": f"{service}-{source.randrange(12):02d}",
        "trace_id": f"{source.getrandbits(128):032x}",
        "span_id": f"{source.getrandbits(64):016x}",
        "sequence": number,
        "user_id": user,
        "client_ip": f"10.{source.randrange(4)}.{source.randrange(256)}.{source.randrange(256)}",
        "method": source.choice(("GET", "GET", "GET", "POST", "PUT")),
        "path": f"{source.choice(_PATHS)}/{source.randrange(100_000)}",
        "status": source.choices((200, 201, 304, 404, 500), (80, 8, 6, 5, 1))[0],
        "latency_ms": round(source.expovariate(1 / 40), 3),
        "bytes": source.randrange(200, 60_000),
        "user_agent": source.choice(_AGENTS),
        "session": f"{source.getrandbits(192):048x}",
        "etag": f"{source.getrandbits(128):032x}",
    }
    return json.dumps(event, separators=(",", ":")).encode("ascii")


def _build_pool(records: Iterator[Record], size: int, batch_size: int, compression: CompressionType) -> list[bytes]:
    pool: list[bytes] = []
    offset = built = 0
    while built < size:
        taken: list[Record] = []
        room = batch_size - 80
        while room > 0:
            taken.append(next(records))
            room -= len(taken[-1].value or b"") + 30
        pool.append(build_batch(taken, offset, compression=compression, producer=Producer(1000, 0, offset)))
        offset += len(taken)
        built += len(pool[-1])
    return pool


def _repeat_batches(pool: Sequence[bytes], target_size: int, base_offset: int) -> Iterator[bytearray]:
    """Yield the batches of the pool again and again, with continuing offsets and timestamps."""
    first, last = (next(read_batch_headers(pool[i])) for i in (0, -1))
    span_ms = last.max_timestamp - first.base_timestamp + 1
    offset, written = base_offset, 0
    for number, template in enumerate(itertools.cycle(pool)):
        if number and written + len(template) > target_size:
            return
        batch = bytearray(template)
        move_batch(batch, offset, number // len(pool) * span_ms, offset % 2**31)
        yield batch
        written += len(batch)
        offset += int.from_bytes(batch[57:61], "big")


def _write_log(path: Path, batches: Iterable[bytes | bytearray], indexes: IndexBuilder) -> int:
    last_offset, position = indexes.base_offset - 1, 0
    with path.open("wb", buffering=_WRITE_SIZE) as log:
        for batch in batches:
            for header in read_batch_headers(batch):
                indexes.add(position + header.position, header.size_in_bytes, header.last_offset, header.max_timestamp)
                last_offset = header.last_offset
            log.write(batch)
            position += len(batch)
    return last_offset
