"""The commands ``tieredstore pipeline``."""

from __future__ import annotations

from typing import Final

from tieredstore.cli.app.table import Effect, Entry, Loaded


def _pipeline() -> Loaded:
    from tieredstore.pipelines.cli import pipeline

    return pipeline.app


_EFFECTS: Final[dict[str, Effect]] = {
    "init": "adds", "run": "adds", "status": "reads", "verify": "reads", "finalize": "rewrites", "backfill": "rewrites",
    "gc": "rewrites", "rm": "rewrites",
}  # fmt: skip
COMMANDS: Final = (Entry("pipeline", "Write topics as files, each record exactly once.", _EFFECTS, _pipeline),)
