"""What an operator's tools take; JSON on stdout.

    python -m benchmarks.bench_ops [--manifests 100000] [--mib 256] [--runs 3] [--folder DIR]

*listing*: verify of a folder of real keys and manifests (compressed, 256 chunks of 4 MiB; the logs are sparse files of
the right size), in a process of its own: manifests a second, and the most memory that the process ever held.

*data*: verify of every byte of four segments (zstd + encryption), beside what bounds it in the same run: the same
segments fetched in parallel, the CRCs of their batches computed in memory, and both composed, one after the other.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import crc32c

from benchmarks.bench_catalog import StoreBuilder, peak_mib
from benchmarks.bench_transform import CHUNK, key_settings
from benchmarks.measuring import interleaved_seconds, machine, rates
from tieredstore.catalog.listing import list_segments
from tieredstore.catalog.stored import load_segment
from tieredstore.config import settings_from
from tieredstore.format.manifest import SegmentManifest
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.kafka.logdir import LogSegment
from tieredstore.model import Uuid
from tieredstore.ops.bucket import open_bucket
from tieredstore.ops.verification import Level, Selection, verify
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import build_segment

SEGMENTS: Final = 4
TARGETS: Final = {"listing peak_mib": "< 300", "data to the limit": ">= 0.8"}


def with_logs(folder: Path, manifests: int) -> None:
    """A folder of so many segments, whose logs have their sizes and no content."""
    StoreBuilder(folder, manifests).build()
    for path in folder.rglob("*.rsm-manifest"):
        size = SegmentManifest.from_bytes(path.read_bytes()).chunk_index.stored_size
        with path.with_suffix(".log").open("r+b") as log:
            log.truncate(size)


def listing_of(folder: Path) -> dict[str, float]:
    """Verify at level listing, in the process that runs this."""
    settings = settings_from({"storage.backend.class": "filesystem", "storage.root": str(folder), "chunk.size": "1024"})
    count = findings = 0
    start = time.perf_counter()
    with open_bucket(settings) as bucket:
        for checked in verify(bucket):
            count += 1
            findings += len(checked.findings)
    seconds = time.perf_counter() - start
    return {"manifests": count, "findings": findings, "seconds": seconds, "peak_mib": peak_mib()}


def in_a_process(job: Callable[[Path], dict[str, float]], folder: Path) -> dict[str, float]:
    """What the job gives in a process of its own, which nothing else has grown."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(job, folder).result()


def measured_listing(folder: Path, manifests: int, runs: int) -> dict[str, object]:
    """The median of several runs."""
    with_logs(folder, manifests)
    taken = [in_a_process(listing_of, folder) for _ in range(runs)]
    assert all(run["findings"] == 0 and run["manifests"] > 0 for run in taken)
    rate = statistics.median(run["manifests"] / run["seconds"] for run in taken)
    return {
        "manifests": taken[0]["manifests"],
        "manifests_per_second": round(rate),
        "peak_mib": round(max(run["peak_mib"] for run in taken)),
    }


class DataJobs:
    """Four segments in a folder, encoded and encrypted, and as they were."""

    def __init__(self, folder: Path, mib: int) -> None:
        (folder / "store").mkdir()
        texts = {"storage.backend.class": "filesystem", "storage.root": str(folder / "store"), "chunk.size": str(CHUNK)}
        self.settings = settings_from(texts | {"compression.enabled": "true"} | key_settings(folder))
        self.size = self._next_offset = 0
        self.manager = RemoteStorageManager(self.settings)
        self.logs = [self._copied(folder / "logs", number, mib) for number in range(SEGMENTS)]
        self.batches = [
            [(header.position + 21, header.position + header.size_in_bytes) for header in read_batch_headers(log)]
            for log in self.logs
        ]
        listed = list_segments(self.manager.store)
        self.segments = [load_segment(self.manager.store, objects).metadata for objects in listed]

    def _copied(self, folder: Path, number: int, mib: int) -> bytes:
        segment: LogSegment = build_segment(folder, mib << 18, base_offset=self._next_offset, seed=number)
        self._next_offset = segment.end_offset + 1
        self.manager.copy_log_segment_data(segment.to_metadata(Uuid.random(), event_timestamp_ms=0), segment.files)
        log = segment.files.log_segment.read_bytes()
        self.size += len(log)
        return log

    def fetch(self) -> None:
        """All logs, as many at once as verify reads."""
        with RemoteStorageManager(self.settings) as manager, ThreadPool(SEGMENTS, "bench") as pool:

            def read(number: int) -> int:
                with manager.open(self.segments[number]) as stream:
                    return sum(len(chunk) for chunk in stream.chunks())

            assert sum(in_parallel(pool, read, range(SEGMENTS), at_once=SEGMENTS)) == self.size

    def check(self) -> None:
        """The CRC of each batch, by as many threads."""
        with ThreadPool(SEGMENTS, "bench") as pool:
            for _ in in_parallel(pool, self._check_one, range(SEGMENTS), at_once=SEGMENTS):
                pass

    def _check_one(self, number: int) -> None:
        with memoryview(self.logs[number]) as log:
            for start, stop in self.batches[number]:
                crc32c.crc32c(log[start:stop])

    def verify(self) -> None:
        """Level data."""
        with open_bucket(self.settings) as bucket:
            checked = list(verify(bucket, selection=Selection(Level.DATA)))
        assert len(checked) == SEGMENTS
        assert not [finding for segment in checked for finding in segment.findings]


def measured_data(folder: Path, mib: int, runs: int) -> dict[str, object]:
    """MB of the original logs a second, and the ratio to the limit."""
    jobs = DataJobs(folder, mib)
    named = {"fetch": jobs.fetch, "batch CRC": jobs.check, "verify --level data": jobs.verify}
    rate: Mapping[str, float] = rates(interleaved_seconds(named, runs), jobs.size)
    limit = 1 / (1 / rate["fetch"] + 1 / rate["batch CRC"])
    return {
        "log_bytes": jobs.size,
        "megabytes_per_second": {name: round(value) for name, value in {**rate, "limit": limit}.items()},
        "to the limit": round(rate["verify --level data"] / limit, 2),
    }


def measured(folder: Path, manifests: int, mib: int, runs: int) -> dict[str, object]:
    """All figures."""
    (folder / "listing").mkdir()
    (folder / "data").mkdir()
    return {
        "machine": machine(),
        "targets": TARGETS,
        "runs": runs,
        "verify --level listing": measured_listing(folder / "listing", manifests, runs),
        "verify --level data": measured_data(folder / "data", mib, runs),
    }


def main() -> None:
    """The command line of the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manifests", type=int, default=100_000)
    parser.add_argument("--mib", type=int, default=256, help="of all four segments together")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the stores are made; a temporary folder unless given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(json.dumps(measured(Path(folder), options.manifests, options.mib, options.runs), indent=2))


if __name__ == "__main__":
    main()
