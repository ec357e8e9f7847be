"""Which topics and partitions are meant. All frozen, all hashable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tieredstore.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics whose whole name matches ``pattern``, an expression of Python's ``re``.

    But not those whose whole name matches ``without``, unless that is empty.
    """

    pattern: str
    without: str = ""

    def has(self, topic: str) -> bool:
        """Whether a topic is one of these."""
        is_left_out = self.without != "" and re.fullmatch(self.without, topic) is not None
        return not is_left_out and re.fullmatch(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions, in ascending order."""

    partitions: tuple[TopicPartition, ...]


Selection: TypeAlias = Subscribe | SubscribePattern | Assign
"""What a reader asks for by name."""


def named_topics(selection: Selection) -> list[str] | None:
    """The topics that are named, each once and sorted; None for a pattern, which says nothing before it is matched."""
    match selection:
        case Subscribe(topics=topics):
            return sorted(set(topics))
        case Assign(partitions=partitions):
            return sorted({topic for topic, _ in partitions})
        case SubscribePattern():
            return None


def selected_topics(selection: Selection, known: Iterable[str]) -> list[str]:
    """Those of the ``known`` topics that are selected, or have a partition that is; sorted."""
    match selection:
        case SubscribePattern():
            return sorted(filter(selection.has, set(known)))
        case _:
            return sorted(set(known).intersection(named_topics(selection) or ()))


def is_selected(selection: Selection, where: TopicPartition) -> bool:
    """Whether a partition is selected, if it is there."""
    match selection:
        case Subscribe(topics=topics):
            return where[0] in topics
        case Assign(partitions=partitions):
            return where in partitions
        case SubscribePattern():
            return selection.has(where[0])
