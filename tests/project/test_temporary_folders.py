"""Runs of other trees do not touch the temporary folders of this one's."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.temporary_folders import folder_of


def test_each_tree_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one, other = folder_of(Path("/one")), folder_of(Path("/other"))
    assert one != other
    assert folder_of(Path("/one")) == one
    assert stat.S_IMODE(one.stat().st_mode) == 0o700


def test_pytest_is_told_of_it() -> None:
    # Whoever starts the tests may have chosen another.
    assert "PYTEST_DEBUG_TEMPROOT" in os.environ
    assert folder_of(REPOSITORY).is_dir()
