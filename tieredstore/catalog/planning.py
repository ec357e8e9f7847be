"""Creation of a catalog from a store."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Collection, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.catalog import Catalog
from tieredstore.catalog.catalog_file import CatalogFile, LoadedRows, Origin, RowCursor, SegmentRow, Stamp
from tieredstore.catalog.completion import describe_segment
from tieredstore.catalog.listing import Scope, SegmentObjects, list_segments
from tieredstore.catalog.problems import Problem, ProblemKind
from tieredstore.catalog.stored import StoredSegment, load_batch, load_each, look_again, manifest_info
from tieredstore.catalog.tracing import KnownProofs, Traced, catalog_of, trace_partitions
from tieredstore.errors import (
    CorruptDataError,
    SegmentNotFoundError,
    StoreError,
    TieredStoreError,
    UnknownKeyError,
    WrongKeyError,
)
from tieredstore.format.keys import Suffix, main_path, object_key, parse_key
from tieredstore.model import RemoteLogSegmentMetadata, Uuid
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource

_logger: Final = logging.getLogger(__name__)

_AT_ONCE: Final = 4 * READERS  # a few finished results may wait for each reader


def load_catalog(
    source: SegmentSource,
    *,
    topic: str | None = None,
    topic_id: Uuid | None = None,
    partition: int | None = None,
    topics: Collection[str] | None = None,
    file: CatalogFile | None = None,
) -> Catalog:
    """Make the catalog of a store, or of a part of it, from one listing.

    ``topics`` lists several topics together, in place of ``topic``, ``topic_id`` and ``partition``. Each manifest takes
    one request, and ``READERS`` requests run in parallel.

    If a catalog ``file`` is given, only the manifests that it lacks are read. The file is then updated.

    Some segments take further requests. A manifest without segment metadata takes a few, and an overlapping segment
    takes three. A segment with a manifest takes one for each object that the listing lacks. A partition takes two more
    if it has older leader epochs than its newest segment. Only these further requests need private keys. Segments that
    cannot be used are in the catalog's ``problems``.

    Raise StoreError if the store fails. If only the write of the catalog file fails, log the error and continue.
    """
    scope = Scope(topic, topic_id, partition, None if topics is None else frozenset(topics))
    origin = Origin(source.store.identity, source.layout.prefix)
    loaded = None if file is None else file.load(origin)
    with ThreadPool(READERS, "tieredstore-catalog") as pool:
        survey = _survey(source, scope, loaded, pool)
        traced = _trace(source, survey, pool)
    if file is not None and loaded is not None:
        # Remove only rows in scope, because the listing does not cover other partitions.
        gone = {path for path in loaded.rows.paths() if path not in survey.rows and _in_scope(path, scope)}
        # Write the catalog file only after a change, because readers of a bucket may lack the permission to write.
        if survey.changed or gone:
            _save(file, loaded, origin, survey, gone)
    return catalog_of(traced, survey.problems)


@dataclass(slots=True)
class _Survey:
    """Results of a listing: valid segments by path, and problems. ``changed`` tells if the catalog file must be
    updated. ``incomplete`` are segments of which the listing lacks objects."""

    rows: dict[str, SegmentRow] = field(default_factory=dict[str, SegmentRow])
    incomplete: list[SegmentObjects] = field(default_factory=list[SegmentObjects])
    problems: list[Problem] = field(default_factory=list[Problem])
    changed: bool = False

    def keep(self, row: SegmentRow) -> None:
        """Add a row that the catalog file lacks."""
        self.rows[row.path] = row
        self.changed = True

    def row_of(self, segment: RemoteLogSegmentMetadata) -> SegmentRow:
        """Return the row of a valid segment."""
        own = segment.remote_log_segment_id
        # Try the usual path first. The path differs if a JVM wrote the offset in the digits of its own locale.
        row = self.rows.get(main_path(own, segment.start_offset))
        if row is not None and row.metadata.remote_log_segment_id == own:
            return row
        return next(row for row in self.rows.values() if row.metadata.remote_log_segment_id == own)


def _survey(source: SegmentSource, scope: Scope, loaded: LoadedRows | None, pool: Executor) -> _Survey:
    survey = _Survey()
    cursor = None if loaded is None else loaded.rows.cursor()
    unknown = _unknown(source, scope, cursor, survey)
    # Read manifests on threads, while the listing continues.
    reads = load_each(source.store, unknown, source.manifest_rules, pool, partial(_read, source), at_once=_AT_ONCE)
    found_again = in_parallel(pool, partial(read_listed, source), survey.incomplete, at_once=_AT_ONCE)
    for read in itertools.chain(reads, found_again):
        if isinstance(read, SegmentRow):
            survey.keep(read)
        elif read is not None:
            survey.problems.append(read)
    return survey


def _unknown(
    source: SegmentSource, scope: Scope, cursor: RowCursor | None, survey: _Survey
) -> Iterator[SegmentObjects]:
    """Yield the complete segments whose manifests must be read. Add the other segments to ``survey``: incomplete
    segments, and known segments with their rows from the catalog file."""
    for objects in list_segments(source.store, source.layout.prefix, scope):
        manifest = objects.find(Suffix.MANIFEST)
        if manifest is None or objects.missing:
            survey.incomplete.append(objects)
            continue
        row = cursor.find(objects.main_path, objects.segment_id, objects.start_offset) if cursor is not None else None
        if row is not None and row.stamp.matches(Stamp.of(manifest)):
            survey.rows[row.path] = row
        else:
            yield objects


def _read(
    source: SegmentSource, objects: SegmentObjects, loaded: StoredSegment | TieredStoreError
) -> SegmentRow | Problem | None:
    """Read a segment's manifest. Return the segment's row for the catalog, or the segment's problem. Return None if the
    segment was deleted meanwhile.
    """
    try:
        if isinstance(loaded, TieredStoreError):
            raise loaded
        return SegmentRow(objects.main_path, Stamp.of(manifest_info(objects)), describe_segment(source, loaded))
    # An absent manifest is no damage, because retention may delete a segment between the listing and the read of its
    # manifest.
    except SegmentNotFoundError:
        return None
    except (CorruptDataError, UnknownKeyError, WrongKeyError) as error:
        kind = ProblemKind.DAMAGED if isinstance(error, CorruptDataError) else ProblemKind.UNREADABLE
        return Problem(kind, objects.segment_id, objects.start_offset, str(error))


def read_listed(source: SegmentSource, objects: SegmentObjects) -> SegmentRow | Problem | None:
    """Look up the objects of a segment that the listing lacks, then read the segment's manifest. Return the segment's
    row, or its problem. Return None if the segment was deleted meanwhile.

    A segment without a manifest was not committed, so return a problem without any request.
    """
    if objects.find(Suffix.MANIFEST) is not None:
        objects = look_again(source.store, source.layout.prefix, objects)
    if objects.missing:
        missing = ", no ".join(f".{suffix.value}" for suffix in objects.missing)
        has_manifest = objects.find(Suffix.MANIFEST) is not None
        return Problem(
            ProblemKind.INCOMPLETE, objects.segment_id, objects.start_offset, f"it has no {missing}",
            has_manifest=has_manifest,
        )  # fmt: skip
    (loaded,) = load_batch(source.store, [objects], source.manifest_rules)
    return _read(source, objects, loaded)


def _trace(source: SegmentSource, survey: _Survey, pool: Executor) -> Traced:
    """Trace the lineages (the valid segments of each log) of the survey. Add the facts that were read from segments to
    the segments' rows.
    """
    rows = survey.rows
    known = KnownProofs(
        {row.metadata.remote_log_segment_id: row.history for row in rows.values() if row.history is not None},
        {row.metadata.remote_log_segment_id for row in rows.values() if row.is_proven},
    )
    traced = trace_partitions(source, (row.metadata for row in rows.values()), known, pool, at_once=_AT_ONCE)
    for partition in traced.partitions:
        for metadata in partition.proven:
            survey.keep(dataclasses.replace(survey.row_of(metadata), metadata=metadata, is_proven=True))
        if partition.history is not None and partition.ruler.remote_log_segment_id not in known.histories:
            survey.keep(dataclasses.replace(survey.row_of(partition.ruler), history=partition.history))
    return traced


def _in_scope(path: str, scope: Scope) -> bool:
    if not path.startswith(scope.listing_prefix("")):
        return False
    key = parse_key("", object_key("", path, Suffix.MANIFEST))
    return key is None or scope.holds(key.segment_id, key.start_offset)


def _save(file: CatalogFile, loaded: LoadedRows, origin: Origin, survey: _Survey, gone: set[str]) -> None:
    try:
        file.save(loaded, origin, survey.rows.values(), gone)
    except StoreError as error:
        _logger.warning("the catalog file could not be updated: %s", error)
