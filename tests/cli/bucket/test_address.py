"""TOPIC PARTITION OFFSET|ID: several segments, none, incomplete ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli.cli_process import ORIGINALS, stored_files, tieredstore
from tieredstore.model import Uuid

OTHER_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
CONTENT = (ORIGINALS / "single-0" / "00000000000000000001.log").read_bytes()


def copy_under_another_id(folder: Path, base_offset: int) -> str:
    """Give the segment at an offset a second, whole copy, like a broker's second attempt; return its id."""
    segment_id = str(Uuid.random())
    for path in stored_files(folder):
        if path.name.startswith(f"{base_offset:020}-"):
            first_id = path.stem.removeprefix(f"{base_offset:020}-").encode()
            content = path.read_bytes()
            if path.suffix == ".rsm-manifest":
                content = content.replace(first_id, segment_id.encode())
            path.with_name(f"{base_offset:020}-{segment_id}{path.suffix}").write_bytes(content)
    return segment_id


@pytest.mark.parametrize("command", ["fetch single 0 1", "inspect single 0 1", "rm single -p 0 --segment 1 --yes"])
def test_two_attempts_are_an_error_that_lists_them(command: str, settings: Path, tmp_path: Path) -> None:
    first = tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0][1]
    second = copy_under_another_id(tmp_path, 1)
    before = stored_files(tmp_path)
    tieredstore(*command.split(), "-c", settings).fails(
        2,
        "tieredstore: 2 segments of single-0 begin at 1: give the id of one segment in place of the offset, or ",
        *(f"{segment_id}  of topic id {first['topic_id']}" for segment_id in (first["segment_id"], second)),
        f"last offset {first['last_offset']}, {first['size']} bytes",
    )
    assert stored_files(tmp_path) == before


def test_of_two_attempts_an_id_chooses_and_a_whole_one_goes_before_one_that_lost_an_object(
    settings: Path, tmp_path: Path
) -> None:
    assert "SEGMENT ID" not in tieredstore("ls", "-c", settings, "single", "-p", 0).text
    second = copy_under_another_id(tmp_path, 1)
    fetch = ("fetch", "-c", settings, "single", 0)
    assert second in tieredstore("ls", "-c", settings, "single", "-p", 0).text
    assert tieredstore(*fetch, second).clean().stdout == CONTENT
    manifest, log = (
        next(p for p in stored_files(tmp_path, end) if second in p.name) for end in ("rsm-manifest", "log")
    )
    whole = manifest.read_bytes()
    manifest.write_bytes(b"{}")
    tieredstore(*fetch, 1).fails(2, f"{second}  of topic id", "without a readable manifest")
    manifest.write_bytes(whole)
    log.unlink()
    assert tieredstore(*fetch, 1).clean().stdout == CONTENT


def test_a_topic_that_was_created_again_is_told_apart_by_its_id(settings: Path) -> None:
    assert tieredstore("upload", "-c", settings, ORIGINALS, "--topic-id", OTHER_TOPIC_ID).code == 0
    ids = {row["topic_id"] for row in tieredstore("ls", "-c", settings, "single", "-p", "all", "--json").rows[0]}
    assert len(ids) == 2
    tieredstore("fetch", "-c", settings, "single", 0, 1).fails(2, *ids)
    for topic_id in ids:
        where = ("-c", settings, "single", 0, 1, f"--topic-id={topic_id}")
        assert tieredstore("fetch", *where).stdout == CONTENT
        assert topic_id in tieredstore("inspect", *where, "--json").rows[0][0]["objects"][0]["object"]


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("fetch single 0 77", 3, "tieredstore: no segment of single-0 begins at 77; nearest 1, 2\n"),
        ("inspect other 0 0 --index offset", 3, "there is no topic 'other' in the bucket"),
        ("inspect single 1 0", 3, "topic 'single' has no partition 1 in the bucket, only 0"),
        ("fetch sing 0 0 --index offset", 3, "there is no topic 'sing' in the bucket; did you mean 'single'?"),
        (f"fetch single 0 {OTHER_TOPIC_ID}", 3, f"no segment of single-0 has the id {OTHER_TOPIC_ID}\n"),
        (f"fetch single 0 0 --topic-id={OTHER_TOPIC_ID}", 3, f"topic 'single' has no id {OTHER_TOPIC_ID}"),
        ("fetch single 0 0 --topic-id=short", 2, "'short' is not a Kafka uuid"),
        ("fetch single 0 short", 2, "OFFSET|ID is 'short', not an offset or the id of a segment"),
        ("fetch single x 0", 2, ""),
        ("fetch single 0 9999999999999999999", 2, "OFFSET|ID is 9999999999999999999"),
        ("fetch single -1 0", 2, ""),
        ("fetch single 0 -- -1", 2, "OFFSET|ID is '-1', not an offset or the id of a segment"),
    ],
)
def test_what_names_no_segment_is_told_what_there_is(line: str, code: int, words: str, settings: Path) -> None:
    command, *arguments = line.split()
    tieredstore(command, "-c", settings, *arguments).fails(code, words)


@pytest.mark.parametrize(
    ("lost", "code", "words"),
    [
        ("rsm-manifest", 3, "unfinished copy or delete left objects"),
        ("log", 4, "is missing, and its manifest exists"),  # damage, not absence
    ],
)
def test_half_a_segment_is_not_taken_for_one(lost: str, code: int, words: str, settings: Path, tmp_path: Path) -> None:
    stored_files(tmp_path, lost)[1].unlink()
    tieredstore("fetch", "-c", settings, "single", 0, 1).fails(code, words)
