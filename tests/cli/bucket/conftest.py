"""A store that many tests of commands about buckets begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli.cli_process import ORIGINALS, store_of


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A store with the three segments of topic ``single``."""
    return store_of(tmp_path, ORIGINALS)
