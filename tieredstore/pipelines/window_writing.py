"""One window of a partition into prepared files: read, filed, encoded, uploaded, and seen by nobody."""

from __future__ import annotations

import tempfile
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.errors import TieredStoreError
from tieredstore.pipelines.entries import OutputFile, WrittenWindow
from tieredstore.pipelines.naming import Naming
from tieredstore.pipelines.parsers import Parser
from tieredstore.pipelines.sizes import running_sizes
from tieredstore.pipelines.transforming import Transforming
from tieredstore.pipelines.writers import (
    DECODED,
    ENVELOPE,
    FileWriter,
    Format,
    ParquetFile,
    envelope,
)
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore

# What its type stubs say of batches is partial.
_arrow: Final[Any] = pa
_compute: Final[Any] = pc

_PIECE: Final = 4 << 20
_QUARANTINE_SCHEMA: Final = _arrow.schema([*ENVELOPE, _arrow.field("reason", _arrow.string())])


@dataclass(frozen=True, slots=True)
class Window:
    """Offsets ``start`` up to ``stop`` (half-open) of one life of a partition. Small, and picklable."""

    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int

    @property
    def is_mark(self) -> bool:
        """Whether it has no offsets, and only says where a partition begins."""
        return self.start == self.stop


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides what a window becomes, but its records. Picklable."""

    parser: Parser
    format: Format
    naming: Naming
    file_bytes: int
    file_records: int
    """0 for no such end of a file."""
    staging_prefix: str
    local_path: str | None = None
    transforming: Transforming | None = None
    file_range_ms: int = 0
    """A file ends at the record with which its times reach over so much; 0 for no such end."""
    open_files: int = 0
    """So many are under way at most, the stalest of which is ended; 0 for any number."""


def write_window(
    window: Window, records: Iterable[pa.RecordBatch], recipe: Recipe, store: ObjectStore
) -> tuple[WrittenWindow, dict[int, str]]:
    """Prepare the files of a window, whose records come ascending; why some of them were put aside, by offset.

    The same records become the same files, in whatever batches they come. What was prepared before an error is
    discarded again, as far as the store lets.
    """
    writing = _WindowWriting(window, recipe, store)
    try:
        with writing:
            for batch in records:
                writing.take(batch)
            return writing.written(), writing.reasons
    except BaseException:
        discard_files(store, writing.files)
        raise


def marked(windows: Sequence[Window]) -> list[tuple[WrittenWindow, dict[int, str]]]:
    """Windows of no offsets as they are committed: there is nothing to write."""
    return [
        (WrittenWindow(one.topic, one.topic_id, one.partition, one.start, one.stop, 0, 0, 0, ()), {}) for one in windows
    ]


def written_at_once(
    windows: Sequence[Window],
    write: Callable[[Window], tuple[WrittenWindow, dict[int, str]]],
    store: ObjectStore,
    threads: int,
) -> list[tuple[WrittenWindow, dict[int, str]]]:
    """Windows written by ``write`` on threads, in their order. What was prepared before an error is discarded."""
    written: list[tuple[WrittenWindow, dict[int, str]]] = []
    try:
        with ThreadPool(threads, "tieredstore-pipeline") as pool:
            # One by one, so that what was prepared before an error is known.
            written.extend(in_parallel(pool, write, windows, at_once=threads))
    except BaseException:
        discard_files(store, [file for window, _ in written for file in window.files])
        raise
    return written


def discard_files(store: ObjectStore, files: Sequence[OutputFile]) -> None:
    """Take back what was prepared. What cannot be is for ``gc``, and the life-cycle rule."""
    for file in files:
        try:
            store.discard(file.prepared)
        except TieredStoreError:
            continue


class _WindowWriting:
    """A window under way; a context manager, which closes its temporary files."""

    def __init__(self, window: Window, recipe: Recipe, store: ObjectStore) -> None:
        self._window, self._recipe, self._store = window, recipe, store
        self._parser = recipe.parser.for_topic(window.topic)
        self._format = recipe.format.for_window(window.topic)
        self._open: dict[str, _OpenFile] = {}
        self._aside: _OpenFile | None = None
        self._stack = ExitStack()
        self.files: list[OutputFile] = []
        self.reasons: dict[int, str] = {}
        self.records = self.filtered = 0

    def __enter__(self) -> None:
        """Nothing is open yet."""

    def __exit__(self, *_: object) -> None:
        # After an error: nobody will read these files, but their writers hold memory and would complain.
        for file in [*self._open.values(), *([self._aside] if self._aside else [])]:
            file.writer.abandon()
        self._stack.close()

    def take(self, batch: Any) -> None:
        if self._recipe.transforming is None:
            faults = self._write_good(batch)
        else:
            after = self._recipe.transforming.apply(batch, self._window.topic, self._window.partition)
            self.filtered += after.filtered
            bad = self._write_good(after.records) if after.records.num_rows else {}
            faults = {**after.faults, **_of_originals(batch, after.records, bad)}
        if faults:
            # As they came: a transformer's work is not kept.
            self._put_aside(envelope(batch, self._window.topic, self._window.partition), dict(sorted(faults.items())))

    def _write_good(self, batch: Any) -> dict[int, str]:
        """Write what is good; why the others are not, by their numbers."""
        filed = self._parser.file(batch)
        beside, faults = self._format.decoded(batch)
        faults |= filed.reasons
        rows = envelope(batch, self._window.topic, self._window.partition)
        if beside is not None:
            rows = cast("Any", rows).append_column(DECODED, beside)
        if len(filed.directories) == 1 and not faults:
            self._write(filed.directories[0], rows)
            return faults
        good = [(row, code) for row, code in enumerate(filed.codes) if row not in faults]
        most = self._recipe.open_files
        if most and len(self._open.keys() | {filed.directories[code] for _, code in good}) > most:
            # In the order of the records, so that the same files end at the same ones, in whatever batches they come.
            for code, run in groupby(good, key=lambda one: one[1]):
                self._write(filed.directories[code], rows.take(_arrow.array([row for row, _ in run])))
        else:
            numbers: dict[int, list[int]] = {}
            for row, code in good:
                numbers.setdefault(code, []).append(row)
            for code, taken in numbers.items():
                self._write(filed.directories[code], rows.take(_arrow.array(taken)))
        return faults

    def written(self) -> WrittenWindow:
        for directory in sorted(self._open):
            self._end(self._open.pop(directory))
        if self._aside is not None:
            aside, self._aside = self._aside, None
            self._end(aside)
        window = self._window
        return WrittenWindow(
            window.topic, window.topic_id, window.partition, window.start, window.stop,
            self.records, self.filtered, len(self.reasons), tuple(self.files),
        )  # fmt: skip

    def _write(self, directory: str, rows: Any) -> None:
        """A file ends at the record that reaches one of the limits."""
        running, start, before = running_sizes(rows), 0, 0
        times = rows.column("timestamp").cast(_arrow.int64()).to_pylist() if self._recipe.file_range_ms else ()
        while start < rows.num_rows:
            file = self._open.get(directory)
            if file is None:
                self._make_room()
                first = rows.column("offset")[start].as_py()
                key = self._recipe.naming.data_key(self._window.topic, directory, self._window.partition, first)
                file = self._open[directory] = self._begin("data", key)
            full = self._reached(file, running, before, times, start)
            stop = min(full, rows.num_rows)
            file.records += stop - start
            file.bytes += running[stop - 1] - before
            file.write(rows.slice(start, stop - start))
            if stop == full:
                self._end(self._open.pop(directory))
            start, before = stop, running[stop - 1]
        self.records += rows.num_rows

    def _reached(self, file: _OpenFile, running: Sequence[int], before: int, times: Sequence[int], start: int) -> int:
        """Behind the row with which the file reaches one of the limits; beyond the last one if none does."""
        recipe = self._recipe
        stop = bisect_left(running, before + recipe.file_bytes - file.bytes, start) + 1
        if recipe.file_records:
            stop = min(stop, start + recipe.file_records - file.records)
        for row in range(start, min(stop, len(times))):
            if file.reach_ms(times[row]) >= recipe.file_range_ms:
                return row + 1
        return stop

    def _make_room(self) -> None:
        """End the file whose last record is the oldest, where there are as many as may be."""
        if self._recipe.open_files and len(self._open) >= self._recipe.open_files:
            stalest = min(self._open, key=lambda directory: self._open[directory].last)
            self._end(self._open.pop(stalest))

    def _put_aside(self, rows: Any, faults: dict[int, str]) -> None:
        bad = rows.take(_arrow.array(list(faults)))
        offsets = bad.column("offset").to_pylist()
        self.reasons.update(zip(offsets, faults.values(), strict=True))
        if self._aside is None:
            key = self._recipe.naming.quarantine_key(self._window.topic, self._window.partition, offsets[0])
            self._aside = self._begin("quarantine", key)
        self._aside.records += len(offsets)
        arrays = [*bad.columns[: len(ENVELOPE)], _arrow.array(list(faults.values()), _arrow.string())]
        self._aside.write(_arrow.RecordBatch.from_arrays(arrays, schema=_QUARANTINE_SCHEMA))

    def _begin(self, kind: str, key: str) -> _OpenFile:
        file = self._temporary()
        if kind == "quarantine":
            return _OpenFile(kind, key, file, None, ParquetFile(file, _QUARANTINE_SCHEMA))
        sidecar = self._temporary() if self._format.has_sidecar else None
        return _OpenFile(kind, key, file, sidecar, self._format.open(file, sidecar))

    def _temporary(self) -> BinaryIO:
        return self._stack.enter_context(tempfile.TemporaryFile(dir=self._recipe.local_path))

    def _end(self, file: _OpenFile) -> None:
        file.writer.close()
        self._prepare(file.kind, file.key, file.file, file)
        if file.sidecar is not None:
            self._prepare("sidecar", self._recipe.naming.sidecar_key(file.key), file.sidecar, file)

    def _prepare(self, kind: str, key: str, body: BinaryIO, file: _OpenFile) -> None:
        prepared = self._store.prepare(key, _pieces(body), staging_prefix=self._recipe.staging_prefix)
        body.close()
        span = file.first, file.last, file.records, file.earliest, file.latest
        self.files.append(OutputFile(kind, key, prepared.size, prepared.sha256, *span, prepared))


@dataclass(slots=True)
class _OpenFile:
    """A file under way: where it will be, and what is in it."""

    kind: str
    key: str
    file: BinaryIO
    sidecar: BinaryIO | None
    writer: FileWriter
    records: int = 0
    bytes: int = 0
    first: int = -1
    last: int = -1
    earliest: int = -1
    latest: int = -1
    lowest: int = -1
    highest: int = -1

    def reach_ms(self, time: int) -> int:
        """Over how much the times of its records reach, with one of this time; of none, by those before."""
        if time >= 0:
            self.lowest = time if self.lowest < 0 else min(self.lowest, time)
            self.highest = max(self.highest, time)
        return self.highest - self.lowest

    def write(self, rows: Any) -> None:
        self.writer.write(rows)
        offsets = rows.column("offset")
        if self.first < 0:
            self.first = offsets[0].as_py()
        self.last = offsets[-1].as_py()
        times = rows.column("timestamp").cast(_arrow.int64())
        extent = _compute.min_max(times.filter(_compute.greater_equal(times, 0)))
        earliest, latest = extent["min"].as_py(), extent["max"].as_py()
        if latest is not None:
            self.earliest = earliest if self.earliest < 0 else min(self.earliest, earliest)
            self.latest = max(self.latest, latest)


def _of_originals(batch: Any, changed: Any, faults: dict[int, str]) -> dict[int, str]:
    """Faults of rows that a transformer left, by the numbers of the rows that it was given."""
    if not faults:
        return {}
    places = {offset: row for row, offset in enumerate(batch.column("offset").to_pylist())}
    offsets = changed.column("offset").to_pylist()
    return {places[offsets[row]]: reason for row, reason in faults.items()}


def _pieces(file: BinaryIO) -> Generator[bytes]:
    file.seek(0)
    while piece := file.read(_PIECE):
        yield piece
