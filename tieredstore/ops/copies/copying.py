"""Segments from one store to another, or to another prefix, without a broker; the source is only read.

Where nothing changes the three objects go as they are, under the same keys: all who copy a segment write the same bytes
under the same keys, so that whoever comes second goes on with what stands. Nothing is ever deleted here: somebody else
may count on it. What is transcoded goes under an id of its own, as every copy of a broker's segment does: no two
encryptions have the same bytes.

Garbage collections take what is old and has no manifest. What an earlier run left is gone on with while it is young,
its age counted into the attempt's; what is older is left to them, and the segment waits until it is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from tieredstore.backends.base import Body, DelegatingStore, Digest, ObjectInfo, ObjectStore, admin_of
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
    CorruptDataError,
    InvalidSegmentError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RangeNotSatisfiableError,
    SegmentAlreadyExistsError,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentTooLargeError,
    StoreError,
    StoreUnavailableError,
    TieredStoreError,
    UnknownKeyError,
    WrongKeyError,
)
from tieredstore.format.data_key_field import same_but_for_data_key, with_data_key
from tieredstore.format.keys import Suffix, object_key
from tieredstore.format.manifest import MAX_MANIFEST_SIZE, SegmentManifest
from tieredstore.model import Uuid
from tieredstore.ops.copies.recoding import CopyWay, Recoding, Route, Transcoder
from tieredstore.ops.steps import Outcome, Step, require_conditional_writes
from tieredstore.places.record import refuse_other_layout
from tieredstore.process.deadline import boot_clock_s
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote.copy.attempt import AttemptAge
from tieredstore.remote.manifest_object import parse_manifest, read_manifest_text

if TYPE_CHECKING:
    from tieredstore.ops.bucket import Bucket

_LOOKS: Final = 1 + len(Suffix)
"""How often the target is looked at where somebody else copies the same segment at the same time: before, and each time
that an object came to stand meanwhile."""

_DATA: Final = (Suffix.LOG, Suffix.INDEXES)


class LeftAloneError(StoreUnavailableError):
    """The segment cannot be copied at this time, since of what stands in the target some may be about to go."""


@dataclass(frozen=True, slots=True)
class VerbatimSegment:
    """A segment of the source: ``raw`` is its manifest's text, ``way`` says whether that changes."""

    stored: StoredSegment
    raw: bytes
    way: CopyWay

    @property
    def sizes(self) -> dict[Suffix, int]:
        """Bytes of the two objects that the manifest points to."""
        manifest = self.stored.manifest
        return {Suffix.LOG: manifest.chunk_index.stored_size, Suffix.INDEXES: manifest.segment_indexes.total_size}


class VerbatimCopies:
    """Writes into the target what it has not of segments. Thread-safe."""

    def __init__(self, route: Route, *, dry_run: bool) -> None:
        self._route = route
        self._dry_run = dry_run
        self._began_s = route.clock()
        self._began_ms = admin_of(route.target.store).now_ms()
        self._max_age_s = route.target.settings.upload_max_age_ms / 1000

    def write(self, segment: VerbatimSegment, listed: SegmentObjects | None) -> int:
        """The bytes that were sent, 0 if all of it stood; ``listed`` is what the target has under the segment's id.

        SegmentAlreadyExistsError if other bytes stand there, LeftAloneError if nobody may go on with what does.
        """
        standing = {} if listed is None else dict(listed.objects)
        for _ in range(_LOOKS):
            try:
                return self._write(segment, standing)
            except PreconditionFailedError:
                standing = self._look_again(segment)
        raise LeftAloneError(
            f"{segment.stored.objects.main_path} is being written and deleted by others; copy it again"
        )

    def _write(self, segment: VerbatimSegment, standing: dict[Suffix, ObjectInfo]) -> int:
        is_committed = Suffix.MANIFEST in standing
        if is_committed:
            self._require_equal_manifest(segment)
        before_s = self._age_of_what_stands(segment, standing, is_committed=is_committed)
        missing = [suffix for suffix in _DATA if suffix not in standing]
        if is_committed and not missing:
            return 0
        manifest = b"" if is_committed else self._manifest(segment)
        sent = sum(segment.sizes[suffix] for suffix in missing) + len(manifest)
        if self._dry_run:
            return sent
        age = AttemptAge(self._route.clock, self._max_age_s, segment.stored.metadata, before_s=before_s)
        for suffix in missing:
            _check(age)
            self._route.store.put(self._target_key(segment, suffix), self._body(segment, suffix), if_absent=True)
        if not is_committed:
            self._commit(segment, manifest, age)
        return sent

    def _commit(self, segment: VerbatimSegment, manifest: bytes, age: AttemptAge) -> None:
        for suffix in _DATA:
            self._require(segment, suffix)
        _check(age)
        key = self._target_key(segment, Suffix.MANIFEST)
        self._route.store.put(key, manifest, if_absent=True)
        try:
            _check(age)
        except LeftAloneError:
            # A write that took so long may have met a clean-up that found no manifest yet. What is whole stays:
            # somebody else may have been told already that it stands.
            self._require_or_take_back(segment, key)

    def _require_or_take_back(self, segment: VerbatimSegment, manifest_key: str) -> None:
        try:
            for suffix in _DATA:
                self._require(segment, suffix)
        except LeftAloneError:
            self._route.store.delete([manifest_key])
            raise

    def _age_of_what_stands(
        self, segment: VerbatimSegment, standing: dict[Suffix, ObjectInfo], *, is_committed: bool
    ) -> float:
        """How old the oldest leftover is that is gone on with; what stands has to be what would be sent."""
        before_s = 0.0
        for suffix in _DATA:
            info = standing.get(suffix)
            if info is None:
                continue
            if not is_committed:
                before_s = max(before_s, self._leftover_age_s(info))
            # Under a manifest it was compared before that was written.
            if info.size != segment.sizes[suffix] or not (is_committed or self._is_equal(segment, suffix)):
                raise SegmentAlreadyExistsError(
                    f"{self._shown(segment, suffix)} stands in the target with other bytes than the source has; "
                    "remove it if it is not wanted"
                )
        return before_s

    def _leftover_age_s(self, info: ObjectInfo) -> float:
        if self._began_ms is None or info.modified_ms is None:
            raise LeftAloneError(
                f"{self._route.target.shown(info.key)} has no manifest, and nobody knows how old it is"
            )
        now_ms = self._began_ms + (self._route.clock() - self._began_s) * 1000
        age_s = max(0.0, (now_ms - info.modified_ms) / 1000)
        if age_s >= self._max_age_s:
            raise LeftAloneError(
                f"{self._route.target.shown(info.key)} has no manifest and is older than {self._max_age_s:g} s "
                "(upload.max.age.ms), so that a clean-up may be about to take it: let `tieredstore gc` do so, and "
                "copy again"
            )
        return age_s

    def _require_equal_manifest(self, segment: VerbatimSegment) -> None:
        """SegmentAlreadyExistsError unless the target's manifest is the source's, or differs in its data key's wrapping
        and the target's ring opens that."""
        name = self._shown(segment, Suffix.MANIFEST)
        try:
            raw = read_manifest_text(self._route.target.store, self._target_key(segment, Suffix.MANIFEST), name)
        except ObjectNotFoundError as error:
            raise LeftAloneError(f"{name} was deleted from the target a moment ago; copy again") from error
        if raw == segment.raw and segment.way is CopyWay.VERBATIM:
            return
        if not same_but_for_data_key(raw, segment.raw):
            raise SegmentAlreadyExistsError(f"{name} stands in the target and is another one than the source's")
        wrapped = SegmentManifest.from_bytes(raw).encryption
        if wrapped is None:
            return
        if self._route.recoding.changes_encryption and not self._route.recoding.opens(wrapped):
            raise SegmentAlreadyExistsError(
                f"{name} stands in the target under a key pair that is not on its ring; `tieredstore keys rotate` "
                "puts it under another one"
            )

    def _manifest(self, segment: VerbatimSegment) -> bytes:
        wrapped = segment.stored.manifest.encryption
        if segment.way is CopyWay.VERBATIM or wrapped is None:
            return segment.raw
        return with_data_key(segment.raw, *self._route.recoding.rewrap(wrapped), self._route.source.manifest_rules)

    def _body(self, segment: VerbatimSegment, suffix: Suffix) -> Generator[bytes]:
        """The object's bytes; SegmentNotFoundError if the segment is deleted meanwhile."""
        objects = segment.stored.objects
        try:
            yield from parts_of(self._route.source.store, self._source_key(segment, suffix), segment.sizes[suffix])
        except (ObjectNotFoundError, RangeNotSatisfiableError) as error:
            try:
                self._route.source.store.head(self._source_key(segment, Suffix.MANIFEST))
            except ObjectNotFoundError:
                raise SegmentNotFoundError(f"{objects.main_path} was deleted while it was copied") from error
            raise SegmentCorruptError(
                f"{objects.main_path}.{suffix.value} is missing or short, and its manifest exists: the segment is "
                "damaged"
            ) from error

    def _is_equal(self, segment: VerbatimSegment, suffix: Suffix) -> bool:
        """Whether what stands has the source's bytes, as many of which it has."""
        stored = parts_of(self._route.target.store, self._target_key(segment, suffix), segment.sizes[suffix])
        try:
            return all(ours == theirs for ours, theirs in zip(self._body(segment, suffix), stored, strict=True))
        except (ObjectNotFoundError, RangeNotSatisfiableError) as error:
            raise PreconditionFailedError(f"{self._shown(segment, suffix)} is gone again") from error

    def _require(self, segment: VerbatimSegment, suffix: Suffix) -> None:
        """LeftAloneError if what was written, or stood, is gone."""
        key, size = self._target_key(segment, suffix), segment.sizes[suffix]
        try:
            is_whole = len(self._route.store.get(key, max(0, size - 1), size)) == min(1, size) and ends_at(
                self._route.store, key, size
            )
        except (ObjectNotFoundError, RangeNotSatisfiableError):
            is_whole = False
        if not is_whole:
            raise LeftAloneError(
                f"{self._shown(segment, suffix)} was deleted from the target before its manifest was written; copy "
                "again, and see what deletes young objects there (a clean-up, or a rule of the bucket)"
            )

    def _look_again(self, segment: VerbatimSegment) -> dict[Suffix, ObjectInfo]:
        """What the target has by now."""
        standing: dict[Suffix, ObjectInfo] = {}
        for suffix in Suffix:
            try:
                standing[suffix] = self._route.target.store.head(self._target_key(segment, suffix))
            except ObjectNotFoundError:
                continue
        return standing

    def _source_key(self, segment: VerbatimSegment, suffix: Suffix) -> str:
        return object_key(self._route.source.prefix, segment.stored.objects.main_path, suffix)

    def _target_key(self, segment: VerbatimSegment, suffix: Suffix) -> str:
        return object_key(self._route.target.prefix, segment.stored.objects.main_path, suffix)

    @staticmethod
    def _shown(segment: VerbatimSegment, suffix: Suffix) -> str:
        return f"{segment.stored.objects.main_path}.{suffix.value}"


def _check(age: AttemptAge) -> None:
    """LeftAloneError if the attempt, with what it goes on with, has become too old to commit."""
    try:
        age.check()
    except StoreUnavailableError as error:
        raise LeftAloneError(str(error)) from error


SEGMENTS_AT_ONCE: Final = 4
"""Segments on their way at once unless told otherwise: each has some parts of 8 MiB in memory."""

_ID_LENGTH: Final = 1 + 22
"""Characters of a segment's id at the end of its path, with the dash before it."""

_OF_ONE_SEGMENT: Final = (
    CorruptDataError,
    UnknownKeyError,
    WrongKeyError,
    InvalidSegmentError,
    SegmentTooLargeError,
    SegmentAlreadyExistsError,
    LeftAloneError,
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


@dataclass(frozen=True, slots=True)
class BucketCopy:
    """Copies segments into another bucket; nothing is written if ``dry_run``.

    What changes on the way is what the settings of the two buckets say differently (see ``Recoding``). A segment's
    manifest is written last; with ``read_back`` every object is read back and compared before that. Stopped or killed
    anywhere, a second run completes it.
    """

    source: Bucket
    target: Bucket
    _: KW_ONLY
    decrypt: bool = False
    read_back: bool = True
    dry_run: bool = False
    parallel: int = SEGMENTS_AT_ONCE
    clock: Callable[[], float] = boot_clock_s

    def run(self, scope: Scope = _ALL) -> Iterator[CopyStep]:
        """A step for each segment in scope, in the order of the source's listing; neither listings nor manifests are
        held.

        ConfigError if both are one place, or the target's conditional writes are not atomic; errors of a store end the
        run.
        """
        source, target = self.source, self.target
        if (source.store.identity, source.prefix) == (target.store.identity, target.prefix):
            raise ConfigError("source and target are the same place: nothing would be copied")
        require_conditional_writes(target.store, "mirror")
        refuse_other_layout(target.store, target.prefix)
        threads = target.settings.transform_thread_pool_size or os.cpu_count() or 1
        recoding = Recoding.between(source.settings, target.settings, threads, decrypt=self.decrypt)
        store: ObjectStore = ProvenStore(target.store) if self.read_back else target.store
        route = Route(source, target, recoding, store, self.clock)
        listed = (list_in_scope(bucket.store, bucket.prefix, scope) for bucket in (source, target))
        with (
            contextlib.closing(Transcoder(route)) as transcoder,
            ThreadPool(self.parallel, "tieredstore-mirror") as pool,
        ):
            verbatim = VerbatimCopies(route, dry_run=self.dry_run)
            yield from in_parallel(
                pool,
                _Copying(route, verbatim, transcoder, self.dry_run).copy,
                pair_up(*listed),
                at_once=2 * self.parallel,
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


@dataclass(frozen=True, slots=True)
class _Copying:
    """What is done with each segment. Thread-safe."""

    route: Route
    verbatim: VerbatimCopies
    transcoder: Transcoder
    dry_run: bool

    def copy(self, pair: Pair) -> CopyStep:
        """One segment; what concerns it alone is a step."""
        if pair.objects.find(Suffix.MANIFEST) is None:
            return CopyStep(pair.objects, Outcome.LEFTOVER)
        try:
            return self._copy(pair)
        except SegmentNotFoundError:
            return CopyStep(pair.objects, Outcome.GONE)
        except _OF_ONE_SEGMENT as error:
            return CopyStep(pair.objects, Outcome.FAILED, error=error)

    def _copy(self, pair: Pair) -> CopyStep:
        objects = pair.objects
        raw, segment = self._read(objects)
        way = self.route.recoding.way_of(segment.manifest, partial(self.transcoder.is_uncompressed, segment))
        step = CopyStep(objects, Outcome.COPIED, way=way, last_offset=segment.last_offset)
        if way is CopyWay.TRANSCODED:
            return self._transcode(step, segment, pair.beside)
        there = next((other for other in pair.beside if other.segment_id == objects.segment_id), None)
        sent = self.verbatim.write(VerbatimSegment(segment, raw, way), there)
        outcome = Outcome.COPIED if sent else Outcome.THERE
        return dataclasses.replace(step, outcome=outcome, segment_id=objects.segment_id.id, sent=sent)

    def _transcode(self, step: CopyStep, segment: StoredSegment, beside: Iterable[SegmentObjects]) -> CopyStep:
        existing = self.transcoder.find_existing(segment, beside)
        if existing is not None:
            return dataclasses.replace(step, outcome=Outcome.THERE, segment_id=existing)
        if self.dry_run:
            return dataclasses.replace(step, sent=segment.objects.stored_size)
        segment_id, sent = self.transcoder.transcode(segment)
        return dataclasses.replace(step, segment_id=segment_id, sent=sent)

    def _read(self, objects: SegmentObjects) -> tuple[bytes, StoredSegment]:
        """The manifest and what it says; SegmentCorruptError unless the other two objects are there with their
        sizes."""
        name = f"{objects.main_path}.{Suffix.MANIFEST.value}"
        try:
            raw = read_manifest_text(self.route.source.store, manifest_info(objects).key, name)
        except ObjectNotFoundError as error:
            raise SegmentNotFoundError(f"{name} was deleted while it was listed") from error
        manifest = parse_manifest(raw, name, known_segment(objects), self.route.source.manifest_rules)
        segment = VerbatimSegment(StoredSegment(objects, manifest), raw, CopyWay.VERBATIM)
        for suffix, size in segment.sizes.items():
            info = objects.find(suffix)
            if info is None or info.size != size:
                what = "is missing" if info is None else f"has {info.size} bytes and not {size}"
                raise SegmentCorruptError(f"{objects.main_path}.{suffix.value} {what}: the segment is damaged")
        return raw, segment.stored


PART: Final = 8 << 20
"""Bytes of one request of an object that is read whole."""


class ProvenStore(DelegatingStore):
    """Passes every call on. A ``put`` ends once what is stored was read back and is what was sent; otherwise what it
    wrote is deleted, and StoreError says so. A manifest may have been rotated meanwhile."""

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Write, and read back."""
        sent = Digest()
        whole = body if isinstance(body, bytes) else None
        try:
            self.inner.put(key, sent.of(body), if_absent=if_absent)
        finally:
            # Also where the store refused before it took anything: then it did not end the body either.
            if isinstance(body, Generator):
                body.close()
        if not (self._holds(key, sent) or self._holds_manifest(key, whole)):
            with contextlib.suppress(StoreError):
                self.inner.delete([key])
            raise StoreError(f"{self.identity} did not give back what was written as {key!r}; it was deleted again")

    def _holds(self, key: str, sent: Digest) -> bool:
        stored = Digest()
        try:
            for part in parts_of(self.inner, key, sent.size):
                stored.take(part)
        except (ObjectNotFoundError, RangeNotSatisfiableError):
            return False
        return (stored.size, stored.sha256) == (sent.size, sent.sha256) and ends_at(self.inner, key, sent.size)

    def _holds_manifest(self, key: str, sent: bytes | None) -> bool:
        """Whether it is a manifest that a rotation has given another wrapping since: others have seen it by then."""
        if sent is None or not key.endswith(f".{Suffix.MANIFEST.value}"):
            return False
        try:
            stored = self.inner.get_small(key, MAX_MANIFEST_SIZE)
        except ObjectNotFoundError:
            return False
        return stored is not None and same_but_for_data_key(stored, sent)


def parts_of(store: ObjectStore, key: str, size: int) -> Generator[bytes]:
    """The ``size`` bytes of an object, a part by each request."""
    for start in range(0, size, PART):
        yield store.get(key, start, min(start + PART, size))


def ends_at(store: ObjectStore, key: str, size: int) -> bool:
    """Whether the object has no more than ``size`` bytes; a folder's ``head`` would read all of it."""
    try:
        store.get(key, size, size + 1)
    except RangeNotSatisfiableError:
        return True
    return False
