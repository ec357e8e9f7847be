"""A consumer group that is told how far a pipeline is, so that tools for Kafka's groups show its lag."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tieredstore.errors import TieredStoreError
from tieredstore.pipelines.run.selection import query_of
from tieredstore.process.deadline import Deadline

if TYPE_CHECKING:
    from tieredstore.live import LiveCluster
    from tieredstore.model import TopicPartition
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.log.commit_log import Progress

_logger: Final = logging.getLogger(__name__)

_AGAIN_S: Final = 30.0
_LAST_S: Final = 10.0
"""For so long the end waits for what is not told yet."""


class GroupProgress:
    """Commits offsets of what is published, on a thread of its own: truth is the commit log, and nothing waits for it.

    A broker that is away or refuses is a warning, and asked again. :meth:`note` is for one thread.
    """

    def __init__(self, group: str, cluster: LiveCluster, *, again_s: float = _AGAIN_S) -> None:
        """The cluster is this object's to close."""
        self._group, self._cluster, self._again_s = group, cluster, again_s
        self._changed = threading.Condition()
        self._wanted: dict[TopicPartition, int] = {}
        self._told: dict[TopicPartition, int] = {}
        self._is_closing = False
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, pipeline: Pipeline) -> GroupProgress | None:
        """That of ``commit.to.group``; None without it."""
        cluster = query_of(pipeline).open_cluster() if pipeline.own.groups.commit_group else None
        return None if cluster is None else cls(pipeline.own.groups.commit_group, cluster)

    def note(self, positions: Mapping[TopicPartition, Progress]) -> None:
        """Take how far each partition is published; return at once."""
        with self._changed:
            self._wanted = {where: progress.next_offset for where, progress in positions.items()}
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tieredstore-group", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, *, within_s: float = _LAST_S) -> None:
        """Try once more to tell what is not told, for so long at most."""
        deadline = Deadline.after(within_s)
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(max(0.0, deadline.remaining_s()))
        self._cluster.close()

    def _run(self) -> None:
        warned = ""
        while (rest := self._rest()) is not None:
            is_last = self._is_closing
            try:
                self._cluster.commit_offsets(self._group, rest)
            except TieredStoreError as error:
                if str(error) != warned:
                    warned = str(error)
                    _logger.warning("commit.to.group: %s; it is tried again", error)
                if is_last:
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closing, self._again_s)
            else:
                if warned:
                    _logger.warning("commit.to.group: the group %s is told again", self._group)
                warned = ""
                self._told.update(rest)

    def _rest(self) -> dict[TopicPartition, int] | None:
        """What is to be told; None at the end."""
        with self._changed:
            while True:
                rest = {where: at for where, at in self._wanted.items() if self._told.get(where) != at}
                if rest:
                    return rest
                if self._is_closing:
                    return None
                self._changed.wait()
