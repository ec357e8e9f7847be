"""Reads of 1 MiB here and there in a segment with chunks of 4 MiB, without a cache, and reads of all of it in pieces of
16 MiB out of a warm disk cache; JSON on stdout.

    python -m benchmarks.bench_random [--reads 200] [--rounds 5] [--mib 64] [--beside CHECKOUT] [--folder DIR]

Each read is a range of its own (``fetch_log_segment``) at a place drawn at random, compressed and encrypted, in a
folder: milliseconds of a read at the median and at the 95th percentile, on the wall and of processor time. Each
checkout has a disk cache of its own, which its first round fills; a read out of it is one of all the segment.
``--beside`` is another checkout of this project with its kernels built: its code makes the same reads in a process of
its own, and the two take turns, so that a machine that drifts drifts for both. ``ratios`` are ours to its.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.bench_transform import CHUNK, key_settings
from benchmarks.measuring import machine
from tieredstore.catalog.listing import list_segments
from tieredstore.catalog.stored import load_segment
from tieredstore.config import settings_from
from tieredstore.model import Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import build_segment

READ: Final = 1 << 20
WARM_READ: Final = 16 << 20
WARM_READS: Final = 5
DISK_CACHE: Final = {"fetch.chunk.cache.class": "disk", "fetch.chunk.cache.size": "-1"}
TARGETS: Final = {"p50": "<= 0.7 of the commit before", "warm p50 wall": "<= 0.67 of the commit before"}


def answer_rounds(texts: dict[str, str], reads: int) -> None:
    """In a process of its own: for each line of stdin, a seed, one round; its times on stdout, warm reads apart."""
    with (
        tempfile.TemporaryDirectory(dir=texts["storage.root"] + "/..") as cache,
        RemoteStorageManager(settings_from(texts)) as manager,
        RemoteStorageManager(settings_from(texts | DISK_CACHE | {"fetch.chunk.cache.path": cache})) as cached,
    ):
        (objects,) = list_segments(manager.store)
        metadata = load_segment(manager.store, objects).metadata
        buffer = memoryview(bytearray(WARM_READ))
        for line in sys.stdin:
            source, times = random.Random(int(line)), list[tuple[float, float]]()
            for _ in range(reads):
                at = source.randrange(metadata.segment_size_in_bytes - READ)
                start, processor = time.perf_counter(), time.process_time()
                with manager.fetch_log_segment(metadata, at, at + READ - 1) as stream:
                    assert len(stream.read()) == READ
                times.append((time.perf_counter() - start, time.process_time() - processor))
            warm = list[tuple[float, float]]()
            for _ in range(WARM_READS):
                start, processor = time.perf_counter(), time.process_time()
                with cached.fetch_log_segment(metadata, 0) as stream:
                    while stream.readinto(buffer):
                        pass
                warm.append((time.perf_counter() - start, time.process_time() - processor))
            print(json.dumps([times, warm]), flush=True)


class Reader:
    """The code of one checkout, which reads when it is told to."""

    def __init__(self, checkout: Path, texts: dict[str, str], reads: int) -> None:
        self.times: list[tuple[float, float]] = []
        self.warm: list[tuple[float, float]] = []
        # This file's own function, whatever the other checkout has here, over the other's package.
        code = (
            "import json, runpy, sys; "
            f"module = runpy.run_path({str(Path(__file__).resolve())!r}); "
            f"module['answer_rounds'](json.loads(sys.argv[1]), {reads})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(texts)],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self, seed: int) -> None:
        """One round; the first is not counted."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{seed}\n")
        process.stdin.flush()
        times, warm = json.loads(process.stdout.readline())
        if seed:
            self.times += times
            self.warm += warm

    def close(self) -> None:
        """End its process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    @property
    def figures(self) -> dict[str, float]:
        """Milliseconds of a read."""
        return {
            f"{kind}{name} {of}": round(percentile([times[at] for times in taken], share) * 1e3, 2)
            for kind, taken in (("", self.times), ("warm ", self.warm))
            for at, of in enumerate(("wall", "CPU"))
            for name, share in (("p50", 0.5), ("p95", 0.95))
        }


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so much of them do not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


def stored_segment(folder: Path, mib: int) -> dict[str, str]:
    """One segment in a folder; its settings."""
    (folder / "store").mkdir()
    texts = {"storage.backend.class": "filesystem", "storage.root": str(folder / "store"), "chunk.size": str(CHUNK)}
    texts |= {"compression.enabled": "true"} | key_settings(folder)
    segment = build_segment(folder / "log", mib << 20)
    with RemoteStorageManager(settings_from(texts)) as manager:
        manager.copy_log_segment_data(segment.to_metadata(Uuid.random(), event_timestamp_ms=0), segment.files)
    return texts


def measured(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """All figures."""
    texts = stored_segment(folder, options.mib)
    checkouts = {"this": Path(__file__).resolve().parents[1]} | ({"beside": options.beside} if options.beside else {})
    readers = {name: Reader(checkout, texts, options.reads) for name, checkout in checkouts.items()}
    for seed in range(options.rounds + 1):
        for reader in readers.values() if seed % 2 else reversed(readers.values()):
            reader.read(seed)
    for reader in readers.values():
        reader.close()
    figures = {name: reader.figures for name, reader in readers.items()}
    report: dict[str, object] = {"machine": machine(), "targets": TARGETS, "milliseconds": figures}
    if options.beside:
        beside = figures["beside"]
        report["ratios"] = {name: round(value / beside[name], 2) for name, value in figures["this"].items()}
    return report


def main() -> None:
    """The command line of the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=200, help="in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=64, help="of the segment")
    parser.add_argument("--beside", type=Path, help="another checkout, its kernels built")
    parser.add_argument("--folder", type=Path, help="where the store is made; a temporary folder unless given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(json.dumps(measured(Path(folder), options), indent=2))


if __name__ == "__main__":
    main()
