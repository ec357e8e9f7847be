"""Fixtures of these tests' pipelines: the topic and the output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.spark.spark_pipelines import Kept


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """Return an empty store for the output."""
    with closing(Kept(tmp_path)) as kept:
        yield kept
