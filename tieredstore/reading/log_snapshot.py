"""Which offsets there are at one moment: the bucket's, and from where these end the broker's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.catalog.absence import absence
from tieredstore.catalog.problems import Problem
from tieredstore.model import TopicPartition
from tieredstore.partitions.log import PartitionLog
from tieredstore.partitions.selections import Assign, Selection, named_topics
from tieredstore.reading.survey import LogSurvey

if TYPE_CHECKING:
    from tieredstore.catalog.catalog_file import CatalogFile
    from tieredstore.catalog.watermark import StoredMoves
    from tieredstore.live import LiveCluster
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

    @classmethod
    def take(
        cls,
        source: SegmentSource,
        query: LogQuery,
        *,
        catalog_file: CatalogFile | None = None,
        cluster: LiveCluster | None = None,
        before: LogSnapshot | None = None,
        moves: StoredMoves | None = None,
    ) -> LogSnapshot:
        """List the bucket and ask the broker, if the query has one; it is asked by ``cluster`` if that is given.

        Topics are looked up together: the broker is asked as often for many as for one, and a listing of the bucket
        takes as many pages as the topics have, and a few more. Topics and partitions that neither has are absent.
        DataLoss by the query's policy where the two do not belong together: the broker has no such topic, has it under
        an id that the bucket does not know, or its log ends before the bucket's. ConfigError for a topic that was
        created again where nothing tells which one is meant. ``before`` is an earlier snapshot by the same isolation:
        where nothing came to a partition in the bucket, its segments are not asked again. ``moves`` are watermarks that
        were read before: those of partitions that no broker has are looked at.
        """
        with contextlib.ExitStack() as closed_after_an_error:
            if cluster is None and (cluster := query.open_cluster()) is not None:
                closed_after_an_error.callback(cluster.close)
            survey = LogSurvey(source, query, cluster, before.logs if before is not None else None, moves)
            # In this order: what the broker deletes after it is in the bucket is a hole otherwise, and what it gets and
            # copies into the bucket meanwhile lies behind its end.
            survey.ask_for_beginnings()
            catalog = survey.catalog(catalog_file)
            logs = {log.where: log for log in survey.logs(catalog)}
            closed_after_an_error.pop_all()  # times are looked up by it later
        unreadable = tuple(problem for problem in catalog.problems if problem.is_loss)
        return cls(logs, (*map(str, catalog.problems), *survey.losses), unreadable)

    def bytes_between(self, where: TopicPartition, start: int, stop: int) -> int:
        """How many bytes of a partition's log the offsets (half-open) take, about."""
        return self.logs[where].bytes_between(start, stop)

    def check_selected(self, query: LogQuery, source: SegmentSource) -> None:
        """ResourceNotFound if a topic or partition that the query names is not there.

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
