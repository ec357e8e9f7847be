"""Progress and outages of a running pipeline. Monitoring sees them as Prometheus metrics, and the backlog as a consumer
group's lag.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tieredstore.errors import TieredStoreError
from tieredstore.metrics import REGISTRY
from tieredstore.pipelines.run.source import query_of
from tieredstore.process.deadline import Deadline

if TYPE_CHECKING:
    from tieredstore.live import LiveCluster
    from tieredstore.model import TopicPartition
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.log.commit_log import Progress
    from tieredstore.pipelines.log.entries import Entry


def _counter(meaning: str) -> Any:
    return field(default=0, metadata={"family": CounterMetricFamily, "meaning": meaning})


def _gauge(meaning: str) -> Any:
    return field(default=0, metadata={"family": GaugeMetricFamily, "meaning": meaning})


@dataclass(slots=True)
class Counts:
    """A pipeline's totals since the process started, and its current state. Only the driver's thread writes them; other
    threads may read them. Each field is a metric."""

    batches: int = _counter("Batches committed and published.")
    files: int = _counter("Data files published.")
    records: int = _counter("Records written to data files.")
    bytes: int = _counter("Bytes of all files published.")
    bad_messages: int = _counter("Bad messages, written to quarantine files instead of data files.")
    finalized: int = _counter("Directories marked complete.")
    late: int = _counter("Complete directories that got late records, counted once per batch.")
    outages: int = _counter("Number of outages of a store or broker.")
    up: int = _gauge("1 while the Spark query of the pipeline runs, else 0.")
    waiting_seconds: float = _gauge("Duration of the current outage of a store or broker; 0 without one.")
    lag_offsets: int = _gauge("Number of unwritten offsets in all partitions.")
    lag_seconds: float = _gauge("Time since this process first saw the oldest unwritten record; 0 if all are written.")
    last_commit_timestamp_seconds: float = _gauge("Time when this process last published a batch; 0 before the first.")

    def note(self, entry: Entry) -> None:
        """Count an entry whose files are published."""
        if not entry.windows:
            self.finalized += len(entry.directories)
            return
        self.batches += 1
        self.files += sum(file.kind == "data" for file in entry.files)
        self.bytes += sum(file.size for file in entry.files)
        self.records += sum(window.records for window in entry.windows)
        self.bad_messages += sum(window.quarantined for window in entry.windows)
        self.late += len(entry.directories)
        self.last_commit_timestamp_seconds = time.time()


CountsOf: TypeAlias = Callable[[], tuple[str, int, Counts]]
"""Function that returns a pipeline's name, its generation and its counts."""


class CountsCollector(Collector):
    """Prometheus collector of the counts of running pipelines in this process. Its labels are a pipeline's name and
    generation (a version of the output). Thread-safe.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry, self._lock = registry, threading.Lock()
        self._pipelines: list[CountsOf] = []

    def add(self, counts: CountsOf) -> None:
        """Add a pipeline. The first one registers the collector."""
        with self._lock:
            if not self._pipelines:
                self._registry.register(self)
            self._pipelines.append(counts)

    def remove(self, counts: CountsOf) -> None:
        """Remove a pipeline. Without pipelines, the collector is not registered."""
        with self._lock:
            self._pipelines.remove(counts)
            if not self._pipelines:
                self._registry.unregister(self)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values; the registry uses the names to detect duplicates."""
        return _families().values()

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        families = _families()
        for counts_of in list(self._pipelines):
            pipeline, generation, counts = counts_of()
            for name, family in families.items():
                family.add_metric([pipeline, str(generation)], getattr(counts, name))
        return families.values()


def _families() -> dict[str, CounterMetricFamily | GaugeMetricFamily]:
    return {
        one.name: one.metadata["family"](
            f"tieredstore_pipeline_{one.name}", one.metadata["meaning"], labels=("pipeline", "generation")
        )
        for one in fields(Counts)
    }


_logger: Final = logging.getLogger(__name__)

_AGAIN_S: Final = 30.0
_LAST_S: Final = 10.0
"""Seconds that ``close`` waits for offsets to be committed to the group."""


class GroupProgress:
    """Consumer group to which a thread commits published offsets, so that the group's lag shows the backlog. The
    pipeline never waits for the thread.

    If the broker is unavailable or refuses the commit, the thread logs a warning and retries. Only one thread may call
    :meth:`note`.
    """

    def __init__(self, group: str, cluster: LiveCluster, *, again_s: float = _AGAIN_S) -> None:
        """``close`` also closes ``cluster``."""
        self._group, self._cluster, self._again_s = group, cluster, again_s
        self._changed = threading.Condition()
        self._wanted: dict[TopicPartition, int] = {}
        self._told: dict[TopicPartition, int] = {}
        self._is_closing = False
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, pipeline: Pipeline) -> GroupProgress | None:
        """Return the GroupProgress of ``commit.to.group``, or None if the setting is unset."""
        cluster = query_of(pipeline).open_cluster() if pipeline.own.groups.commit_group else None
        return None if cluster is None else cls(pipeline.own.groups.commit_group, cluster)

    def note(self, positions: Mapping[TopicPartition, Progress]) -> None:
        """Let the background thread commit these positions to the consumer group; do not wait for it."""
        with self._changed:
            self._wanted = {where: progress.next_offset for where, progress in positions.items()}
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tieredstore-group", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, *, within_s: float = _LAST_S) -> None:
        """Try once more to commit the remaining offsets; wait for at most ``within_s`` seconds."""
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
                    _logger.warning("commit.to.group: %s; retrying", error)
                if is_last:
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closing, self._again_s)
            else:
                if warned:
                    _logger.warning("commit.to.group: the group %s is updated again", self._group)
                warned = ""
                self._told.update(rest)

    def _rest(self) -> dict[TopicPartition, int] | None:
        """Wait until there are uncommitted offsets, and return them. Return None if ``close`` was called and none are
        left."""

        def rest() -> dict[TopicPartition, int]:
            return {where: at for where, at in self._wanted.items() if self._told.get(where) != at}

        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or rest())
            return rest() or None


_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0


class Outage:
    """Duration of an outage (an unavailable store or broker), from the first failure to the next success. Not
    thread-safe."""

    def __init__(self, limit_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` is monotonic, in seconds."""
        self._limit_s, self._clock = limit_s, clock
        self._since_s: float | None = None
        self._pause_s = _FIRST_PAUSE_S
        self.reason = ""
        """Text of the last failure."""
        self.count = 0
        """Number of outages so far."""

    @property
    def is_on(self) -> bool:
        """True if the last attempt failed."""
        return self._since_s is not None

    @property
    def waiting_s(self) -> float:
        """Duration of the current outage, or 0. Any thread may read it."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._clock() - since_s

    def note_failure(self, error: TieredStoreError) -> float:
        """Return the seconds to wait before the next attempt. Raise the error if it is not retryable or the time limit
        is over.

        Only the first failure of an outage is logged.
        """
        now = self._clock()
        if not error.retryable:
            raise error
        self.reason = str(error)
        if self._since_s is None:
            self._since_s, self._pause_s, self.count = now, _FIRST_PAUSE_S, self.count + 1
            _logger.warning("retrying for at most %g s: %s", self._limit_s, error)
        if now - self._since_s >= self._limit_s:
            raise error
        pause_s, self._pause_s = self._pause_s, min(_LONGEST_PAUSE_S, 2 * self._pause_s)
        return pause_s

    def note_success(self) -> None:
        """Note that an operation has succeeded."""
        if self._since_s is not None:
            _logger.warning("available again after %.0f s", self._clock() - self._since_s)
        self._since_s = None
