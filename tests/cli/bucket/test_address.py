"""TOPIC PARTITION BASE_OFFSET: several segments, none, half ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli.cli_process import ORIGINALS, stored_files, tieredstore, write_settings
from tieredstore.model import Uuid

OTHER_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
CONTENT = (ORIGINALS / "single-0" / "00000000000000000001.log").read_bytes()


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A store with the three segments of topic ``single``."""
    settings_path = write_settings(tmp_path)
    assert tieredstore("copy", "-c", settings_path, ORIGINALS).code == 0
    return settings_path


def copy_under_another_id(folder: Path, base_offset: int) -> str:
    """Give the segment at an offset a second, whole copy, as a second attempt of a broker would; its id."""
    segment_id = str(Uuid.random())
    for path in stored_files(folder):
        if path.name.startswith(f"{base_offset:020}-"):
            first_id = path.stem.removeprefix(f"{base_offset:020}-").encode()
            content = path.read_bytes()
            if path.suffix == ".rsm-manifest":
                content = content.replace(first_id, segment_id.encode())
            path.with_name(f"{base_offset:020}-{segment_id}{path.suffix}").write_bytes(content)
    return segment_id


@pytest.mark.parametrize("command", ["fetch", "inspect", "delete"])
def test_two_attempts_are_an_error_that_lists_them(command: str, settings: Path, tmp_path: Path) -> None:
    first = tieredstore("ls", "-c", settings, "--json").json[1]
    second = copy_under_another_id(tmp_path, 1)
    done = tieredstore(command, "-c", settings, "single", 0, 1)
    assert (done.code, done.stdout) == (2, b"")
    assert done.stderr.startswith("tieredstore: single 0 1 names 2 segments; choose one by --topic-id or --segment-id:")
    for segment_id in (first["segment_id"], second):
        assert f"--topic-id={first['topic_id']} --segment-id={segment_id}" in done.stderr
    if command != "delete":
        assert f"last offset {first['last_offset']}, {first['size']} bytes" in done.stderr


def test_ls_shows_the_ids_of_two_attempts(settings: Path, tmp_path: Path) -> None:
    assert "SEGMENT ID" not in tieredstore("ls", "-c", settings, "single", 0).text
    second = copy_under_another_id(tmp_path, 1)
    assert second in tieredstore("ls", "-c", settings, "single", 0).text


def test_the_segment_id_chooses(settings: Path, tmp_path: Path) -> None:
    second = copy_under_another_id(tmp_path, 1)
    done = tieredstore("fetch", "-c", settings, "single", 0, 1, "--segment-id", second)
    assert (done.code, done.stdout) == (0, CONTENT)


def test_a_topic_that_was_created_again_is_told_apart_by_its_id(settings: Path) -> None:
    assert tieredstore("copy", "-c", settings, ORIGINALS, "--topic-id", OTHER_TOPIC_ID).code == 0
    ids = {row["topic_id"] for row in tieredstore("ls", "-c", settings, "single", "--json").json}
    assert len(ids) == 2
    done = tieredstore("fetch", "-c", settings, "single", 0, 1)
    assert done.code == 2
    assert all(topic_id in done.stderr for topic_id in ids)
    for topic_id in ids:
        chosen = tieredstore("fetch", "-c", settings, "single", 0, 1, f"--topic-id={topic_id}")
        assert (chosen.code, chosen.stdout) == (0, CONTENT)
        (row,) = tieredstore("inspect", "-c", settings, "single", 0, 1, f"--topic-id={topic_id}", "--json").json[
            "objects"
        ][:1]
        assert topic_id in row["object"]


def test_the_ambiguous_ones_are_listed_even_if_a_manifest_is_damaged(settings: Path, tmp_path: Path) -> None:
    second = copy_under_another_id(tmp_path, 1)
    (broken,) = (path for path in stored_files(tmp_path, "rsm-manifest") if second in path.name)
    broken.write_bytes(b"{}")
    done = tieredstore("fetch", "-c", settings, "single", 0, 1)
    assert done.code == 2
    assert f"{second}  without a readable manifest" in done.stderr


def test_near_offsets_are_named_when_there_is_no_such_segment(settings: Path) -> None:
    done = tieredstore("fetch", "-c", settings, "single", 0, 77)
    assert (done.code, done.stdout) == (3, b"")
    assert done.stderr == "tieredstore: there is no segment single 0 77; segments near it begin at 1, 2\n"


@pytest.mark.parametrize("where", [("other", 0), ("single", 1), ("sing", 0)])
def test_a_partition_that_the_store_does_not_hold_is_named(where: tuple[str, int], settings: Path) -> None:
    done = tieredstore("index", "-c", settings, *where, 0, "offset")
    assert done.code == 3
    assert f"the store holds none of {where[0]} {where[1]}" in done.stderr


def test_a_segment_id_that_is_not_at_the_offset_is_told_what_is(settings: Path) -> None:
    known = tieredstore("ls", "-c", settings, "--json").json[0]["segment_id"]
    done = tieredstore("fetch", "-c", settings, "single", 0, 0, f"--segment-id={Uuid.random()}")
    assert done.code == 3
    assert f"at this offset there is {known}" in done.stderr


@pytest.mark.parametrize("option", ["--topic-id", "--segment-id"])
def test_an_id_that_is_none_is_a_usage_error(option: str, settings: Path) -> None:
    done = tieredstore("fetch", "-c", settings, "single", 0, 0, f"{option}=short")
    assert done.code == 2
    assert "'short' is not a Kafka uuid" in done.stderr


@pytest.mark.parametrize("arguments", [("x", 0, 0), (0, "x", 0), (-1, 0, 0), (0, "--", "-1", 0)])
def test_numbers_that_are_none_are_usage_errors(arguments: tuple[object, ...], settings: Path) -> None:
    assert tieredstore("fetch", "-c", settings, "single", *arguments).code == 2


def test_a_half_segment_is_not_matched(settings: Path, tmp_path: Path) -> None:
    stored_files(tmp_path, "rsm-manifest")[1].unlink()
    done = tieredstore("fetch", "-c", settings, "single", 0, 1)
    assert (done.code, done.stdout) == (3, b"")
    assert "unfinished copy or delete left objects" in done.stderr


def test_a_whole_segment_goes_before_one_that_lost_an_object(settings: Path, tmp_path: Path) -> None:
    second = copy_under_another_id(tmp_path, 1)
    (lost,) = (path for path in stored_files(tmp_path, "log") if second in path.name)
    lost.unlink()
    done = tieredstore("fetch", "-c", settings, "single", 0, 1)
    assert (done.code, done.stdout) == (0, CONTENT)


def test_a_committed_segment_that_lost_its_log_is_damage_and_not_absence(settings: Path, tmp_path: Path) -> None:
    stored_files(tmp_path, "log")[1].unlink()
    done = tieredstore("fetch", "-c", settings, "single", 0, 1)
    assert (done.code, done.stdout) == (4, b"")
    assert "is missing, and its manifest exists" in done.stderr
