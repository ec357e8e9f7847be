"""Sources that a backfill reads: bucket and broker, or backup files with unchanged records."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.errors import (
    ConfigError,
    CorruptDataError,
    DataLossError,
    ObjectNotFoundError,
    ResourceNotFoundError,
)
from tieredstore.model import AtTime, check_offset
from tieredstore.pipelines.log.commit_log import Progress
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.log.holdings import Family, Holding, Holdings
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.planner import Planner, log_of
from tieredstore.pipelines.run.recipes import places_of
from tieredstore.pipelines.run.source import COLUMNS
from tieredstore.pipelines.run.windows import is_of
from tieredstore.pipelines.upkeep.output_files import read_records, uploads_of
from tieredstore.reading.reader import TopicReader
from tieredstore.records.settings import ReadSettings

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.run.iceberg import IcebergTable
    from tieredstore.remote import RemoteStorageManager


@dataclass(frozen=True, slots=True)
class Selected:
    """The selected offsets ``start`` to ``stop`` (exclusive) of a topic, in ``partitions`` (None: in all)."""

    topic: str
    start: int | AtTime | None = None
    stop: int | AtTime | None = None
    partitions: tuple[int, ...] | None = None

    def has(self, topic: str, partition: int) -> bool:
        """Return True if the partition is selected."""
        return topic == self.topic and (self.partitions is None or partition in self.partitions)

    def check_reached(self, ends: Mapping[int, int]) -> None:
        """Raise an error if an offset in the selection is beyond the end of every selected partition. The user probably
        meant this number as a time.
        """
        named = {f"{self.topic}-{number}": end for number, end in ends.items() if self.has(self.topic, number)}
        for place in (self.start, self.stop):
            if isinstance(place, int):
                check_offset(place, named)

    def within(self, window: BatchWindow, offset_at: Callable[[AtTime], int], lost: str) -> BatchWindow:
        """Return the selected offsets of a partition. ``window`` has all its offsets that still exist.

        Raise DataLossError if the selection starts before ``window``. ``lost`` completes the error's sentence "offsets
        0 to 9 of orders-1 are ...".
        """

        def offset_of(place: int | AtTime | None, default: int) -> int:
            if isinstance(place, AtTime):
                return offset_at(place)
            return default if place is None else place

        if isinstance(self.start, int) and 0 < self.start < window.start:
            raise DataLossError(f"{replace(window, start=self.start, stop=window.start)} are {lost}")
        start = min(max(offset_of(self.start, window.start), window.start), window.stop)
        return replace(window, start=start, stop=max(start, min(offset_of(self.stop, window.stop), window.stop)))


class LogSource:
    """The bucket and the broker of a pipeline as one log. The source ends where the log ended when this object was
    made. Close it after use."""

    def __init__(self, pipeline: Pipeline, source: RemoteStorageManager, topic: str) -> None:
        own = pipeline.own.model_copy(update={"topic_list": topic, "topic_blacklist": ""})
        self._planner = Planner(replace(pipeline, own=own), source)
        self._reader = TopicReader(lambda: source, self._planner.query, ReadSettings(columns=COLUMNS))
        self._snapshot = self._planner.snapshot()
        self._snapshot.check_selected(self._planner.query, source)

    def extents(self, selected: Selected) -> list[BatchWindow]:
        """Return the selected offsets that the log had when this object was made."""
        selected.check_reached({log.partition: log.end for _, log in sorted(self._snapshot.logs.items())})
        return [
            selected.within(
                BatchWindow(log.topic, str(log.topic_id), log.partition, log.earliest, log.end),
                functools.partial(self._offset_at, log),
                "neither in the bucket nor on the broker any more",
            )
            for where, log in sorted(self._snapshot.logs.items())
            if selected.has(*where)
        ]

    def is_of(self, window: BatchWindow, topic_id: str) -> bool:
        """Return True if the source's records of the partition may belong to the topic with this id."""
        return is_of(self._snapshot.logs[window.where], topic_id)

    def _offset_at(self, log: PartitionLog, moment: AtTime) -> int:
        offset = self._reader.offset_at(log, moment.timestamp_ms)
        return log.end if offset is None else offset

    def cut_next(self, rest: Sequence[BatchWindow]) -> list[BatchWindow]:
        """Divide the beginning of ``rest`` into offset windows that tasks can write in parallel, by the pipeline's size
        limits. Return an empty list if nothing is left to read.
        """
        ends = {window.where: window for window in rest}
        logs = {where: replace(log_of(self._snapshot, one), end=one.stop) for where, one in ends.items()}
        positions = {where: Progress(one.topic_id, one.start) for where, one in ends.items()}
        windows = self._planner.find_due(replace(self._snapshot, logs=logs), positions, is_last=True)
        capped = (replace(one, stop=min(one.stop, ends[one.where].stop)) for one in windows)
        return [window for window in capped if window.start < window.stop]

    def records(self, window: BatchWindow) -> Generator[pa.RecordBatch]:
        """Yield the records from the bucket, then those from the broker."""
        return self._reader.read(log_of(self._snapshot, window), window.start, window.stop)

    def close(self) -> None:
        """Close the connections to the broker. The caller closes the bucket."""
        self._planner.close()
        self._reader.close()


_BATCH_WINDOWS: Final = 64
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class _FileRun:
    """Offsets ``start`` to ``stop`` (exclusive) of a partition, and the files that contain all records of these
    offsets."""

    start: int
    stop: int
    keys: tuple[str, ...]
    size: int
    max_timestamp: int = _UNKNOWN
    ordered: bool = False
    """True if each file's last offset is below the next file's first offset."""
    given_to: int = _UNKNOWN
    """The generation (a version of the output) that has replaced these files, or -1."""
    needs: tuple[str, ...] = ()
    """Keys of the files and their sidecars (metadata files), if a commit log names them."""
    records: int = 0
    """Number of records in the files; 0 without a commit log."""


class KeptFiles:
    """Output files of Secor, or of one generation (a version of the output) of a pipeline. The files must hold records
    unchanged."""

    def __init__(self, pipeline: Pipeline, store: ObjectStore, topic: str, window_bytes: int = 0) -> None:
        """``window_bytes`` is the approximate size of the files of an offset window that ``cut_next`` returns."""
        self._pipeline, self._store, self._topic, self._window_bytes = pipeline, store, topic, window_bytes
        self._log = commit_log_of(pipeline, store)
        self._topic_ids: dict[int, str] = {}
        self.repeats = 0
        """Number of records read so far that repeat an offset of an earlier file."""
        self.is_committed: bool = self._log.read().number >= 0
        """True if a commit log lists the files; False if only file names give the offsets."""
        self._runs = self._find_committed() if self.is_committed else self._find_named()
        if not self._runs:
            raise ResourceNotFoundError(
                f"{pipeline.own.name} has no files of generation {pipeline.own.generation} of the topic {topic}"
            )

    def extents(self, selected: Selected) -> list[BatchWindow]:
        """Return the selected offsets by partition. A time as start or end becomes the boundary of a file.

        Raises ConfigError if another generation of the output has replaced files of these offsets.
        """
        windows = self.spans(selected)
        for window in windows:
            for run in self._runs[window.partition]:
                if run.given_to != _UNKNOWN and run.start < window.stop and window.start < run.stop:
                    raise self._error_of_given(window, run)
        return windows

    def spans(self, selected: Selected) -> list[BatchWindow]:
        """Return the selected offsets by partition, including those whose files another generation has replaced."""
        selected.check_reached({number: max(one.stop for one in its) for number, its in sorted(self._runs.items())})
        return [
            selected.within(
                BatchWindow(selected.topic, self._topic_ids.get(number, ""), number, runs[0].start, runs[-1].stop),
                functools.partial(self._offset_at, runs),
                self._here,
            )
            for number, runs in sorted(self._runs.items())
            if selected.has(selected.topic, number)
        ]

    def is_of(self, window: BatchWindow, topic_id: str) -> bool:
        """Return True if the files may belong to the topic with this id. Secor's files do not show their topic's id."""
        return window.topic_id in {"", topic_id}

    def holders(self) -> Iterator[tuple[BatchWindow, int]]:
        """Yield all offsets in ranges, each with the generation that has replaced its files, or -1."""
        for number, runs in sorted(self._runs.items()):
            for generation, its in itertools.groupby(runs, key=lambda run: run.given_to):
                inside = list(its)
                yield BatchWindow(self._topic, "", number, inside[0].start, inside[-1].stop), generation

    def _error_of_given(self, window: BatchWindow, run: _FileRun) -> ConfigError:
        """Return the error for offsets whose files were replaced. The error names the generation that holds the offsets
        now.
        """
        own = self._pipeline.own
        given = replace(window, start=max(window.start, run.start), stop=min(window.stop, run.stop))
        held = Family(self._log).holder(given, but={own.generation})
        if held is None:
            return ConfigError(
                f"{given} were replaced by generation {run.given_to} of {own.name}, which no longer holds them: "
                "choose other offsets by --from and --to"
            )
        generation, its = held
        return ConfigError(
            f"{its} are held by generation {generation} of {own.name}, not by generation {own.generation}: set "
            f"secor.generation={generation} in its settings file, or choose other offsets by --from and --to"
        )

    def cut_next(self, rest: Sequence[BatchWindow]) -> list[BatchWindow]:
        """Divide the beginning of ``rest`` into offset windows. Each window ends where a file ends."""
        windows: list[BatchWindow] = []
        for one in rest:
            start = one.start
            while start < one.stop:
                if len(windows) == _BATCH_WINDOWS:
                    return windows
                stop = self._stop(replace(one, start=start))
                windows.append(replace(one, start=start, stop=stop))
                start = stop
        return windows

    def records(self, window: BatchWindow) -> Generator[pa.RecordBatch]:
        """Yield the records in order of offsets. If Secor has written a record twice, yield it once.

        Raise CorruptDataError if two files have different records at an offset.
        """
        later: list[pa.RecordBatch] = []
        for run in self._over(window):
            for batch in self._stream(run) if run.ordered else self._sort(run, later):
                offsets = batch.column("offset")
                inside = pc.and_(
                    pc.greater_equal(offsets, max(run.start, window.start)),
                    pc.less(offsets, min(run.stop, window.stop)),
                )
                if (rest := batch.filter(inside)).num_rows:
                    yield rest

        if later and self._runs[window.partition][-1].stop <= window.stop:
            raise DataLossError(
                f"files of {self._pipeline.own.name} have records of {window.topic}-{window.partition} beyond the end "
                "of its newest file: later files are missing; choose offsets before these records"
            )

    def holes(self, window: BatchWindow) -> list[tuple[int, int]]:
        """Return the ranges of a window's offsets that are in no file, in a missing file, or in files of another
        generation, which have replaced files of this one. The end of a range is exclusive."""
        holes: list[tuple[int, int]] = []
        reached = window.start
        for run in self._runs.get(window.partition, []):
            if run.stop <= reached or run.start >= window.stop:
                continue
            its = replace(window, start=run.start, stop=run.stop)
            for start, stop in self._present(its, run.given_to, run.needs):
                if start < window.stop:
                    holes += [(reached, start)] if reached < start else []
                    reached = max(reached, stop)
        return [*holes, (reached, window.stop)] if reached < window.stop else holes

    def _present(self, window: BatchWindow, given_to: int, needs: Sequence[str]) -> list[tuple[int, int]]:
        """Return the ranges of a run's offsets whose records can be read."""
        is_there = given_to == _UNKNOWN and self._there.issuperset(needs)
        return [(window.start, window.stop)] if is_there else []

    @functools.cached_property
    def _there(self) -> set[str]:
        prefixes = places_of(self._pipeline).prefixes
        return {info.key for prefix in prefixes for info in self._store.list(prefix)}

    def _offset_at(self, runs: Sequence[_FileRun], moment: AtTime) -> int:
        if any(run.max_timestamp == _UNKNOWN and run.keys for run in runs):
            raise ConfigError(f"the files of {self._pipeline.own.name} do not show the times of records: give offsets")
        return next((run.start for run in runs if run.max_timestamp >= moment.timestamp_ms), runs[-1].stop)

    @property
    def _here(self) -> str:
        return f"in no file of {self._pipeline.own.name}"

    def _stop(self, window: BatchWindow) -> int:
        """Return the offset where an offset window should end, so that its files have at most about ``window_bytes``. A
        window has at least one run (a range of offsets and its files).
        """
        size = 0
        stop = window.start
        for run in self._over(window):
            if size and size + run.size > self._window_bytes:
                break
            size, stop = size + run.size, min(run.stop, window.stop)
        return stop

    def _over(self, window: BatchWindow) -> Iterator[_FileRun]:
        """Yield the runs (ranges of offsets and their files) that an offset window overlaps. Raise DataLossError if
        some of the window's offsets are in no run.
        """
        runs = self._runs.get(window.partition, [])
        at = max(0, bisect.bisect_right(runs, window.start, key=lambda run: run.start) - 1)
        reached = window.start
        for run in runs[at:]:
            if run.start >= window.stop:
                break
            if run.start <= reached < run.stop:
                reached = run.stop
                yield run
        if reached < window.stop:
            raise DataLossError(f"{replace(window, start=reached)} are {self._here}")

    def _find_committed(self) -> dict[int, list[_FileRun]]:
        """Return runs (ranges of offsets and their files) from the commit log. Include quarantine files, because they
        hold records unchanged.
        """
        runs: dict[int, list[_FileRun]] = {}
        redriven = Family(self._log).find_redriven()
        for (its_topic, number), holdings in Holdings.of(self._log, redriven).windows.items():
            for one in holdings if its_topic == self._topic else ():
                self._topic_ids[number] = one.window.topic_id
                files = [file for file in one.window.files if file.kind != "sidecar"]
                run = _FileRun(
                    one.window.start,
                    one.window.stop,
                    tuple(file.key for file in files),
                    sum(file.size for file in files),
                    max((file.max_timestamp for file in files), default=_UNKNOWN),
                    all(file.last_offset < after.first_offset for file, after in itertools.pairwise(files)),
                    one.given_to,
                    tuple(file.key for file in one.window.files),
                    sum(file.records for file in files),
                )
                runs.setdefault(number, []).append(run)
        return runs

    def _find_named(self) -> dict[int, list[_FileRun]]:
        """Return runs (ranges of offsets and their files) from the names of Secor's files."""
        runs: dict[int, list[_FileRun]] = {}
        for one in uploads_of(self._pipeline, self._store, [self._topic]):
            stop = self._end(one.keys) if one.stop is None else one.stop
            runs.setdefault(one.partition, []).append(_FileRun(one.start, stop, one.keys, one.size))
        return runs

    def _end(self, keys: Sequence[str]) -> int:
        """Read the files of the newest upload, and return the offset after its last record. No file name shows this
        offset."""
        batches = (batch for key in keys for batch in self._read(key))
        return 1 + max((max(batch.column("offset").to_pylist()) for batch in batches), default=-1)

    def _stream(self, run: _FileRun) -> Iterator[pa.RecordBatch]:
        for key in run.keys:
            yield from self._read(key)

    def _sort(self, run: _FileRun, later: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of a run (a range of offsets and its files) in order. A file may have records beyond its
        run; ``later`` passes these records on to the next run.
        """
        batches = [*later, *(batch for key in run.keys for batch in self._read(key))]
        later.clear()
        if batches:
            table = pa.Table.from_batches(batches).sort_by("offset")
            later.extend(table.filter(pc.field("offset") >= run.stop).to_batches())
            yield from self._once(table.filter(pc.field("offset") < run.stop).to_batches(max_chunksize=4096))

    def _once(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Drop and count rows that repeat an offset. Rows must be sorted by offset."""
        last, kept = _UNKNOWN, None
        for batch in batches:
            rows: list[int] = []
            for row, offset in enumerate(batch.column("offset").to_pylist()):
                if offset > last:
                    rows.append(row)
                    last, kept = offset, (batch, row)
                elif kept is not None and not _is_same(kept, (batch, row)):
                    raise CorruptDataError(
                        f"files of {self._pipeline.own.name} have two different records at offset {offset}: they are "
                        "of two topics with the same name, or damaged; move the files of one topic away"
                    )
            self.repeats += batch.num_rows - len(rows)
            yield batch if len(rows) == batch.num_rows else batch.take(pa.array(rows, pa.int64()))

    def _read(self, key: str) -> Iterator[pa.RecordBatch]:
        try:
            for batch in read_records(self._pipeline, self._store, key):
                yield self._as_read(batch, key)
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(f"{error}: run pipeline verify on {self._pipeline.own.name}") from error

    def _as_read(self, batch: pa.RecordBatch, key: str) -> pa.RecordBatch:
        """Convert records of a file to the columns that records of a log have."""
        if batch.column("offset").null_count:
            raise ConfigError(
                f"{key} does not hold the offsets of its records: backfill from the bucket or the broker, or from "
                "files with offsets (Parquet, ORC, Avro, JSON, SequenceFile)"
            )
        columns = {name: batch.column(name) for name in COLUMNS}
        for name in ("timestamp", "timestampType"):
            columns[name] = pc.fill_null(columns[name], _UNKNOWN)
        return pa.RecordBatch.from_pydict(columns)


class KeptRows(KeptFiles):
    """Records of a pipeline in its Iceberg table. Another writer may have moved the rows to other files."""

    def __init__(self, pipeline: Pipeline, store: ObjectStore, topic: str, table: IcebergTable) -> None:
        super().__init__(pipeline, store, topic)
        self.rows: Final = table.rows(self._log, topic)

    @functools.cached_property
    def missing(self) -> int:
        """Number of committed records that are not in the table."""
        committed = sum(run.records for runs in self._runs.values() for run in runs)
        for window, generation in self.holders():
            if generation != _UNKNOWN:
                committed += sum(one.window.records for one in self._find_held_elsewhere(window))
        return max(0, committed - sum(self.rows.count(window) for window, _ in self.holders()))

    @functools.cached_property
    def _others(self) -> list[Holdings]:
        """The offset windows of the linked generations, whose rows are in the table too."""
        return [Holdings.of(log) for log in Family(self._log).read_others().values()]

    def _find_held_elsewhere(self, window: BatchWindow) -> list[Holding]:
        found = (one for its in self._others for one in its.between(window.where, window.start, window.stop))
        return [one for one in found if one.is_held]

    def records(self, window: BatchWindow) -> Generator[pa.RecordBatch]:
        """Yield the records in order of offsets, each once."""
        for batches in self.rows.records(window):
            table = pa.Table.from_batches([self._as_read(batch, "the table") for batch in batches]).sort_by("offset")
            for batch in self._once(table.to_batches(max_chunksize=4096)):
                if batch.num_rows:
                    yield batch

    def _present(self, window: BatchWindow, given_to: int, needs: Sequence[str]) -> list[tuple[int, int]]:  # noqa: ARG002
        """Return the ranges of offsets that a generation holds. Do not look for missing rows in the table, because rows
        may have been deleted on purpose."""
        if given_to == _UNKNOWN:
            return [(window.start, window.stop)]
        held = (one.window for one in self._find_held_elsewhere(window))
        return sorted((max(window.start, one.start), min(window.stop, one.stop)) for one in held)


RecordSource: TypeAlias = LogSource | KeptFiles
"""Source from which a backfill reads records by offset. Several threads may read at once."""


def _is_same(one: tuple[pa.RecordBatch, int], other: tuple[pa.RecordBatch, int]) -> bool:
    return all(
        one[0].column(name)[one[1]].equals(other[0].column(name)[other[1]]) for name in ("key", "value", "timestamp")
    )
