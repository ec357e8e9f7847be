"""Our decoder compared with aiokafka's and with the underlying limits, in one run on one thread; JSON on stdout.

Rates are per second of processor time. A ratio is the median over the rounds; if it has a target, it is also given for
wall-clock time.

    python benchmarks/bench_decode.py [--runs 15]

The first figures are million records per second, for uncompressed batches of 16 KiB with values of 100, 500 and 5,000
bytes and keys of 12 bytes, all columns. The batches are in a piece of 4 MiB that is decoded repeatedly. So it stays in
the processor's caches, as a piece does after its decryption. The decoder is compared with a copy of the same bytes, and
with the necessary steps in sequence, each measured alone. If there is a C compiler, it is also compared with a plain C
loop that parses each record and copies it once, unchecked, into existing memory.

The next figures are MB of decompressed records per second, for JSON records in each codec, with the same stored size.
They are compared with the codec's library alone on the same bodies. Four decoders on separate threads are compared with
one. The results are the ratios within one run, not the figures, which depend on the machine.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import random
import statistics
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cramjam
import crc32c
import pyarrow as pa
import zstandard

from benchmarks.measuring import Job, Taken, interleaved, machine, rates
from benchmarks.plain.plain_decode import plain_decoder
from tieredstore.kafka.batches import FRAME_SIZE, HEADER_SIZE, CompressionType, read_batch_headers
from tieredstore.kafka.records import RecordDecoder
from tieredstore.testing.batches import Record, build_batch, seal_batch
from tieredstore.testing.segments import json_records

# Libraries with no or incomplete types.
lz4_library: Any = importlib.import_module("lz4.frame")
gzip_library: Any = importlib.import_module("isal.igzip_lib")
MemoryRecords: Any = importlib.import_module("aiokafka.record.memory_records").MemoryRecords

PIECE = 4 << 20
BATCH = 16 << 10
TARGETS = {100: 20.0, 500: 12.0}
MEMCPY_TARGETS = {100: {"decode / memcpy": 0.35}, 500: {"with CRC / memcpy": 0.65}}
CRC_TARGET = 0.8
COMPOSED_TARGET = 0.75
REPEATS = 10
SIDE_BY_SIDE = 4
PLAIN = "plain C loop"
AT_ONCE = f"{SIDE_BY_SIDE} at once"
ARROW: Any = RecordDecoder().schema


def random_records(value_size: int) -> Iterator[Record]:
    source = random.Random(value_size)
    return (Record(source.randbytes(value_size), b"key-%08d" % i, 10 * i) for i in range(2**31))


def build_piece(records: Iterator[Record], compress: Callable[[bytes], bytes], codec: CompressionType) -> bytes:
    """Return as many batches as fit the piece, each of 16 KiB before compression."""
    piece, offset = bytearray(), 0
    while True:
        taken, room = [next(records)], BATCH - HEADER_SIZE
        while (room := room - len(taken[-1].value or b"") - 24) > len(taken[-1].value or b""):
            taken.append(next(records))
        plain = build_batch(taken, offset)
        batch = bytearray(plain[:HEADER_SIZE]) + compress(plain[HEADER_SIZE:])
        batch[8:FRAME_SIZE] = struct.pack(">i", len(batch) - FRAME_SIZE)
        batch[22] |= codec.value
        seal_batch(batch)
        if len(piece) + len(batch) > PIECE:
            return bytes(piece)
        piece += batch
        offset += len(taken)


def decode(decoder: RecordDecoder, piece: bytes) -> int:
    return sum(batch.num_rows for batch in decoder.decode([piece]))


def decode_by_aiokafka(piece: bytes, *, check_crc: bool) -> object:
    """Decode the same columns with aiokafka's compiled parser, converting records to columns in the fewest Python
    steps.
    """
    columns: list[list[Any]] = [[] for _ in ARROW]
    keys, values, headers, offsets, timestamps, types, epochs = columns
    batches = MemoryRecords(piece)
    while (batch := batches.next_batch()) is not None:
        if check_crc and not batch.validate_crc():
            raise ValueError("the benchmark's own batch is damaged")
        records = list(batch)
        keys += [record.key for record in records]
        values += [record.value for record in records]
        headers += [record.headers or None for record in records]
        offsets += [record.offset for record in records]
        timestamps += [record.timestamp for record in records]
        types += [record.timestamp_type for record in records]
        epochs += [0] * len(records)
    return pa.record_batch([pa.array(column, field.type) for column, field in zip(columns, ARROW, strict=True)], ARROW)


def repeated(job: Job) -> Job:
    """Repeat the job, so that its own data are in the processor's caches, and not the previous job's."""

    def run() -> None:
        for _ in range(REPEATS):
            job()

    return run


@dataclass(frozen=True)
class Figures:
    """The times of each job by round, and the size of the work of one run."""

    taken: Mapping[str, list[Taken]]
    sizes: Mapping[str, int]

    def rate(self, job: str) -> float:
        """Return the job's rate in millions per second of processor time, at the median."""
        seconds = [run.cpu_seconds for run in self.taken[job]]
        return rates({job: seconds}, self.sizes[job] * REPEATS)[job]

    def share(self, job: str, *steps: str) -> float:
        """Return the job's rate divided by the rate of all ``steps`` in sequence, by processor time."""
        return self._share(job, steps, lambda run: run.cpu_seconds)

    def shares(self, name: str, job: str, *steps: str) -> dict[str, float]:
        """Return :meth:`share` by processor time, and the same share by wall-clock time."""
        return {
            name: self.share(job, *steps),
            f"{name}, by wall": self._share(job, steps, lambda run: run.seconds),
        }

    def _share(self, job: str, steps: tuple[str, ...], seconds: Callable[[Taken], float]) -> float:
        # Take the median of the rounds' shares, because within a round the machine is equally busy for all jobs.
        rounds = [
            sum(seconds(self.taken[step][at]) / self.sizes[step] for step in steps) * self.sizes[job] / seconds(run)
            for at, run in enumerate(self.taken[job])
        ]
        return round(statistics.median(rounds), 2)


def measure_jobs(jobs: Mapping[str, Job], sizes: Mapping[str, int], runs: int) -> Figures:
    """Measure on one thread, by processor time, which other programs affect less than wall-clock time."""
    return Figures(interleaved({name: repeated(job) for name, job in jobs.items()}, runs), sizes)


def check_crcs(batches: list[memoryview]) -> None:
    for batch in batches:
        crc32c.crc32c(batch)


def measure_plain(value_size: int, runs: int) -> dict[str, object]:
    piece = build_piece(random_records(value_size), bytes, CompressionType.NONE)
    headers = list(read_batch_headers(piece))
    count = sum(header.record_count or 0 for header in headers)
    view = memoryview(piece)
    covered = [view[header.position + 21 : header.position + header.size_in_bytes] for header in headers]
    unchecked, checked, copy = RecordDecoder(check_crc=False), RecordDecoder(), bytearray(PIECE)
    if decode(checked, piece) != count:
        raise ValueError("the decoder lost records")

    def copy_piece() -> None:
        copy[: len(piece)] = piece

    jobs: dict[str, Job] = {
        "decode": lambda: decode(unchecked, piece),
        "decode with CRC": lambda: decode(checked, piece),
        "CRC alone": lambda: check_crcs(covered),
        "memcpy": copy_piece,
        "aiokafka": lambda: decode_by_aiokafka(piece, check_crc=False),
        "aiokafka with CRC": lambda: decode_by_aiokafka(piece, check_crc=True),
    }
    if (plain := plain_decoder(piece, count)) is not None:
        if plain() != count:
            raise ValueError("the plain loop lost records")
        jobs[PLAIN] = plain
    figures = measure_jobs(jobs, dict.fromkeys(jobs, count), runs)
    return {
        "million records/s": {name: round(figures.rate(name), 2) for name in jobs},
        "decode / aiokafka": figures.share("decode", "aiokafka"),
        "with CRC / aiokafka with CRC": figures.share("decode with CRC", "aiokafka with CRC"),
        **figures.shares("decode / memcpy", "decode", "memcpy"),
        **figures.shares("with CRC / memcpy", "decode with CRC", "memcpy"),
        "with CRC / (decode, then CRC)": figures.share("decode with CRC", "decode", "CRC alone"),
        **plain_shares(figures),
        "targets": {
            "aiokafka": TARGETS.get(value_size),
            "decode, then CRC": CRC_TARGET,
            **MEMCPY_TARGETS.get(value_size, {}),
        },
    }


def plain_shares(figures: Figures) -> dict[str, float]:
    """Return the plain loop's rate relative to the decoder and to a copy, if measured."""
    if PLAIN not in figures.taken:
        return {}
    return {
        "plain C loop / memcpy": figures.share(PLAIN, "memcpy"),
        "decode / plain C loop": figures.share("decode", PLAIN),
        "with CRC / (plain C loop, then CRC)": figures.share("decode with CRC", PLAIN, "CRC alone"),
    }


def snappy_of_java(body: bytes) -> bytes:
    out = bytearray(b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1))
    for at in range(0, len(body), 32 * 1024):
        block = bytes(cramjam.snappy.compress_raw(body[at : at + 32 * 1024]))
        out += struct.pack(">i", len(block)) + block
    return bytes(out)


def zstd_of_java(body: bytes) -> bytes:
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(body) + stream.flush()


def at_once(jobs: Sequence[Job]) -> None:
    """Run all jobs, each on a separate thread."""
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


COMPRESS: dict[CompressionType, Callable[[bytes], bytes]] = {
    CompressionType.GZIP: gzip.compress,
    CompressionType.SNAPPY: snappy_of_java,
    CompressionType.LZ4: lambda body: lz4_library.compress(body, store_size=False, block_linked=False),
    CompressionType.ZSTD: zstd_of_java,
}


def library_alone(codec: CompressionType, memory: memoryview) -> Callable[[memoryview], int]:
    """Return a function that decompresses with the codec's library alone, as fast as possible, and returns the size."""
    zstd: Any = zstandard.ZstdDecompressor()

    def decompress(body: memoryview) -> int:
        match codec:
            case CompressionType.GZIP:
                return len(gzip_library.decompress(body, gzip_library.DECOMP_GZIP))
            case CompressionType.SNAPPY:
                return cramjam.snappy.decompress_raw_into(body[20:], memory)
            case CompressionType.LZ4:
                return len(lz4_library.decompress(body))
            case _:
                return int(zstd.stream_reader(body).readinto(memory))

    return decompress


def measure_codec(codec: CompressionType, runs: int) -> dict[str, object]:
    piece = build_piece(json_records(random.Random(1)), COMPRESS[codec], codec)
    view, memory = memoryview(piece), memoryview(bytearray(64 * 1024))
    stored = [
        view[header.position + HEADER_SIZE : header.position + header.size_in_bytes]
        for header in read_batch_headers(piece)
    ]
    decompress, decoder, unchecked = library_alone(codec, memory), RecordDecoder(), RecordDecoder(check_crc=False)
    several = [RecordDecoder() for _ in range(SIDE_BY_SIDE)]
    plain_piece = build_piece(json_records(random.Random(1)), bytes, CompressionType.NONE)
    jobs: dict[str, Job] = {
        "decode with CRC": lambda: decode(decoder, piece),
        "decompress alone": lambda: [decompress(body) for body in stored],
        "decode plain bytes": lambda: decode(unchecked, plain_piece),
        AT_ONCE: lambda: at_once([partial(decode, decoder, piece) for decoder in several]),
    }
    sizes = dict.fromkeys(jobs, sum(decompress(body) for body in stored))
    sizes[AT_ONCE] *= SIDE_BY_SIDE
    plain_headers = list(read_batch_headers(plain_piece))
    body_size = sum(header.size_in_bytes - HEADER_SIZE for header in plain_headers)
    sizes["decode plain bytes"] = body_size
    if (plain := plain_decoder(plain_piece, sum(header.record_count or 0 for header in plain_headers))) is not None:
        jobs[PLAIN], sizes[PLAIN] = plain, body_size
    figures = measure_jobs(jobs, sizes, runs)
    result: dict[str, object] = {f"{name} MB/s": round(figures.rate(name)) for name in jobs}
    result["of decompress alone"] = figures.share("decode with CRC", "decompress alone")
    result |= figures.shares("of decompress, then decode", "decode with CRC", "decompress alone", "decode plain bytes")
    result |= figures.shares(f"{AT_ONCE} / one", AT_ONCE, "decode with CRC")
    if PLAIN in jobs:
        result["of decompress, then plain C loop"] = figures.share("decode with CRC", "decompress alone", PLAIN)
    return result | {"target of decompress, then decode": COMPOSED_TARGET}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    report = {
        "machine": machine(),
        "plain": {f"{size} B": measure_plain(size, runs) for size in (100, 500, 5_000)},
        "codecs": {codec.name.lower(): measure_codec(codec, runs) for codec in COMPRESS},
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
