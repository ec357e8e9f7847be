"""The command ``tieredstore uploader``, for the table of commands."""

from __future__ import annotations

from typing import Final

from tieredstore.cli.app.table import Entry

COMMANDS: Final = (
    Entry(
        "uploader",
        "Continuously upload the closed segments of the local broker, in order and without loss.",
        "adds",
        "tieredstore.uploader.cli.uploader:uploader",
    ),
)
