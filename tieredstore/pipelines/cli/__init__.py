"""The commands ``tieredstore pipeline``."""

from __future__ import annotations

from typing import Final

from tieredstore.cli.app.table import Effect, Entry

_EFFECTS: Final[dict[str, Effect]] = {
    "init": "adds", "run": "adds", "status": "reads", "verify": "reads", "finalize": "rewrites", "backfill": "rewrites",
    "gc": "rewrites", "rm": "rewrites",
}  # fmt: skip
COMMANDS: Final = (
    Entry(
        "pipeline",
        "Write topics as files, each record exactly once.",
        _EFFECTS,
        "tieredstore.pipelines.cli.pipeline:app",
    ),
)
