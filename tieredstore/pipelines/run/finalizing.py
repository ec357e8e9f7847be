"""Finalization: a directory of a past period gets a ``_SUCCESS`` object, which tells readers that the directory is
complete."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from tieredstore.errors import DataLossError, FencedError, ObjectNotFoundError
from tieredstore.pipelines.log.commit_log import CommitLog, Life, Progress
from tieredstore.pipelines.log.holdings import Family, directories_of, with_those_above
from tieredstore.pipelines.log.successes import Statement, change_success
from tieredstore.pipelines.parser_table import parser_of
from tieredstore.pipelines.run.generation import find_claimed_logs
from tieredstore.pipelines.run.windows import position_of

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.pipelines.log.entries import Entry, WrittenWindow
    from tieredstore.pipelines.run.generation import Generation
    from tieredstore.reading.log_snapshot import LogSnapshot

_logger: Final = logging.getLogger(__name__)

_AT_ONCE: Final = 1000
_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class Finished:
    """A directory of a past period. ``files`` and ``records`` are counts over this directory and all directories below
    it.

    ``ends_ms`` is the end of the period. ``statement`` is the Hive statement that adds the partition, or None if no
    Hive table is set.
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
    begins_elsewhere: bool,
) -> dict[str, int]:
    """Return for each topic the time up to which directories are complete: the time reached in the slowest partition,
    minus ``delay_ms``.
    """
    times: dict[str, int] = {}
    unreadable = {one.where for one in snapshot.unreadable}
    for where in positions.keys() | snapshot.logs.keys() | unreadable:
        log, progress = snapshot.logs.get(where), positions.get(where)
        # Without progress, no log entry records yet at which offset the partition begins. If a segment cannot be read,
        # the partition may have records of any time, even if it has no log here, or an empty one.
        is_unknown = progress is None and (begins_elsewhere or where in unreadable)
        time_ms = -1 if is_unknown else _time_ms(log, progress, now_ms, delay_ms)
        times[where[0]] = min(time_ms, times.get(where[0], time_ms))
    return {topic: time_ms - delay_ms for topic, time_ms in times.items()}


def _time_ms(log: PartitionLog | None, progress: Progress | None, now_ms: int, delay_ms: int) -> int:
    """Return a partition's latest committed timestamp. If all its records are read, and it has been idle for
    ``delay_ms``, return ``now_ms``.

    Only a broker can show that a partition is completely read, because the bucket lacks records that are not uploaded
    yet. A timestamp in the future is a producer's mistake and counts as the current time.
    """
    latest_ms = -1 if progress is None else min(progress.max_timestamp, now_ms)
    if log is None or not log.on_broker or now_ms - latest_ms <= delay_ms:
        return latest_ms
    try:
        reached = log.earliest if progress is None else position_of(log, progress)
    except DataLossError:
        # The error ends the run, but only after all other partitions are written.
        return latest_ms
    return now_ms if reached >= log.end else latest_ms


class Finalizer:
    """Writer of ``_SUCCESS`` objects to directories of past periods in a generation (a version of the output). Not
    thread-safe.

    | directory | meaning | what ends it, with the next state |
    |---|---|---|
    | open | its period is not over, or it is empty | the topic's watermark passes the period's end: over |
    | over | no entry marks it as complete | ``finalize``: complete |
    | complete | its ``_SUCCESS`` states its contents | late files: rewrite ``_SUCCESS``; ``replacing``: withheld |
    | withheld | its files are being replaced: no ``_SUCCESS`` | ``replaced``: complete again, if files remain |
    """

    def __init__(self, generation: Generation) -> None:
        self._generation, self._store, self._log = generation, generation.store, generation.log
        self._naming, self._own, self.family = generation.naming, generation.own, generation.family
        self._tables = dict(generation.pipeline.tables)
        self._parser = parser_of(generation.own)
        self._period: Callable[[str, str], tuple[str, int] | None] = cache(self._period_of)

    def find_due(self, limits: Mapping[str, int]) -> list[Finished]:
        """Return the 1,000 oldest directories without ``_SUCCESS`` whose period is over. ``limits`` has a time for each
        topic: a period that ends at or before this time is over."""
        over = self._find_over(limits)
        if over and self.family.refresh():
            # ``refresh`` has read new entries in logs of other generations. One of these generations may have begun to
            # replace files, so leave out the directories of these files.
            over = self._find_over(limits)
        oldest = sorted((ends_ms, path, topic) for path, (ends_ms, topic) in over.items())[:_AT_ONCE]
        held = self.family.count_contents([path for _, path, _ in oldest])
        return [
            Finished(path, topic, ends_ms, *held[path], self._statement(path, topic)) for ends_ms, path, topic in oldest
        ]

    def _find_over(self, limits: Mapping[str, int]) -> dict[str, tuple[int, str]]:
        excluded = self.family.finalized | self.family.withheld
        over: dict[str, tuple[int, str]] = {}
        # Skip generations of the output with an incomplete backfill, because they may get more files.
        for state in (state for state in self.family.states() if state.is_filled):
            for path, contents in state.directories.items():
                limit = limits.get(contents.topic)
                period = None if limit is None else self._period(contents.topic, path)
                if limit is not None and period is not None and period[1] <= limit and period[0] not in excluded:
                    over[period[0]] = period[1], contents.topic
        return over

    def find_late(self, windows: Sequence[WrittenWindow]) -> list[str]:
        """Return the directories that are already marked as complete and to which these offset windows add records."""
        above = directories_of(windows)
        if not above:
            return []
        # Another generation may have marked a directory since this process last read that generation's log.
        self.family.refresh()
        return sorted((above & self.family.finalized) - self.family.withheld)

    def write(self, entry: Entry) -> None:
        """Write or rewrite the ``_SUCCESS`` objects that a log entry requires. Callers may repeat the call. Raise
        FencedError if another driver is running.

        Leave no ``_SUCCESS`` in empty directories, nor in directories with files that another generation is replacing.
        """
        # Look for late directories again, because another generation may have marked them just before this entry.
        paths = [*dict.fromkeys([*entry.directories, *self.find_late(entry.windows)])]
        if not paths:
            return
        held: dict[str, tuple[int, int]] = {}
        counted: list[int] = []

        def count(path: str) -> Statement | None:
            """Count the files after reading the present ``_SUCCESS``, which is then replaced only if it is still the
            same. So a ``_SUCCESS`` with newer counts, which another generation has written since, is never replaced.
            """
            nonlocal held, counted
            self.family.refresh()
            numbers = [state.number for state in self.family.states()]
            if numbers != counted:
                held, counted = self.family.count_contents(paths), numbers
            has_mark = path not in self.family.withheld and held[path][0]
            return Statement(self._own.name, self._own.generation, *held[path], entry.number) if has_mark else None

        try:
            for path in paths:
                change_success(self._store, path, partial(count, path), self.family.has_said, self._log.check_alone)
            self._log.check_alone()
        except FencedError:
            # Correct marks that were written too late: another process may have dropped this generation before, or
            # begun to replace its files. The store did not refuse these marks, because a conditional create only checks
            # that no object has the key.
            settle_successes(self._generation, paths)
            raise
        if not entry.windows:
            self._write_statements(entry)
        if self.family.refresh():
            # Delete the marks again in directories where another process is now replacing files. That process logs
            # ``replacing`` before it deletes _SUCCESS marks. So either that process sees this mark, or this process
            # sees the entry.
            self.take_back({path for path in paths if count(path) is None})

    def take_back(self, paths: Collection[str]) -> None:
        """Delete ``_SUCCESS`` from directories whose files another generation is replacing. Raise FencedError if
        another driver is running.
        """
        if paths:
            settle_successes(self._generation, paths)
            self._log.check_alone()

    def _write_statements(self, entry: Entry) -> None:
        topics = {path: held.topic for state in self.family.states() for path, held in state.directories.items()}
        topic_of = {above: topic for path, topic in topics.items() for above in with_those_above([path])}
        statements = [self._statement(path, topic_of[path]) for path in entry.directories if path in topic_of]
        lines = [f"{statement};\n" for statement in statements if statement is not None]
        if lines:
            self._store.put(f"{self._naming.folder}hive/{entry.number:020}.sql", "".join(lines).encode())

    def _period_of(self, topic: str, path: str) -> tuple[str, int] | None:
        directory = self._naming.places.directory(topic, path)
        period = None if directory is None else self._parser.period(directory)
        if directory is None or period is None:
            return None
        if period[0] == directory:
            return path, period[1]
        # With hashed paths, the files of one period are in many directories. So no single directory can be marked as
        # complete for the period.
        return None if self._naming.places.hashed else (path.removesuffix(directory) + period[0], period[1])

    def _statement(self, path: str, topic: str) -> str | None:
        database, _, table = self._tables.get(topic, self._own.table.hive_prefix).rpartition(".")
        if topic not in self._tables:
            if not self._own.table.hive_prefix:
                return None
            table += topic
        statement = add_partition(database, table, self._naming.places.directory(topic, path) or "")
        if statement is None:
            _logger.warning("no Hive statement for %s: parts of the path are not name=value", path)
        return statement


def add_partition(database: str, table: str, directory: str) -> str | None:
    """Return the SQL that adds a directory to a Hive table as a partition; None if a component of the directory's path
    is not ``name=value``.
    """
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


def settle_successes(generation: Generation, paths: Collection[str]) -> None:
    """Let the ``_SUCCESS`` marks of directories agree with the logs of all generations of the output.

    A process that was suspended may continue with an outdated request. Stores do not refuse it, because they have no
    conditional delete, and a conditional create only checks that no object has the key. So the request may delete a
    mark that another process has just written, or write a mark that another process has just deleted. Therefore compare
    again after each change, with new entries of the logs.
    """
    known: dict[str, tuple[CommitLog, Family]] = {}
    for _ in range(_ATTEMPTS):
        changes = 0
        roots = generation.naming.places.roots
        for log in (log for root in roots for log in find_claimed_logs(generation.store, root)):
            changes += _settle(generation.store, *known.setdefault(log.folder, (log, Family(log))), paths)
        if not changes:
            return


def _settle(store: ObjectStore, log: CommitLog, family: Family, paths: Collection[str]) -> int:
    """Let the marks of directories agree with the log of one generation; return the number of changes."""
    state = log.read()
    family.refresh()
    if state.life is Life.DROPPED:
        inside = with_those_above(state.directories)
        return _delete_marks(store, (inside | state.finalized).intersection(paths), family.is_own)
    said = state.finalized.intersection(paths)
    changes = _delete_marks(store, said & family.withheld, family.has_said)
    said -= family.withheld
    if not said or (state.life is Life.SEALED and log.of_generation(state.other).read().life is Life.DROPPED):
        return changes
    # Leave out directories with files that are not visible yet, because their driver writes ``_SUCCESS`` later.
    for window in family.find_unpublished():
        inside = said & directories_of([window])
        if inside and not all(_exists(store, file.key) for file in window.data_files):
            said -= inside
    for path, (files, records) in family.count_contents(sorted(said)).items():
        statement = Statement(log.pipeline, log.generation, files, records, state.number) if files else None
        changes += change_success(store, path, statement, family.has_said, keeps=True)
    return changes


def _delete_marks(store: ObjectStore, paths: Collection[str], is_ours: Callable[[Statement], bool]) -> int:
    return sum(change_success(store, path, None, is_ours) for path in sorted(paths))


def _exists(store: ObjectStore, key: str) -> bool:
    try:
        store.head(key)
    except ObjectNotFoundError:
        return False
    return True
