"""Files of an output: their records, the offsets of these records, and other raw copies of the same records. Secor's
output has no commit log, so this module reads the offsets in its file names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tieredstore.errors import CorruptDataError, ObjectNotFoundError
from tieredstore.partitions.selections import select_topics
from tieredstore.pipelines.config.secor import delimiter_bytes
from tieredstore.pipelines.files.reading import download
from tieredstore.pipelines.filing.naming import OWN_FOLDER, parse_name
from tieredstore.pipelines.format_table import SIDECARS_OF, read_output
from tieredstore.pipelines.log.holdings import Committed
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.recipes import naming_of, places_of
from tieredstore.pipelines.run.source import selection_of

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.filing.naming import Places
    from tieredstore.reading.log_snapshot import LogSnapshot


@dataclass(frozen=True, slots=True)
class OutputProblem:
    """A problem of an output.

    ``kind`` is ``missing``, ``size``, ``content``, ``stranger`` (a file that the commit log does not name) or
    ``offsets``. A comparison with the source also finds ``lost``, ``twice``, ``invented``, ``changed`` and ``unread``.
    """

    kind: str
    subject: str
    words: str


@dataclass(frozen=True, slots=True)
class Upload:
    """Files of a partition that Secor uploaded together. Their names contain the first offset of the upload, ``start``.

    ``stop`` is the ``start`` of the next upload, or None for the newest upload.
    """

    topic: str
    partition: int
    start: int
    stop: int | None
    keys: tuple[str, ...]
    size: int


def uploads_of(pipeline: Pipeline, store: ObjectStore, topics: Iterable[str]) -> list[Upload]:
    """Return the uploads of the pipeline's generation, sorted by topic, partition and offset."""
    places = places_of(pipeline)
    groups: dict[tuple[str, int, int], list[tuple[str, int]]] = {}
    for info in places.list_files(store, topics):
        name = parse_name(info.key)
        if name is not None and name.generation == pipeline.own.generation:
            topic = (places.inner(info.key) or "").partition("/")[0]
            groups.setdefault((topic, name.partition, name.offset), []).append((info.key, info.size))
    ordered = sorted(groups.items())
    uploads: list[Upload] = []
    for at, ((topic, partition, start), files) in enumerate(ordered):
        following = ordered[at + 1][0] if at + 1 < len(ordered) else None
        stop = following[2] if following is not None and following[:2] == (topic, partition) else None
        keys, size = tuple(key for key, _ in files), sum(size for _, size in files)
        uploads.append(Upload(topic, partition, start, stop, keys, size))
    return uploads


def find_topics(pipeline: Pipeline, store: ObjectStore) -> list[str]:
    """Return the selected topics that have files of this generation, sorted."""
    own, places = pipeline.own, places_of(pipeline)
    topics: set[str] = set()
    for prefix in places.prefixes:
        for info in store.list(prefix):
            topic, is_below, _ = (places.inner(info.key) or "").partition("/")
            name = parse_name(info.key)
            if is_below and name is not None and name.generation == own.generation:
                topics.add(topic)
    return select_topics(selection_of(own), topics)


def offsets_in(pipeline: Pipeline, store: ObjectStore, key: str) -> Iterator[int]:
    """Yield the offsets of a file. Skip records whose offset the file does not store."""
    for batch in read_records(pipeline, store, key):
        yield from batch.column("offset").drop_null().to_pylist()


def find_faults(pipeline: Pipeline, store: ObjectStore, upload: Upload) -> Iterator[OutputProblem]:
    """Yield a problem for each corrupt file, for repeated offsets, and for offsets outside the upload's range.

    The call cannot find missing records, because file names do not show which records should exist.
    """
    seen: set[int] = set()
    for key in upload.keys:
        outside = twice = 0
        try:
            for offset in offsets_in(pipeline, store, key):
                outside += offset < upload.start or (upload.stop is not None and offset >= upload.stop)
                twice += offset in seen
                seen.add(offset)
        except (CorruptDataError, ObjectNotFoundError) as error:
            yield OutputProblem("content", key, str(error))
        if outside:
            end = "" if upload.stop is None else f" or from {upload.stop} on, where the next file begins"
            yield OutputProblem("offsets", key, f"has {outside} records with offsets below {upload.start}{end}")
        if twice:
            yield OutputProblem("twice", key, f"repeats the offsets of {twice} earlier records")


def read_records(pipeline: Pipeline, store: ObjectStore, key: str) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file in any format. Raise ObjectNotFoundError if the file does not exist."""
    delimiter = delimiter_bytes(pipeline.own.delimiter)
    with ExitStack() as stack:
        file = stack.enter_context(download(store, key))
        sidecar = None
        if SIDECARS_OF & {f".{part}" for part in key.rpartition("/")[2].split(".")[1:]}:
            try:
                sidecar = stack.enter_context(download(store, naming_of(pipeline).sidecar_key(key)))
            except ObjectNotFoundError:
                # Secor writes no sidecars.
                sidecar = None
        yield from read_output(file, key, sidecar=sidecar, delimiter=delimiter)


@dataclass(frozen=True, slots=True)
class Origin:
    """A range of offsets, ``first`` to ``last`` (inclusive), that includes all records of a file.

    ``committed`` is True if a commit log has the range. Otherwise the range comes from file names, and ``last`` is None
    for Secor's newest file of a partition. ``backups`` are the keys of other files with the same records, and
    ``segments`` the names of segments with these records.
    """

    key: str
    topic: str
    partition: int
    first: int
    last: int | None
    committed: bool
    backups: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()


def origins_of(
    pipeline: Pipeline,
    store: ObjectStore,
    keys: Sequence[str],
    *,
    snapshot: LogSnapshot | None = None,
    backups: Sequence[Committed] = (),
) -> Iterator[Origin]:
    """Yield the origin of each file, with the range of offsets from the commit log. For files that no log entry names,
    such as Secor's, use the file names. ``backups`` are files of pipelines that store messages unchanged.

    Raises ObjectNotFoundError for a key that neither the log nor the listing has.
    """
    committed = Committed.of(commit_log_of(pipeline, store))
    for key in keys:
        if (one := committed.files.get(key)) is None:
            origin = _by_names(store, places_of(pipeline), key)
        else:
            origin = Origin(key, *one.window.where, one.file.first_offset, one.file.last_offset, committed=True)
        yield _with_copies(origin, snapshot, backups)


def _with_copies(origin: Origin, snapshot: LogSnapshot | None, backups: Sequence[Committed]) -> Origin:
    where, stop = (origin.topic, origin.partition), None if origin.last is None else origin.last + 1
    held = [key for backup in backups for key in backup.overlapping_keys(where, origin.first, origin.last)]
    log = snapshot.logs.get(where) if snapshot is not None else None
    segments: list[str] = []
    if log is not None and log.lineage is not None:
        for span in log.lineage.spans_between(origin.first, log.seam if stop is None else min(stop, log.seam)):
            identity = span.segment.remote_log_segment_id
            segments.append(f"{span.segment.start_offset:020}-{identity.id}")
    return replace(origin, backups=tuple(held), segments=tuple(segments))


def place_of(places: Places, key: str) -> tuple[str, int]:
    """Return the topic and the partition of a file. Raise ObjectNotFoundError for a key outside the output."""
    name = parse_name(key, or_beside=True)
    is_own = key.startswith(f"{places.root}{OWN_FOLDER}/")
    inner = key.removeprefix(places.root) if is_own else places.inner(key) or ""
    topic = inner.rpartition("/quarantine/")[2].partition("/")[0]
    if name is None or not topic or "/" not in inner:
        raise ObjectNotFoundError(
            f"{key} is not named like an output file of Secor: "
            "<root><topic>/<partitions>/<generation>_<partition>_<offset>"
        )
    return topic, name.partition


def _by_names(store: ObjectStore, places: Places, key: str) -> Origin:
    """Return the offsets from the start of this file's upload to the start of the next upload. Secor names all files of
    an upload by the upload's first offset.
    """
    topic, partition = place_of(places, key)
    names = {info.key: parse_name(info.key, or_beside=True) for info in places.list_files(store, [topic])}
    own = names.get(key)
    if own is None:
        raise ObjectNotFoundError(f"{key} does not exist: give the key of an output file")
    following = [one.offset for one in names.values() if one is not None and one[:2] == own[:2] and one > own]
    return Origin(key, topic, partition, own.offset, min(following) - 1 if following else None, committed=False)
