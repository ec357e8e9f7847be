"""MemQ's batches compared with the underlying limits, in one run; JSON on stdout.

    python -m benchmarks.bench_pubsub [--runs 9] [--mib 256] [--seconds 60] [--gib 4] [--what encode …]

- Encoding: JSON records into Messages of 1 MiB and batches, on all processors, compared with zstd of the same bodies on
  as many threads.
- Decoding: the same batches into Arrow on one thread, all columns, compared with the necessary steps: the CRC of the
  stored bodies, zstd, and a copy of the result. A second job decodes Messages that were flushed at each record, as
  MemQ's producer does.
- Publishing and reading back, compared with plain PUTs and GETs of equal bodies in a local MinIO.
- A broker, compared with an asyncio sink that checks the same frames.
- Latency from ``send`` to ``poll``, with PUTs that are slow and sometimes hang.
- Requests, counted by a proxy before the server, and their cost compared with Kafka's by ``examples/prices.toml``.
- Memory for a flow of gigabytes.

The results are the ratios within one run, by wall-clock and by processor time. Each round runs every job once, and a
ratio is the median of the rounds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from zlib import crc32 as zlib_crc32

import zstandard

from benchmarks.measuring import Taken, interleaved, machine, rates, to_the_limit
from benchmarks.pubsub.pubsub_broker import measure_broker
from benchmarks.pubsub.pubsub_flow import measure_latency, measure_memory, measure_requests, measure_throughput
from tests.support.pubsub.memq_batches import RecordFields, build_batch
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.format.messages import Compression, MessageHeader, ProducerRequest, seal_message
from tieredstore.testing.segments import json_records

MESSAGE = 1 << 20
MESSAGES = 16
crc32: Any = importlib.import_module("isal.isal_zlib").crc32
ENCODE_TARGET = 0.85
DECODE_TARGET = 0.7
REQUEST = ProducerRequest(bytes(16), 1_700_000_000_000, 0)


def records_of_messages() -> list[list[RecordFields]]:
    """Return JSON records in lists that each fill a Message."""
    source = json_records(random.Random(1))
    messages: list[list[RecordFields]] = []
    for _ in range(MESSAGES):
        body = BodyWriter(MESSAGE)
        records: list[RecordFields] = []
        while True:
            record = next(source)
            fields: RecordFields = (record.value or b"", record.key, None, bytes(8), 1_700_000_000_000)
            if body.take(*fields) < 0:
                break
            records.append(fields)
        messages.append(records)
    return messages


def body_of(records: list[RecordFields]) -> BodyWriter:
    body = BodyWriter(MESSAGE)
    if any(body.take(*record) < 0 for record in records):
        raise ValueError("a Message does not hold its records")
    return body


def encode(records: list[RecordFields]) -> bytes:
    body = body_of(records)
    return seal_message(body, body.count, REQUEST, Compression.ZSTD)


def flushed(records: list[RecordFields]) -> bytes:
    """Return a Message as MemQ's producer makes it, which flushes the compressor at each record."""
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    parts: list[bytes] = []
    for record in records:
        one = BodyWriter(MESSAGE)
        one.take(*record)
        parts += (compressor.compress(memoryview(one)), compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    parts.append(compressor.flush())
    stored = b"".join(parts)
    return MessageHeader(REQUEST, zlib_crc32(stored), Compression.ZSTD, len(records), len(stored)).to_bytes() + stored


def medians(taken: Mapping[str, list[Taken]], size: int) -> dict[str, float]:
    """Return each job's MB (10^6 bytes) per second of wall-clock time, at the median."""
    return {
        name: round(rate, 1)
        for name, rate in rates({name: [run.seconds for run in runs] for name, runs in taken.items()}, size).items()
    }


def measure_encoding(messages: list[list[RecordFields]], runs: int) -> dict[str, object]:
    bodies = [bytes(memoryview(body_of(records))) for records in messages]
    size = sum(map(len, bodies))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compressors = [zstandard.ZstdCompressor(level=3, write_content_size=False) for _ in bodies]

        def compress(number: int) -> bytes:
            return compressors[number].compress(bodies[number])

        taken = interleaved(
            {
                "encode": lambda: build_batch(list(pool.map(encode, messages))),
                "zstd": lambda: list(pool.map(compress, range(len(bodies)))),
            },
            runs,
        )
    return {"MB_s": medians(taken, size), **to_the_limit(taken, "encode", ("zstd",)), "target": ENCODE_TARGET}


def measure_decoding(messages: list[list[RecordFields]], stored: list[bytes], runs: int) -> dict[str, object]:
    bodies = [bytes(memoryview(body_of(records))) for records in messages]
    size, count = sum(map(len, bodies)), sum(map(len, messages))
    batch, decoder = build_batch(stored), BatchDecoder()
    views = [memoryview(message)[MessageHeader(REQUEST, 0, Compression.ZSTD, 0, 0).size :] for message in stored]
    room, copy = bytearray(MESSAGE + 1), bytearray(MESSAGE)
    decompressor: Any = zstandard.ZstdDecompressor()

    def limit() -> None:
        for view in views:
            crc32(view)
            filled = 0
            reader: Any = decompressor.stream_reader(view)
            while read := reader.readinto(memoryview(room)[filled:]):
                filled += read
            copy[:filled] = memoryview(room)[:filled]

    def decode() -> None:
        if sum(rows.num_rows for rows in decoder.decode(batch)) != count:
            raise ValueError("the decoder lost records")

    taken = interleaved({"decode": decode, "limit": limit}, runs)
    mbs = medians(taken, size)
    return {
        "MB_s": mbs,
        "million_records_s": round(mbs["decode"] / size * count, 2),
        **to_the_limit(taken, "decode", ("limit",)),
        "target": DECODE_TARGET,
        "stored_bytes": len(batch),
        "expanded_bytes": size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--mib", type=int, default=256, help="MiB per run: published, read back, sent to a broker")
    parser.add_argument(
        "--requests-mib", type=int, default=1024, help="MiB to publish and to read back while requests are counted"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of each measurement of latency")
    parser.add_argument("--gib", type=float, default=4.0, help="GiB of the flow whose memory is measured")
    parser.add_argument("--what", nargs="+", metavar="PART", help="only these parts, by their names in the JSON")
    given = parser.parse_args()
    messages = records_of_messages()
    parts: dict[str, Callable[[], object]] = {
        "encode": lambda: measure_encoding(messages, given.runs),
        "decode": lambda: measure_decoding(messages, [encode(records) for records in messages], given.runs),
        "decode_flushed": lambda: measure_decoding(
            messages[:4], [flushed(records) for records in messages[:4]], given.runs
        ),
        "throughput": lambda: measure_throughput(given.mib, min(given.runs, 5)),
        "broker": lambda: [measure_broker(given.mib, kib, min(given.runs, 5)) for kib in (64, 256, 1000)],
        "latency": lambda: measure_latency(given.seconds, 1000, {"p50": 1000, "p99": 2500, "p99.9": 5000}),
        "latency_of_short_batches": lambda: measure_latency(given.seconds, 250, {"p99": 1200}),
        "requests": lambda: measure_requests(given.requests_mib, 20.0),
        "memory": lambda: measure_memory(given.gib),
    }
    if unknown := set(given.what or ()) - parts.keys():
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    report = {"machine": machine()} | {name: run() for name, run in parts.items() if name in (given.what or parts)}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
