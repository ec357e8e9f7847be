"""Directories whose time is over: they get ``_SUCCESS``, which tells whoever waits for them that they are complete."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from tieredstore.errors import FencedError
from tieredstore.pipelines.log.commit_log import CommitLog, Life, Progress
from tieredstore.pipelines.log.holdings import Family, with_those_above
from tieredstore.pipelines.log.successes import Statement, change_success
from tieredstore.pipelines.parser_table import parser_of
from tieredstore.pipelines.run.windows import position_of

if TYPE_CHECKING:
    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.pipelines.log.entries import Entry, WrittenWindow
    from tieredstore.pipelines.run.generation import Generation
    from tieredstore.reading.log_snapshot import LogSnapshot

_logger: Final = logging.getLogger(__name__)

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
    if progress is None and starting != "earliest":
        return latest_ms  # where it begins is not committed yet
    if log is None or not log.on_broker or now_ms - latest_ms <= delay_ms:
        return latest_ms
    return now_ms if position_of(log, progress, starting) >= log.end else latest_ms


class Finalizer:
    """Knows which directories of a generation are over, and writes what says so. For one thread; a driver's own.

    | directory | means | what leads out of it |
    |---|---|---|
    | open | its time is not over, or nothing lies in it | the topic's watermark: over |
    | over | no entry says that it is complete | ``finalize``: complete |
    | complete | its ``_SUCCESS`` tells what it has | late files: the same, told anew; ``replacing``: withheld |
    | withheld | files of it give way: it has no ``_SUCCESS`` | ``replaced``: complete again, where files are left |
    """

    def __init__(self, generation: Generation) -> None:
        self._generation, self._store, self._log = generation, generation.store, generation.log
        self._naming, self._own, self.family = generation.naming, generation.own, generation.family
        self._tables = dict(generation.pipeline.tables)
        self._parser = parser_of(generation.own)
        self._periods: dict[str, tuple[str, int] | None] = {}

    def due(self, limits: Mapping[str, int]) -> list[Finished]:
        """Directories that are not finalized and over by the watermarks of their topics: the oldest, at most 1,000."""
        over = self._over(limits)
        if over and self.family.refresh():
            # Files may be giving way to another generation's by now.
            over = self._over(limits)
        oldest = sorted((ends_ms, path, topic) for path, (ends_ms, topic) in over.items())[:_AT_ONCE]
        held = self.family.count_contents([path for _, path, _ in oldest])
        return [
            Finished(path, topic, ends_ms, *held[path], self._statement(path, topic)) for ends_ms, path, topic in oldest
        ]

    def _over(self, limits: Mapping[str, int]) -> dict[str, tuple[int, str]]:
        excluded = self.family.finalized | self.family.withheld
        over: dict[str, tuple[int, str]] = {}
        # Where a backfill is not done yet, nothing is complete by it.
        for state in (state for state in self.family.states() if state.is_filled):
            for path, contents in state.directories.items():
                limit = limits.get(contents.topic)
                period = None if limit is None else self._period(contents.topic, path)
                if limit is not None and period is not None and period[1] <= limit and period[0] not in excluded:
                    over[period[0]] = period[1], contents.topic
        return over

    def late(self, windows: Sequence[WrittenWindow]) -> list[str]:
        """Directories that are finalized and get more records by these windows."""
        paths = {file.key.rpartition("/")[0] for window in windows for file in window.data_files}
        above = {above for path in paths for above in with_those_above(path)}
        late = above & self.family.finalized
        if late and self.family.refresh():
            late -= self.family.withheld
        return sorted(late)

    def write(self, entry: Entry) -> None:
        """Write, or replace, what an entry says; as often as one likes. FencedError if another driver works by now.

        Not of a directory some of whose files give way to another generation's just now, nor of one that has none.
        """
        if not entry.directories:
            return
        self.family.refresh()
        withheld, held = self.family.withheld, self.family.count_contents(entry.directories)
        try:
            for path in entry.directories:
                if path not in withheld and held[path][0]:
                    said = self._own_statement(*held[path], entry.number)
                    change_success(self._store, path, said, self.family.has_said, self._log.check_alone)
            self._log.check_alone()
        except FencedError:
            self._unsay(entry.directories)
            raise
        if not entry.windows:
            self._write_statements(entry)
        if self.family.refresh():
            # Who has files replaced says so first, then takes these away: one of the two sees the other.
            for path in set(entry.directories) & self.family.withheld:
                self.take_back(path)

    def take_back(self, path: str) -> None:
        """Take ``_SUCCESS`` away from a directory. FencedError if another driver works by now.

        No store deletes on condition: what this process has deleted, since it slept in that very request while another
        one said the directory complete anew, is said again.
        """
        change_success(self._store, path, None, self.family.has_said, self._log.check_alone)
        try:
            self._log.check_alone()
        except FencedError:
            self._say_again(path)
            raise

    def _unsay(self, paths: Sequence[str]) -> None:
        """Take back what this process has said in a request that it slept in, while another one had dropped the files.

        A create is conditional on nothing but that nobody else has said anything.
        """
        log, family = self._fresh()
        for path in paths:
            if log.state.life is Life.DROPPED:
                change_success(self._store, path, None, self._generation.is_own)
            elif path in family.withheld:
                change_success(self._store, path, None, family.has_said)

    def _fresh(self) -> tuple[CommitLog, Family]:
        """A log of its own, so that this driver's goes on to be fenced."""
        log = self._log.of_generation(self._log.generation)
        log.read()
        return log, Family(log)

    def _say_again(self, path: str) -> None:
        log, family = self._fresh()
        files, records = family.count_contents([path])[path]
        if path in family.finalized and path not in family.withheld and files:
            change_success(self._store, path, self._own_statement(files, records, log.state.number), family.has_said)

    def _own_statement(self, files: int, records: int, number: int) -> Statement:
        return Statement(self._own.name, self._own.generation, files, records, number)

    def _write_statements(self, entry: Entry) -> None:
        topics = {path: held.topic for state in self.family.states() for path, held in state.directories.items()}
        topic_of = {above: topic for path, topic in topics.items() for above in with_those_above(path)}
        statements = [self._statement(path, topic_of[path]) for path in entry.directories if path in topic_of]
        lines = [f"{statement};\n" for statement in statements if statement is not None]
        if lines:
            self._store.put(f"{self._naming.folder}hive/{entry.number:020}.sql", "".join(lines).encode())

    def _period(self, topic: str, path: str) -> tuple[str, int] | None:
        if path not in self._periods:
            self._periods[path] = self._period_of(topic, path)
        return self._periods[path]

    def _period_of(self, topic: str, path: str) -> tuple[str, int] | None:
        directory = self._naming.places.directory(topic, path)
        period = None if directory is None else self._parser.period(directory)
        if directory is None or period is None:
            return None
        if period[0] == directory:
            return path, period[1]
        # Of hashed ones no directory has all that is of that time.
        return None if self._naming.places.hashed else (path.removesuffix(directory) + period[0], period[1])

    def _statement(self, path: str, topic: str) -> str | None:
        database, _, table = self._tables.get(topic, self._own.table.hive_prefix).rpartition(".")
        if topic not in self._tables:
            if not self._own.table.hive_prefix:
                return None
            table += topic
        statement = add_partition(database, table, self._naming.places.directory(topic, path) or "")
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
        values.append(f"{_quote(name)}='{text}'")
    whole = f"{_quote(database)}.{_quote(table)}" if database else _quote(table)
    return f"ALTER TABLE {whole} ADD IF NOT EXISTS PARTITION ({', '.join(values)})"


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
