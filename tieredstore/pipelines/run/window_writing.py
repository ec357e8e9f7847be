"""Writing of one offset window: choose directories, encode the records, and upload the files without making them
visible ("prepared" files).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.catalog import problems
from tieredstore.errors import DataLossError, TieredStoreError
from tieredstore.limits import MAX_INT64
from tieredstore.pipelines.files.file_bodies import Bodies, FileBody
from tieredstore.pipelines.files.formats import ParquetFile
from tieredstore.pipelines.filing.naming import Naming
from tieredstore.pipelines.log.entries import BatchWindow, OutputFile, WrittenWindow
from tieredstore.pipelines.parsers import Parser
from tieredstore.pipelines.transforming import Transforming
from tieredstore.pipelines.writers import DECODED, ENVELOPE, FileWriter, Format, divide_rows, envelope, total_size
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore

UNREADABLE: Final = (*problems.UNREADABLE, DataLossError)
"""Errors about lost, corrupt or archived records, and records without their key. A retry does not help, so the pipeline
commits each partition's records before the first such record, and then stops.
"""

_QUARANTINE_SCHEMA: Final = pa.schema([*ENVELOPE, pa.field("reason", pa.string())])


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines an offset window's files except its records. Picklable."""

    parser: Parser
    format: Format
    naming: Naming
    file_bytes: int
    file_records: int
    """Maximum number of records per file; 0: no limit."""
    local_path: str | None = None
    transforming: Transforming | None = None
    limits: InputLimits | None = None
    """Limits at which all files of the offset window end together. None means that each file ends by its own size."""
    open_files: int = 0
    """Maximum number of open files; 0: no limit. Before another file opens, the least recently written file ends."""


Written: TypeAlias = tuple[WrittenWindow, dict[int, str]]
"""A written offset window, and the reason for each quarantined record, by offset. A Spark task reports only the reasons
for the lowest offsets.
"""


@dataclass(slots=True)
class ReadUpTo:
    """Mutable progress in reading an offset window: ``offset`` is the next offset to read.

    If ``is_cut``, the window ends before corrupt records, so nothing is read after its last record.
    """

    offset: int
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """Result of a failed offset window: at the offset ``reached``, a record is lost or corrupt."""

    window: BatchWindow
    reached: int
    error: TieredStoreError


@dataclass(frozen=True, slots=True)
class Batch:
    """Prepared offset windows to commit, and the error about the first unreadable offset."""

    written: Sequence[Written]
    failure: TieredStoreError | None = None

    def check(self) -> None:
        """Raise the error, if any."""
        if self.failure is not None:
            raise self.failure


def write_window(
    window: BatchWindow,
    records: Iterable[pa.RecordBatch],
    recipe: Recipe,
    store: ObjectStore,
    reached: ReadUpTo | None = None,
) -> Written:
    """Prepare the files of an offset window from its records, which must come in order. Return the written window, and
    the reasons why records are bad, by offset.

    The same records give the same files, however the records are divided into batches. After an error, discard prepared
    files (uploaded, not yet visible) as far as the store allows. ``reached`` then has the offset up to which records
    were read.
    """
    bodies = Bodies(store, recipe.naming.staging_prefix, recipe.local_path)
    with bodies, _WindowWriting(window, recipe, bodies) as writing:
        for batch in records:
            writing.take(batch)
            if reached is not None:
                reached.offset = batch.column("offset")[-1].as_py() + 1
                if reached.is_cut and reached.offset >= window.stop:
                    break
        return writing.finish(), writing.reasons


def mark_windows(windows: Sequence[BatchWindow]) -> list[Written]:
    """Convert empty offset windows to the form that a driver commits."""
    return [(one.without_records(), {}) for one in windows]


def write_at_once(
    windows: Sequence[BatchWindow], write: Callable[[BatchWindow, ReadUpTo], Written], store: ObjectStore, threads: int
) -> Batch:
    """Write offset windows on threads. In each partition, stop at the first unreadable offset. Return the windows in
    order.

    After any error other than an unreadable offset, discard the prepared files (uploaded, not yet visible).
    """

    prepared: list[OutputFile] = []

    def attempt(window: BatchWindow, *, is_cut: bool = False) -> Written | Failed:
        reached = ReadUpTo(window.start, is_cut)
        try:
            written = write(window, reached)
        except UNREADABLE as error:
            return Failed(window, reached.offset, error)
        prepared.extend(written[0].files)
        return written

    try:
        with ThreadPool(threads, "tieredstore-pipeline") as pool:
            outcomes = list(in_parallel(pool, attempt, windows, at_once=threads))
        return keep_readable(outcomes, partial(attempt, is_cut=True), store)
    except BaseException:
        discard_files(store, prepared)
        raise


def keep_readable(
    outcomes: Sequence[Written | Failed], attempt: Callable[[BatchWindow], Written | Failed], store: ObjectStore
) -> Batch:
    """Keep each partition's offset windows before its first unreadable offset; discard the later ones.

    ``outcomes`` are in the order of the offset windows. ``attempt`` is a function that writes the readable beginning of
    a failed window.
    """
    written: list[Written] = []
    failures: dict[tuple[str, int], Failed] = {}
    for one in outcomes:
        if isinstance(one, Failed):
            failures.setdefault(one.window.where, one)
        elif one[0].where in failures:
            discard_files(store, one[0].files)
        else:
            written.append(one)
    for failed in failures.values():
        if failed.reached > failed.window.start:
            again = attempt(replace(failed.window, stop=failed.reached))
            if not isinstance(again, Failed):
                written.append(again)
    return Batch(written, next((failed.error for failed in failures.values()), None))


def discard_files(store: ObjectStore, files: Sequence[OutputFile]) -> None:
    """Discard prepared files (uploaded, not yet visible). If some files remain, ``gc`` or the bucket's lifecycle rule
    deletes them.
    """
    for file in files:
        try:
            store.discard(file.prepared)
        except TieredStoreError:
            continue


class _WindowWriting:
    """Writer of one offset window. On an error, ``__exit__`` abandons the open files."""

    def __init__(self, window: BatchWindow, recipe: Recipe, bodies: Bodies) -> None:
        self._window, self._recipe, self._bodies = window, recipe, bodies
        self._parser = recipe.parser.for_topic(window.topic)
        self._format = recipe.format.for_window(window.topic)
        self._open: dict[str, _OpenFile] = {}
        self._reached_input = Reached(recipe.limits) if recipe.limits else None
        self._start, self._begun = window.start, set[str]()
        self._aside: _OpenFile | None = None
        self._ended: list[Callable[[], OutputFile]] = []
        self.reasons: dict[int, str] = {}
        self.records = self.filtered = self._read_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        self._bodies.abandon()
        for file in [*self._open.values(), *([self._aside] if self._aside else [])]:
            # Abandon the writers, because unclosed writers would keep memory and log warnings. Ignore errors, because a
            # writer that has failed may fail again.
            with suppress(Exception):
                file.writer.abandon()

    def take(self, batch: pa.RecordBatch) -> None:
        self._read_bytes += total_size(batch)
        if self._reached_input is None:
            self._take(batch)
            return
        for piece, is_full in self._reached_input.pieces(batch):
            self._take(piece)
            if is_full:
                self._end_all()
                self._begun.clear()
                self._start = piece.column("offset")[-1].as_py() + 1

    def _take(self, batch: pa.RecordBatch) -> None:
        if self._recipe.transforming is None:
            faults = self._write_good(batch)
        else:
            after = self._recipe.transforming.apply(batch, self._window.topic, self._window.partition)
            self.filtered += after.filtered
            bad = self._write_good(after.records) if after.records.num_rows else {}
            faults = {**after.faults, **_of_originals(batch, after.records, bad)}
        if faults:
            # The quarantine gets the original records, without a transformer's changes.
            self._put_aside(envelope(batch, self._window.topic, self._window.partition), dict(sorted(faults.items())))

    def _write_good(self, batch: pa.RecordBatch) -> dict[int, str]:
        """Write the good records. Return the reason why each other record is bad, by row number."""
        filed = self._parser.file(batch)
        # Check the directories, because a user's own parser may return a directory such as ".." that is not escaped.
        filed.put_aside_strays()
        beside, faults = self._format.decode(batch)
        faults |= filed.reasons
        rows = envelope(batch, self._window.topic, self._window.partition)
        if beside is not None:
            rows = rows.append_column(DECODED, beside)
        if len(filed.directories) == 1 and not faults:
            self._write(filed.directories[0], rows)
            return faults
        good = [(row, code) for row, code in enumerate(filed.codes) if row not in faults]
        most = self._recipe.open_files
        if not most or len(self._open.keys() | {filed.directories[code] for _, code in good}) <= most:
            # Group the rows by directory, but only if no file has to end to make room for another file. The order of
            # the records must decide where such a file ends.
            good.sort(key=lambda one: one[1])
        for code, run in groupby(good, key=lambda one: one[1]):
            self._write(filed.directories[code], rows.take(pa.array([row for row, _ in run])))
        return faults

    def finish(self) -> WrittenWindow:
        self._end_all()
        if self._aside is not None:
            aside, self._aside = self._aside, None
            self._end(aside)
        window, files = self._window, tuple(await_file() for await_file in self._ended)
        return WrittenWindow(
            window.topic, window.topic_id, window.partition, window.start, window.stop,
            self.records, self.filtered, len(self.reasons), files, self._read_bytes,
            window.leader_epoch,
        )  # fmt: skip

    def _write(self, directory: str, rows: pa.RecordBatch) -> None:
        """Write rows into the files of a directory. A file ends with the record that reaches one of its limits."""
        recipe = self._recipe
        self.records += rows.num_rows

        def room(start: int) -> tuple[int, int]:
            file = self._file_for(directory, rows.slice(start))
            most_records = recipe.file_records - file.records if recipe.file_records else MAX_INT64
            return most_records, recipe.file_bytes - file.bytes

        for start, stop, size, is_full in divide_rows(rows.num_rows, rows, room):
            self._open[directory].write(rows.slice(start, stop - start), size)
            if is_full:
                self._end(self._open.pop(directory))

    def _file_for(self, directory: str, rows: pa.RecordBatch) -> _OpenFile:
        """Return the directory's open file. If none is open, begin a file that is named after the first of these
        rows."""
        file = self._open.get(directory)
        if file is None:
            self._make_room()
            file = self._open[directory] = self._begin("data", self._key(directory, rows.column("offset")[0]))
        return file

    def _key(self, directory: str, first: pa.Scalar) -> str:
        """Return the key of a directory's next file, whose first record has the offset ``first``."""
        naming, window = self._recipe.naming, self._window
        # Names must differ. So only a directory's first file has the window's start in its name, and no file of
        # messages that were parsed again, because an earlier file may have that name.
        is_named_by_window = naming.by_window and not naming.redriven and directory not in self._begun
        self._begun.add(directory)
        offset = self._start if is_named_by_window else first.as_py()
        return naming.data_key(window.topic, directory, window.partition, offset)

    def _make_room(self) -> None:
        """If the maximum number of files is open, end the file that was written least recently."""
        if self._recipe.open_files and len(self._open) >= self._recipe.open_files:
            stalest = min(self._open, key=lambda directory: self._open[directory].last)
            self._end(self._open.pop(stalest))

    def _put_aside(self, rows: pa.RecordBatch, faults: dict[int, str]) -> None:
        bad = rows.take(pa.array(list(faults)))
        offsets = bad.column("offset").to_pylist()
        self.reasons.update(zip(offsets, faults.values(), strict=True))
        if self._aside is None:
            key = self._recipe.naming.quarantine_key(self._window.topic, self._window.partition, offsets[0])
            self._aside = self._begin("quarantine", key)
        arrays = [*bad.columns[: len(ENVELOPE)], pa.array(list(faults.values()), pa.string())]
        self._aside.write(pa.RecordBatch.from_arrays(arrays, schema=_QUARANTINE_SCHEMA), 0)

    def _begin(self, kind: str, key: str) -> _OpenFile:
        if kind == "quarantine":
            body = self._bodies.begin(key, writes_forward=True)
            return _OpenFile(kind, body, None, ParquetFile(body.file, _QUARANTINE_SCHEMA))
        how = self._format
        body, beside = self._bodies.begin(key, writes_forward=how.writes_forward), None
        if how.has_sidecar:
            beside = self._bodies.begin(self._recipe.naming.sidecar_key(key), writes_forward=how.writes_forward)
        return _OpenFile(kind, body, beside, how.open(body.file, None if beside is None else beside.file))

    def _end_all(self) -> None:
        for directory in sorted(self._open):
            self._end(self._open.pop(directory))

    def _end(self, file: _OpenFile) -> None:
        file.writer.close()
        span = file.first, file.last, file.records, file.earliest, file.latest
        for kind, body in ((file.kind, file.body), ("sidecar", file.sidecar)):
            if body is not None:
                body.end()
                self._ended.append(partial(_await_file, kind, body, span))


def _await_file(kind: str, body: FileBody, span: tuple[int, int, int, int, int]) -> OutputFile:
    """Wait for the upload; return the file as the log stores it. ``span`` has its offsets, number of records and
    timestamps."""
    prepared = body.await_prepared()
    return OutputFile(kind, prepared.key, prepared.size, prepared.sha256, *span, prepared)


@dataclass(slots=True)
class _OpenFile:
    """A file that is being written, with a summary of its records."""

    kind: str
    body: FileBody
    sidecar: FileBody | None
    writer: FileWriter
    records: int = 0
    bytes: int = 0
    first: int = -1
    last: int = -1
    earliest: int = -1
    latest: int = -1

    def write(self, rows: pa.RecordBatch, size: int) -> None:
        """Append rows whose keys and values have ``size`` bytes."""
        self.records += rows.num_rows
        self.bytes += size
        self.writer.write(rows)
        for body in filter(None, (self.body, self.sidecar)):
            body.check()
        offsets = rows.column("offset")
        if self.first < 0:
            self.first = offsets[0].as_py()
        self.last = offsets[-1].as_py()
        times = rows.column("timestamp").cast(pa.int64())
        extent = pc.min_max(times)
        if (lowest := extent["min"].as_py()) is not None and lowest < 0:
            # Leave out -1, because it means in Kafka that a record has no timestamp.
            extent = pc.min_max(times.filter(pc.greater_equal(times, 0)))
        earliest, latest = extent["min"].as_py(), extent["max"].as_py()
        if latest is not None:
            self.earliest = earliest if self.earliest < 0 else min(self.earliest, earliest)
            self.latest = max(self.latest, latest)


def _of_originals(batch: pa.RecordBatch, changed: pa.RecordBatch, faults: dict[int, str]) -> dict[int, str]:
    """Convert ``faults`` from row numbers of ``changed``, a transformer's output, to row numbers of ``batch``, its
    input."""
    if not faults:
        return {}
    places = {offset: row for row, offset in enumerate(batch.column("offset").to_pylist())}
    offsets = changed.column("offset").to_pylist()
    return {places[offsets[row]]: reason for row, reason in faults.items()}


@dataclass(frozen=True, slots=True)
class InputLimits:
    """Limits for Secor's deterministic uploads: bytes of values, and range of timestamps in ms. 0 means no limit.

    Files end with the record that reaches one of the two limits. All records of a partition count towards the limits,
    in any directory, and even if a transformer drops them.
    """

    payload_bytes: int
    range_ms: int


class Reached:
    """Bytes and timestamps read since files last ended, for comparison with InputLimits. Records must come in order."""

    def __init__(self, limits: InputLimits) -> None:
        self._limits = limits
        self._bytes, self._earliest_ms, self._latest_ms = 0, -1, -1

    def pieces(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """Divide a batch of records. Yield each part, and True if all open files must end after the part."""
        sizes = pc.fill_null(pc.binary_length(batch.column("value")), 0).to_pylist()
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        start = 0
        for row, (size, time_ms) in enumerate(zip(sizes, times, strict=True)):
            self._bytes += size
            if time_ms >= 0:
                self._earliest_ms = time_ms if self._earliest_ms < 0 else min(self._earliest_ms, time_ms)
                self._latest_ms = max(self._latest_ms, time_ms)
            is_long = 0 < self._limits.range_ms <= self._latest_ms - self._earliest_ms
            if is_long or 0 < self._limits.payload_bytes <= self._bytes:
                yield batch.slice(start, row + 1 - start), True
                self._bytes, self._earliest_ms, self._latest_ms = 0, -1, -1
                start = row + 1
        if start < batch.num_rows:
            yield batch.slice(start), False
