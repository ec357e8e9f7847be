"""The stores of a pipeline, opened by its settings."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from tieredstore.config import settings_from
from tieredstore.ops.bucket import open_bucket
from tieredstore.pipelines.config.settings import Pipeline
from tieredstore.pipelines.run.parts import Parts


@contextlib.contextmanager
def open_parts(pipeline: Pipeline) -> Generator[Parts]:
    """The store that is written and the bucket that is read, closed again at the end."""
    # A pipeline of the broker alone reads a bucket that has nothing.
    settings = pipeline.source or settings_from({"storage.backend.class": "memory", "chunk.size": "4194304"})
    with (
        open_bucket(pipeline.output) as output,
        open_bucket(settings) as bucket,
        bucket.manager() as source,
    ):
        yield Parts(output.store, source)
