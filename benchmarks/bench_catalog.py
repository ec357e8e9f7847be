"""Planning a read of a store with many segments, for the first time and again, compared with the unavoidable work; JSON
on stdout.

    python benchmarks/bench_catalog.py [--segments 10000 20000 100000] [--runs 3] [--folder DIR]

The store is a folder of real keys and manifests (compressed, 256 chunks of 4 MiB, segment metadata) in eight partitions
of two leader epochs; the logs are empty files. Each planning runs in a separate process: ``seconds`` is the duration of
the call, ``cpu_us`` the processor time per segment, ``peak_mib`` the process's peak memory. ``renewed`` plans again
with all segments known, as a long-lived reader does. The folder was just written, so its files are in the page cache,
and the disk does not count.

``beside`` has three loops over the same folder, in plain Python and in the same run. ``walk and read`` walks the tree
and reads each manifest. ``with sizes`` also gets the size of each file, as any listing of a store does. ``with sizes
and json`` also parses the JSON. The loops check nothing. ``ratios`` compare the processor time of planning with that of
each loop.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.measuring import machine
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.catalog.planning import ValidSegment, load_catalog
from tieredstore.config import settings_from
from tieredstore.format.chunk_index import VariableChunkIndex
from tieredstore.format.keys import Suffix, main_path, object_key
from tieredstore.format.manifest import IndexEntry, SegmentIndexes, SegmentManifest
from tieredstore.kafka.checkpoints import LeaderEpochs, format_leader_epochs, segment_leader_epochs, truncate_from_end
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager

PARTITIONS = 8
CHUNK = 4 << 20
CHUNKS = 256
OFFSETS = 1_000_000
TARGETS = {
    (10_000, "cold"): {"seconds": 10.0},
    # Compare with the loop that gets sizes, because any listing of a store gets names and sizes.
    (20_000, "cold"): {"ratio to with sizes": 8.0},
    (10_000, "renewed"): {"seconds": 1.0},
    (100_000, "cold"): {"peak_mib": 400.0},
    (100_000, "renewed"): {"peak_mib": 400.0},
}


class StoreBuilder:
    """Writes segments as plain files, because the store itself would sync each file to disk."""

    def __init__(self, folder: Path, segments: int) -> None:
        self.folder = folder
        self.segments = segments
        self.random = random.Random(0)
        self.topic_id = Uuid(self.random.randbytes(16))

    def build(self) -> None:
        each = self.segments // PARTITIONS
        for partition in range(PARTITIONS):
            epochs = ((0, 0), (1, each // 2 * OFFSETS + OFFSETS // 2))
            for number in range(each):
                self._write(TopicIdPartition(self.topic_id, "clicks", partition), number, epochs)

    def _write(self, where: TopicIdPartition, number: int, epochs: LeaderEpochs) -> None:
        start, end = number * OFFSETS, (number + 1) * OFFSETS - 1
        index = format_leader_epochs(truncate_from_end(epochs, end))
        metadata = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(where, Uuid(self.random.randbytes(16))),
            start,
            end,
            CHUNKS * CHUNK,
            max_timestamp_ms=1_767_225_600_000 + number,
            broker_id=1,
            event_timestamp_ms=1_767_225_600_000 + number,
            segment_leader_epochs=segment_leader_epochs(epochs, start, end),
            txn_idx_empty=True,
        )
        path = main_path(metadata.remote_log_segment_id, start)
        for suffix, content in (
            (Suffix.LOG, b""),
            (Suffix.INDEXES, index),
            (Suffix.MANIFEST, self._manifest(metadata, len(index))),
        ):
            file = self.folder / object_key("", path, suffix)
            if number == 0:
                file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    def _manifest(self, metadata: RemoteLogSegmentMetadata, index_size: int) -> bytes:
        sizes = [self.random.randrange(CHUNK // 5, CHUNK // 3) for _ in range(CHUNKS)]
        empty = IndexEntry(0, 0)
        return SegmentManifest(
            VariableChunkIndex.from_sizes(CHUNK, CHUNKS * CHUNK, sizes),
            SegmentIndexes(empty, empty, empty, IndexEntry(0, index_size), None),
            compression=True,
            metadata=metadata,
        ).to_bytes()


def plan(folder: str, *, renewed: bool) -> dict[str, float]:
    """Plan once in this process."""
    settings = settings_from({"storage.backend.class": "filesystem", "storage.root": folder, "chunk.size": str(CHUNK)})
    with RemoteStorageManager(settings, store=FilesystemObjectStore(folder)) as manager:
        known: dict[str, ValidSegment] = {}
        if renewed:
            load_catalog(manager, known=known)
        start, processor = time.perf_counter(), time.process_time()
        catalog = load_catalog(manager, known=known)
        seconds, cpu = time.perf_counter() - start, time.process_time() - processor
    partitions = catalog.incarnation("clicks").partitions
    spans = sum(len(catalog.lineage("clicks", partition).spans) for partition in partitions)
    return {"seconds": seconds, "cpu_us": cpu / spans * 1e6, "peak_mib": peak_mib(), "spans": spans}


def walk_plainly(folder: str, *, sizes: bool, parse: bool) -> float:
    """Return the processor time, in microseconds per manifest, of the unavoidable work."""
    processor, manifests = time.process_time(), 0
    for entry in _files(folder):
        if sizes:
            entry.stat()
        if entry.name.endswith(".rsm-manifest"):
            with open(entry.path, "rb") as opened:  # noqa: PTH123  measures the plainest way
                raw = opened.read()
            if parse:
                json.loads(raw)
            manifests += 1
    return (time.process_time() - processor) / manifests * 1e6


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry.path)
            else:
                yield entry


PLAIN_LOOPS = {
    "walk and read": {"sizes": False, "parse": False},
    "with sizes": {"sizes": True, "parse": False},
    "with sizes and json": {"sizes": True, "parse": True},
}


def peak_mib() -> float:
    """Return the peak memory of this process since its start. (``ru_maxrss`` would include the parent's peak.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024


def in_own_process(folder: Path, *, renewed: bool) -> dict[str, float]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(plan, str(folder), renewed=renewed).result()


def measure(folder: Path, segments: int, runs: int) -> dict[str, object]:
    StoreBuilder(folder, segments).build()
    print(f"{segments} segments are written", file=sys.stderr)
    figures: dict[str, object] = {}
    beside: dict[str, list[float]] = {name: [] for name in PLAIN_LOOPS}
    cold = 0.0
    for name, renewed in (("cold", False), ("renewed", True)):
        taken: list[dict[str, float]] = []
        for _ in range(runs):
            taken.append(in_own_process(folder, renewed=renewed))
            # Alternate planning and the plain loops, so that a temporarily busy machine affects both.
            for loop, options in PLAIN_LOOPS.items():
                beside[loop].append(walk_plainly(str(folder), **options))
        if any(run["spans"] != segments for run in taken):
            raise SystemExit(f"the catalog of {segments} segments has {taken[0]['spans']} spans")
        figures[name] = {
            "seconds": round(statistics.median(run["seconds"] for run in taken), 3),
            "cpu_us": round(statistics.median(run["cpu_us"] for run in taken), 1),
            "peak_mib": round(max(run["peak_mib"] for run in taken), 1),
            "target": TARGETS.get((segments, name)),
        }
        print(f"{segments} segments, {name}: {figures[name]}", file=sys.stderr)
        cold = cold or statistics.median(run["cpu_us"] for run in taken)
    medians = {loop: statistics.median(times) for loop, times in beside.items()}
    figures["beside"] = {
        "cpu_us": {loop: round(microseconds, 1) for loop, microseconds in medians.items()},
        "ratios": {loop: round(cold / microseconds, 2) for loop, microseconds in medians.items()},
    }
    print(f"{segments} segments, beside: {figures['beside']}", file=sys.stderr)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, nargs="+", default=[10_000, 20_000, 100_000], help="sizes of stores")
    parser.add_argument("--runs", type=int, default=3, help="counted plannings of each kind")
    parser.add_argument("--folder", type=Path, help="where files are written (default: the system's temporary folder)")
    arguments = parser.parse_args()
    results: dict[str, object] = {"machine": machine(), "runs": arguments.runs}
    for segments in arguments.segments:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            results[f"{segments} segments"] = measure(Path(folder), segments, arguments.runs)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
