"""``gc``, ``rm``, ``du`` and ``holds`` on a folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support.cli.cli_process import Result, tieredstore
from tests.support.stores.catalog_stores import OTHER_ID, TOPIC_ID, MadeSegment, partition_of, run_of
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.format.keys import Suffix

LEFT = MadeSegment(partition_of(), 40, 49)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make two partitions, and a two-day-old leftover."""
    folder = tmp_path / "store"
    folder.mkdir()
    store = FilesystemObjectStore(folder)
    for segment in [*run_of(4, partition_of()), *run_of(2, partition_of(partition=1)), LEFT]:
        segment.put(store)
    store.delete([LEFT.key()])
    for suffix in (Suffix.LOG, Suffix.INDEXES):
        status = (folder / LEFT.key(suffix)).stat()
        os.utime(folder / LEFT.key(suffix), (status.st_mtime - 172_800, status.st_mtime - 172_800))
    return folder


def run(root: Path, *arguments: object) -> Result:
    return tieredstore(*arguments, "--store", root.as_uri())


def count(root: Path) -> int:
    return sum(path.is_file() and "!tieredstore" not in str(path) for path in root.rglob("*"))


def test_gc_is_a_dry_run_unless_told_otherwise(root: Path) -> None:
    planned = run(root, "gc").clean()
    assert f"would be deleted  without manifest  {LEFT.path}" in planned.text
    assert "1 leftover would be deleted" in planned.text
    assert "--yes does it" in planned.text
    assert count(root) == 20
    assert "left alone: 1 too young, or part of a copy in progress" in run(root, "gc", "--min-age", "3d", "--yes").text
    run(root, "holds", "place", "case-17", "events")
    held = run(root, "gc", "--yes")
    assert "legal hold 'case-17'" in held.text
    assert (held.code, count(root)) == (0, 20)
    run(root, "holds", "release", "case-17", "--yes")
    done = run(root, "gc", "--yes")
    assert (done.code, count(root)) == (0, 18)
    assert f"deleted  without manifest  {LEFT.path}" in done.text
    assert run(root, "gc", "--yes").text == "there are no leftovers\n"


@pytest.mark.parametrize(("to", "code", "left"), [(30, 0, 5), (51, 2, 20)])
def test_an_offset_beyond_every_log_is_refused_before_a_deletion(root: Path, to: int, code: int, left: int) -> None:
    for yes in ((), ("--yes",)):
        assert run(root, "rm", "events", "-p", "0,1", "--to", to, *yes).code == code
    assert count(root) == left


def test_gc_takes_the_greatest_age_of_the_settings(root: Path, tmp_path: Path) -> None:
    settings = tmp_path / "store.properties"
    settings.write_text(
        "storage.backend.class=io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage\n"
        f"storage.root={root}\nchunk.size=4194304\nupload.max.age.ms=86400000\n"
    )
    tieredstore("gc", "-c", settings, "--min-age", "47h").fails(
        2, "a minimum age of 47 h is too short: copies may take 24 h (upload.max.age.ms)"
    )
    assert tieredstore("gc", "-c", settings, "--min-age", "48h").code == 0


def test_gc_deletes_nothing_by_a_clock_that_is_hours_ahead(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms, ahead_h = FilesystemObjectStore.now_ms, 13
    monkeypatch.setattr(FilesystemObjectStore, "now_ms", lambda store: now_ms(store) + ahead_h * 3_600_000)
    refused = run(root, "gc", "--yes")
    assert (refused.code, count(root)) == (6, 20)
    assert "is 13.0 h ahead of this machine's, so objects of running copies may look old" in refused.stderr
    assert run(root, "gc", "--min-age", "26h").code == 0
    ahead_h = 11
    assert run(root, "gc").code == 0


def test_rm_deletes_nothing_before_a_time_of_a_clock_that_is_ahead(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms, behind_h = FilesystemObjectStore.now_ms, 1
    monkeypatch.setattr(FilesystemObjectStore, "now_ms", lambda store: now_ms(store) - behind_h * 3_600_000)
    refused = run(root, "rm", "events", "--to", "-1d", "--yes")
    assert (refused.code, count(root)) == (6, 20)
    assert "this machine's clock is 1.0 h ahead of that of " in refused.stderr
    assert run(root, "rm", "events", "-p", "0", "--to", 30).code == 0
    behind_h = -1
    assert run(root, "rm", "events", "--to", "-1d").code == 0


def test_gc_for_scripts_has_an_object_a_line_and_a_summary(root: Path) -> None:
    rows, summary = run(root, "gc", "--json").rows
    assert [(row["action"], row["status"], row["code"], row["kind"], row["name"]) for row in rows] == [
        ("gc", "planned", "deleted", "no_manifest", LEFT.path)
    ]
    assert (summary["planned"], summary["dry_run"], summary["stays"]) == (1, True, [])
    applied, summary = run(root, "gc", "--yes", "--json").rows
    assert [row["status"] for row in applied] == ["done"]
    assert (summary["done"], summary["codes"], summary["dry_run"]) == (1, {"deleted": 1}, False)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("gc --min-age 23h --yes", 2, "a minimum age of 23 h is too short"),
        ("gc --min-age soon --yes", 2, "--min-age"),
        ("gc --yes --dry-run", 2, "gc has no option --dry-run"),
        ("rm events -p 0 --to 1795428000000", 2, "a time in milliseconds since 1970 is written @1795428000000"),
        (
            "rm events -p 0 --to 1795428000 --yes",
            2,
            "is beyond the end of events-0 (40); a time in seconds since 1970 is written @1795428000000",
        ),
        ("rm events -p 0 --to 41 --yes", 2, "offset 41 is beyond the end of events-0 (40); a time is written"),
        ("rm events -p 0 --to tomorrow --yes", 2, "not an offset or a time"),
        ("rm events --to 25 --yes", 2, "needs one topic and its partitions (partitions=, -p)"),
        ("rm evnts --yes", 3, "evnts"),
        ("du --listing --by day", 2, "--by day needs the manifests"),
    ],
)
def test_what_is_not_safe_or_makes_no_sense_is_refused(root: Path, line: str, code: int, words: str) -> None:
    run(root, *line.split()).fails(code, words)
    assert count(root) == 20


def test_rm_takes_the_oldest_up_to_an_offset_or_a_time(root: Path) -> None:
    rows, summary = run(root, "rm", "events", "--to", "1970-01-01T00:00:00.011Z", "--yes", "--json").rows
    assert [(row["partition"], row["base_offset"], row["last_offset"]) for row in rows] == [(0, 0, 9), (1, 0, 9)]
    assert (summary["done"], summary["codes"], count(root)) == (2, {"deleted": 2}, 14)
    assert run(root, "rm", "events", "-p", 0, "--to", 25).text.count("would be deleted  ") == 1
    assert count(root) == 14
    done = run(root, "rm", "events", "-p", 0, "--to", 25, "--yes")
    assert (done.code, count(root)) == (0, 11)
    assert "1 segment deleted" in done.text


def test_rm_of_a_topic_asks_which_one_is_meant_and_leaves_leftovers_to_gc(root: Path) -> None:
    MadeSegment(partition_of(topic_id=OTHER_ID), 0, 9).put(FilesystemObjectStore(root))
    run(root, "rm", "events", "--yes").fails(2, f"choose one of {TOPIC_ID}, {OTHER_ID} by topic_id (--topic-id)")
    assert run(root, "rm", "events", "--topic-id", OTHER_ID, "--yes").code == 0
    assert count(root) == 20
    done = run(root, "rm", "events", "--yes")
    assert (done.code, count(root)) == (0, 2)
    assert "1 without a manifest: gc deletes them when they are old" in done.text
    assert run(root, "gc", "--yes").code == 0
    assert count(root) == 0


def test_segments_under_a_hold_are_named_with_exit_code_6(root: Path) -> None:
    placed = run(root, "holds", "place", "case", "events", "-p", 0, "--from", 15)
    assert placed.text == "held by case: events-0 offsets 15 to the end\n"
    done = run(root, "rm", "events", "--yes")
    assert done.code == 6
    assert done.text.count("legal hold 'case'") == 3
    assert [row["name"] for row in run(root, "holds", "list", "--json").rows[0]] == ["case"]
    assert "events-0 offsets 15 to the end" in run(root, "holds", "list").text
    one = ("rm", "events", "-p", 0, "--segment", 20, "--yes")
    refused = run(root, *one)
    assert (refused.code, refused.text.count("legal hold 'case'")) == (6, 1)
    assert run(root, "holds", "release", "case", "--yes").code == 0
    assert run(root, "holds", "release", "case", "--yes").code == 3
    assert run(root, *one).code == 0


def test_du_sums_by_topic_partition_and_day(root: Path) -> None:
    MadeSegment(partition_of("small"), 0, 9).put(FilesystemObjectStore(root))
    rows, total = run(root, "du", "--json").rows
    assert [(row["topic"], row["segments"], row["objects"], row["no_manifest"]) for row in rows] == [
        ("events", 6, 20, 1),
        ("small", 1, 3, 0),
    ]
    assert rows[0]["size"] == 6000
    assert total["stored_size"] == sum(row["stored_size"] for row in rows)
    assert total["stored_size"] == sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    rows, _ = run(root, "du", "--by", "partition", "--sort", "name", "--json").rows
    assert [(row["topic"], row["partition"], row["segments"]) for row in rows] == [
        ("events", 0, 4),
        ("events", 1, 2),
        ("small", 0, 1),
    ]
    rows, _ = run(root, "du", "--by", "day", "--json").rows
    assert [(row["day"], row["segments"]) for row in rows] == [("1970-01-01", 7), (None, 0)]
    names = [line.split()[0] for line in run(root, "du", "--sort", "segments").text.splitlines() if line.strip()]
    assert [name for name in names if name in {"events", "small", "total"}] == ["events", "small", "total"]


def test_du_of_a_window_counts_the_segments_that_hold_its_records(root: Path) -> None:
    whole, _ = run(root, "du", "events", "-p", "0", "--json").rows
    rows, _ = run(root, "du", "events", "-p", "0", "--from", "10", "--to", "30", "--json").rows
    assert (whole[0]["segments"], rows[0]["segments"]) == (4, 2)
    rows, _ = run(root, "du", "--from", "@1000", "--json").rows
    assert [(row["segments"], row["no_manifest"]) for row in rows] == [(0, 1)]
    refused = run(root, "du", "--listing", "--to", "yesterday")
    refused.fails(2, "--to needs the manifests: leave --listing out")


@pytest.mark.slow
def test_du_draws_what_is_stored_beside_the_log(root: Path, tmp_path: Path) -> None:
    picture = tmp_path / "du.svg"
    table = run(root, "du", "--by", "day")
    assert run(root, "du", "--by", "day", "--plot", picture).stdout == table.stdout
    drawn = picture.read_text()
    for words in ("log before compression", "1970-01-01", "stored"):
        assert f"{words} -->" in drawn
    refused = run(root, "du", "--plot", tmp_path / "du.txt")
    refused.fails(2, "the name of a picture must end in .png, .svg or .pdf")


def test_du_of_the_listing_alone_reads_no_manifest(root: Path) -> None:
    for path in root.rglob("*.rsm-manifest"):
        path.write_bytes(b"x" * path.stat().st_size)
    rows, _ = run(root, "du", "--listing", "--json").rows
    assert [(row["segments"], row["size"], row["ratio"]) for row in rows] == [(6, 0, None)]
    shutil.rmtree(root / next(root.iterdir()).name)
    assert "no segments found" in run(root, "du").stderr


def test_a_hold_of_a_topic_that_is_not_there_is_placed_and_told(root: Path) -> None:
    misspelt = run(root, "holds", "place", "case-1", "evnets")
    assert misspelt.code == 0
    assert "no segment of topic 'evnets' is stored: check the spelling" in misspelt.stderr
    assert run(root, "holds", "place", "case-2", "events").stderr == ""
    assert run(root, "holds", "place", "case-3").stderr == ""
