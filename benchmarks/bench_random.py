"""Uncached reads of 1 MiB at random places of a segment with chunks of 4 MiB, and reads of the whole segment in pieces
of 16 MiB from a warm disk cache; JSON on stdout.

    python -m benchmarks.bench_random [--reads 200] [--rounds 5] [--mib 64] [--beside CHECKOUT] [--folder DIR]

Each read requests a separate range (``fetch_log_segment``) at a random place of a compressed and encrypted segment in a
folder. The figures are milliseconds per read at the median and at the 95th percentile, by wall-clock and by processor
time. A cached read is a read of the whole segment. ``--beside`` is another checkout of this project with built kernels,
whose code makes the same reads in a separate process. Each checkout has a separate disk cache, filled by its first
round. The two checkouts alternate, so that drift of the machine affects both. ``ratios`` divide our times by the other
checkout's.

``limits`` read the same places in the same rounds with only the unavoidable work: open, ``pread``, AES-GCM over whole
chunks, zstd to the end of the read or of each whole chunk, one copy; and 16 MiB from plain files of 4 MiB with their
CRC-32C, by one thread and by two. No reader that authenticates chunks and checks data from disk can be faster.
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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from benchmarks.bench_transform import CHUNK, key_settings
from benchmarks.measuring import machine
from tieredstore.catalog.listing import list_segments
from tieredstore.catalog.stored import load_segment
from tieredstore.config import settings_from
from tieredstore.model import Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import build_segment

if TYPE_CHECKING:
    from tieredstore.remote.fetch.chunk_loads import OpenSegment

READ: Final = 1 << 20
WARM_READ: Final = 16 << 20
WARM_READS: Final = 5
KINDS: Final = ("wall", "CPU")
DISK_CACHE: Final = {"fetch.chunk.cache.class": "disk", "fetch.chunk.cache.size": "-1"}
TARGETS: Final = {"p50": "<= 0.7 of the commit before", "warm p50 wall": "<= 0.67 of the commit before"}


Times = list[tuple[float, float]]
"""Pairs of wall-clock and processor time in seconds, one for each read."""


def answer_rounds(texts: dict[str, str], reads: int, *, with_limits: bool) -> None:
    """For each seed on a line of stdin, run one round and print its times by kind of read. This runs in a separate
    process.
    """
    with (
        tempfile.TemporaryDirectory(dir=texts["storage.root"] + "/..") as cache,
        RemoteStorageManager(settings_from(texts)) as manager,
        RemoteStorageManager(settings_from(texts | DISK_CACHE | {"fetch.chunk.cache.path": cache})) as cached,
        ThreadPoolExecutor(2) as pool,
    ):
        (objects,) = list_segments(manager.store)
        metadata = load_segment(manager.store, objects).metadata
        buffer = memoryview(bytearray(WARM_READ))

        def read_at(place: int) -> None:
            with manager.fetch_log_segment(metadata, place, place + READ - 1) as stream:
                assert len(stream.read()) == READ

        def read_all(_: int) -> None:
            with cached.fetch_log_segment(metadata, 0) as stream:
                while stream.readinto(buffer):
                    pass

        kinds: dict[str, tuple[Callable[[int], object], bool]] = {"": (read_at, False), "warm ": (read_all, True)}
        if with_limits:
            with manager.fetch_log_segment(metadata, 0) as stream:
                composed = Composed(stream._segment, texts["storage.root"])  # pyright: ignore[reportPrivateUsage]
            files = PlainFiles(Path(cache), metadata.segment_size_in_bytes // WARM_READ)
            kinds |= {
                "limit to the end ": (lambda place: composed.read(place, stops_early=True), False),
                "limit whole ": (lambda place: composed.read(place, stops_early=False), False),
                "limit warm, one thread ": (lambda _: files.read(buffer, map), True),
                "limit warm, two threads ": (lambda _: files.read(buffer, pool.map), True),
            }
        for line in sys.stdin:
            source = random.Random(int(line))
            places = [source.randrange(metadata.segment_size_in_bytes - READ) for _ in range(reads)]
            times = {
                kind: timed(read, places[:WARM_READS] if is_warm else places) for kind, (read, is_warm) in kinds.items()
            }
            print(json.dumps(times), flush=True)


def timed(read: Callable[[int], object], places: Sequence[int]) -> Times:
    """Return the times of one read at each place."""
    times: Times = []
    for place in places:
        start, processor = time.perf_counter(), time.process_time()
        read(place)
        times.append((time.perf_counter() - start, time.process_time() - processor))
    return times


class Composed:
    """The unavoidable work of reading an encrypted segment's range, with reused memory."""

    def __init__(self, segment: OpenSegment, root: str) -> None:
        self._segment = segment
        self._path = Path(root, segment.log_key)
        self._stored = memoryview(bytearray(2 * CHUNK))
        self._original = memoryview(bytearray(CHUNK))

    def read(self, place: int, *, stops_early: bool) -> bytes:
        """Return the bytes from ``place`` on. Decompress each chunk completely or, with ``stops_early``, to the end of
        the read."""
        index, positions, taken = self._segment.index, self._segment.positions, bytearray()
        with self._path.open("rb", buffering=0) as file:
            while len(taken) < READ:
                at = place + len(taken)
                chunk = index.chunk_at(at)
                chunk_range = index.original_range(chunk)
                stop = min(chunk_range.stop, place + READ)
                stored = self._stored[: positions[chunk + 1] - positions[chunk]]
                assert os.preadv(file.fileno(), [stored], positions[chunk]) == len(stored)
                wanted = (stop if stops_early else chunk_range.stop) - chunk_range.start
                self._segment.decoder.decode_into(stored, self._original[: len(chunk_range)], wanted)
                taken += self._original[at - chunk_range.start : stop - chunk_range.start]
        return bytes(taken)


class PlainFiles:
    """Files of a chunk's size, with as many bytes in total as a round's warm reads. Reading a file computes its CRC."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self._rounds = rounds
        self._paths = [folder / f"plain-{number}" for number in range(rounds * WARM_READ // CHUNK)]
        for path in self._paths:
            path.write_bytes(random.Random(0).randbytes(CHUNK))

    def read(self, buffer: memoryview, over: Callable[..., object]) -> None:
        """Read all files, as many at a time as one warm read has chunks. ``over`` is ``map`` or a pool's ``map``."""
        pieces = [buffer[at : at + CHUNK] for at in range(0, WARM_READ, CHUNK)]
        for turn in range(self._rounds):
            paths = self._paths[turn * len(pieces) : (turn + 1) * len(pieces)]
            list(over(self._read_one, paths, pieces))  # type: ignore[call-overload]

    @staticmethod
    def _read_one(path: Path, piece: memoryview) -> int:
        with path.open("rb", buffering=0) as file:
            assert file.readinto(piece) == len(piece)
        return crc32c(piece)


class Reader:
    """A process that runs the code of one checkout, and makes a round of reads on request."""

    def __init__(self, checkout: Path, texts: dict[str, str], reads: int, *, with_limits: bool) -> None:
        self.times: dict[str, Times] = {}
        # Run this file's function ``answer_rounds`` with the other checkout's package.
        code = (
            "import json, runpy, sys; "
            f"module = runpy.run_path({str(Path(__file__).resolve())!r}); "
            f"module['answer_rounds'](json.loads(sys.argv[1]), {reads}, with_limits={with_limits})"
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
        """Run one round. Do not count the round with the seed 0."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{seed}\n")
        process.stdin.flush()
        taken = json.loads(process.stdout.readline())
        if seed:
            for kind, times in taken.items():
                self.times.setdefault(kind, []).extend(times)

    def close(self) -> None:
        """End its process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    @property
    def figures(self) -> dict[str, float]:
        """Return milliseconds per read."""
        return {
            f"{kind}{name} {of}": round(percentile([times[at] for times in taken], share) * 1e3, 4)
            for kind, taken in self.times.items()
            for at, of in enumerate(KINDS)
            for name, share in (("p50", 0.5), ("p95", 0.95))
        }


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of ``values`` does not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


def stored_segment(folder: Path, mib: int) -> dict[str, str]:
    """Store one segment in a folder; return its settings."""
    (folder / "store").mkdir()
    texts = {"storage.backend.class": "filesystem", "storage.root": str(folder / "store"), "chunk.size": str(CHUNK)}
    texts |= {"compression.enabled": "true"} | key_settings(folder)
    segment = build_segment(folder / "log", mib << 20)
    with RemoteStorageManager(settings_from(texts)) as manager:
        manager.copy_log_segment_data(segment.to_metadata(Uuid.random(), event_timestamp_ms=0), segment.files)
    return texts


def measured(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Return all figures."""
    texts = stored_segment(folder, options.mib)
    checkouts = {"this": Path(__file__).resolve().parents[1]} | ({"beside": options.beside} if options.beside else {})
    readers = {
        name: Reader(checkout, texts, options.reads, with_limits=name == "this") for name, checkout in checkouts.items()
    }
    for seed in range(options.rounds + 1):
        for reader in readers.values() if seed % 2 else reversed(readers.values()):
            reader.read(seed)
    for reader in readers.values():
        reader.close()
    figures = {name: reader.figures for name, reader in readers.items()}
    report: dict[str, object] = {"machine": machine(), "targets": TARGETS, "milliseconds": figures}
    if options.beside:
        beside = figures["beside"]
        report["ratios"] = {
            name: round(value / beside[name], 2) for name, value in figures["this"].items() if name in beside
        }
    ours = figures["this"]
    report["limits"] = {
        "reads to their limit": {of: round(ours[f"p50 {of}"] / ours[f"limit to the end p50 {of}"], 2) for of in KINDS},
        "to the end / whole": {
            of: round(ours[f"limit to the end p50 {of}"] / ours[f"limit whole p50 {of}"], 2) for of in KINDS
        },
        "warm reads to their limit": {
            of: round(ours[f"warm p50 {of}"] / ours[f"limit warm, one thread p50 {of}"], 2) for of in KINDS
        },
        "two threads / one": {
            of: round(ours[f"limit warm, two threads p50 {of}"] / ours[f"limit warm, one thread p50 {of}"], 2)
            for of in KINDS
        },
    }
    return report


def main() -> None:
    """Run the command line."""
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
