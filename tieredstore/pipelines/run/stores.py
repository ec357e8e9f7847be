"""The stores of a pipeline: the output, the bucket to read, and the columns of records."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.config import settings_from
from tieredstore.ops.bucket import open_bucket
from tieredstore.pipelines.config.settings import Pipeline

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.remote.source import SegmentSource

COLUMNS: Final = ("key", "value", "headers", "offset", "timestamp", "timestampType")
"""Columns read from records."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The store to write and the bucket to read; opened and closed by their creator."""

    store: ObjectStore
    source: SegmentSource


@contextlib.contextmanager
def open_parts(pipeline: Pipeline) -> Generator[Parts]:
    """Open both by the settings; they are closed at the end."""
    # A pipeline that reads only the broker gets an empty bucket.
    settings = pipeline.source or settings_from({"storage.backend.class": "memory"})
    with (
        open_bucket(pipeline.output) as output,
        open_bucket(settings) as bucket,
        bucket.manager() as source,
    ):
        yield Parts(output.store, source)
