"""Exports a topic into files for other programs. Each file covers a range of a partition's offsets.

Each file of an export is either complete or absent. A later export continues after the existing files. In a folder, a
topic has one export at a time, and all its files have the same types and isolation.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import pyarrow as pa
import pyarrow.dataset as ds
from pydantic import TypeAdapter

from tieredstore.errors import ConfigError, CorruptDataError
from tieredstore.ops.offsets import without
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.query.topic_columns import topic_schema
from tieredstore.query.topic_read import ReadPlan
from tieredstore.query.topic_scan import begin_read
from tieredstore.query.writers import WRITERS
from tieredstore.versions import EXPORT

if TYPE_CHECKING:
    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import OffsetWindow, PartitionLog
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.query import LogQuery
    from tieredstore.reading.reader import TopicReader

FILE_BYTES: Final = 256 * 1024 * 1024
"""The approximate number of the log's bytes in one exported file. A file ends at the end of a segment."""

_logger: Final = logging.getLogger(__name__)

_DIGITS: Final = 20
_HOME: Final = "_tieredstore"
"""The folder for the note about an export. Its name begins with an underscore, so that Spark, Hive and Arrow skip
it."""

_NOTE: Final = TypeAdapter(dict[str, object])
_LOSS: Final = "on_data_loss"
_WAY_OUT: Final = "export into another folder, or delete them"


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A file to write: the records of a partition with offsets from ``start`` up to ``stop`` (exclusive)."""

    partition: int
    start: int
    stop: int
    path: Path


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that was written, with the number of records and its size."""

    file: ExportFile
    records: int
    size: int


def plan_export(
    snapshot: LogSnapshot,
    folder: Path,
    ending: str,
    *,
    windows: Mapping[TopicPartition, OffsetWindow] | None = None,
    file_bytes: int = FILE_BYTES,
) -> list[ExportFile]:
    """Return the files to write for all records of the logs, or for ``windows``.

    A file is named ``<topic>-<partition>-<first offset>-<last offset>.<ending>``. Its offsets are the range that the
    file covers, even if no records exist at the ends of the range. Ranges that existing files cover are left out. Raise
    ConfigError for an unknown format.
    """
    if ending not in WRITERS:
        raise ConfigError(f"{ending!r} is not a format of an export: choose one of {', '.join(WRITERS)}")
    files: list[ExportFile] = []
    for _, one in sorted(snapshot.logs.items()):
        there = _cover(folder, one, ending)
        whole = one.earliest, one.end_from(one.earliest)
        for window in without(there, whole if windows is None else windows[one.where]):
            files += (_file(folder, one, piece, ending) for piece in _pieces(one, window, file_bytes))
    return files


def export_files(
    reader: TopicReader, snapshot: LogSnapshot, files: Sequence[ExportFile], plan: ReadPlan, *, at_once: int
) -> Generator[Exported]:
    """Write the files, several in parallel, with the plan's columns and types. Yield each file when it is complete.

    Raise the error of a failed read, or OSError if the folder cannot be written. Even then, complete files stay. Call
    this only inside :func:`export_folder`.
    """
    with ThreadPool(at_once, "tieredstore-export") as pool:
        # If an export ends early, the caller closes this generator, which then does not wait for running reads.
        yield from in_parallel(pool, partial(_export, reader, snapshot, plan), files, at_once=at_once, ordered=False)


def _export(reader: TopicReader, snapshot: LogSnapshot, plan: ReadPlan, file: ExportFile) -> Exported:
    where = reader.query.topic, file.partition
    is_there = ds.field("partition") == file.partition
    alone = replace(plan, start={where: file.start}, stop={where: file.stop}, parallelism=1, filter=is_there)
    file.path.parent.mkdir(parents=True, exist_ok=True)
    draft = file.path.with_name(f".{file.path.name}.part")
    try:
        with begin_read(reader, snapshot, alone, owns_reader=False) as read, draft.open("wb") as target:
            records = WRITERS[file.path.suffix.removeprefix(".")].write(read.reader(), target)
            target.flush()
            os.fsync(target.fileno())
            size = target.tell()
        draft.replace(file.path)
    except BaseException:
        # Remove the incomplete file. On a full disk, it would take space that the user needs.
        draft.unlink(missing_ok=True)
        raise
    return Exported(file, records, size)


def _file(folder: Path, log: PartitionLog, window: OffsetWindow, ending: str) -> ExportFile:
    start, stop = window
    name = f"{log.topic}-{log.partition}-{start:0{_DIGITS}}-{stop - 1:0{_DIGITS}}.{ending}"
    return ExportFile(log.partition, start, stop, folder / name)


def _cover(folder: Path, log: PartitionLog, ending: str) -> list[OffsetWindow]:
    """Return the ranges of offsets that existing files cover, in ascending order."""
    name = re.compile(rf"{re.escape(f'{log.topic}-{log.partition}')}-(\d{{20}})-(\d{{20}})\.{re.escape(ending)}")
    names = (name.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted((int(match[1]), int(match[2]) + 1) for match in names if match is not None)


def _pieces(log: PartitionLog, window: OffsetWindow, file_bytes: int) -> Iterator[OffsetWindow]:
    """Divide the window at ends of segments into ranges of about ``file_bytes``."""
    start, stop = window
    spans = () if log.lineage is None else log.lineage.spans_between(start, min(stop, log.seam))
    for span in spans:
        if start < span.stop < stop and log.bytes_between(start, span.stop) >= file_bytes:
            yield start, span.stop
            start = span.stop
    yield start, stop


@contextmanager
def export_folder(folder: Path, query: LogQuery, snapshot: LogSnapshot, plan: ReadPlan, ending: str) -> Generator[None]:
    """Lock the folder for one export of a topic in one format, and remove incomplete files of killed exports.

    An export does not replace the files of earlier exports, so all files must have the same topic, types and isolation.
    For this, the first export records them in a note in ``_tieredstore/export/``.

    Raise ConfigError if another export of the topic is running, or if the note records another topic, other types or
    another isolation.

    Also raise ConfigError if this export must fail on data loss, but an earlier export had ``on_data_loss="report"``,
    because the files of the earlier export may lack records. Raise OSError if the folder cannot be used.
    """
    kind = _kind(query, snapshot, plan)
    note = folder / _HOME / "export" / f"{query.topic}.{ending}.json"
    note.parent.mkdir(parents=True, exist_ok=True)
    note.touch()
    with note.open("r+b") as file:
        _lock(file, folder, query.topic)
        loss, there = query.on_data_loss, dict[str, object]()
        if noted := file.read():
            there.update(_parse(noted, note))
            _compare(there, kind, folder)
            if there.get(_LOSS) == "report" and loss == "fail":
                raise ConfigError(
                    f"files in {folder} may lack records, because an earlier export skipped lost records: "
                    f"{query.words.accept_loss} again, {_WAY_OUT}"
                )
        if not noted or (loss == "report" and there.get(_LOSS) != loss):
            # Overwrite the note, then cut its end: on a full disk, a note that is emptied first would be lost.
            file.seek(0)
            file.write(EXPORT.to_bytes({**kind, _LOSS: loss}, indent=2))
            file.truncate()
            os.fsync(file.fileno())
        for draft in folder.glob(f".{query.topic}-*.{ending}.part"):
            draft.unlink(missing_ok=True)
        yield


def _kind(query: LogQuery, snapshot: LogSnapshot, plan: ReadPlan) -> dict[str, str]:
    ids = {str(one.stored_partition.topic_id) for one in snapshot.logs.values()}
    schema = topic_schema(types=plan.types)
    return {
        "topic": query.topic,
        "topic_id": ",".join(sorted(ids)),
        "isolation": query.isolation,
        "key": _type_name(schema.field("key").type),
        "value": _type_name(schema.field("value").type),
    }


def _type_name(kind: pa.DataType) -> str:
    """Describe a type for the note about an export. Leave out a schema's fields, because they may change between
    exports.
    """
    return "columns" if pa.types.is_struct(kind) else str(kind)


def _lock(file: BinaryIO, folder: Path, topic: str) -> None:
    """Lock the file until it is closed or the process ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"another export of {topic} is writing into {folder}: wait for its end") from None
    except OSError:
        _logger.debug("%s is on a file system without locks", folder, exc_info=True)


def _parse(noted: bytes, note: Path) -> Mapping[str, object]:
    try:
        return EXPORT.parse(_NOTE, noted, str(note))
    except CorruptDataError as error:
        raise ConfigError(f"{note} is damaged: delete it if all files beside it are of this export") from error


def _compare(there: Mapping[str, object], wanted: Mapping[str, str], folder: Path) -> None:
    if there.get("topic_id") != wanted["topic_id"]:
        raise ConfigError(
            f"the files in {folder} are of another topic {wanted['topic']}, with the id {there.get('topic_id')}; this "
            f"export reads the id {wanted['topic_id']}: {_WAY_OUT}"
        )
    for name, value in wanted.items():
        if there.get(name) != value:
            raise ConfigError(
                f"the files in {folder} have {name} {there.get(name)}, but this export has {value}: {_WAY_OUT}"
            )
