"""The command ``tieredstore uploader``, for the table of commands."""

from __future__ import annotations

from typing import Final

from tieredstore.cli.app.table import Entry, Loaded


def _uploader() -> Loaded:
    from tieredstore.uploader.cli import uploader

    return uploader.uploader


COMMANDS: Final = (
    Entry(
        "uploader",
        "Continuously upload the closed segments of the local broker, in order and without loss.",
        "adds",
        _uploader,
    ),
)
