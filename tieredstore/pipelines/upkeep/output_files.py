"""Files of an output, and their records. Secor's output has no commit log, so this module reads the offsets in its file
names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.errors import CorruptDataError, ObjectNotFoundError
from tieredstore.partitions.selections import selected_topics
from tieredstore.pipelines.config.secor import delimiter_bytes
from tieredstore.pipelines.files.reading import download
from tieredstore.pipelines.filing.naming import parse_name
from tieredstore.pipelines.format_table import SIDECARS_OF, read_output
from tieredstore.pipelines.run.recipes import naming_of, places_of
from tieredstore.pipelines.run.selection import selection_of

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.config.settings import Pipeline


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
    return selected_topics(selection_of(own), topics)


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
