"""``make sdist``: one commit, one archive, wherever and by whomever it is packed."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from scripts.sdist import commit_time, write_sdist
from tests.support.paths import REPOSITORY


@pytest.mark.slow
def test_two_folders_give_the_same_bytes(tmp_path: Path) -> None:
    clone = tmp_path / "a clone"
    subprocess.run(["git", "clone", "-q", "--no-checkout", REPOSITORY, clone], check=True, timeout=300)
    here = write_sdist(REPOSITORY, tmp_path / "here")
    before = os.umask(0o077)
    try:
        there = write_sdist(clone, tmp_path / "there")
    finally:
        os.umask(before)
    assert here.name == there.name
    assert here.read_bytes() == there.read_bytes()
    with tarfile.open(here) as files:
        members = files.getmembers()
    assert [member.name for member in members] == sorted(member.name for member in members)
    assert {(member.uid, member.gid, member.uname, member.gname) for member in members} == {(0, 0, "", "")}
    assert {member.mtime for member in members} == {commit_time(REPOSITORY)}


def test_a_stated_time_comes_before_the_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert commit_time(REPOSITORY) == 1700000000
