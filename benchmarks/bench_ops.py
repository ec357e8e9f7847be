"""The cost of an operator's tools; JSON on stdout.

    python -m benchmarks.bench_ops [--manifests 100000] [--rotations 500] [--mib 256] [--runs 3] [--folder DIR]

*many*: list, du, verify (level listing), rotate and gc of a folder of real keys and manifests (compressed, encrypted,
256 chunks of 4 MiB; the logs are sparse files of the right size), each in a separate process: manifests per second, and
the process's peak memory. This rotation is between two RSA-2048 pairs: once of all manifests, and once over already
rotated ones. gc must find and delete a hundredth of the segments.

*rotate*: ``--rotations`` manifests between two RSA-4096 pairs, compared with its limits, in alternating rounds: the
same RSA (open, wrap, open) on all processors, as many plain replacements, and both in sequence.

*data*: verify of every byte of four segments (zstd + encryption), in alternating rounds with its limits. These are the
same segments fetched in parallel, the CRCs of their batches computed in memory, and both in sequence. The limits leave
out each segment's manifest, indexes and keys, which matter for segments of a few MiB.

``--only`` chooses parts. Ratios are also given by processor time, which a busy machine affects less.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.bench_catalog import peak_mib
from benchmarks.bench_transform import CHUNK
from benchmarks.measuring import machine
from benchmarks.ops.ops_limits import DataJobs, RotationJobs
from benchmarks.ops.ops_store import PAIRS, EncryptedStoreBuilder, key_files, key_settings, ring_of, without_manifests
from tieredstore.catalog.listing import Scope, list_segments
from tieredstore.config import Settings, settings_from
from tieredstore.ops.bucket import Bucket, open_bucket
from tieredstore.ops.cost.usage import UsageBy, usage_of
from tieredstore.ops.garbage.collection import GarbageCollection
from tieredstore.ops.keys.rotation import Rotation
from tieredstore.ops.listing import load_stream
from tieredstore.ops.verification.verification import verify
from tieredstore.remote.key_ring import key_ring_of

TARGETS: Final = {"many: peak_mib": "< 300", "rotate: to the limit": ">= 0.8", "data: to the limit": ">= 0.8"}
PARTS: Final = ("many", "rotate", "data")
GARBAGE_EVERY: Final = 100
_DAY_MS: Final = 86_400_000
_ALL: Final = Scope()


def listed(bucket: Bucket) -> Mapping[str, int]:
    """Only list the keys."""
    return {"segments": sum(1 for _ in list_segments(bucket.store, bucket.prefix, _ALL))}


def summed(bucket: Bucket) -> Mapping[str, int]:
    """Run ``du --by partition``."""
    segments = load_stream(bucket.store, list_segments(bucket.store, bucket.prefix, _ALL), rules=bucket.manifest_rules)
    return {"segments": sum(usage.segments for usage in usage_of(segments, UsageBy.PARTITION).values())}


def verified(bucket: Bucket) -> Mapping[str, int]:
    """Run ``verify``."""
    counts: Counter[str] = Counter()
    for checked in verify(bucket):
        counts["segments"] += 1
        counts["findings"] += len(checked.findings)
    return counts


def rotated(bucket: Bucket) -> Mapping[str, int]:
    """Run ``keys rotate``."""
    ring = key_ring_of(bucket.settings)
    assert ring is not None
    segments = list_segments(bucket.store, bucket.prefix, _ALL)
    return Counter(step.outcome.value for step in Rotation(bucket.store, ring, dry_run=False).run(segments))


def collected(bucket: Bucket) -> Mapping[str, int]:
    """Run ``gc --yes``."""
    collection = GarbageCollection(
        bucket.store, bucket.prefix, min_age_ms=_DAY_MS, upload_max_age_ms=_DAY_MS // 2, dry_run=False
    )
    return Counter(step.outcome.value for step in collection.run(_ALL))


def taken_by(tool: Callable[[Bucket], Mapping[str, int]], settings: Settings) -> dict[str, object]:
    """Return the tool's result and its cost, measured in its own process."""
    start, processor = time.perf_counter(), time.process_time()
    with open_bucket(settings) as bucket:
        counts = dict(tool(bucket))
    seconds, cpu = time.perf_counter() - start, time.process_time() - processor
    return {"seconds": seconds, "cpu_seconds": cpu, "peak_mib": peak_mib(), **counts}


def in_a_process(
    tool: Callable[[Bucket], Mapping[str, int]], settings: Settings, manifests: int, runs: int
) -> dict[str, object]:
    """Return the medians over runs in separate processes, so that no other work affects the peak memory."""
    taken: list[dict[str, object]] = []
    for _ in range(runs):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            taken.append(pool.submit(taken_by, tool, settings).result())
    counted = [dict(run) for run in taken]
    seconds, cpu, peak = (
        [float(str(run.pop(name))) for run in counted] for name in ("seconds", "cpu_seconds", "peak_mib")
    )
    figures = {
        "manifests_per_second": round(manifests / statistics.median(seconds)),
        "cpu_us": round(statistics.median(cpu) / manifests * 1e6),
        "peak_mib": round(max(peak)),
        **counted[-1],
    }
    print(f"{tool.__name__}: {figures}", file=sys.stderr)
    return figures


def measured_many(folder: Path, manifests: int, runs: int) -> dict[str, object]:
    """Run all tools over one folder."""
    store, keys = folder / "store", folder / "keys"
    for place in (store, keys):
        place.mkdir()
    files = key_files(keys, 2048)
    EncryptedStoreBuilder(store, manifests, ring_of(files, PAIRS[0])).build()
    print(f"{manifests} segments are written", file=sys.stderr)
    texts = {"storage.backend.class": "filesystem", "storage.root": str(store), "chunk.size": str(CHUNK)}
    old, new = (settings_from(texts | key_settings(files, active)) for active in PAIRS)
    run = partial(in_a_process, manifests=manifests)
    figures: dict[str, object] = {
        "list": run(listed, old, runs=runs),
        "du": run(summed, old, runs=runs),
        "verify --level listing": run(verified, old, runs=runs),
        "rotate": run(rotated, new, runs=1),
        "rotate what is rotated": run(rotated, new, runs=runs),
    }
    garbage = without_manifests(store, GARBAGE_EVERY)
    figures["gc"] = run(collected, old, runs=1)
    figures["garbage"] = garbage
    return figures


def measured(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Return all requested figures."""
    parts: dict[str, Callable[[Path], dict[str, object]]] = {
        "many": lambda place: measured_many(place, options.manifests, options.runs),
        "rotate": lambda place: RotationJobs(place, options.rotations).measured(options.runs),
        "data": lambda place: DataJobs(place, options.mib).measured(options.runs),
    }
    figures: dict[str, object] = {"machine": machine(), "targets": TARGETS, "runs": options.runs}
    for name in options.only:
        (folder / name).mkdir()
        figures[name] = parts[name](folder / name)
    return figures


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manifests", type=int, default=100_000)
    parser.add_argument("--rotations", type=int, default=500, help="manifests of the rotation beside its limits")
    parser.add_argument("--mib", type=int, default=1024, help="of all four segments together")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--folder", type=Path, help="where the stores are made; a temporary folder unless given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(json.dumps(measured(Path(folder), options), indent=2))


if __name__ == "__main__":
    main()
