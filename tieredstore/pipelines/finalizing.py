"""Directories whose time is over: they get ``_SUCCESS``, which tells whoever waits for them that they are complete."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from tieredstore.pipelines.commit_log import CommitLog, LogState, Progress
from tieredstore.pipelines.setup import parser_of
from tieredstore.pipelines.windows import position_of

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log_snapshot import LogSnapshot
    from tieredstore.partitions.partition_log import PartitionLog
    from tieredstore.pipelines.entries import Entry, WrittenWindow
    from tieredstore.pipelines.naming import Naming
    from tieredstore.pipelines.settings import PipelineSettings

_logger: Final = logging.getLogger(__name__)

SUCCESS: Final = "_SUCCESS"
"""The name that Hadoop's tools look for."""
_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class Finished:
    """A directory whose time is over, with all that is filed in it or below.

    ``ends_ms`` is when its time was over, ``statement`` what makes it known to Hive, if a table is named.
    """

    path: str
    topic: str
    ends_ms: int
    files: int
    records: int
    statement: str | None


def watermarks(
    snapshot: LogSnapshot,
    positions: Mapping[TopicPartition, Progress],
    *,
    now_ms: int,
    delay_ms: int,
    starting: str,
) -> dict[str, int]:
    """Of each topic the time up to which its directories are complete: ``delay_ms`` before its slowest partition's."""
    times: dict[str, int] = {}
    for where in positions.keys() | snapshot.logs.keys():
        time_ms = _time_ms(snapshot.logs.get(where), positions.get(where), now_ms, delay_ms, starting)
        times[where[0]] = min(time_ms, times.get(where[0], time_ms))
    return {topic: time_ms - delay_ms for topic, time_ms in times.items()}


def _time_ms(log: PartitionLog | None, progress: Progress | None, now_ms: int, delay_ms: int, starting: str) -> int:
    """The latest time that a partition has committed; now, if nothing came to it for so long and all is read.

    Only a broker says that all is: behind the end of a bucket are the records that are not copied yet. A time in the
    future is some producer's mistake, and finalizes nothing that has not even begun.
    """
    latest_ms = -1 if progress is None else min(progress.max_timestamp, now_ms)
    if log is None or not log.on_broker or now_ms - latest_ms <= delay_ms:
        return latest_ms
    return now_ms if position_of(log, progress, starting) >= log.end else latest_ms


class Finalizer:
    """Knows which directories of a generation are over, and writes what says so. For one thread; a driver's own."""

    def __init__(
        self, store: ObjectStore, log: CommitLog, own: PipelineSettings, naming: Naming, tables: Mapping[str, str]
    ) -> None:
        self._store, self._log, self._own, self._naming = store, log, own, naming
        self.tables = tables
        self._parser = parser_of(own)
        self._periods: dict[str, tuple[str, int] | None] = {}
        self._before: list[LogState] | None = None

    def due(self, limits: Mapping[str, int]) -> list[Finished]:
        """Directories that are not finalized and over by the watermarks of their topics: the oldest, at most 1,000."""
        finalized = self._finalized()
        over: dict[str, tuple[int, str]] = {}
        for state in self._states():
            for path, contents in state.directories.items():
                limit = limits.get(contents.topic)
                period = None if limit is None else self._period(contents.topic, path)
                if limit is not None and period is not None and period[1] <= limit and period[0] not in finalized:
                    over[period[0]] = period[1], contents.topic
        oldest = sorted((ends_ms, path, topic) for path, (ends_ms, topic) in over.items())[:_AT_ONCE]
        held = self._held([path for _, path, _ in oldest])
        return [
            Finished(path, topic, ends_ms, *held[path], self._statement(path, topic)) for ends_ms, path, topic in oldest
        ]

    def late(self, windows: Sequence[WrittenWindow]) -> list[str]:
        """Directories that are finalized and get more records by these windows."""
        finalized = self._finalized()
        paths = {file.key.rpartition("/")[0] for window in windows for file in window.data_files}
        return sorted({above for path in paths for above in _with_those_above(path) if above in finalized})

    def write(self, entry: Entry) -> None:
        """Write, or replace, what an entry says; as often as one likes. Fenced if another driver works by now."""
        held = self._held(entry.directories)
        for path in entry.directories:
            files, records = held[path]
            content = {
                "pipeline": self._own.name, "generation": self._own.generation,
                "files": files, "records": records, "commit": entry.number,
            }  # fmt: skip
            self._log.check_alone()
            self._store.put(f"{path}/{SUCCESS}", json.dumps(content).encode())
        if entry.kind == "finalize":
            self._write_statements(entry)

    def _write_statements(self, entry: Entry) -> None:
        topics = {path: held.topic for state in self._states() for path, held in state.directories.items()}
        topic_of = {above: topic for path, topic in topics.items() for above in _with_those_above(path)}
        statements = [self._statement(path, topic_of[path]) for path in entry.directories]
        lines = [f"{statement};\n" for statement in statements if statement is not None]
        if lines:
            self._store.put(f"{self._naming.folder}hive/{entry.number:020}.sql", "".join(lines).encode())

    def _states(self) -> list[LogState]:
        """What this generation's log says, and the logs of those that it took over."""
        if self._before is None:
            self._before = list(self._taken_over())
        return [self._log.state, *self._before]

    def _taken_over(self) -> Iterator[LogState]:
        # A log that goes on names the one before it; one that is sealed names that in its first entry only.
        generation = self._log.state.other
        while generation >= 0:
            log = CommitLog(self._store, self._naming.root, self._own.name, generation)
            state = log.read()
            if state.number < 0:
                return
            if state.closed != "drop":
                yield state
            first = log.entry(0)
            generation = first.other if first.kind == "take-over" else -1

    def _finalized(self) -> set[str]:
        return set[str]().union(*(state.finalized for state in self._states()))

    def _held(self, paths: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Files and records in each of these directories and below."""
        held: dict[str, tuple[int, int]] = dict.fromkeys(paths, (0, 0))
        for state in self._states():
            for inner, one in state.directories.items():
                for above in _with_those_above(inner):
                    if above in held:
                        files, records = held[above]
                        held[above] = files + one.files, records + one.records
        return held

    def _period(self, topic: str, path: str) -> tuple[str, int] | None:
        if path not in self._periods:
            above = f"{self._naming.root}{topic}/"
            period = self._parser.period(path.removeprefix(above))
            self._periods[path] = None if period is None else (above + period[0], period[1])
        return self._periods[path]

    def _statement(self, path: str, topic: str) -> str | None:
        database, _, table = self.tables.get(topic, self._own.hive_prefix).rpartition(".")
        if topic not in self.tables:
            if not self._own.hive_prefix:
                return None
            table += topic
        statement = add_partition(database, table, path.removeprefix(f"{self._naming.root}{topic}/"))
        if statement is None:
            _logger.warning("%s is not made known to Hive: parts of it are not as name=value", path)
        return statement


def add_partition(database: str, table: str, directory: str) -> str | None:
    """What makes a directory a partition of a table of Hive's; None where a part of it is not ``name=value``."""
    values: list[str] = []
    for part in directory.split("/"):
        name, is_named, value = part.partition("=")
        if not name or not is_named:
            return None
        text = unquote(value).replace("\\", "\\\\").replace("'", "\\'")
        values.append(f"{_quoted(name)}='{text}'")
    whole = f"{_quoted(database)}.{_quoted(table)}" if database else _quoted(table)
    return f"ALTER TABLE {whole} ADD IF NOT EXISTS PARTITION ({', '.join(values)})"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _with_those_above(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]
