"""Fixture: an empty bucket for streams and batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.spark.spark_stream_topics import Bucket


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with closing(Bucket(tmp_path)) as bucket:
        yield bucket
