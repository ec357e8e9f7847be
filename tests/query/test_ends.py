"""Tests of queries and exports that are stopped, and of each reader with lost or damaged segments."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet
import pytest

from tests.support.cli.cli_process import tieredstore, write_settings
from tests.support.cli.forked_commands import ForkedCommands
from tests.support.cli.signalled_commands import SOON_S
from tests.support.records.stored_records import plain_batch
from tests.support.records.topic_reads import read_topic
from tests.support.waiting import wait_until
from tieredstore.config import load_settings
from tieredstore.duckdb import attach
from tieredstore.model import Uuid
from tieredstore.polars import scan
from tieredstore.query.writers import WRITERS
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION, write_segment

pytestmark = pytest.mark.slow

SEGMENT, SEGMENTS = 200, 6


def filled(folder: Path, *, without: int | None = None) -> Path:
    """Return the settings of a store that has a topic of some segments."""
    settings = write_settings(folder)
    with RemoteStorageManager(load_settings(settings)) as manager:
        for number in range(SEGMENTS):
            base = number * SEGMENT
            batches = [plain_batch(range(at, at + 20), 300) for at in range(base, base + SEGMENT, 20)]
            segment = write_segment(folder / "logs" / str(number), batches, partition=PARTITION, base_offset=base)
            if number != without:
                metadata = segment.to_metadata(Uuid.random(), event_timestamp_ms=number)
                manager.copy_log_segment_data(metadata, segment.files)
    return settings


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedCommands]:
    with ForkedCommands(
        tmp_path_factory.mktemp("commands"), ("tieredstore.duckdb.query_tables", "pyarrow.parquet")
    ) as forked:
        yield forked


COMPUTING = "SELECT sum(hash(a.range + b.range)) FROM range(100000) a, range(10000000) b, (SELECT count(*) FROM events)"
WRITING = 'SELECT a."offset", b."offset", c."offset" FROM events a, events b, events c'


@pytest.mark.parametrize("sql", [COMPUTING, WRITING], ids=["computing", "writing"])
def test_an_interrupt_ends_a_query_soon_whatever_it_does(commands: ForkedCommands, tmp_path: Path, sql: str) -> None:
    settings = filled(tmp_path)
    (out := tmp_path / "rows.csv").touch()
    running = commands.start("query", sql, "--format", "csv", settings=settings, stdout=out)
    # The query is under way as soon as it has written rows or, if it has none to write yet, has computed for a second.
    wait_until(lambda: out.stat().st_size > 1 << 20 or cpu_seconds(running.process) > 1)
    running.send(signal.SIGINT)
    ended = running.wait(SOON_S)
    assert ended is not None, "the query goes on"
    assert (ended.code, ended.stderr) == (130, "")


def test_an_export_that_is_killed_is_completed_by_the_next(commands: ForkedCommands, tmp_path: Path) -> None:
    settings, out = filled(tmp_path), tmp_path / "files"
    plan = ("cat", "events", "-o", out, "--parallel", "1")
    running = commands.start(*plan, settings=settings)
    wait_until(lambda: out.is_dir() and any(out.iterdir()))
    running.send(signal.SIGKILL)
    ended = running.wait(SOON_S)
    assert ended is not None
    done = tieredstore(*plan, "-c", settings)
    assert done.code == 0, done.stderr
    assert offsets(out) == list(range(SEGMENT * SEGMENTS))
    assert not list(out.glob(".*"))


def offsets(folder: Path) -> list[int]:
    listed: list[int] = []
    parquet: Any = pyarrow.parquet
    for path in sorted(folder.glob("*.parquet")):
        table = parquet.read_table(path, columns=["offset"])
        listed += table.column("offset").to_pylist()
    return listed


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def by_duckdb(settings: Path) -> object:
    connection: Any = duckdb.connect()
    try:
        with attach(connection, str(settings)):
            return connection.execute("SELECT count(value) FROM events").fetchall()
    finally:
        connection.close()


def by_polars(settings: Path) -> object:
    frame: Any = scan(str(settings), "events")
    return frame.select("value").collect()


def by_arrow(settings: Path) -> object:
    with RemoteStorageManager(load_settings(settings)) as manager, read_topic(manager, "events") as read:
        return read.reader().read_all()


def by_pandas(settings: Path) -> object:
    table: Any = by_arrow(settings)
    return table.to_pandas()


def by_datafusion(settings: Path) -> object:
    # The tests' requirements include DataFusion, but an older environment may lack it.
    datafusion: Any = pytest.importorskip("datafusion")
    with RemoteStorageManager(load_settings(settings)) as manager, read_topic(manager, "events") as read:
        return datafusion.SessionContext().from_arrow(read).collect()


READERS: dict[str, Callable[[Path], object]] = {
    "duckdb": by_duckdb, "polars": by_polars, "pyarrow": by_arrow, "pandas": by_pandas, "datafusion": by_datafusion,
}  # fmt: skip


def damage(folder: Path) -> None:
    """Flip one bit of the third segment."""
    log = sorted((folder / "store").rglob("*.log"))[2]
    data = bytearray(log.read_bytes())
    data[-100] ^= 1
    log.write_bytes(data)


@pytest.mark.parametrize("reader", READERS)
def test_a_lost_or_damaged_segment_is_one_sentence_in_each_of_them(tmp_path: Path, reader: str) -> None:
    for name, sentence in (("lost", f"offsets {2 * SEGMENT} to {3 * SEGMENT - 1} of events-0"), ("damaged", "CRC")):
        (folder := tmp_path / name).mkdir()
        settings = filled(folder, without=2 if name == "lost" else None)
        if name == "damaged":
            damage(folder)
        with pytest.raises(Exception, match=sentence) as caught:
            READERS[reader](settings)
        assert "Traceback" not in str(caught.value)


FORMATS = tuple(WRITERS)


@pytest.mark.parametrize("name", ["lost", "damaged"])
def test_a_lost_or_damaged_segment_is_one_sentence_of_each_command_and_no_file(tmp_path: Path, name: str) -> None:
    settings = filled(tmp_path, without=2 if name == "lost" else None)
    if name == "damaged":
        damage(tmp_path)
    sql, out = "SELECT * FROM events", tmp_path / "out"
    for command in (
        ("query", "SELECT count(value) FROM events"),
        *(("query", sql, *form) for form in ((), ("--json",), ("--format", "csv"))),
        # These commands have begun a file when the error comes. The message must be about the segment and not about the
        # file.
        *(("query", sql, "-o", out.with_suffix(f".{ending}")) for ending in FORMATS),
        *(("cat", "events", "-o", out.with_suffix(f".{ending}")) for ending in FORMATS),
        ("query", 'SELECT "offset", timestamp FROM events', "--plot", out.with_suffix(".png")),
        ("cat", "events", "-o", out),
    ):
        done = tieredstore(*command, "-c", settings)
        sentence = f"offsets {2 * SEGMENT} to {3 * SEGMENT - 1} of events-0" if name == "lost" else "CRC"
        assert (done.code, done.stderr.count("\n"), sentence in done.stderr) == (
            3 if name == "lost" else 4, 1, True,
        ), done.stderr  # fmt: skip
    assert not list(tmp_path.glob("out.*")) + list(tmp_path.glob(".out*"))
