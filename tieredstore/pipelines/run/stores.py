"""What a pipeline reads and writes: the store of its output, the bucket, and the columns of records."""

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
"""What is read of records."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The store that is written and the bucket that is read; opened and closed by whoever makes them."""

    store: ObjectStore
    source: SegmentSource


@contextlib.contextmanager
def open_parts(pipeline: Pipeline) -> Generator[Parts]:
    """Open both by the settings; they are closed again at the end."""
    # A pipeline of the broker alone reads a bucket that has nothing.
    settings = pipeline.source or settings_from({"storage.backend.class": "memory"})
    with (
        open_bucket(pipeline.output) as output,
        open_bucket(settings) as bucket,
        bucket.manager() as source,
    ):
        yield Parts(output.store, source)
