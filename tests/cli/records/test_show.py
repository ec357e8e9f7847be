"""``tieredstore show`` on the broker's own files."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support.cli.cli_process import tieredstore
from tests.support.golden.records import expected_rows
from tests.support.golden.segments import ALL_SEGMENTS, GoldenSegment
from tieredstore.cli.records import show
from tieredstore.cli.records.formats import Asked, Format, Rows, View
from tieredstore.cli.terminal.output import iso_utc
from tieredstore.cli.terminal.rows import Row, field
from tieredstore.cli.terminal.tables import word
from tieredstore.errors import CorruptDataError
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.kafka.checkpoints import parse_producer_snapshot
from tieredstore.kafka.indexes import read_offset_index, read_time_index, read_txn_index

TXN = next(segment for segment in ALL_SEGMENTS if segment.case == "07-txn" and segment.base_offset == 605)


@pytest.mark.parametrize("segment", ALL_SEGMENTS[::3], ids=str)
def test_a_logs_batches(segment: GoldenSegment) -> None:
    path = segment.original("log")
    rows, summary = tieredstore("show", path, "--json").clean().rows
    headers = list(read_batch_headers(path.read_bytes()))
    for row, header in zip(rows, headers, strict=True):
        own = {"file": str(path), "max_timestamp": iso_utc(header.max_timestamp)}
        assert row == own | {
            "position": header.position,
            "size": header.size_in_bytes,
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "records": header.record_count,
            "magic": header.magic,
            "compression": header.compression.name.lower(),
            "timestamp_type": header.timestamp_type.value,
            "max_timestamp_ms": header.max_timestamp,
            "leader_epoch": header.partition_leader_epoch,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "control": header.is_control,
            "transactional": header.is_transactional,
        }
    assert summary == {"files": 1, "entries": len(headers), "failed": 0}
    heading, _, *lines = tieredstore("show", path).text.splitlines()
    assert heading.split()[:3] == ["POSITION", "SIZE", "BASE"]
    assert [line.split()[0] for line in lines] == [str(header.position) for header in headers]


def test_a_logs_records() -> None:
    rows = tieredstore("show", TXN.original("log"), "--records", "--json").clean().lines
    expected = [row for row in expected_rows("07-txn", 0) if 605 <= row["offset"] <= TXN.end_offset]
    assert [(row["offset"], row["timestamp"], row["value"].encode()) for row in rows] == [
        (row["offset"], iso_utc(row["timestamp"]), row["value"]) for row in expected
    ]
    assert "partition" not in rows[0]
    shown = tieredstore("show", TXN.original("log"), "--records").text.splitlines()
    assert len(shown) == len(expected) + 2  # the column names and a rule


def test_the_entries_of_each_index() -> None:
    base = TXN.base_offset
    raw = {name: TXN.original(name).read_bytes() for name in ("index", "timeindex", "txnindex", "snapshot")}
    rows = {name: tieredstore("show", TXN.original(name), "--json").clean().rows[0] for name in raw}
    assert [(row["offset"], row["position"]) for row in rows["index"]] == [
        (entry.offset, entry.position) for entry in read_offset_index(raw["index"], base)
    ]
    assert [(row["timestamp_ms"], row["offset"]) for row in rows["timeindex"]] == [
        (entry.timestamp, entry.offset) for entry in read_time_index(raw["timeindex"], base)
    ]
    assert [(row["producer_id"], row["first_offset"], row["last_offset"]) for row in rows["txnindex"]] == [
        (entry.producer_id, entry.first_offset, entry.last_offset) for entry in read_txn_index(raw["txnindex"], base)
    ]
    assert [(row["producer_id"], row["current_txn_first_offset"]) for row in rows["snapshot"]] == [
        (state.producer_id, state.current_txn_first_offset) for state in parse_producer_snapshot(raw["snapshot"])
    ]
    for name, entries in rows.items():
        assert len(tieredstore("show", TXN.original(name)).text.splitlines()) == len(entries) + 2


def test_a_file_under_another_name_needs_its_base_offset(tmp_path: Path) -> None:
    path = Path(shutil.copy(TXN.original("index"), tmp_path / "saved.index"))
    tieredstore("show", path).fails(2, "--base-offset")
    given = tieredstore("show", path, "--base-offset", TXN.base_offset, "--json")
    own = tieredstore("show", TXN.original("index"), "--json")
    assert given.text.replace(str(path), str(TXN.original("index"))) == own.text


@pytest.mark.parametrize("more", [(), ("--records",)])
def test_a_damaged_log_is_shown_up_to_the_damage(more: tuple[str, ...], tmp_path: Path) -> None:
    whole = TXN.original("log").read_bytes()
    headers = list(read_batch_headers(whole))
    damaged = bytearray(whole)
    damaged[headers[5].position + 70] ^= 1
    path = tmp_path / f"{TXN.base_offset:020}.log"
    path.write_bytes(damaged)
    done = tieredstore("show", path, "--json", *more)
    assert done.code == 4
    assert f"record batch at byte {headers[5].position}" in done.stderr
    records = sum(header.record_count or 0 for header in headers[:5] if not header.is_control)
    if more:
        assert len(done.lines) == records
    else:
        rows, summary = done.rows
        assert (len(rows), summary) == (5, {"files": 1, "entries": 5, "failed": 1})


@pytest.mark.parametrize("name", ["index", "timeindex", "txnindex", "snapshot", "log"])
def test_an_empty_file_has_no_entries_and_a_damaged_index_is_an_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{TXN.base_offset:020}.{name}"
    if name != "snapshot":
        path.touch()
        assert tieredstore("show", path, "--json").clean().rows == ([], {"files": 1, "entries": 0, "failed": 0})
        assert tieredstore("show", path).code == 0
    if name != "log":
        path.write_bytes(TXN.original(name).read_bytes()[:-1] + b"\xff\xff")
        tieredstore("show", path).fails(4)


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("missing.log", (), "cannot be read"),
        ("missing.index", (), "cannot be read"),
        (f"{'x' * 300}.log", (), ".log cannot be read: File name too long"),
        ("missing.txt", (), "for an object in a store give --settings FILE (-c) or --store URL"),
        ("notes.txt", (), ".timeindex"),
        ("missing.index", ("--records",), "--records"),
        ("missing.log", ("--sources",), "--sources does not apply to"),
        ("missing.log", ("--sources", "--records"), "--records and --sources exclude each other"),
        ("missing.log", ("--backup", "kept.properties"), "--backup names the source of the records"),
        ("missing.log", ("--store", "."), "cannot be shown: it is none of Kafka's .log files"),
    ],
)
def test_a_file_that_cannot_be_shown_is_one_sentence(
    name: str, more: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").touch()
    tieredstore("show", tmp_path / name, *more).fails(2, words)


def test_several_files_are_shown_each_under_its_name() -> None:
    paths = [TXN.original(name) for name in ("index", "timeindex")]
    shown = tieredstore("show", *paths)
    assert shown.code == 0
    first, second = (tieredstore("show", path).text for path in paths)
    assert shown.text == f"{paths[0]}:\n{first}\n{paths[1]}:\n{second}"
    rows, summary = tieredstore("show", *paths, "--json").clean().rows
    assert summary == {"files": 2, "entries": len(rows), "failed": 0}
    assert {row["file"] for row in rows} == set(map(str, paths))


def test_a_file_that_cannot_be_shown_does_not_keep_the_others_back(tmp_path: Path) -> None:
    damaged = tmp_path / f"{TXN.base_offset:020}.snapshot"
    damaged.write_bytes(TXN.original("snapshot").read_bytes()[:-1] + b"\xff\xff")
    absent = tmp_path / "absent.txnindex"
    done = tieredstore("show", damaged, absent, TXN.original("index"), "--json")
    assert done.code == 4
    rows, summary = done.rows
    assert {row["file"] for row in rows} == {str(TXN.original("index"))}
    assert summary == {"files": 1, "entries": len(rows), "failed": 2}
    first, second = done.stderr.splitlines()
    assert first.startswith(f"tieredstore: {damaged}: ")
    assert second.startswith(f"tieredstore: {absent} cannot be read")


@pytest.mark.parametrize("more", [(), ("--records",)])
def test_so_many_are_shown_and_no_more(more: tuple[str, ...]) -> None:
    every = tieredstore("show", TXN.original("log"), *more).text.splitlines()
    some = tieredstore("show", TXN.original("log"), "-n", 3, *more).text.splitlines()
    assert [line.split() for line in some[2:]] == [line.split() for line in every[2:5]]
    assert len(tieredstore("show", TXN.original("log"), "-n", 3, "--json", *more).lines) == 3 + (not more)


# ---- formats of wings


@contextlib.contextmanager
def _letters(asked: Asked) -> Generator[Rows[str]]:
    def letters() -> Iterator[str]:
        yield from asked.name
        if asked.name == "damaged":
            raise CorruptDataError("damaged ends too early")

    row: Row[str] = Row(field("key", lambda letter: letter, word("LETTER")))
    lines = (lambda letter: [f"{letter} of {asked.backups[0]}"]) if asked.view is View.SOURCES else None
    yield Rows(row, letters(), f"letters of {asked.name}", lines, lambda: {"size": len(asked.name)})


LETTERS = Format("files of letters", frozenset(View), lambda asked: asked.path is None, _letters)


@pytest.fixture
def _wing(monkeypatch: pytest.MonkeyPatch) -> None:
    def attached(group: str) -> list[tuple[Format, ...]]:
        assert group == "tieredstore.files"
        return [(LETTERS,)]

    monkeypatch.setattr(show, "attached_parts", attached)


@pytest.mark.usefixtures("_wing")
def test_a_wings_format_gives_rows_a_heading_and_sums() -> None:
    shown = tieredstore("show", "ab", "c", "--store", ".").clean()
    table = ["LETTER", "──────"]
    assert shown.text.splitlines() == ["ab:", "letters of ab", *table, "a", "b", "", "c:", "letters of c", *table, "c"]
    rows, summary = tieredstore("show", "ab", "c", "--store", ".", "--json").clean().rows
    assert [(row["file"], row["key"]) for row in rows] == [("ab", "a"), ("ab", "b"), ("c", "c")]
    assert summary == {"files": 2, "size": 3, "entries": 3, "failed": 0}


@pytest.mark.usefixtures("_wing")
def test_a_wings_format_may_show_lines_in_place_of_a_table() -> None:
    shown = tieredstore("show", "ab", "--sources", "--backup", "kept.properties", "--store", ".").clean()
    assert shown.text.splitlines() == ["letters of ab", "a of kept.properties", "b of kept.properties"]


@pytest.mark.usefixtures("_wing")
def test_the_records_of_a_wing_have_no_summary() -> None:
    assert tieredstore("show", "a", "--records", "--store", ".", "--json").clean().lines == [{"file": "a", "key": "a"}]


@pytest.mark.usefixtures("_wing")
def test_a_wings_damaged_file_is_shown_up_to_the_damage() -> None:
    done = tieredstore("show", "damaged", "--store", ".", "--json")
    assert (done.code, done.stderr) == (4, "tieredstore: damaged ends too early\n")
    assert (len(done.rows[0]), done.rows[1]["failed"]) == (7, 1)


@pytest.mark.usefixtures("_wing")
def test_the_cores_formats_are_asked_first(tmp_path: Path) -> None:
    tieredstore("show", tmp_path / "missing.log").fails(2, "cannot be read")
