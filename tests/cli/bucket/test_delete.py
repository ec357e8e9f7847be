"""``delete``: whole segments, and what is left of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli.cli_process import stored_files, tieredstore


def test_delete_takes_one_segment_and_says_what(settings: Path, tmp_path: Path) -> None:
    before = stored_files(tmp_path)
    doomed = [path for path in before if path.name.startswith(f"{1:020}")]
    delete = ("delete", "-c", settings, "single", 0, 1)
    assert tieredstore(*delete, "--dry-run").clean().text.startswith("would delete")
    assert stored_files(tmp_path) == before
    done = tieredstore(*delete, "--yes").clean()
    for path in doomed:
        assert str(path.relative_to(tmp_path / "store")) in done.text
        assert not path.exists()
    assert [row["base_offset"] for row in tieredstore("ls", "-c", settings, "--json").json] == [0, 2]
    tieredstore(*delete, "--yes").fails(3)


@pytest.mark.parametrize("left", [["log"], ["log", "indexes"], ["indexes"], ["rsm-manifest"], ["log", "rsm-manifest"]])
def test_what_is_left_of_a_segment_goes_only_by_its_id(left: list[str], settings: Path, tmp_path: Path) -> None:
    row = tieredstore("ls", "-c", settings, "--json").json[1]
    for suffix in {"log", "indexes", "rsm-manifest"} - set(left):
        stored_files(tmp_path, suffix)[1].unlink()
    if "rsm-manifest" not in left:
        tieredstore("delete", "-c", settings, "single", 0, 1, "--yes").fails(3)
    done = tieredstore("delete", "-c", settings, "single", 0, 1, "--yes", f"--segment-id={row['segment_id']}")
    assert done.code == 0
    assert len(stored_files(tmp_path)) == 6
    assert all(not path.name.startswith(f"{1:020}") for path in stored_files(tmp_path))


@pytest.mark.parametrize("dry_run", [True, False])
def test_json_tells_what_went(dry_run: bool, settings: Path) -> None:
    listed = tieredstore("ls", "-c", settings, "--json").json[1]
    done = tieredstore("delete", "-c", settings, "single", 0, 1, "--json", "--dry-run" if dry_run else "-y").clean()
    row = done.json
    same = ("topic", "topic_id", "partition", "base_offset", "segment_id", "stored_size")
    assert [row[name] for name in same] == [listed[name] for name in same]
    assert {shown["suffix"] for shown in row["objects"]} == {"log", "indexes", "rsm-manifest"}
    assert (row["deleted"], row["dry_run"]) == (not dry_run, dry_run)
