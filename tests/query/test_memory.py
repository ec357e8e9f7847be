"""Tests that reading a topic takes bounded memory, however large the topic is."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.cli.cli_process import environment, write_settings
from tieredstore.config import load_settings
from tieredstore.model import Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import build_segment

pytestmark = pytest.mark.slow

MIB = 1 << 20
SEGMENT = 64 * MIB

CHILD = """
import os, resource, sys
import duckdb, polars as pl
from tieredstore.config import load_settings
from tieredstore.duckdb import attach
from tieredstore.polars import scan
from tests.support.records.topic_reads import read_topic
from tieredstore.remote import RemoteStorageManager
from tieredstore.values import Binary

# What a library says on stdout is no answer.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

def count(reader, settings):
    with RemoteStorageManager(load_settings(settings)) as manager:
        if reader == "read_topic":
            with read_topic(manager, "events", parallelism=2) as read:
                return sum(batch.num_rows for batch in read)
        if reader == "duckdb":
            connection = duckdb.connect()
            with attach(connection, manager, key=Binary(), value=Binary(), parallelism=2):
                sql = "SELECT count(*), sum(octet_length(value)) FROM events"
                records = connection.execute(sql).fetchall()[0][0]
            connection.close()
            return records
        frame = scan(manager, "events", parallelism=2)
        sums = [pl.len().alias("n"), pl.col("value").bin.size().sum()]
        return frame.select(sums).collect(engine="streaming")["n"][0]

# Each in a child of its own, which begins with what the imports take; importing takes far longer than reading.
for line in sys.stdin:
    if not os.fork():
        reader, settings = line.split()
        if reader == "polars":
            pl.DataFrame({"warm": [1]}).lazy().select(pl.len()).collect(engine="streaming")
        after_imports = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        records = count(reader, settings)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(peak - after_imports, records, file=answers, flush=True)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(f"the reader failed: {line}")
"""


@cache
def filled(folder: Path, mib: int) -> tuple[Path, int]:
    """Return the settings of a store that has a topic of this size, and the topic's number of records."""
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


class Readers:
    """A process that has imported all modules, and starts a child for each read."""

    def __init__(self) -> None:
        # Without a shell in between, the system would count the parent's peak of memory as the child's.
        self._process = subprocess.Popen(
            ["sh", "-c", f"{shlex.join([sys.executable, '-c', CHILD])}; exit $?"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def peak_above_imports(self, reader: str, settings: Path, records: int) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{reader} {settings}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "it failed, and said why on stderr"
        peak, seen = map(int, line.split())
        assert seen == records
        return peak * 1024

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    started = Readers()
    yield started
    started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("topics")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mib", [256, pytest.param(4096, marks=pytest.mark.soak)])
def test_peak_memory_is_bounded_and_does_not_grow_with_the_topic(folder: Path, readers: Readers, mib: int) -> None:
    """A reader holds some chunks and up to 64 MiB of decoded records. Even the smaller topic reaches this limit."""
    peaks = {
        reader: [readers.peak_above_imports(reader, *filled(folder, size)) // MIB for size in (64, mib)]
        for reader in ("read_topic", "duckdb", "polars")
    }
    print(f"MiB above the imports for 64 MiB, and for {mib}: {peaks}")
    for reader, (small, large) in peaks.items():
        assert large <= 320, reader
        assert large - small <= 160, reader
