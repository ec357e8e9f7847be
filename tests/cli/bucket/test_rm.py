"""``rm`` of one segment, whole or partly deleted, and input that it must not misread."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli.cli_process import stored_files, tieredstore


def test_one_segment_goes_and_its_objects_are_named(settings: Path, tmp_path: Path) -> None:
    before = stored_files(tmp_path)
    doomed = [path for path in before if path.name.startswith(f"{1:020}")]
    rm = ("rm", "-c", settings, "single", "-p", 0, "--segment", 1)
    planned = tieredstore(*rm).clean().text
    assert planned.startswith("would be deleted")
    assert stored_files(tmp_path) == before
    done = tieredstore(*rm, "--yes").clean()
    for text in (planned, done.text):
        (word,) = [word for word in text.split() if "{" in word]
        named, _, suffixes = word.partition(".{")
        assert {f"{named}.{suffix}" for suffix in suffixes.removesuffix("}").split(",")} == {
            str(path.relative_to(tmp_path / "store")) for path in doomed
        }
    assert not any(path.exists() for path in doomed)
    assert [row["base_offset"] for row in tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0]] == [0, 2]
    tieredstore(*rm, "--yes").fails(3, "no segment of single-0 begins at 1; nearest 0, 2")


@pytest.mark.parametrize("left", [["log"], ["log", "indexes"], ["indexes"], ["rsm-manifest"], ["log", "rsm-manifest"]])
def test_the_remains_of_a_segment_are_removed_only_by_its_id(left: list[str], settings: Path, tmp_path: Path) -> None:
    row = tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0][1]
    for suffix in {"log", "indexes", "rsm-manifest"} - set(left):
        stored_files(tmp_path, suffix)[1].unlink()
    rm = ("rm", "-c", settings, "single", "-p", 0, "--yes", "--segment")
    if "rsm-manifest" not in left:
        tieredstore(*rm, 1).fails(3, "an unfinished copy or delete left objects; address them by the id that ls shows")
    named = ",".join(sorted(left))
    assert f"-{row['segment_id']}.{{{named}}}" in tieredstore(*rm, row["segment_id"]).clean().text
    assert len(stored_files(tmp_path)) == 6
    assert all(not path.name.startswith(f"{1:020}") for path in stored_files(tmp_path))


@pytest.mark.parametrize("applied", [True, False])
def test_a_removal_that_a_damaged_manifest_stops_is_done_in_part(applied: bool, settings: Path, tmp_path: Path) -> None:
    stored_files(tmp_path, "rsm-manifest")[1].write_bytes(b"{")
    before = stored_files(tmp_path)
    ended = tieredstore("rm", "-c", settings, "single", "-p", 0, "--to", 2, *(["--yes"] if applied else []))
    assert (ended.code, "1 with an unknown end offset" in ended.text) == (6, True), ended
    assert len(stored_files(tmp_path)) == len(before) - 3 * applied


@pytest.mark.parametrize("applied", [True, False])
def test_json_tells_what_went(applied: bool, settings: Path) -> None:
    listed = tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0][1]
    rm = ("rm", "-c", settings, "single", "-p", 0, "--segment", 1, "--json")
    (row,), summary = tieredstore(*rm, *(["-y"] if applied else [])).clean().rows
    same = ("topic", "topic_id", "partition", "base_offset", "last_offset", "segment_id", "stored_size")
    assert [row[name] for name in same] == [listed[name] for name in same]
    assert (row["action"], row["status"], row["code"]) == ("remove", "done" if applied else "planned", "deleted")
    assert (summary["done"], summary["planned"], summary["dry_run"]) == (int(applied), int(not applied), not applied)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("", 2, "rm needs TOPIC: tieredstore rm TOPIC..."),
        ("single 0", 2, "0 may be meant as a partition: give -p 0"),
        ("single --to 2", 2, "stop (--to) is an offset, which needs one topic and its partitions"),
        ("single other -p 0 --to 2", 2, "stop (--to) is an offset, which needs one topic and its partitions"),
        ("sing* -p 0 --to 2", 2, "stop (--to) is an offset, which needs one topic and its partitions"),
        ("single --segment 1", 2, "segment (--segment) needs its partition: name one topic and one partition (-p)"),
        ("single -p 0,1 --segment 1", 2, "segment (--segment) needs its partition"),
        ("sing* -p 0 --segment 1", 2, "segment (--segment) needs its partition"),
        ("single -p 0 --segment 1 --to 2", 2, "segment (--segment) and stop (--to) exclude each other"),
        ("single -p 0 --segment one", 2, "--segment is 'one', not an offset or the id"),
        ("single -p 0 --segment=", 2, "--segment is '', not an offset"),
        ("single -p 0 --segment=AAAAAAAAAAAAAAAAAAAAAQ", 3, "no segment of single-0 has the id AAAAAAAAAAAAAAAAAAAAAQ"),
        ("single --topic-id=", 2, "'' is not a Kafka uuid"),
        ("single --partitions=", 2, "-p is ''"),
        ("single -p 0 --to=", 2, "--to is ''"),
        ("single --force", 2, "--force needs the brokers' records: give --bootstrap-server HOST:PORT"),
        ("single -p 1", 3, "topic 'single' has no partition 1 in the bucket, only 0"),
        ("single --store=", 2, "'' names no store: give a URL or a folder"),
        ("single tripel", 3, "there is no topic 'tripel' in the bucket"),
    ],
)
def test_nothing_goes_by_a_misread_argument(line: str, code: int, words: str, settings: Path, tmp_path: Path) -> None:
    before = stored_files(tmp_path)
    tieredstore("rm", "-c", settings, "--yes", *line.split()).fails(code, words)
    assert stored_files(tmp_path) == before


def test_an_empty_name_is_no_topic(settings: Path, tmp_path: Path) -> None:
    before = stored_files(tmp_path)
    tieredstore("rm", "-c", settings, "--yes", "").fails(3, "there is no topic ''")
    assert stored_files(tmp_path) == before
