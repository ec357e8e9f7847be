"""The consumer's command."""

from __future__ import annotations

from typing import Final

from tieredstore.cli.app.table import Entry, Loaded


def _consume() -> Loaded:
    from tieredstore.consumer.cli import consume

    return consume.consume


COMMANDS: Final = (
    Entry(
        "consume",
        "Show the records of a topic as a consumer of bucket and broker gets them, until interrupted.",
        _consume,
    ),
)
