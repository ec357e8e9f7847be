"""What the uploader takes beside plain copies, and while nothing happens; JSON on stdout.

    python -m benchmarks.bench_uploader [--partitions 1000] [--mib 1024] [--idle-seconds 60] [--runs 3] [--only PART …]

*many*: ten segments of 64 KiB of each partition into a folder, in alternating rounds: by ``copy_log_segment_data`` in
ten threads, and by the uploader as it runs, with ten workers, from its start until the last watermark has moved. It
looks at the store before each segment, checks its checksums, and writes the watermarks, which the copies do not.

*large*: one segment of ``--mib``, the same two ways, checksums left out, since a copy does not look at them.

*idle*: two thousand partitions of which all is shipped; processor time of the process a second. Then one of them is
rolled again and again: milliseconds from the new log's name to the manifest of the closed one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.measuring import interleaved_seconds, machine
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.config import settings_from
from tieredstore.config.loading import uploader_settings_from
from tieredstore.kafka.logdir import FoundSegment, LogSegment, describe, discover
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import build_segment
from tieredstore.uploader import Uploader
from tieredstore.uploader.running import uploader_service

PARTS: Final = ("many", "large", "idle")
TARGETS: Final = {
    "many: copies to uploader": ">= 0.8",
    "large: copies to uploader": ">= 0.95",
    "idle: of a core": "<= 0.03",
    "idle: p50 ms": "<= 2000",
    "idle: p99 ms": "<= 10000",
}
THREADS: Final = 10
SEGMENTS: Final = 10
SMALL: Final = 64 * 1024
IDLE_PARTITIONS: Final = 2000
ROLLS: Final = 50
CHUNK: Final = 4 << 20
TOPIC_ID: Final = Uuid(bytes(range(16)))


class Disk:
    """A broker's log directory, and folders for stores."""

    def __init__(self, home: Path) -> None:
        self.log_dir = home / "logs"
        self.log_dir.mkdir()
        self._stores = home / "stores"
        self._stores.mkdir()
        self._next = 0

    def partition(self, number: int) -> TopicIdPartition:
        return TopicIdPartition(TOPIC_ID, "events", number)

    def fill(self, partitions: int, segments: int, size: int) -> None:
        """So many closed segments of each partition, and an active one."""
        for number in range(partitions):
            base = 0
            for _ in range(segments):
                base = self.grow(number, base, size)
            self.grow(number, base, 1)

    def grow(self, number: int, base: int, size: int) -> int:
        """A segment more; where the next one begins."""
        return build_segment(self.log_dir, size, partition=self.partition(number), base_offset=base).end_offset + 1

    def store(self) -> tuple[Any, FilesystemObjectStore]:
        """Settings of an empty store, and the store."""
        self._next += 1
        folder = self._stores / str(self._next)
        folder.mkdir()
        settings = {"storage.backend.class": "filesystem", "storage.root": str(folder), "chunk.size": str(CHUNK)}
        return settings_from(settings), FilesystemObjectStore(folder)

    def uploader(self, settings: Any, **more: str) -> Uploader:
        own = {"uploader.leadership": "static", "uploader.log.dirs": str(self.log_dir), **more}
        return Uploader(settings, uploader_settings_from(own))


def copied(disk: Disk, closed: list[LogSegment]) -> None:
    """What the plugin's interface asks for, in ten threads."""
    settings, _ = disk.store()
    with RemoteStorageManager(settings) as manager, ThreadPoolExecutor(THREADS) as pool:
        copies = [
            pool.submit(manager.copy_log_segment_data, segment.to_metadata(Uuid.random()), segment.files)
            for segment in closed
        ]
        for copy in copies:
            copy.result()


def shipped(disk: Disk, count: int, check_crcs: str) -> None:
    """The uploader until all is shipped."""
    settings, _ = disk.store()
    own = {"uploader.concurrent.uploads": str(THREADS), "uploader.check.crcs": check_crcs}
    with disk.uploader(settings, **own) as uploader, uploader_service(uploader):
        until(lambda: uploader.counts.segments == count and not uploader.gauges()["lag_segments"])


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 3600
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)


def beside_copies(disk: Disk, runs: int, check_crcs: str) -> dict[str, object]:
    """Rates of both, and how near the uploader comes."""
    closed = [described for segment in discover(disk.log_dir).segments if (described := closed_one(segment))]
    size = sum(segment.size_in_bytes for segment in closed)
    jobs = {"copies": lambda: copied(disk, closed), "uploader": lambda: shipped(disk, len(closed), check_crcs)}
    seconds = interleaved_seconds(jobs, runs)
    ratios = [copies / uploader for copies, uploader in zip(seconds["copies"], seconds["uploader"], strict=True)]
    return {
        "segments": len(closed),
        "segments_per_second": {
            name: round(len(closed) / statistics.median(taken), 1) for name, taken in seconds.items()
        },
        "mb_per_second": {name: round(size / statistics.median(taken) / 1e6, 1) for name, taken in seconds.items()},
        "copies to uploader": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def closed_one(segment: FoundSegment) -> LogSegment | None:
    return None if segment.next_base_offset is None else describe(segment)


def idle(disk: Disk, seconds: float) -> dict[str, object]:
    """Nothing happens; then segments are rolled."""
    settings, store = disk.store()
    disk.fill(IDLE_PARTITIONS, 1, 1)
    with disk.uploader(settings) as uploader, uploader_service(uploader):
        until(lambda: uploader.counts.segments == IDLE_PARTITIONS and not uploader.gauges()["lag_segments"])
        time.sleep(2 * uploader.own.scan_interval_ms / 1000)
        started, processor = time.perf_counter(), time.process_time()
        time.sleep(seconds)
        share = (time.process_time() - processor) / (time.perf_counter() - started)
        base = max(s.base_offset for s in discover(disk.log_dir / "events-0").segments)
        base = disk.grow(0, base, SMALL)
        waits: list[float] = []
        for _ in range(ROLLS):
            before = uploader.counts.segments
            following = disk.grow(0, base, SMALL)
            rolled = time.perf_counter()
            until(lambda before=before: uploader.counts.segments > before)  # type: ignore[misc]
            waits.append(1000 * (time.perf_counter() - rolled))
            base = following
        del store
    waits.sort()
    return {
        "partitions": IDLE_PARTITIONS,
        "of a core": round(share, 4),
        "p50 ms": round(statistics.median(waits)),
        "p99 ms": round(waits[min(len(waits) - 1, int(len(waits) * 0.99))]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--idle-seconds", type=float, default=60)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    results: dict[str, object] = {}
    for part in options.only:
        with tempfile.TemporaryDirectory(dir=options.folder) as home:
            disk = Disk(Path(home))
            if part == "many":
                disk.fill(options.partitions, SEGMENTS, SMALL)
                results[part] = beside_copies(disk, options.runs, "true")
            elif part == "large":
                disk.fill(1, 1, options.mib << 20)
                results[part] = beside_copies(disk, options.runs, "false")
            else:
                results[part] = idle(disk, options.idle_seconds)
    json.dump({"machine": machine(), "targets": TARGETS, **results}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
