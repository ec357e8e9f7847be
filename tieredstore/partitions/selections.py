"""Selections of topics and partitions. All are immutable and hashable."""

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
    """All partitions of each topic whose whole name matches ``pattern`` (a regular expression of Python's ``re``).

    Topics whose whole name matches ``without`` are excluded. An empty ``without`` excludes nothing.
    """

    pattern: str
    without: str = ""

    def has(self, topic: str) -> bool:
        """Return True if the topic is selected."""
        is_left_out = self.without != "" and re.fullmatch(self.without, topic) is not None
        return not is_left_out and re.fullmatch(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions, in ascending order."""

    partitions: tuple[TopicPartition, ...]


Selection: TypeAlias = Subscribe | SubscribePattern | Assign
"""A reader's selection."""


def named_topics(selection: Selection) -> list[str] | None:
    """Return the named topics, sorted, each once. Return None for a pattern, because it names no topics until it is
    matched.
    """
    match selection:
        case Subscribe(topics=topics):
            return sorted(set(topics))
        case Assign(partitions=partitions):
            return sorted({topic for topic, _ in partitions})
        case SubscribePattern():
            return None


def select_topics(selection: Selection, known: Iterable[str]) -> list[str]:
    """Return those of the ``known`` topics that are selected, or have a selected partition. Sort them."""
    match selection:
        case SubscribePattern():
            return sorted(filter(selection.has, set(known)))
        case _:
            return sorted(set(known).intersection(named_topics(selection) or ()))


def is_selected(selection: Selection, where: TopicPartition) -> bool:
    """Return True if the partition is selected, even if it does not exist."""
    match selection:
        case Subscribe(topics=topics):
            return where[0] in topics
        case Assign(partitions=partitions):
            return where in partitions
        case SubscribePattern():
            return selection.has(where[0])
