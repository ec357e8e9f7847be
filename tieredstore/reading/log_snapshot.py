"""The offsets that exist at one moment: the bucket's offsets, and the broker's offsets after them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.catalog.absence import absence
from tieredstore.catalog.problems import Problem
from tieredstore.model import TopicPartition
from tieredstore.partitions.log import PartitionLog
from tieredstore.partitions.selections import Assign, Selection, named_topics

if TYPE_CHECKING:
    from tieredstore.reading.query import LogQuery
    from tieredstore.remote import RemoteStorageManager


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """The logs of all partitions that a query selects, at one moment.

    ``problems`` are sentences to log: ignored segments, truncated logs, and contradictions between bucket and broker.
    ``unreadable`` are segments that are damaged, or that the configured keys cannot open.
    """

    logs: Mapping[TopicPartition, PartitionLog]
    problems: tuple[str, ...] = ()
    unreadable: tuple[Problem, ...] = ()

    def bytes_between(self, where: TopicPartition, start: int, stop: int) -> int:
        """Estimate the bytes of a partition's log between two offsets (``stop`` is exclusive)."""
        return self.logs[where].bytes_between(start, stop)

    def check_selected(self, query: LogQuery, source: RemoteStorageManager) -> None:
        """Raise ResourceNotFoundError if a topic or partition that the query names does not exist.

        For the error's advice, the method asks ``source`` and the broker for similar names.
        """
        missing = self._find_missing(query.selection)
        if missing:
            raise absence(
                source.store, source.layout.prefix, missing,
                topic_id=query.topic_ids.get(next(iter(missing))) if len(missing) == 1 else None,
                live=_live_partitions(query, missing),
            )  # fmt: skip

    def _find_missing(self, selection: Selection) -> dict[str, list[int]]:
        """Return the missing topics, each with an empty list. If the query selects partitions, return the topics that
        lack some of these, each with a list of the missing partitions.
        """
        topics = {topic for topic, _ in self.logs}
        if not isinstance(selection, Assign):
            return {topic: [] for topic in named_topics(selection) or () if topic not in topics}
        missing: dict[str, list[int]] = {}
        for topic, number in selection.partitions:
            if (topic, number) not in self.logs:
                missing.setdefault(topic, []).append(number)
        return missing


def _live_partitions(query: LogQuery, topics: Iterable[str]) -> dict[str, tuple[int, ...]] | None:
    """Return these topics with their partitions. Also return all other topics, without partitions, to suggest similar
    names."""
    cluster = query.open_cluster()
    if cluster is None:
        return None
    with cluster:
        described = {name: live.partitions for name, live in cluster.describe(topics).items()}
        return {**dict.fromkeys(cluster.topics(), ()), **described}
