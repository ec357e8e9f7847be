"""The consumer's entry in the list of commands: ``cat --group``."""

from __future__ import annotations

from typing import Final

from tieredstore.cli.app.table import Entry

COMMANDS: Final = (
    Entry(
        "cat --group", "Read a topic as a member of a group.", "reads", "tieredstore.consumer.cli.consume:ConsumedTopic"
    ),
)
