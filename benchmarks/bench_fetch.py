"""Reading a segment back from a warm disk cache, cold from a folder, and cold from a local S3 server; JSON on stdout.

    python -m benchmarks.bench_fetch [--mib 256] [--runs 5] [--folder DIR] [--server seaweedfs|minio|none]

All figures are MB of the original segment per second, zstd + encryption, chunks of 4 MiB. For comparison in the same
run: the same bytes in plain files opened, read and checked by CRC-32C; zstd's decompression alone on all processors;
and the SDK's own parallel download of the stored object. The S3 server shares the machine with its client.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import crc32c
from boto3.s3.transfer import TransferConfig

from benchmarks.bench_transform import CHUNK, READ_SIZE, THREADS, Limits, chunks_of, key_settings
from benchmarks.measuring import Job, interleaved_seconds, machine, rates
from tests.support.servers.minio import start_minio
from tests.support.servers.s3_server import REGION, S3Server
from tests.support.servers.seaweedfs import start_seaweedfs
from tests.support.stores.doubles import CountingStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.backends.s3.options import AccessKeys, Compatibility, S3Options
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.config import settings_from
from tieredstore.format.keys import Suffix
from tieredstore.kafka.logdir import LogSegment
from tieredstore.model import Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import build_segment

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

SERVERS = {"seaweedfs": start_seaweedfs, "minio": start_minio}


class PlainFiles:
    """Original chunks as plain files. Reading them is the limit for reads from the disk cache."""

    def __init__(self, folder: Path, chunks: list[memoryview]) -> None:
        folder.mkdir()
        self._paths = [folder / str(number) for number in range(len(chunks))]
        for path, chunk in zip(self._paths, chunks, strict=True):
            path.write_bytes(chunk)
        self._buffer = memoryview(bytearray(CHUNK))

    def read(self) -> None:
        """Open, read and check each file."""
        for path in self._paths:
            with path.open("rb", buffering=0) as file:
                size = file.readinto(self._buffer)
            crc32c.crc32c(self._buffer[:size])


class Fetching:
    """One segment copied into a store, read repeatedly into one buffer."""

    def __init__(self, texts: dict[str, str], segment: LogSegment, store: ObjectStore) -> None:
        settings = settings_from(texts)
        self.store = CountingStore(store)
        self.manager = RemoteStorageManager(settings, store=self.store)
        self.metadata = segment.to_metadata(Uuid.random())
        self.manager.copy_log_segment_data(self.metadata, segment.files)
        self.log_key = self.manager.layout.key(self.metadata, Suffix.LOG)
        self._buffer = memoryview(bytearray(READ_SIZE))

    def fetch(self) -> None:
        """Fetch the whole log."""
        with self.manager.fetch_log_segment(self.metadata, 0) as stream:
            while stream.readinto(self._buffer):
                pass

    def gets_per_gib(self) -> dict[str, float]:
        """Return the requests of a whole read per GiB, and for comparison the number with one GET per chunk."""
        size = self.metadata.segment_size_in_bytes
        self.store.reset()
        self.fetch()
        return {
            "ours": round(self.store.requests["get_into"] / size * 2**30, 1),
            "one GET a chunk": round(-(-size // CHUNK) / size * 2**30, 1),
        }


@contextlib.contextmanager
def s3_jobs(
    name: str, texts: dict[str, str], segment: LogSegment, folder: Path
) -> Generator[dict[str, Job], None, None]:
    """Yield our cold read and the SDK's own download of the same object, from a server started for them."""
    with SERVERS[name]() as server:
        bucket = server.make_bucket()
        ours = Fetching(texts, segment, S3ObjectStore(_options(server, bucket)))
        config = TransferConfig(
            multipart_threshold=CHUNK, multipart_chunksize=CHUNK, max_concurrency=8, use_threads=True
        )
        client: S3Client = server.plain

        def download() -> None:
            client.download_file(bucket, ours.log_key, str(folder / "downloaded"), Config=config)

        yield {f"cold from {name}": ours.fetch, f"{name}: the SDK's own download": download}


def _options(server: S3Server, bucket: str) -> S3Options:
    return S3Options(
        bucket,
        region=REGION,
        endpoint_url=server.endpoint_url,
        path_style=True,
        compatibility=Compatibility.AWS,
        credentials=AccessKeys(server.access_key, server.secret_key),
    )


def run(folder: Path, mib: int, runs: int, server: str) -> dict[str, object]:
    segment = build_segment(folder / "logs", mib << 20)
    original = segment.files.log_segment.read_bytes()
    limits = Limits(original, folder)
    common = key_settings(folder) | {"chunk.size": str(CHUNK), "compression.enabled": "true"}
    common |= {"storage.backend.class": "filesystem", "storage.root": str(folder / "store")}
    (folder / "store").mkdir()
    (folder / "cache").mkdir()
    cache = {"fetch.chunk.cache.class": "disk", "fetch.chunk.cache.size": "-1"}
    cache["fetch.chunk.cache.path"] = str(folder / "cache")
    stored = FilesystemObjectStore(folder / "store")
    warm, cold = Fetching(common | cache, segment, stored), Fetching(common, segment, stored)
    jobs: dict[str, Job] = {
        "zstd decompress": limits.jobs()["zstd decompress"],
        "plain files and CRC-32C": PlainFiles(folder / "plain", chunks_of(original)).read,
        "warm disk cache": warm.fetch,
        "cold from a folder": cold.fetch,
    }
    with contextlib.ExitStack() as stack:
        if server != "none":
            jobs |= stack.enter_context(s3_jobs(server, common, segment, folder))
        rate = rates(interleaved_seconds(jobs, runs), len(original))
    return {
        "machine": machine(),
        "segment_bytes": len(original),
        "threads": THREADS,
        "megabytes_per_second": {name: round(value) for name, value in rate.items()},
        "ratios": ratios(rate, server),
        "gets_per_gib": cold.gets_per_gib(),
    }


def ratios(rate: dict[str, float], server: str) -> dict[str, dict[str, float]]:
    """Return each measured rate divided by its limit, with its target. The SDK downloads stored bytes, but its rate
    counts original bytes."""
    figures = {
        "warm disk cache / plain files and CRC-32C": (rate["warm disk cache"] / rate["plain files and CRC-32C"], 0.6),
        "cold from a folder / zstd decompress": (rate["cold from a folder"] / rate["zstd decompress"], 0.65),
    }
    if server != "none":
        composed = 1 / (1 / rate[f"{server}: the SDK's own download"] + 1 / rate["zstd decompress"])
        figures[f"cold from {server} / (1/(1/download + 1/decompress))"] = (rate[f"cold from {server}"] / composed, 0.8)
    return {name: {"ratio": round(ratio, 3), "target": target} for name, (ratio, target) in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of the segment in MiB")
    parser.add_argument("--runs", type=int, default=5, help="counted rounds")
    parser.add_argument("--folder", type=Path, help="where files are written (default: the system's temporary folder)")
    parser.add_argument("--server", choices=[*SERVERS, "none"], default="seaweedfs", help="the S3 server to start")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(json.dumps(run(Path(folder), arguments.mib, arguments.runs, arguments.server), indent=2))


if __name__ == "__main__":
    main()
