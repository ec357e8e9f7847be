"""The commands of pipelines."""

from __future__ import annotations

from typing import Final

from tieredstore.cli.app.table import Entry, Loaded


def _pipeline() -> Loaded:
    from tieredstore.pipelines.cli import pipeline

    return pipeline.app


COMMANDS: Final = (Entry("pipeline", "Topics kept as files, each record exactly once.", _pipeline),)
