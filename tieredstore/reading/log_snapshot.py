"""Which offsets there are at one moment: the bucket's, and from where these end the broker's."""

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
    from tieredstore.remote.source import SegmentSource


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """The logs of all partitions that a query selects, as they were when it was taken.

    ``problems`` are sentences to be logged: segments that do not count, and what of bucket and broker does not belong
    together. ``unreadable`` are segments that are whole and that the settings' keys do not open, or that are damaged.
    """

    logs: Mapping[TopicPartition, PartitionLog]
    problems: tuple[str, ...] = ()
    unreadable: tuple[Problem, ...] = ()

    def bytes_between(self, where: TopicPartition, start: int, stop: int) -> int:
        """How many bytes of a partition's log the offsets (half-open) take, about."""
        return self.logs[where].bytes_between(start, stop)

    def check_selected(self, query: LogQuery, source: SegmentSource) -> None:
        """ResourceNotFoundError if a topic or partition that the query names is not there.

        Only then ``source`` is asked, and the broker: the error names what is like it.
        """
        missing = self._missing(query.selection)
        if missing:
            raise absence(
                source.store, source.layout.prefix, missing,
                topic_id=query.topic_ids.get(next(iter(missing))) if len(missing) == 1 else None,
                live=_live_partitions(query, missing),
            )  # fmt: skip

    def _missing(self, selection: Selection) -> dict[str, list[int]]:
        """The topics that are not there, with the partitions of them that were asked for."""
        topics = {topic for topic, _ in self.logs}
        if not isinstance(selection, Assign):
            return {topic: [] for topic in named_topics(selection) or () if topic not in topics}
        missing: dict[str, list[int]] = {}
        for topic, number in selection.partitions:
            if (topic, number) not in self.logs:
                missing.setdefault(topic, []).append(number)
        return missing


def _live_partitions(query: LogQuery, topics: Iterable[str]) -> dict[str, tuple[int, ...]] | None:
    """The partitions of these topics, and, for what is like their names, all others without any."""
    cluster = query.open_cluster()
    if cluster is None:
        return None
    with cluster:
        described = {name: live.partitions for name, live in cluster.describe(topics).items()}
        return {**dict.fromkeys(cluster.topics(), ()), **described}
