"""An operator's tools compared with their limits, for ``bench_ops``: rotation with RSA and replacements, verify with
fetching and checksums.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Final

import crc32c

from benchmarks.bench_transform import CHUNK
from benchmarks.bench_transform import key_settings as one_key
from benchmarks.measuring import Taken, interleaved, to_the_limit
from benchmarks.ops.ops_store import PAIRS, EncryptedStoreBuilder, key_files, ring_of
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.catalog.listing import list_segments
from tieredstore.catalog.stored import load_segment, manifest_info
from tieredstore.config import settings_from
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.kafka.logdir import LogSegment
from tieredstore.model import Uuid
from tieredstore.ops.bucket import open_bucket
from tieredstore.ops.keys.rotation import Rotation
from tieredstore.ops.steps import Outcome
from tieredstore.ops.verification.selection import Level, Selection
from tieredstore.ops.verification.verification import verify
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import build_segment

SEGMENTS: Final = 4


class RotationJobs:
    """Manifests whose data keys are rotated between two RSA-4096 pairs."""

    def __init__(self, folder: Path, manifests: int) -> None:
        for name in ("rotated", "replaced", "keys"):
            (folder / name).mkdir()
        files = key_files(folder / "keys", 4096)
        self._rings = [ring_of(files, active) for active in PAIRS]
        self._active = 0
        self._stores = [FilesystemObjectStore(folder / name) for name in ("rotated", "replaced")]
        for name in ("rotated", "replaced"):
            EncryptedStoreBuilder(folder / name, manifests, self._rings[0]).build()
        self._replaced = [manifest_info(objects).key for objects in list_segments(self._stores[1])]
        self._etags = {key: self._stores[1].head(key).etag or "" for key in self._replaced}
        # Each write stores the same body except for the last byte, which changes each time.
        self._body = self._stores[1].get(self._replaced[0])
        self._wrapped = self._rings[0].wrap(os.urandom(32))

    def measured(self, runs: int) -> dict[str, object]:
        """Return manifests per second, and the ratio to the limit."""
        jobs = {"RSA-4096": self.unwrap_and_wrap, "plain replaces": self.replace, "rotate": self.rotate}
        taken = interleaved(jobs, runs)
        return {
            "manifests": len(self._replaced),
            "manifests_per_second": _per_second(taken, len(self._replaced)),
            **to_the_limit(taken, "rotate", ("RSA-4096", "plain replaces")),
        }

    def unwrap_and_wrap(self) -> None:
        """Compute the cryptography of each rotation, on all processors."""
        old, new = self._rings

        def once(_: str) -> None:
            data_key = old.unwrap(PAIRS[0], self._wrapped)
            assert new.unwrap(PAIRS[1], new.wrap(data_key)) == data_key

        with ThreadPool(os.cpu_count() or 1, "bench") as pool:
            for _ in in_parallel(pool, once, self._replaced, at_once=READERS):
                pass

    def replace(self) -> None:
        """Replace as many manifests as a rotation, with its concurrency."""
        last = bytes([self._body[-1] ^ 1])
        self._body = self._body[:-1] + last

        def once(key: str) -> None:
            self._etags[key] = self._stores[1].replace(key, self._body, self._etags[key])

        with ThreadPool(READERS, "bench") as pool:
            for _ in in_parallel(pool, once, self._replaced, at_once=4 * READERS):
                pass

    def rotate(self) -> None:
        """Rotate to the inactive pair."""
        self._active = 1 - self._active
        store = self._stores[0]
        steps = list(Rotation(store, self._rings[self._active], dry_run=False).run(list_segments(store)))
        assert {step.outcome for step in steps} == {Outcome.ROTATED}


class DataJobs:
    """Four segments in a folder, encoded and encrypted, and their originals."""

    def __init__(self, folder: Path, mib: int) -> None:
        (folder / "store").mkdir()
        texts = {"storage.backend.class": "filesystem", "storage.root": str(folder / "store"), "chunk.size": str(CHUNK)}
        self.settings = settings_from(texts | {"compression.enabled": "true"} | one_key(folder))
        self.size: int = 0
        self._next_offset: int = 0
        self.manager = RemoteStorageManager(self.settings)
        self.logs = [self._copied(folder / "logs", number, mib) for number in range(SEGMENTS)]
        self.batches = [
            [(header.position + 21, header.position + header.size_in_bytes) for header in read_batch_headers(log)]
            for log in self.logs
        ]
        listed = list_segments(self.manager.store)
        self.segments = [load_segment(self.manager.store, objects).metadata for objects in listed]

    def measured(self, runs: int) -> dict[str, object]:
        """Return MB of the original logs per second, and the ratio to the limit."""
        jobs = {"fetch": self.fetch, "batch CRC": self.check, "verify --level data": self.verify}
        taken = interleaved(jobs, runs)
        return {
            "log_bytes": self.size,
            "batches": sum(map(len, self.batches)),
            "megabytes_per_second": _per_second(taken, self.size / 1e6),
            **to_the_limit(taken, "verify --level data", ("fetch", "batch CRC")),
        }

    def _copied(self, folder: Path, number: int, mib: int) -> bytes:
        segment: LogSegment = build_segment(folder, mib << 18, base_offset=self._next_offset, seed=number)
        self._next_offset = segment.end_offset + 1
        self.manager.copy_log_segment_data(segment.to_metadata(Uuid.random(), event_timestamp_ms=0), segment.files)
        log = segment.files.log_segment.read_bytes()
        self.size += len(log)
        return log

    def fetch(self) -> None:
        """Fetch all logs, with verify's concurrency."""
        with RemoteStorageManager(self.settings) as manager, ThreadPool(SEGMENTS, "bench") as pool:

            def read(number: int) -> int:
                with manager.open(self.segments[number]) as stream:
                    return sum(len(chunk) for chunk in stream.chunks())

            assert sum(in_parallel(pool, read, range(SEGMENTS), at_once=SEGMENTS)) == self.size

    def check(self) -> None:
        """Compute the CRC of each batch, with verify's number of threads."""
        with ThreadPool(SEGMENTS, "bench") as pool:
            for _ in in_parallel(pool, self._check_one, range(SEGMENTS), at_once=SEGMENTS):
                pass

    def _check_one(self, number: int) -> None:
        with memoryview(self.logs[number]) as log:
            for start, stop in self.batches[number]:
                crc32c.crc32c(log[start:stop])

    def verify(self) -> None:
        """Verify at level data."""
        with open_bucket(self.settings) as bucket:
            checked = list(verify(bucket, selection=Selection(Level.DATA)))
        assert len(checked) == SEGMENTS
        assert not [finding for segment in checked for finding in segment.findings]


def _per_second(taken: dict[str, list[Taken]], count: float) -> dict[str, int]:
    return {name: round(count / statistics.median(run.seconds for run in runs)) for name, runs in taken.items()}
