"""Restores compared with plain downloads and with a plain producer; JSON on stdout.

    python -m benchmarks.bench_restore [--mib 256] [--segments 2] [--records 500000] [--runs 5] [--folder DIR]

``restore logdir`` is compared with plain downloads of the same segments, and ``restore produce`` with a plain
transactional producer (see ``bench_restore_produce``).

Each round writes all segments of a folder store (zstd and encrypted) to the same disk twice, each file synced: by
``restore logdir``, and as ``fetch -o`` does. The ratio is the median of the rounds' ratios, and the target is 0.8.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
from pathlib import Path

import tieredstore as ts
from benchmarks.bench_restore_produce import measure
from benchmarks.bench_transform import CHUNK, key_settings
from benchmarks.measuring import Job, home_in, interleaved, machine
from tests.restore.logdir.log_dirs import ALL, make_log_dir, prepared, with_logs
from tieredstore.restore.logdir.restoring import restore_logs
from tieredstore.testing.segments import PARTITION, build_segment

TARGET = 0.8


class Restoring:
    """A bucket with one partition, which is written to the same folder again and again, in two ways."""

    def __init__(self, bucket: ts.Bucket, folder: Path) -> None:
        self._bucket, self._folder = bucket, folder
        self._plan = with_logs(prepared(PARTITION), bucket)
        self._segments = bucket.segments(PARTITION.topic)
        self.size = sum(segment.size or 0 for segment in self._segments)

    def restore(self) -> None:
        """Restore the partition into an empty log directory."""
        make_log_dir(self._folder, {PARTITION.topic: 1})
        for outcome in restore_logs(self._bucket.manager, [self._folder], self._plan, ALL):
            assert outcome.code == "restored"

    def fetch(self) -> None:
        """Fetch each segment into a file."""
        self._folder.mkdir()
        for segment in self._segments:
            segment.fetch(self._folder / str(segment.base_offset))

    def clean_up(self) -> None:
        """Remove the written files."""
        shutil.rmtree(self._folder)


def logdir(folder: Path, mib: int, segments: int, runs: int) -> dict[str, object]:
    """Return the rates of both ways, and their ratios by wall-clock and by processor time."""
    offset = 0
    for _ in range(segments):
        offset = build_segment(folder / "source", mib << 20, base_offset=offset, seed=offset).end_offset + 1
    (folder / "store").mkdir()
    settings = key_settings(folder) | {"chunk.size": str(CHUNK), "compression.enabled": "true"}
    settings |= {"storage.backend.class": "filesystem", "storage.root": str(folder / "store")}
    with ts.open(settings) as bucket:
        bucket.upload(folder / "source")
        restoring = Restoring(bucket, folder / "written")
        jobs: dict[str, Job] = {"restore logdir": restoring.restore, "fetch -o": restoring.fetch}
        taken = interleaved(jobs, runs, clean_up=restoring.clean_up)
    rounds = list(zip(taken["restore logdir"], taken["fetch -o"], strict=True))
    return {
        "bytes": restoring.size,
        "megabytes_per_second": {
            name: round(restoring.size / statistics.median(run.seconds for run in of) / 1e6)
            for name, of in taken.items()
        },
        "restore logdir / fetch -o": {
            "ratio": round(statistics.median(theirs.seconds / ours.seconds for ours, theirs in rounds), 2),
            "by CPU time": round(
                statistics.median(theirs.cpu_seconds / ours.cpu_seconds for ours, theirs in rounds), 2
            ),
            "target": TARGET,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of a segment in MiB")
    parser.add_argument("--segments", type=int, default=2, help="segments of the partition")
    parser.add_argument("--records", type=int, default=500_000, help="records to produce")
    parser.add_argument("--only", choices=("logdir", "produce"))
    parser.add_argument("--runs", type=int, default=5, help="counted rounds")
    parser.add_argument("--folder", type=Path, help="where files are written (default: the system's temporary folder)")
    arguments = parser.parse_args()
    figures: dict[str, object] = {"machine": machine(), "load": os.getloadavg()}
    if arguments.only != "produce":
        with home_in(arguments.folder) as folder:
            figures["logdir"] = logdir(folder, arguments.mib, arguments.segments, arguments.runs)
    if arguments.only != "logdir":
        figures["produce"] = {size: measure(arguments.records, size, arguments.runs) for size in (200, 1000)}
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
