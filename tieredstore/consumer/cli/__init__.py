"""The consumer's entry in the list of commands: ``cat --group``."""

from __future__ import annotations

from typing import Final

from tieredstore.cli.app.table import Entry, Loaded


def _read_by_group() -> Loaded:
    from tieredstore.consumer.cli import consume

    return consume.ConsumedTopic


COMMANDS: Final = (Entry("cat --group", "Read a topic as a member of a group.", "reads", _read_by_group),)
