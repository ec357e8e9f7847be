"""Copying and fetching a segment, compared with the limits of the underlying libraries, in one run; JSON on stdout.

    python benchmarks/bench_transform.py [--mib 256] [--runs 5] [--folder DIR]

All figures are MB of the original segment per second. The limits: zstd and AES-GCM alone, with one context and one
reused buffer per thread on all processors, memcpy, and writing the stored bytes to a file with fsync. The store is a
folder.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import zstandard
from Crypto.PublicKey import RSA
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.measuring import Job, interleaved_seconds, machine, rates
from tieredstore.config import settings_from
from tieredstore.kafka.logdir import LogSegment
from tieredstore.model import RemoteLogSegmentMetadata, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import build_segment
from tieredstore.transform.chunks import ReadsInto

CHUNK = 4 << 20
READ_SIZE = 16 * CHUNK
THREADS = os.cpu_count() or 1
MODES = {"none": (False, False), "zstd": (True, False), "enc": (False, True), "zstd+enc": (True, True)}


def chunks_of(data: bytes) -> list[memoryview]:
    view = memoryview(data)
    return [view[at : at + CHUNK] for at in range(0, len(data), CHUNK)]


class Limits:
    """The underlying libraries alone, on the same bytes."""

    def __init__(self, original: bytes, folder: Path) -> None:
        self.chunks = chunks_of(original)
        self.compressed = [zstandard.ZstdCompressor(level=3).compress(chunk) for chunk in self.chunks]
        self.sealed = [AESGCM(bytes(32)).encrypt(bytes(12), bytes(chunk), None) for chunk in self.chunks]
        self.folder = folder
        self.pool = ThreadPoolExecutor(THREADS)

    def jobs(self) -> dict[str, Job]:
        return {
            "zstd compress": lambda: self._on_all_processors(self._compress),
            "zstd decompress": lambda: self._on_all_processors(self._decompress),
            "aes-gcm encrypt": lambda: self._on_all_processors(self._encrypt),
            "aes-gcm decrypt": lambda: self._on_all_processors(self._decrypt),
            "memcpy": lambda: self._on_all_processors(self._copy),
            "write and fsync, original": lambda: self._write(self.chunks),
            "write and fsync, compressed": lambda: self._write(self.compressed),
        }

    def _on_all_processors(self, work: Callable[[range], None]) -> None:
        shares = [range(share, len(self.chunks), THREADS) for share in range(THREADS)]
        list(self.pool.map(work, shares))

    def _compress(self, share: range) -> None:
        compressor = zstandard.ZstdCompressor(level=3)
        for number in share:
            compressor.compress(self.chunks[number])

    def _decompress(self, share: range) -> None:
        decompressor, out = zstandard.ZstdDecompressor(), bytearray(CHUNK)
        for number in share:
            cast("ReadsInto", decompressor.stream_reader(self.compressed[number])).readinto(memoryview(out))

    def _encrypt(self, share: range) -> None:
        cipher, out = AESGCM(bytes(32)), bytearray(CHUNK + 16)
        for number in share:
            chunk = self.chunks[number]
            cipher.encrypt_into(bytes(12), chunk, None, memoryview(out)[: len(chunk) + 16])

    def _decrypt(self, share: range) -> None:
        cipher, out = AESGCM(bytes(32)), bytearray(CHUNK)
        for number in share:
            sealed = self.sealed[number]
            cipher.decrypt_into(bytes(12), sealed, None, memoryview(out)[: len(sealed) - 16])

    def _copy(self, share: range) -> None:
        out = memoryview(bytearray(CHUNK))
        for number in share:
            out[: len(self.chunks[number])] = self.chunks[number]

    def _write(self, pieces: list[memoryview] | list[bytes]) -> None:
        path = self.folder / "written"
        with path.open("wb", buffering=0) as file:
            for piece in pieces:
                file.write(piece)
            os.fsync(file.fileno())
        path.unlink()


class CopyAndFetch:
    """One mode (compression, encryption) with its own store. It copies one segment repeatedly, and fetches it into a
    buffer."""

    def __init__(self, mode: str, segment: LogSegment, folder: Path, keys: dict[str, str]) -> None:
        compress, encrypt = MODES[mode]
        root = folder / mode.replace("+", "-")
        root.mkdir()
        texts = {"storage.backend.class": "filesystem", "storage.root": str(root), "chunk.size": str(CHUNK)}
        texts["compression.enabled"] = str(compress).lower()
        self.manager = RemoteStorageManager(settings_from(texts | (keys if encrypt else {})))
        self.segment = segment
        self.copied: RemoteLogSegmentMetadata | None = None
        self.buffer = memoryview(bytearray(READ_SIZE))

    def copy(self) -> None:
        if self.copied is not None:
            self.manager.delete_log_segment_data(self.copied)
        self.copied = self.segment.to_metadata(Uuid.random(), broker_id=0, event_timestamp_ms=0)
        self.manager.copy_log_segment_data(self.copied, self.segment.files)

    def fetch(self) -> None:
        assert self.copied is not None
        with self.manager.fetch_log_segment(self.copied, 0) as stream:
            while stream.readinto(self.buffer):
                pass


def key_settings(folder: Path) -> dict[str, str]:
    pair = RSA.generate(3072)
    public, private = folder / "public.pem", folder / "private.pem"
    public.write_bytes(pair.public_key().export_key())
    private.write_bytes(pair.export_key(pkcs=8))
    return {
        "encryption.enabled": "true",
        "encryption.key.pair.id": "bench",
        "encryption.key.pairs": "bench",
        "encryption.key.pairs.bench.public.key.file": str(public),
        "encryption.key.pairs.bench.private.key.file": str(private),
    }


def ratios(rate: dict[str, float]) -> dict[str, dict[str, float]]:
    """Return each measured rate of the storage core divided by its limit, with its target."""
    composed = 1 / (1 / rate["zstd compress"] + 1 / rate["write and fsync, compressed"])
    figures = {
        "copy zstd+enc / (1/(1/zstd + 1/write and fsync))": (rate["copy zstd+enc"] / composed, 0.9),
        "copy enc / write and fsync": (rate["copy enc"] / rate["write and fsync, original"], 0.5),
        "fetch zstd+enc / zstd decompress": (rate["fetch zstd+enc"] / rate["zstd decompress"], 0.65),
    }
    return {name: {"ratio": round(ratio, 3), "target": target} for name, (ratio, target) in figures.items()}


def run(folder: Path, mib: int, runs: int) -> dict[str, object]:
    segment = build_segment(folder / "logs", mib << 20)
    original = segment.files.log_segment.read_bytes()
    jobs = Limits(original, folder).jobs()
    keys = key_settings(folder)
    for mode in MODES:
        ours = CopyAndFetch(mode, segment, folder, keys)
        jobs |= {f"copy {mode}": ours.copy, f"fetch {mode}": ours.fetch}
    rate = rates(interleaved_seconds(jobs, runs), len(original))
    return {
        "machine": machine(),
        "segment_bytes": len(original),
        "chunk_bytes": CHUNK,
        "runs": runs,
        "megabytes_per_second": {name: round(value) for name, value in rate.items()},
        "ratios": ratios(rate),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of the segment in MiB")
    parser.add_argument("--runs", type=int, default=5, help="counted rounds")
    parser.add_argument("--folder", type=Path, help="where files are written (default: the system's temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(json.dumps(run(Path(folder), arguments.mib, arguments.runs), indent=2))


if __name__ == "__main__":
    main()
