"""A pipeline in this process: it plans, writes windows on threads, commits and publishes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from tieredstore.errors import DataLoss
from tieredstore.partitions.live_window import open_reader
from tieredstore.partitions.log_query import LogQuery, timeout_of
from tieredstore.partitions.selections import Selection, Subscribe, SubscribePattern
from tieredstore.partitions.snapshots import LogSnapshots
from tieredstore.partitions.unreadable import check_readable
from tieredstore.partitions.window import read_window
from tieredstore.pipelines.driver import Driver, Written
from tieredstore.pipelines.entries import Entry
from tieredstore.pipelines.setup import format_of, naming_of, parser_of
from tieredstore.pipelines.window_writing import Recipe, Window, discard_files, write_window
from tieredstore.pipelines.windows import Policy, Waiting, due_windows
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.records.settings import ReadSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tieredstore.backends.base import ObjectStore
    from tieredstore.live import LiveReader
    from tieredstore.partitions.log_snapshot import LogSnapshot
    from tieredstore.pipelines.settings import Pipeline, PipelineSettings
    from tieredstore.remote.source import SegmentSource

_LOOK_S: Final = 1.0
_COLUMNS: Final = ("key", "value", "headers", "offset", "timestamp", "timestampType")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a runner is made of; opened and closed by whoever makes one."""

    store: ObjectStore
    source: SegmentSource


class Runner:
    """One pipeline at work in this process. For one thread; to be closed."""

    def __init__(
        self, pipeline: Pipeline, parts: Parts, *, threads: int = 2, clock: Callable[[], float] = time.monotonic
    ) -> None:
        own = pipeline.own
        self._pipeline, self._parts, self._clock, self._threads = pipeline, parts, clock, threads
        self._query = query_of(pipeline)
        self._skipped = re.compile(own.topic_blacklist) if own.topic_blacklist else None
        self.driver = Driver(parts.store, own, naming_of(pipeline))
        self._recipe = Recipe(
            parser_of(own), format_of(own), self.driver.naming, own.max_file_bytes, own.max_file_records,
            self.driver.log.staging_prefix, own.local_path or None,
        )  # fmt: skip
        self._policy = Policy(own.max_file_bytes, own.max_file_records, own.max_file_age_s)
        self._waiting = Waiting()
        self._open = ExitStack()
        self._live: LiveReader | None = None
        self._logs = LogSnapshots(lambda: parts.source, self._query, fresh_s=_LOOK_S, clock=clock)
        self._has_begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the broker; the parts are their owner's."""
        self._logs.close()
        self._open.close()

    def run_once(self) -> Iterator[Entry]:
        """Write all that there is by now, batch by batch; each is told of when it is published."""
        snapshot = self._snapshot()
        self._begin(snapshot)
        while (entry := self._step(snapshot, is_last=True)) is not None:
            yield entry

    def step(self) -> Entry | None:
        """Write what is due by the policies; None if nothing is."""
        snapshot = self._snapshot()
        self._begin(snapshot)
        return self._step(snapshot, is_last=False)

    def _begin(self, snapshot: LogSnapshot) -> None:
        if not self._has_begun:
            topics = sorted({topic for topic, _ in snapshot.logs})
            self.driver.begin(topics, partial(self._write, snapshot))
            self._has_begun = True

    def _snapshot(self) -> LogSnapshot:
        snapshot = self._logs.current()
        if self._skipped is None:
            return snapshot
        logs = {where: log for where, log in snapshot.logs.items() if not self._skipped.fullmatch(where[0])}
        return replace(snapshot, logs=logs)

    def _step(self, snapshot: LogSnapshot, *, is_last: bool) -> Entry | None:
        windows = due_windows(
            snapshot, self.driver.log.state.positions, self._policy, self._waiting, self._clock(),
            starting=self._pipeline.own.starting, is_last=is_last,
        )  # fmt: skip
        if not windows:
            return None
        reach: dict[Any, tuple[int, int]] = {}
        for window in windows:
            where = window.topic, window.partition
            reach[where] = reach.get(where, (window.start, 0))[0], window.stop
        check_readable(snapshot, self._query, reach, starts_there=reach, stops_there=())
        written: list[Written] = []
        write = partial(self._write, snapshot)
        try:
            with ThreadPool(self._threads, "tieredstore-pipeline") as pool:
                # One by one, so that what was prepared before an error is known.
                written.extend(in_parallel(pool, write, windows, at_once=self._threads))
        except BaseException:
            discard_files(self._parts.store, [file for window, _ in written for file in window.files])
            raise
        return self.driver.commit(written)

    def _write(self, snapshot: LogSnapshot, window: Window) -> Written:
        log = snapshot.logs.get((window.topic, window.partition))
        if log is None or str(log.topic_id) != window.topic_id or window.start < log.earliest:
            raise DataLoss(
                f"offsets {window.start} to {window.stop - 1} of {window.topic}-{window.partition} are in neither "
                "bucket nor broker any more"
            )
        settings = ReadSettings(columns=_COLUMNS, isolation=self._query.isolation)
        records = read_window(
            log, window.start, window.stop,
            source=self._parts.source, query=self._query, settings=settings, reader=self._reader(),
        )  # fmt: skip
        try:
            return write_window(window, records, self._recipe, self._parts.store)
        finally:
            records.close()

    def _reader(self) -> LiveReader | None:
        if self._live is None and self._query.client is not None:
            self._live = open_reader(self._query)
            self._open.callback(self._live.close)
        return self._live


def query_of(pipeline: Pipeline) -> LogQuery:
    """Which logs the pipeline reads, and how."""
    own, client = pipeline.own, dict(pipeline.client) or None
    return LogQuery(
        selection_of(own),
        isolation="read_uncommitted" if own.isolation == "read_uncommitted" else "read_committed",
        client=client,
        timeout_s=timeout_of(client or {}, named="kafka."),
    )


def selection_of(own: PipelineSettings) -> Selection:
    """By name, or by the filter."""
    names = tuple(name for part in own.topic_list.split(",") if (name := part.strip()))
    return Subscribe(names) if names else SubscribePattern(own.topic_filter)
