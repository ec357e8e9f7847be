"""The uploader's cost compared with plain copies, and when idle; JSON on stdout.

    python -m benchmarks.bench_uploader [--partitions 1000] [--mib 1024] [--runs 3] [--only PART …]

*many*: ten segments of 64 KiB of each partition into a folder, in alternating rounds: by ``copy_log_segment_data`` in
ten threads, and by the running uploader, with ten workers, from its start until the last watermark has moved. Unlike
the copies, the uploader checks the store before each segment, verifies the segment's checksums, and writes watermarks.

*large*: one segment of ``--mib``, in the same two ways, but here the uploader does not verify checksums.

*idle*: processor time per second of an uploader of two thousand fully shipped partitions. Then one partition is rolled
repeatedly; the figure is the milliseconds from the creation of the new log file to the manifest of the closed segment.

*appends*: the share of a core that an uploader of one hundred fully shipped partitions takes with 20,000 appends per
second to their active logs, and without appends, in alternating rounds.

*produce*: how long a producer (acks=all, messages of 1 kB) waits for a real broker whose segments of 1 MiB close
repeatedly, in alternating rounds with and without the uploader.

*memory*: the uploader's peak memory in a separate process: for *many*, for *large*, and for ten concurrent segments
with a total of ``--mib``, compressed and encrypted.

Ratios compare wall-clock time and, as ``by CPU``, processor time, which other programs on the machine affect less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.measuring import interleaved, machine
from benchmarks.uploader.uploader_broker import append, make_topic, produce_waits
from benchmarks.uploader.uploader_process import uploader_process
from tests.support.servers.kafka import start_kafka
from tests.support.service_process import within
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.config import settings_from
from tieredstore.kafka.logdir import FoundSegment, LogSegment, describe, discover
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import build_segment
from tieredstore.uploader import Uploader
from tieredstore.uploader.service import uploader_service
from tieredstore.uploader.settings import uploader_settings_from

PARTS: Final = ("many", "large", "idle", "appends", "produce", "memory")
TARGETS: Final = {
    "many: copies to uploader": ">= 0.8",
    "large: copies to uploader": ">= 0.95",
    "idle: of a core": "<= 0.03",
    "idle: p50 ms": "<= 2000",
    "idle: p99 ms": "<= 10000",
    "appends: added of a core": "<= 0.005",
    "produce: p50 with to without": "<= 1.1",
    "memory: MiB": "<= 300",
}
THREADS: Final = 10
SEGMENTS: Final = 10
SMALL: Final = 64 * 1024
IDLE_PARTITIONS: Final = 2000
ROLLS: Final = 50
CHUNK: Final = 4 << 20
APPENDS: Final = 20_000
APPENDED_PARTITIONS: Final = 100
PRODUCED: Final = 1000
PRODUCE_S: Final = 20.0
PRODUCED_SEGMENT: Final = 1 << 20
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
        """Write ``segments`` closed segments of each partition, and an active segment."""
        for number in range(partitions):
            base = 0
            for _ in range(segments):
                base = self.grow(number, base, size)
            self.grow(number, base, 1)

    def grow(self, number: int, base: int, size: int) -> int:
        """Write another segment; return the base offset of the next."""
        return build_segment(self.log_dir, size, partition=self.partition(number), base_offset=base).end_offset + 1

    def store(self) -> tuple[Any, FilesystemObjectStore]:
        """Make an empty store; return its settings and the store."""
        self._next += 1
        folder = self._stores / str(self._next)
        folder.mkdir()
        return settings_from(filesystem_settings(folder)), FilesystemObjectStore(folder)

    def uploader(self, settings: Any, **more: str) -> Uploader:
        own = {"uploader.leadership": "static", "uploader.log.dirs": str(self.log_dir), **more}
        return Uploader(settings, uploader_settings_from(own))


def copied(disk: Disk, closed: list[LogSegment]) -> None:
    """Copy through the plugin's interface, in ten threads."""
    settings, _ = disk.store()
    with RemoteStorageManager(settings) as manager, ThreadPoolExecutor(THREADS) as pool:
        copies = [
            pool.submit(manager.copy_log_segment_data, segment.to_metadata(Uuid.random()), segment.files)
            for segment in closed
        ]
        for copy in copies:
            copy.result()


def shipped(disk: Disk, count: int, check_crcs: str) -> None:
    """Run the uploader until everything is shipped."""
    settings, _ = disk.store()
    own = {"uploader.concurrent.uploads": str(THREADS), "uploader.check.crcs": check_crcs}
    with disk.uploader(settings, **own) as uploader, within(uploader_service(uploader)):
        until(lambda: uploader.counts.segments == count and not uploader.gauges()["lag_segments"])


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 3600
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)


def beside_copies(disk: Disk, runs: int, check_crcs: str) -> dict[str, object]:
    """Return the rates of plain copies and of the uploader, and their ratio."""
    closed = [described for segment in discover(disk.log_dir).segments if (described := closed_one(segment))]
    size = sum(segment.size_in_bytes for segment in closed)
    jobs = {"copies": lambda: copied(disk, closed), "uploader": lambda: shipped(disk, len(closed), check_crcs)}
    taken = interleaved(jobs, runs)
    pairs = list(zip(taken["copies"], taken["uploader"], strict=True))
    ratios = [copies.seconds / uploader.seconds for copies, uploader in pairs]
    by_cpu = [copies.cpu_seconds / uploader.cpu_seconds for copies, uploader in pairs]
    seconds = {name: statistics.median(run.seconds for run in runs_of) for name, runs_of in taken.items()}
    return {
        "segments": len(closed),
        "segments_per_second": {name: round(len(closed) / median, 1) for name, median in seconds.items()},
        "mb_per_second": {name: round(size / median / 1e6, 1) for name, median in seconds.items()},
        "copies to uploader": round(statistics.median(ratios), 3),
        "copies to uploader by CPU": round(statistics.median(by_cpu), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "ratios by CPU": [round(ratio, 3) for ratio in by_cpu],
    }


def closed_one(segment: FoundSegment) -> LogSegment | None:
    return None if segment.next_base_offset is None else describe(segment)


def idle(disk: Disk, seconds: float) -> dict[str, object]:
    """Measure an idle uploader's processor time, then how soon it ships rolled segments."""
    settings, store = disk.store()
    disk.fill(IDLE_PARTITIONS, 1, 1)
    with disk.uploader(settings) as uploader, within(uploader_service(uploader)):
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


def appends(disk: Disk, runs: int) -> dict[str, object]:
    """Return processor time with and without appends."""
    settings, _ = disk.store()
    disk.fill(APPENDED_PARTITIONS, 1, 1)
    logs = [max((disk.log_dir / f"events-{number}").glob("*.log")) for number in range(APPENDED_PARTITIONS)]
    shares: dict[str, list[float]] = {"none": [], "appends": []}
    written: list[float] = []
    with disk.uploader(settings) as uploader, within(uploader_service(uploader)):
        until(lambda: uploader.counts.segments == APPENDED_PARTITIONS and not uploader.gauges()["lag_segments"])
        scan_s = uploader.own.scan_interval_ms / 1000
        time.sleep(2 * scan_s)
        for _ in range(runs):
            for name, taken in shares.items():
                started, processor = time.perf_counter(), time.process_time()
                # A round lasts two scan intervals, so that each round has equally many looks at the folders.
                if name == "appends":
                    written.append(append(logs, APPENDS, 2 * scan_s))
                else:
                    time.sleep(2 * scan_s)
                taken.append((time.process_time() - processor) / (time.perf_counter() - started))
    added = [busy - quiet for quiet, busy in zip(shares["none"], shares["appends"], strict=True)]
    return {
        "appends_per_second": round(statistics.median(written)),
        "of a core": {name: round(statistics.median(taken), 4) for name, taken in shares.items()},
        "added of a core": round(statistics.median(added), 4),
        "added": [round(more, 4) for more in added],
    }


def produce(home: Path, runs: int) -> dict[str, object]:
    """Return how long a producer waits, with and without the uploader next to the broker."""
    waits: dict[str, list[list[float]]] = {"without": [], "with": []}
    shipped_segments = 0
    with start_kafka() as server:
        make_topic(server, PRODUCED_SEGMENT)
        produce_waits(server, PRODUCED, PRODUCE_S / 2)  # not counted, because a new broker is slow
        for number in range(runs):
            waits["without"].append(produce_waits(server, PRODUCED, PRODUCE_S))
            folder = home / str(number)
            (folder / "store").mkdir(parents=True)
            own = {
                "uploader.leadership": "auto",
                "uploader.broker.id": "1",
                "uploader.log.dirs": str(server.log_dir),
                "uploader.kafka.bootstrap.servers": server.bootstrap_servers,
                "uploader.start": "latest",
            }
            with uploader_process(own | filesystem_settings(folder / "store"), folder):
                time.sleep(5)
                waits["with"].append(produce_waits(server, PRODUCED, PRODUCE_S))
            shipped_segments += sum(1 for _ in (folder / "store").rglob("*.rsm-manifest"))
    p50 = {name: [statistics.median(taken) for taken in rounds] for name, rounds in waits.items()}
    return {
        "messages_per_second": PRODUCED,
        "segments shipped": shipped_segments,
        **{f"p50 ms {name}": round(statistics.median(taken), 3) for name, taken in p50.items()},
        **{
            f"p99 ms {name}": round(statistics.median(percentile(taken, 0.99) for taken in rounds), 3)
            for name, rounds in waits.items()
        },
        "p50 with to without": round(
            statistics.median(beside / alone for alone, beside in zip(p50["without"], p50["with"], strict=True)), 3
        ),
    }


def memory(home: Path, partitions: int, mib: int) -> dict[str, object]:
    """Return the process's peak memory, for each kind of load."""
    key = home / "key.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    public = home / "public.pem"
    to_public = ["openssl", "rsa", "-in", str(key), "-pubout", "-out", str(public)]
    subprocess.run(to_public, check=True, capture_output=True)
    sealed = {
        "compression.enabled": "true",
        "encryption.enabled": "true",
        "encryption.key.pair.id": "one",
        "encryption.key.pairs": "one",
        "encryption.key.pairs.one.private.key.file": str(key),
        "encryption.key.pairs.one.public.key.file": str(public),
    }
    shapes: dict[str, tuple[int, int, int, dict[str, str]]] = {
        "many": (partitions, SEGMENTS, SMALL, {}),
        "large": (1, 1, mib << 20, {}),
        "ten sealed": (THREADS, 1, (mib << 20) // THREADS, sealed),
    }
    peaks: dict[str, float] = {}
    for name, (count, segments, size, more) in shapes.items():
        with tempfile.TemporaryDirectory(dir=home) as folder:
            disk, store = Disk(Path(folder)), Path(folder) / "store"
            store.mkdir()
            disk.fill(count, segments, size)
            own = {"uploader.leadership": "static", "uploader.log.dirs": str(disk.log_dir)}
            settings = own | filesystem_settings(store) | more
            with uploader_process(settings, Path(folder)) as process:
                all_shipped = partial(has_shipped, store, count * segments)
                until(partial(process.is_looked_at_until, all_shipped))
            peaks[name] = round(process.peak_mib)
    return {"MiB": max(peaks.values()), "of": peaks}


def has_shipped(store: Path, segments: int) -> bool:
    return sum(1 for _ in store.rglob("*.rsm-manifest")) == segments


def filesystem_settings(store: Path) -> dict[str, str]:
    return {"storage.backend.class": "filesystem", "storage.root": str(store), "chunk.size": str(CHUNK)}


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def measured(part: str, home: Path, options: argparse.Namespace) -> dict[str, object]:
    if part == "produce":
        return produce(home, options.runs)
    if part == "memory":
        return memory(home, options.partitions, options.mib)
    disk = Disk(home)
    if part == "many":
        disk.fill(options.partitions, SEGMENTS, SMALL)
        return beside_copies(disk, options.runs, "true")
    if part == "large":
        disk.fill(1, 1, options.mib << 20)
        return beside_copies(disk, options.runs, "false")
    return appends(disk, options.runs) if part == "appends" else idle(disk, options.idle_seconds)


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
            results[part] = measured(part, Path(home), options)
    json.dump({"machine": machine(), "targets": TARGETS, **results}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
