"""Status and verification of an output, from its commit log and from listings of the store."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tieredstore.errors import DataLossError, ObjectNotFoundError, ResourceNotFoundError, TieredStoreError
from tieredstore.kafka.records.columns import int64_values
from tieredstore.pipelines.log.commit_log import Life, Progress
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.log.holdings import Committed, CommittedFile, Holdings, with_those_above
from tieredstore.pipelines.log.successes import SUCCESS, read_success
from tieredstore.pipelines.run.generation import Generation
from tieredstore.pipelines.run.planner import log_of
from tieredstore.pipelines.run.source import query_of
from tieredstore.pipelines.run.windows import Starts, begins_elsewhere, find_gone, is_of, position_of
from tieredstore.pipelines.upkeep.output_files import OutputProblem, find_faults, find_topics, uploads_of
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.reading.losses import Losses, losses_between
from tieredstore.reading.reader import TopicReader
from tieredstore.records.settings import ReadSettings

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.model import TopicPartition
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.log.commit_log import LogState
    from tieredstore.pipelines.log.entries import OutputFile
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.query import LogQuery
    from tieredstore.remote import RemoteStorageManager

_PIECE: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Replaced:
    """Offsets ``first`` to ``last`` (inclusive). Files of the generation ``generation`` have replaced the files with
    these offsets."""

    generation: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Progress of a pipeline in a partition. ``end_offset`` is the end of the partition's log, or None if unknown."""

    topic: str
    partition: int
    next_offset: int
    end_offset: int | None
    max_timestamp: int
    files: int
    records: int
    replaced: tuple[Replaced, ...] = ()
    """Offsets that this generation (a version of the output) wrote and that another generation has replaced."""
    first_timestamp: int = -1
    """Timestamp of the first unwritten record in ms, if nothing is written yet; -1 if unknown."""

    @property
    def lag(self) -> int | None:
        """Number of unwritten offsets."""
        return None if self.end_offset is None else max(0, self.end_offset - self.next_offset)

    def lag_s(self, now_ms: int) -> float | None:
        """Return the age in seconds of the latest written record. If no record is written, return the age of the first
        unwritten record. Return 0 if all offsets are written, None if the age is unknown.
        """
        if not self.lag:
            return None if self.lag is None else 0.0
        since = max(self.max_timestamp, self.first_timestamp)
        return None if since < 0 else max(0, now_ms - since) / 1000


def partition_statuses(pipeline: Pipeline, store: ObjectStore, snapshot: LogSnapshot) -> list[PartitionStatus]:
    """Return the status of all partitions that exist or were written, in order. Without written records,
    ``next_offset`` is the partition's first offset.

    Raises ConfigError if another pipeline owns the generation.
    """
    generation = Generation(pipeline, store)
    state = generation.log.read()
    if state.life is Life.FREE:
        generation.is_claimed()
    replaced = _find_replaced(generation) if state.linked else {}
    positions = state.positions
    new = [log for where, log in snapshot.logs.items() if where not in positions]
    begins = Starts(pipeline).of(new, is_new=False) if new and begins_elsewhere(pipeline.own) else {}
    statuses: list[PartitionStatus] = []
    skipped = re.compile(pipeline.own.topic_blacklist) if pipeline.own.topic_blacklist else None
    for where in sorted(positions.keys() | snapshot.logs.keys()):
        if skipped is not None and skipped.fullmatch(where[0]):
            continue
        log = snapshot.logs.get(where)
        # If the consumer group's offset is beyond the readable records, show the log's end as the first offset.
        first = 0 if log is None else begins.get(log.where, log.end if begins_elsewhere(pipeline.own) else log.earliest)
        progress = positions.get(where) or Progress("", first)
        statuses.append(
            PartitionStatus(
                *where,
                progress.next_offset,
                None if log is None else log.end,
                progress.max_timestamp,
                progress.files,
                progress.records,
                tuple(replaced.get(where, ())),
            )
        )
    return statuses


def with_first_timestamps(
    rows: Iterable[PartitionStatus], source: RemoteStorageManager, snapshot: LogSnapshot, query: LogQuery
) -> Iterator[PartitionStatus]:
    """Yield all rows. If no record of a partition is written yet, read the partition's first record and add its
    timestamp.

    If the record cannot be read, its timestamp stays unknown, because the pipeline itself reports that error.
    """
    with TopicReader(lambda: source, query, ReadSettings(columns=("timestamp",))) as reader:
        for row in rows:
            log = snapshot.logs.get((row.topic, row.partition))
            first = row.first_timestamp
            if log is not None and row.lag and row.max_timestamp < 0:
                with (
                    contextlib.suppress(TieredStoreError),
                    contextlib.closing(reader.read(log, row.next_offset, log.end)) as batches,
                ):
                    first = next((int64_values(batch, "timestamp")[0] for batch in batches), -1)
            yield replace(row, first_timestamp=first)


def _find_replaced(generation: Generation) -> dict[TopicPartition, list[Replaced]]:
    """Return replaced offsets by partition, with the generation of the output that holds the offsets now. If no
    generation holds the offsets any more, name the generation that replaced them.
    """
    replaced: dict[TopicPartition, list[Replaced]] = {}
    for where, holdings in Holdings.of(generation.log).windows.items():
        for one in (one for one in holdings if not one.is_held):
            held = generation.family.holder(one.window.window)
            ranges = replaced.setdefault(where, [])
            now = Replaced(one.given_to if held is None else held[0], one.window.start, one.window.stop - 1)
            if ranges and (ranges[-1].generation, ranges[-1].last + 1) == (now.generation, now.first):
                now = replace(now, first=ranges.pop().first)
            ranges.append(now)
    return replaced


def losses_of(snapshot: LogSnapshot, state: LogState, pipeline: Pipeline) -> dict[TopicPartition, str]:
    """Return a sentence for each partition whose next offsets are lost. The next run of the pipeline will fail with the
    same sentence."""
    sentences, losses = find_gone(snapshot, state, pipeline), Losses(query_of(pipeline))
    for where, progress in sorted(state.positions.items()):
        log = snapshot.logs.get(where)
        if log is None or not is_of(log, progress.topic_id):
            continue
        start = progress.next_offset
        window = BatchWindow(log.topic, progress.topic_id, log.partition, start, max(start, log.end))
        try:
            position_of(log, progress)
            log_of(snapshot, window)
            losses.accept_missing(losses_between(log, start, window.stop))
            losses.check_readable(snapshot, {where: (start, window.stop)}, starts_there={where})
        except DataLossError as error:
            sentences[where] = str(error)
    return sentences


def check_written(pipeline: Pipeline, store: ObjectStore) -> None:
    """Raise ResourceNotFoundError if the generation has neither log nor files, because a name in the settings may be
    wrong.

    Raises ConfigError if another pipeline owns the generation.
    """
    own, root = pipeline.own, pipeline.output.key_prefix
    generation = Generation(pipeline, store)
    if generation.log.read().life is Life.FREE:
        generation.is_claimed()
        if not find_topics(pipeline, store):
            raise ResourceNotFoundError(
                f"generation {own.generation} of {own.name} has no commit log and no files below "
                f"{root or store.identity}: check pipeline.name, secor.generation and output.key.prefix"
            )


class Verification:
    """Verification of a generation's files. It counts the files and bytes that it reads. Not thread-safe.

    ``files`` and ``size`` count all known files; ``read_files`` and ``read_size`` count the files that were read to
    their end. ``has_log`` is False if the output has no commit log, as in Secor's output. In this case missing files
    cannot be detected.
    """

    def __init__(self, pipeline: Pipeline, store: ObjectStore, *, contents: bool = True) -> None:
        """``contents`` makes the verification read all files. Without a commit log, the verification always reads all
        files."""
        self._pipeline, self._store, self._contents = pipeline, store, contents
        self._generation = Generation(pipeline, store)
        self.files = self.size = self.read_files = self.read_size = 0
        self.has_log = False

    def problems(self) -> Iterator[OutputProblem]:
        """Yield every problem of the generation's files.

        Raises CommitLogCorruptError if entries of the commit log contradict each other. A starting driver would raise
        the same error.
        """
        log, family = self._generation.log, self._generation.family
        self.has_log = log.read().life is not Life.FREE
        if not self.has_log:
            yield from self._faults_without_log()
            return
        committed = Committed.of(log)
        for entry in family.find_redriven():
            # A later generation has written the messages of these quarantine files to data files. It deletes the
            # quarantine files, so they may be missing.
            committed.going |= set(entry.removed)
            for key in entry.removed:
                committed.files.pop(key, None)
        listed, successes = list_output(self._generation, committed)
        for key in sorted(listed.keys() - committed.files.keys() - committed.going):
            words = "has a name of this generation, but is not in the commit log"
            yield OutputProblem("stranger", key, words)

        def look(item: tuple[str, CommittedFile]) -> tuple[CommittedFile, OutputProblem | None, bool]:
            key, one = item
            if key not in listed:
                return one, OutputProblem("missing", key, "is committed, but does not exist"), False
            if listed[key] != one.file.size:
                words = f"has {listed[key]} bytes, but the commit log has {one.file.size}"
                return one, OutputProblem("size", key, words), False
            problem = _content_problem(self._store, one.file) if self._contents else None
            return one, problem, self._contents and (problem is None or problem.kind == "content")

        with ThreadPool(READERS, "tieredstore-verify") as pool:
            files = sorted(committed.files.items())
            looks = in_parallel(pool, look, files, at_once=2 * READERS) if self._contents else map(look, files)
            for one, problem, was_read in looks:
                self._count(1, one.file.size, was_read=was_read)
                yield from _offset_problems(one)
                if problem is not None:
                    yield problem
        yield from _success_problems(self._generation, successes)

    def _count(self, files: int, size: int, *, was_read: bool) -> None:
        self.files, self.size = self.files + files, self.size + size
        if was_read:
            self.read_files, self.read_size = self.read_files + files, self.read_size + size

    def _faults_without_log(self) -> Iterator[OutputProblem]:
        """Yield problems of an output without a commit log.

        A missing log is a problem only if a claim object shows that a pipeline wrote the files. Secor writes no log.
        """
        topics = find_topics(self._pipeline, self._store)
        uploads = uploads_of(self._pipeline, self._store, topics)
        if self._generation.is_claimed():
            for one in uploads:
                self._count(len(one.keys), one.size, was_read=False)
            if topics:
                words = "exists, and so do files of the generation, but the commit log does not"
                yield OutputProblem("missing", self._generation.claim_keys[0], words)
            return
        for one in uploads:
            problems = list(find_faults(self._pipeline, self._store, one))
            yield from problems
            self._count(len(one.keys), one.size, was_read=all(problem.kind != "content" for problem in problems))


def _success_problems(generation: Generation, successes: set[str]) -> Iterator[OutputProblem]:
    """Yield a problem for each directory that wrongly has or lacks a ``_SUCCESS``, or has a ``_SUCCESS`` with wrong
    counts."""
    store, log, family = generation.store, generation.log, generation.family
    if log.state.life is Life.DROPPED:
        yield from _late_successes(generation, successes)
        return
    # Leave out the directories of the last entry, because it may not be fully published yet.
    last = set(log.entry(log.state.unpublished).directories) if log.state.unpublished >= 0 else set[str]()
    expected = log.state.finalized - family.withheld - last
    inside = with_those_above(log.state.directories)
    paths = sorted((inside & successes | expected) - last)
    held = family.count_contents(paths)
    has_dropped = any(other.state.life is Life.DROPPED for other in family.read_others().values())
    for path in paths:
        success = read_success(store, path)
        said = [] if success is None else [*filter(family.has_said, success.statements)]
        key, (files, records) = f"{path}/{SUCCESS}", held[path]
        if not said:
            if path in expected and files and not has_dropped:
                yield OutputProblem("missing", key, "is committed, but is missing or does not list this generation")
        elif path in family.withheld or path not in family.finalized:
            yield OutputProblem("stranger", key, "marks a directory as complete, but the commit log does not")
        elif (said[0].files, said[0].records) != (files, records):
            yield OutputProblem(
                "content", key, f"lists {said[0].files} files with {said[0].records} records, but "
                f"{files} with {records} are committed",
            )  # fmt: skip


def _late_successes(generation: Generation, successes: set[str]) -> Iterator[OutputProblem]:
    """Yield ``_SUCCESS`` marks of a dropped generation of the output. A delayed request of a stopped process may have
    written them.
    """
    for path in sorted(successes):
        success = read_success(generation.store, path)
        if success is not None and any(map(generation.family.is_own, success.statements)):
            words = "marks a directory as complete, but the generation was dropped: repeat pipeline rm"
            yield OutputProblem("stranger", f"{path}/{SUCCESS}", words)


def _offset_problems(one: CommittedFile) -> Iterator[OutputProblem]:
    file, window = one.file, one.window
    if not window.start <= file.first_offset <= file.last_offset < window.stop:
        yield OutputProblem(
            "offsets",
            file.key,
            f"has offsets {file.first_offset} to {file.last_offset}, but its window has {window.start} to "
            f"{window.stop - 1}",
        )


def list_output(generation: Generation, committed: Committed) -> tuple[dict[str, int], set[str]]:
    """List all files of the generation, quarantine files included. Return their sizes by key, and the directories that
    have a ``_SUCCESS``."""
    naming, places, store = generation.naming, generation.naming.places, generation.store
    # Also list other directories of committed files, because a change of the settings may have changed the directories.
    others = {
        key.rpartition("/")[0]
        for key, one in committed.files.items()
        if one.file.kind == "data" and places.directory(one.window.topic, key.rpartition("/")[0]) is None
    }
    name = re.compile(rf"\.?{naming.generation}_\d+_\d{{20}}(\..*)?")
    sizes, successes = dict[str, int](), set[str]()
    rest = (store.list(prefix) for prefix in [*(f"{path}/" for path in sorted(others)), f"{naming.folder}quarantine/"])
    for info in itertools.chain(places.list_files(store, committed.topics), *rest):
        path, _, last = info.key.rpartition("/")
        if name.fullmatch(last):
            sizes[info.key] = info.size
        elif last == SUCCESS:
            successes.add(path)
    return sizes, successes


def _content_problem(store: ObjectStore, file: OutputFile) -> OutputProblem | None:
    sha256 = hashlib.sha256()
    try:
        for start in range(0, file.size, _PIECE):
            sha256.update(store.get(file.key, start, min(start + _PIECE, file.size)))
    except ObjectNotFoundError:
        return OutputProblem("missing", file.key, "is committed, but disappeared while it was read")
    if sha256.hexdigest() == file.sha256:
        return None
    return OutputProblem("content", file.key, "does not have the committed bytes (SHA-256 differs)")
