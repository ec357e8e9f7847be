"""Uploads and ranged reads through our stores, compared with the fastest direct use of the same SDK; JSON on stdout.

    python -m benchmarks.bench_backends [--mib 256] [--runs 5] [--what upload reads] [--store s3-minio azure ...]

Every job runs once in each round, so that a busy machine affects all jobs alike. A figure is the median of the counted
rounds. ``ratios`` compare our rate with each direct use of the SDK, ``ratio`` with the fastest direct use that has our
checksums and chunk size. MB are 10^6 bytes. CPU seconds are those of all threads of this process, without the server,
which runs on the same processors. Our store gets uploads as a stream of 1 MiB pieces; the direct uses have the whole
body in memory. Reads are 4 MiB each, in a random order, over the whole object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from queue import SimpleQueue
from typing import Final

from benchmarks.measuring import Job, interleaved_seconds, machine
from benchmarks.plain.plain_sdks import GCS_CHUNK, Contest, Read, azure, gcs, s3
from tieredstore.backends.s3.options import Compatibility

READ: Final = 4 << 20
PARALLELISM: Final = (1, 4, 16)
TARGET: Final = 0.9

STORES: Final[Mapping[str, Callable[[], AbstractContextManager[Contest]]]] = {
    "s3-minio": lambda: s3("minio", Compatibility.AWS),
    "s3-minio-compatible": lambda: s3("minio", Compatibility.S3_COMPATIBLE),
    "s3-seaweedfs": lambda: s3("seaweedfs", Compatibility.S3_COMPATIBLE),
    "gcs": gcs,
    "gcs-large-chunks": lambda: gcs(GCS_CHUNK),
    "azure": azure,
    "azure-without-md5": lambda: azure(md5=False),
}
DEFAULT: Final = [name for name in STORES if name != "s3-minio-compatible"]


class CpuTimed:
    """A job that records this process's processor seconds of each run."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.seconds: list[float] = []

    def __call__(self) -> None:
        start = time.process_time()
        self._job()
        self.seconds.append(time.process_time() - start)


def read_all(read: Read, data: bytes, parallelism: int) -> Job:
    """Return a job that reads the whole object with ``parallelism`` concurrent reads, and checks the first and last
    bytes of each read."""
    starts = list(range(0, len(data) - READ + 1, READ))
    buffers: SimpleQueue[memoryview] = SimpleQueue()
    for _ in range(parallelism):
        buffers.put(memoryview(bytearray(READ)))

    def one(start: int) -> None:
        buffer = buffers.get()
        read(start, buffer)
        if (
            bytes(buffer[:64]) + bytes(buffer[-64:])
            != data[start : start + 64] + data[start + READ - 64 : start + READ]
        ):
            raise SystemExit("a read gave other bytes")
        buffers.put(buffer)

    def job() -> None:
        random.shuffle(starts)
        with ThreadPoolExecutor(parallelism) as pool:
            list(pool.map(one, starts))

    return job


def jobs_of(contest: Contest, data: bytes, what: Sequence[str]) -> dict[str, dict[str, CpuTimed]]:
    """For each comparison, return the jobs to compare, by name."""
    contenders = {"upload": {name: CpuTimed(partial(upload, data)) for name, upload in contest.uploads.items()}}
    for parallelism in PARALLELISM if "reads" in what else ():
        contenders[f"reads at parallelism {parallelism}"] = {
            name: CpuTimed(read_all(read, data, parallelism)) for name, read in contest.reads.items()
        }
    return contenders


def measured(contest: Contest, data: bytes, runs: int, what: Sequence[str]) -> dict[str, object]:
    """Return the figures of one store. Run uploads even if only reads are wanted, because reads need the object."""
    jobs = jobs_of(contest, data, what)
    flat = {f"{part}: {name}": job for part, ways in jobs.items() for name, job in ways.items()}
    taken = interleaved_seconds(flat, runs)
    figures: dict[str, object] = {}
    for part, ways in jobs.items():
        rate = {name: len(data) / statistics.median(taken[f"{part}: {name}"]) / 1e6 for name in ways}
        per_cpu = {name: len(data) / statistics.median(job.seconds[1:]) / 1e6 for name, job in ways.items()}
        best = max((name for name in rate if name != "ours" and name not in contest.unlike), key=rate.__getitem__)
        figures[part] = {
            "megabytes_per_second": {name: round(value) for name, value in rate.items()},
            "megabytes_per_cpu_second": {name: round(value) for name, value in per_cpu.items()},
            "ratios": {name: round(rate["ours"] / rate[name], 3) for name in rate if name != "ours"},
            "ratio": round(rate["ours"] / rate[best], 3),
            "fastest_plain": best,
            "target": TARGET,
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of the object in MiB, a multiple of 4")
    parser.add_argument("--runs", type=int, default=5, help="counted rounds")
    parser.add_argument("--what", nargs="+", choices=["upload", "reads"], default=["upload", "reads"])
    parser.add_argument("--store", nargs="+", choices=STORES, default=DEFAULT)
    arguments = parser.parse_args()
    source = random.Random(1)
    # Make the data in pieces of 1 MiB, because ``randbytes`` makes one int of all bytes of a call.
    data = b"".join(source.randbytes(1 << 20) for _ in range(arguments.mib))
    stores: dict[str, object] = {}
    for name in arguments.store:
        with contextlib.ExitStack() as stack:
            stores[name] = measured(stack.enter_context(STORES[name]()), data, arguments.runs, arguments.what)
    print(json.dumps({"machine": machine(), "object_bytes": len(data), "stores": stores}, indent=2))


if __name__ == "__main__":
    main()
