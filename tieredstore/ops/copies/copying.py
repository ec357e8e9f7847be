"""Segments from one store to another, or to another prefix, without a broker; the source is only read.

Where nothing changes the three objects go as they are, under the same keys (``verbatim``). What is transcoded goes
under an id of its own, as every copy of a broker's segment does: no two encryptions have the same bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.listing import Scope, SegmentObjects, list_in_scope
from tieredstore.catalog.stored import (
    MAX_MANIFESTS_IN_FLIGHT,
    StoredSegment,
    known_segment,
    manifest_info,
    manifest_size,
)
from tieredstore.errors import (
    ConfigError,
    CorruptData,
    InvalidSegment,
    ObjectNotFound,
    SegmentAlreadyExists,
    SegmentCorrupt,
    SegmentNotFound,
    SegmentTooLarge,
    TieredStoreError,
    UnknownKey,
    WrongKey,
)
from tieredstore.format.keys import Suffix
from tieredstore.model import Uuid
from tieredstore.ops.conditions import require_conditional_writes
from tieredstore.ops.copies.proven_store import ProvenStore
from tieredstore.ops.copies.recoding import CopyWay, Recoding
from tieredstore.ops.copies.transcoding import Transcoder
from tieredstore.ops.copies.verbatim import LeftAlone, VerbatimCopies, VerbatimSegment
from tieredstore.ops.steps import Outcome, Step
from tieredstore.places.record import refuse_other_layout
from tieredstore.process.deadline import boot_clock_s
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote.manifest_object import parse_manifest, read_manifest_text

if TYPE_CHECKING:
    from tieredstore.ops.bucket import Bucket

SEGMENTS_AT_ONCE: Final = 4
"""Segments on their way at once unless told otherwise: each has some parts of 8 MiB in memory."""

_ID_LENGTH: Final = 1 + 22
"""Characters of a segment's id at the end of its path, with the dash before it."""

_OF_ONE_SEGMENT: Final = (
    CorruptData,
    UnknownKey,
    WrongKey,
    InvalidSegment,
    SegmentTooLarge,
    SegmentAlreadyExists,
    LeftAlone,
)
_ALL: Final = Scope()


@dataclass(frozen=True, slots=True)
class CopyStep(Step[SegmentObjects]):
    """One segment of a copy.

    The item is the source's; ``last_offset`` is inclusive, None where nobody says. ``segment_id`` is that
    of the copy, None where there is none. ``sent`` are the bytes that were written (in a dry run: would be, of
    transcoded segments as many as the source has). ``error`` says why it failed.
    """

    way: CopyWay | None = None
    last_offset: int | None = None
    segment_id: Uuid | None = None
    sent: int = 0
    error: TieredStoreError | None = None


def copy_segments(
    source: Bucket,
    target: Bucket,
    scope: Scope = _ALL,
    *,
    decrypt: bool = False,
    read_back: bool = True,
    dry_run: bool = False,
    parallel: int = SEGMENTS_AT_ONCE,
    clock: Callable[[], float] = boot_clock_s,
) -> Iterator[CopyStep]:
    """Copy the segments in scope, one step each, in the order of the source's listing; nothing is written if
    ``dry_run``.

    What changes on the way is what the settings of the two buckets say differently (see ``Recoding``). A segment's
    manifest is written last; with ``read_back`` every object is read back and compared before that. Neither listings
    nor manifests are held. Stopped or killed anywhere, a second run completes it.

    ConfigError if both are one place, or the target's conditional writes are not atomic; errors of a store end the run.
    """
    if (source.store.identity, source.prefix) == (target.store.identity, target.prefix):
        raise ConfigError("source and target are the same place: nothing would be copied")
    require_conditional_writes(target.store, "cp")
    refuse_other_layout(target.store, target.prefix)
    threads = target.settings.transform_thread_pool_size or os.cpu_count() or 1
    recoding = Recoding.between(source.settings, target.settings, threads, decrypt=decrypt)
    store: ObjectStore = ProvenStore(target.store) if read_back else target.store
    listed = (list_in_scope(bucket.store, bucket.prefix, scope) for bucket in (source, target))
    with contextlib.ExitStack() as opened:
        transcoder = opened.enter_context(contextlib.closing(Transcoder(source, target, recoding, store, clock=clock)))
        verbatim = VerbatimCopies(source, target, recoding, store, dry_run=dry_run, clock=clock)
        pool = opened.enter_context(ThreadPool(parallel, "tieredstore-cp"))
        yield from in_parallel(
            pool,
            _Copying(source, recoding, verbatim, transcoder, dry_run=dry_run).copy,
            pair_up(*listed),
            at_once=2 * parallel,
            weigh=lambda pair: manifest_size(pair.objects),
            max_weight=MAX_MANIFESTS_IN_FLIGHT,
        )


@dataclass(frozen=True, slots=True)
class Pair:
    """A segment of the source, and what the target has at the same offset of the same partition."""

    objects: SegmentObjects
    beside: tuple[SegmentObjects, ...] = ()


def pair_up(source: Iterable[SegmentObjects], target: Iterable[SegmentObjects]) -> Iterator[Pair]:
    """Two listings as one: both in key order, and neither is held."""
    places = itertools.groupby(target, _place)
    place, beside = next(places, ("", iter(())))
    there: tuple[str, tuple[SegmentObjects, ...]] = (place, tuple(beside))
    for objects in source:
        own = _place(objects)
        while there[0] and there[0] < own:
            place, beside = next(places, ("", iter(())))
            there = (place, tuple(beside))
        yield Pair(objects, there[1] if there[0] == own else ())


def _place(objects: SegmentObjects) -> str:
    """The path without the segment's id: partition and offset."""
    return objects.main_path[:-_ID_LENGTH]


class _Copying:
    """What is done with each segment. Thread-safe."""

    def __init__(
        self,
        source: Bucket,
        recoding: Recoding,
        verbatim: VerbatimCopies,
        transcoder: Transcoder,
        *,
        dry_run: bool,
    ) -> None:
        self._source = source
        self._recoding = recoding
        self._verbatim = verbatim
        self._transcoder = transcoder
        self._dry_run = dry_run

    def copy(self, pair: Pair) -> CopyStep:
        """One segment; what concerns it alone is a step."""
        if pair.objects.find(Suffix.MANIFEST) is None:
            return CopyStep(pair.objects, Outcome.LEFTOVER)
        try:
            return self._copied(pair)
        except SegmentNotFound:
            return CopyStep(pair.objects, Outcome.GONE)
        except _OF_ONE_SEGMENT as error:
            return CopyStep(pair.objects, Outcome.FAILED, error=error)

    def _copied(self, pair: Pair) -> CopyStep:
        objects = pair.objects
        raw, segment = self._read(objects)
        way = self._recoding.way_of(segment.manifest, partial(self._transcoder.is_uncompressed, segment))
        step = CopyStep(objects, Outcome.COPIED, way=way, last_offset=segment.last_offset)
        if way is CopyWay.TRANSCODED:
            return self._transcoded(step, segment, pair.beside)
        there = next((other for other in pair.beside if other.segment_id == objects.segment_id), None)
        sent = self._verbatim.write(VerbatimSegment(segment, raw, way), there)
        outcome = Outcome.COPIED if sent else Outcome.THERE
        return dataclasses.replace(step, outcome=outcome, segment_id=objects.segment_id.id, sent=sent)

    def _transcoded(self, step: CopyStep, segment: StoredSegment, beside: Iterable[SegmentObjects]) -> CopyStep:
        existing = self._transcoder.existing(segment, beside)
        if existing is not None:
            return dataclasses.replace(step, outcome=Outcome.THERE, segment_id=existing)
        if self._dry_run:
            return dataclasses.replace(step, sent=segment.objects.stored_size)
        segment_id, sent = self._transcoder.transcode(segment)
        return dataclasses.replace(step, segment_id=segment_id, sent=sent)

    def _read(self, objects: SegmentObjects) -> tuple[bytes, StoredSegment]:
        """The manifest and what it says; SegmentCorrupt unless the other two objects are there with their sizes."""
        name = f"{objects.main_path}.{Suffix.MANIFEST.value}"
        try:
            raw = read_manifest_text(self._source.store, manifest_info(objects).key, name)
        except ObjectNotFound as error:
            raise SegmentNotFound(f"{name} was deleted while it was listed") from error
        manifest = parse_manifest(raw, name, known_segment(objects), self._source.manifest_rules)
        segment = VerbatimSegment(StoredSegment(objects, manifest), raw, CopyWay.VERBATIM)
        for suffix, size in segment.sizes.items():
            info = objects.find(suffix)
            if info is None or info.size != size:
                what = "is missing" if info is None else f"has {info.size} bytes and not {size}"
                raise SegmentCorrupt(f"{objects.main_path}.{suffix.value} {what}: the segment is damaged")
        return raw, segment.stored
