"""Memory of whoever reads a topic is bounded, however large the topic is."""

from __future__ import annotations

import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.cli_process import environment, write_settings
from tieredstore.config import load_settings
from tieredstore.model import Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import build_segment

pytestmark = pytest.mark.slow

MIB = 1 << 20
SEGMENT = 64 * MIB

CHILD = """
import resource, sys
import duckdb, polars as pl
from tieredstore.config import load_settings
from tieredstore.duckdb import attach
from tieredstore.polars import scan
from tieredstore.query import read_topic
from tieredstore.remote import RemoteStorageManager
from tieredstore.values import Binary

pl.DataFrame({"warm": [1]}).lazy().select(pl.len()).collect(engine="streaming")
after_imports = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
reader, settings = sys.argv[1:]
with RemoteStorageManager(load_settings(settings)) as manager:
    if reader == "read_topic":
        with read_topic(manager, "events", parallelism=2) as read:
            records = sum(batch.num_rows for batch in read)
    elif reader == "duckdb":
        connection = duckdb.connect()
        with attach(connection, manager, key=Binary(), value=Binary(), parallelism=2):
            sql = "SELECT count(*), sum(octet_length(value)) FROM events"
            records = connection.execute(sql).fetchall()[0][0]
        connection.close()
    else:
        frame = scan(manager, "events", parallelism=2)
        sums = [pl.len().alias("n"), pl.col("value").bin.size().sum()]
        records = frame.select(sums).collect(engine="streaming")["n"][0]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - after_imports, records)
"""


@cache
def filled(folder: Path, mib: int) -> tuple[Path, int]:
    """Settings of a store with a topic of so many MiB, and how many records it has."""
    folder = folder / str(mib)
    folder.mkdir()
    settings = write_settings(folder, chunk_size=4 * MIB)
    offset = 0
    with RemoteStorageManager(load_settings(settings)) as manager:
        for number in range(mib * MIB // SEGMENT):
            segment = build_segment(folder / "logs", SEGMENT, base_offset=offset, seed=number)
            metadata = segment.to_metadata(Uuid.random(), event_timestamp_ms=number)
            manager.copy_log_segment_data(metadata, segment.files)
            offset = metadata.end_offset + 1
            for path in (folder / "logs").rglob("*.log"):
                path.unlink()
    return settings, offset


def peak_above_imports(reader: str, settings: Path, records: int) -> int:
    # The shell stands between: a child is charged its parent's peak.
    shell = shlex.join([sys.executable, "-c", CHILD, reader, str(settings)])
    done = subprocess.run(
        ["sh", "-c", f"{shell}; exit $?"], capture_output=True, text=True, timeout=1500, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr
    peak, seen = map(int, done.stdout.split())
    assert seen == records
    return peak * 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("topics")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mib", [256, pytest.param(4096, marks=pytest.mark.soak)])
@pytest.mark.parametrize("reader", ["read_topic", "duckdb", "polars"])
def test_peak_memory_is_bounded_and_does_not_grow_with_the_topic(folder: Path, reader: str, mib: int) -> None:
    # What may be decoded and not taken yet is 64 MiB, which a topic of 64 MiB fills; and there are chunks.
    small, large = (peak_above_imports(reader, *filled(folder, size)) for size in (64, mib))
    print(f"{reader}: {small // MIB} MiB above the imports for 64 MiB, {large // MIB} for {mib}")
    assert large <= 320 * MIB
    assert large - small <= 160 * MIB
