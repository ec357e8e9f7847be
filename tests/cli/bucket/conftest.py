"""A store shared by many tests of bucket commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli.cli_process import ORIGINALS, store_of


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """Make a store with the three segments of topic ``single``."""
    return store_of(tmp_path, ORIGINALS)
