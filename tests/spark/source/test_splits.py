"""Many tasks read one large segment; each fetches only its own bytes, and has only a limited part of them in memory."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from tests.support.paths import REPOSITORY
from tests.support.records.small_segments import ENC, ZSTD
from tests.support.spark.spark_session import read
from tests.support.spark.spark_tasks import reader_of, rows_of_task, splits_of
from tieredstore.config import settings_from
from tieredstore.model import Uuid
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import read_split
from tieredstore.remote import RemoteStorageManager
from tieredstore.spark.source.options import DEFAULT_SPLIT_BYTES
from tieredstore.testing.segments import PARTITION, build_segment

pytestmark = pytest.mark.slow
MIB = 1 << 20


@dataclass(frozen=True)
class Scale:
    """Sizes of a segment, its chunks and the splits."""

    size: int
    split: int
    chunk: int


# The limits of fetches and memory are the same for both sizes.
SCALES = [
    pytest.param(Scale(128 * MIB, 8 * MIB, 2 * MIB), id="128m"),
    pytest.param(Scale(1024 * MIB, 64 * MIB, 4 * MIB), id="1g", marks=pytest.mark.soak),
]
# Program that prints its peak memory after the imports, after half of the tasks, and after all tasks.
CHILD = """
import json, resource, sys
from tieredstore.spark.source.batch import BatchReader
from tieredstore.spark.source.options import parse_options

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

peaks = [peak()]
reader = BatchReader(parse_options(json.loads(sys.argv[1]), streaming=False))
records = 0
for task in reader.partitions():
    records += sum(batch.num_rows for batch in reader.read(task))
    peaks.append(peak())
print(json.dumps([records, len(peaks) - 1, peaks[0], peaks[len(peaks) // 2], peaks[-1]]))
"""


@dataclass(frozen=True)
class Stored:
    """Segment in a bucket."""

    options: dict[str, str]
    records: int
    size: int
    stored_size: int
    scale: Scale


def stored(folder: Path, scale: Scale, *, empty_index: bool = False) -> Stored:
    """Store a segment of JSON records, compressed and encrypted."""
    (folder / "bucket").mkdir(parents=True)
    options = {"storage.backend.class": "filesystem", "storage.root": str(folder / "bucket"), **ZSTD, **ENC}
    segment = build_segment(folder / "logs", scale.size)
    if empty_index:
        Path(str(segment.files.offset_index)).write_bytes(b"")
    metadata = segment.to_metadata(Uuid.random())
    with RemoteStorageManager(settings_from(options | {"chunk.size": str(scale.chunk)})) as manager:
        manager.copy_log_segment_data(metadata, segment.files)
    Path(str(segment.files.log_segment)).unlink()
    (log,) = (folder / "bucket").rglob("*.log")
    return Stored(
        options | {"subscribe": PARTITION.topic},
        metadata.end_offset + 1,
        metadata.segment_size_in_bytes,
        log.stat().st_size,
        scale,
    )


@pytest.fixture(scope="module", params=SCALES)
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """Yield a large segment; a GiB has about 2.2 million records."""
    segment = stored(tmp_path_factory.mktemp("large"), request.param)
    yield segment
    for path in Path(segment.options["storage.root"]).rglob("*.log"):
        path.unlink()


def test_every_task_fetches_its_split_and_two_chunks_at_most(large: Stored) -> None:
    split_size, chunk = large.scale.split, large.scale.chunk
    splits = splits_of(reader_of(large.options | {"maxSplitBytes": str(split_size)}))
    assert len(splits) >= 16
    assert sum(split.size_in_bytes for split in splits) == large.size
    ratio = large.stored_size / large.size
    records = 0
    for split in splits:
        assert split.size_in_bytes <= split_size
        with RemoteStorageManager(settings_from(_settings(large))) as manager:
            columns = ReadSettings(columns=("offset",))
            records += sum(batch.num_rows for batch in read_split(manager, split, columns))
            stats = manager.fetch_stats
        assert stats.chunk_loads * chunk <= split.size_in_bytes + 2 * chunk
        assert stats.bytes_fetched <= (split.size_in_bytes + 2 * chunk) * ratio * 1.1
        assert stats.index_requests == 0
    assert records == large.records


def _settings(bucket: Stored) -> dict[str, str]:
    given = {name: text for name, text in bucket.options.items() if name != "subscribe"}
    return given | {"chunk.size": str(bucket.scale.chunk)}


@dataclass(frozen=True)
class Peak:
    """Peak memory in bytes of a process that reads all columns of a bucket, task after task."""

    imported: int
    after_half: int
    after_all: int


def peak_of(bucket: Stored) -> Peak:
    options = json.dumps(bucket.options | {"maxSplitBytes": str(bucket.scale.split), "includeHeaders": "true"})
    # Run the process through a shell, because a child inherits the peak memory of its parent.
    command = shlex.join([sys.executable, "-c", CHILD, options])
    done = subprocess.run(
        ["sh", "-c", f"{command}; exit $?"],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    records, tasks, *peaks = json.loads(done.stdout)
    assert records == bucket.records
    assert tasks >= bucket.size // bucket.scale.split
    return Peak(*peaks)


def test_a_process_that_reads_task_after_task_needs_no_more_memory_for_more_of_them(
    large: Stored, tmp_path: Path
) -> None:
    of_one, of_all = peak_of(stored(tmp_path, replace(large.scale, size=large.scale.split))), peak_of(large)
    assert of_all.after_all <= 300 * MIB
    assert of_all.after_all - of_one.after_all <= 56 * MIB  # allow for a varying number of buffers
    assert of_all.after_all - of_all.after_half <= 24 * MIB


def test_sparks_workers_share_a_segment_and_stay_small(spark: SparkSession, large: Stored) -> None:
    by_default = large.scale.split == DEFAULT_SPLIT_BYTES
    df = read(spark, large.options if by_default else large.options | {"maxSplitBytes": str(large.scale.split)})
    assert df.rdd.getNumPartitions() >= 16
    (row,) = df.selectExpr("count(*) n", "sum(length(value)) bytes", "max(offset) last").collect()
    assert (row["n"], row["last"]) == (large.records, large.records - 1)
    assert 0.8 * large.size < row["bytes"] < large.size
    assert max(peaks_of_workers()) <= 400 * MIB


def peaks_of_workers() -> Iterator[int]:
    """Yield the peak memory, in bytes, of Spark's Python workers."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, status = (process / "cmdline").read_bytes(), (process / "status").read_text()
        except OSError:
            continue  # the process has ended
        if b"pyspark.daemon\0pyspark.worker" in command:
            yield from (int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def test_a_segment_without_index_entries_is_cut_at_the_headers_of_batches(tmp_path: Path) -> None:
    bucket = stored(tmp_path, Scale(24 * MIB, 3 * MIB, 4 * MIB), empty_index=True)
    reader = reader_of(bucket.options | {"maxSplitBytes": "3m", "columns": "offset"})
    splits = splits_of(reader)
    assert len(splits) >= 8
    assert max(split.size_in_bytes for split in splits) <= 3 * MIB
    offsets = [row["offset"] for split in splits for row in rows_of_task(reader, InputPartition(split))]
    assert offsets == list(range(bucket.records))
