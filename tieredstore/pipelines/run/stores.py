"""The stores that a pipeline reads and writes."""

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
"""Columns of records that pipelines read."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The output store, and the bucket to read. ``open_parts`` opens and closes both."""

    store: ObjectStore
    source: SegmentSource


@contextlib.contextmanager
def open_parts(pipeline: Pipeline) -> Generator[Parts]:
    """Open the output and the bucket that the settings name; close both at the end."""
    # A pipeline that reads only from the broker gets an empty bucket in memory.
    settings = pipeline.source or settings_from({"storage.backend.class": "memory"})
    with (
        open_bucket(pipeline.output) as output,
        open_bucket(settings) as bucket,
        bucket.manager() as source,
    ):
        yield Parts(output.store, source)
