"""Verification of a bucket: a listing in key order, each segment checked, and held against those before it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.listing import Scope, SegmentObjects, list_in_scope
from tieredstore.catalog.stored import MAX_MANIFESTS_IN_FLIGHT, manifest_size
from tieredstore.format.keys import Suffix
from tieredstore.ops.verification.findings import Finding
from tieredstore.ops.verification.neighbours import Neighbours
from tieredstore.ops.verification.open_transactions import OpenTransactions
from tieredstore.ops.verification.segment_check import SegmentCheck, SegmentResult
from tieredstore.ops.verification.selection import Selection
from tieredstore.ops.verification.subject import Extent, Level, SoundSegment, Subject
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool

if TYPE_CHECKING:
    from tieredstore.ops.bucket import Bucket
    from tieredstore.ops.verification.state import VerifyState
    from tieredstore.remote import RemoteStorageManager

_LOGS_AT_ONCE: Final = 4
"""Segments whose logs are read at once unless told otherwise: each is decoded by all processors, and has 32 MiB and
more on its way."""

_ALL: Final = Scope()
_AT_LISTING: Final = Selection()


@dataclass(frozen=True, slots=True)
class CheckedSegment:
    """One segment of the listing, with all that was found of it and between it and those before it.

    ``extent`` is what it is said to hold, None where nobody says. ``level`` None: only whether its objects are there
    was looked at, since it is old or known to be sound. ``log_size`` are the bytes of its log, 0 where nobody says;
    ``is_read``: all of them were read.
    """

    objects: SegmentObjects
    level: Level | None
    findings: tuple[Finding, ...]
    log_size: int
    extent: Extent | None = None
    is_read: bool = False


def verify(
    bucket: Bucket,
    scope: Scope = _ALL,
    selection: Selection = _AT_LISTING,
    *,
    parallel: int | None = None,
    stop_offset: int | None = None,
) -> Generator[CheckedSegment]:
    """Check the segments in scope, in key order; the ``selection`` says which, and how deep.

    Of one partition those that begin before ``stop_offset``, if it is given.
    Neither the listing nor manifests are held. Reads alone; below level listing it needs the private keys, and goes
    past all caches. Errors of the store end the run; with a state it goes on from there.
    """
    count = parallel or (_LOGS_AT_ONCE if selection.level is Level.DATA else READERS)
    with contextlib.ExitStack() as opened:
        manager = None if selection.level is Level.LISTING else opened.enter_context(_uncached(bucket))
        check = SegmentCheck(bucket.store, bucket.manifest_rules, manager)
        pool = opened.enter_context(ThreadPool(count, "tieredstore-verify"))
        listed = list_in_scope(bucket.store, bucket.prefix, scope)
        results = in_parallel(
            pool,
            check.check,
            _before(selection.subjects(listed, bucket.prefix, bucket.shown), stop_offset),
            at_once=4 * count,
            weigh=lambda subject: manifest_size(subject.objects),
            max_weight=MAX_MANIFESTS_IN_FLIGHT,
        )
        neighbours = Neighbours()
        transactions = None if manager is None else OpenTransactions(manager)
        for checked_alone, is_last in _with_last(results):
            across = () if transactions is None else transactions.take(checked_alone)
            result = dataclasses.replace(checked_alone, findings=(*checked_alone.findings, *across))
            checked = _with_neighbours(neighbours, result)
            yield (
                dataclasses.replace(checked, findings=(*checked.findings, *neighbours.finish())) if is_last else checked
            )
            # Once it was taken: what was found of a segment must not be lost with the process.
            if selection.state is not None:
                _note(selection.state, result)


def _before(subjects: Iterator[Subject], stop_offset: int | None) -> Iterator[Subject]:
    if stop_offset is None:
        return subjects
    return itertools.takewhile(lambda subject: subject.objects.start_offset < stop_offset, subjects)


def _with_last(results: Iterator[SegmentResult]) -> Iterator[tuple[SegmentResult, bool]]:
    """Each result, and whether none follows."""
    following = next(results, None)
    while (result := following) is not None:
        following = next(results, None)
        yield result, following is None


def _with_neighbours(neighbours: Neighbours, result: SegmentResult) -> CheckedSegment:
    subject = result.subject
    is_committed = subject.objects.find(Suffix.MANIFEST) is not None
    between = neighbours.take(subject, result.extent, is_committed=is_committed)
    findings = (*between, *result.findings)
    return CheckedSegment(
        subject.objects, subject.level, findings, result.log_size, result.extent, is_read=result.is_read
    )


def _note(state: VerifyState, result: SegmentResult) -> None:
    level, extent = result.subject.level, result.extent
    if result.is_sound and level is not None and extent is not None:
        state.keep(result.subject.objects, level, SoundSegment(extent, result.log_size))
    elif level is not None:
        state.forget(result.subject.objects)


@contextlib.contextmanager
def _uncached(bucket: Bucket) -> Generator[RemoteStorageManager]:
    """A manager that keeps no chunks: what a cache has says nothing of the store."""
    fetch = bucket.settings.fetch.model_copy(update={"chunk_cache": None})
    settings = bucket.settings.model_copy(update={"fetch": fetch})
    with dataclasses.replace(bucket, settings=settings).manager() as manager:
        yield manager
