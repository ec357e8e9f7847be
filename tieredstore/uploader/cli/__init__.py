"""The uploader's command."""

from __future__ import annotations

from typing import Final

from tieredstore.cli.app.table import Entry, Loaded


def _uploader() -> Loaded:
    from tieredstore.uploader.cli import uploader

    return uploader.uploader


COMMANDS: Final = (
    Entry(
        "uploader",
        "Ship the closed segments of the broker beside it, in order, as long as it runs, and lose none.",
        "adds",
        _uploader,
    ),
)
