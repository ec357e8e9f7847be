"""Verification of a bucket: a listing in key order, each segment checked, and held against those before it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.listing import Scope, SegmentObjects, list_in_scope
from tieredstore.catalog.stored import MAX_MANIFESTS_IN_FLIGHT, manifest_size
from tieredstore.format.keys import Suffix
from tieredstore.ops.verification.findings import Finding
from tieredstore.ops.verification.neighbours import Neighbours
from tieredstore.ops.verification.segment_check import SegmentCheck, SegmentResult
from tieredstore.ops.verification.subject import Level, Subject
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool

if TYPE_CHECKING:
    from tieredstore.ops.bucket import Bucket
    from tieredstore.remote import RemoteStorageManager

_LOGS_AT_ONCE: Final = 4
"""Segments whose logs are read at once unless told otherwise: each is decoded by all processors, and has 32 MiB and
more on its way."""

_ALL: Final = Scope()


@dataclass(frozen=True, slots=True)
class CheckedSegment:
    """One segment of the listing, with all that was found of it and between it and those before it."""

    objects: SegmentObjects
    level: Level | None
    findings: tuple[Finding, ...]
    log_size: int


def verify(
    bucket: Bucket,
    scope: Scope = _ALL,
    *,
    level: Level = Level.LISTING,
    parallel: int | None = None,
) -> Generator[CheckedSegment]:
    """Check the segments in scope, in key order.

    Neither the listing nor manifests are held. Reads alone; below level listing it needs the private keys, and goes
    past all caches. Errors of the store end the run.
    """
    count = parallel or (_LOGS_AT_ONCE if level is Level.DATA else READERS)
    with contextlib.ExitStack() as opened:
        manager = None if level is Level.LISTING else opened.enter_context(_uncached(bucket))
        check = SegmentCheck(bucket.store, bucket.manifest_rules, manager)
        pool = opened.enter_context(ThreadPool(count, "tieredstore-verify"))
        subjects = _subjects(list_in_scope(bucket.store, bucket.prefix, scope), level, bucket.prefix, bucket.shown)
        results = in_parallel(
            pool,
            check.check,
            subjects,
            at_once=4 * count,
            weigh=lambda subject: manifest_size(subject.objects),
            max_weight=MAX_MANIFESTS_IN_FLIGHT,
        )
        neighbours = Neighbours()
        for result in results:
            yield _with_neighbours(neighbours, result)


def _with_neighbours(neighbours: Neighbours, result: SegmentResult) -> CheckedSegment:
    subject = result.subject
    is_committed = subject.objects.find(Suffix.MANIFEST) is not None
    between = neighbours.take(subject, result.extent, is_committed=is_committed)
    findings = (*between, *result.findings)
    size = 0 if result.stored is None else result.stored.metadata.segment_size_in_bytes
    return CheckedSegment(subject.objects, subject.level, findings, size)


def _subjects(
    listed: Iterable[SegmentObjects], level: Level, prefix: str, shown: Callable[[str], str]
) -> Iterator[Subject]:
    """Each with where the next one begins: one is looked ahead."""
    last: Subject | None = None
    for objects in listed:
        if last is not None:
            is_same = objects.segment_id.topic_id_partition == last.objects.segment_id.topic_id_partition
            yield dataclasses.replace(last, next_start=objects.start_offset) if is_same else last
        last = Subject(objects, level, prefix, shown)
    if last is not None:
        yield last


@contextlib.contextmanager
def _uncached(bucket: Bucket) -> Iterator[RemoteStorageManager]:
    """A manager that keeps no chunks: what a cache has says nothing of the store."""
    fetch = bucket.settings.fetch.model_copy(update={"chunk_cache": None})
    settings = bucket.settings.model_copy(update={"fetch": fetch})
    with dataclasses.replace(bucket, settings=settings).manager() as manager:
        yield manager
