"""Copies segments to another store or prefix, without a broker. The source is only read.

The three objects of an unchanged segment are copied under the same keys. The bytes under these keys are always the
same, so a later copy can continue an earlier one. After a failure these objects are not deleted, because another
process may rely on them. A transcoded segment gets a new id, because no two encryptions of a segment have the same
bytes.

A garbage collection deletes old objects without a manifest. So a copy reuses the objects of an earlier run only while
they are young. The age of the copy then counts from the oldest of these objects. A segment with older leftovers cannot
be copied until a garbage collection has deleted the leftovers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from tieredstore.backends.base import Body, DelegatingStore, Digest, ObjectInfo, ObjectStore, admin_of
from tieredstore.catalog.listing import Scope, SegmentObjects, list_segments
from tieredstore.catalog.stored import (
    MAX_MANIFESTS_IN_FLIGHT,
    StoredSegment,
    known_segment,
    look_again,
    look_up,
    manifest_info,
    manifest_size,
)
from tieredstore.errors import (
    ConfigError,
    CorruptDataError,
    InvalidSegmentError,
    ObjectArchivedError,
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
"""The maximum number of attempts to copy a segment that another process copies too. After the first attempt, each
object that the other process writes may cause another attempt.
"""

_DATA: Final = (Suffix.LOG, Suffix.INDEXES)


class LeftAloneError(StoreUnavailableError):
    """The segment cannot be copied now, because a garbage collection may soon delete its objects in the target."""


@dataclass(frozen=True, slots=True)
class VerbatimSegment:
    """A segment of the source. ``raw`` is its manifest's text. ``way`` tells if the copy's manifest is unchanged, or if
    another key pair wraps its data key.
    """

    stored: StoredSegment
    raw: bytes
    way: CopyWay


class VerbatimCopies:
    """Writes the missing objects of segments into the target. Thread-safe."""

    def __init__(self, route: Route, *, dry_run: bool) -> None:
        self._route = route
        self._dry_run = dry_run
        self._began_s = route.clock()
        self._began_ms = admin_of(route.target.store).now_ms()
        self._max_age_s = route.target.settings.upload_max_age_ms / 1000

    def write(self, segment: VerbatimSegment, listed: SegmentObjects | None) -> int:
        """Write the missing objects. Return the number of bytes sent; 0 if all objects existed.

        ``listed`` are the target's objects with the segment's id. Raise SegmentAlreadyExistsError if these objects have
        other bytes. Raise LeftAloneError if the objects are too old to be completed.
        """
        standing = {} if listed is None else dict(listed.objects)
        for _ in range(_LOOKS):
            try:
                return self._write(segment, standing)
            except PreconditionFailedError:
                target = self._route.target
                standing = look_up(target.store, target.prefix, segment.stored.objects.main_path)
        raise LeftAloneError(
            f"{segment.stored.objects.main_path} is being written and deleted by other processes; copy it again"
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
        sent = sum(segment.stored.sizes[suffix] for suffix in missing) + len(manifest)
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
        self._require_data(segment)
        _check(age)
        key = self._target_key(segment, Suffix.MANIFEST)
        self._route.store.put(key, manifest, if_absent=True)
        try:
            _check(age)
        except LeftAloneError:
            # The write of the manifest took very long. During the write, a garbage collection may have deleted the log
            # or the indexes. If both still exist, keep the segment, because another process may already rely on it.
            try:
                self._require_data(segment)
            except LeftAloneError:
                self._route.store.delete([key])
                raise

    def _age_of_what_stands(
        self, segment: VerbatimSegment, standing: dict[Suffix, ObjectInfo], *, is_committed: bool
    ) -> float:
        """Return the age of the oldest object that an unfinished copy left in the target; 0 if there is none. Raise an
        error if an existing object differs from the source's.
        """
        before_s = 0.0
        for suffix in _DATA:
            info = standing.get(suffix)
            if info is None:
                continue
            if not is_committed:
                before_s = max(before_s, self._leftover_age_s(info))
            # Compare contents only if there is no manifest. The process that wrote a manifest has compared them
            # already.
            if info.size != segment.stored.sizes[suffix] or not (is_committed or self._is_equal(segment, suffix)):
                raise SegmentAlreadyExistsError(
                    f"{self._show(segment, suffix)} exists in the target with other bytes than in the source; "
                    "remove it if it is not wanted"
                )
        return before_s

    def _leftover_age_s(self, info: ObjectInfo) -> float:
        if self._began_ms is None or info.modified_ms is None:
            raise LeftAloneError(f"{self._route.target.show_key(info.key)} has no manifest, and its age is unknown")
        now_ms = self._began_ms + (self._route.clock() - self._began_s) * 1000
        age_s = max(0.0, (now_ms - info.modified_ms) / 1000)
        if age_s >= self._max_age_s:
            raise LeftAloneError(
                f"{self._route.target.show_key(info.key)} has no manifest and is older than {self._max_age_s:g} s "
                "(upload.max.age.ms), so a clean-up may soon delete it: run `tieredstore gc`, then "
                "copy again"
            )
        return age_s

    def _require_equal_manifest(self, segment: VerbatimSegment) -> None:
        """Raise SegmentAlreadyExistsError unless the target's manifest equals the source's. The data key in the
        target's manifest may be wrapped differently, if the target's key ring opens it.
        """
        name = self._show(segment, Suffix.MANIFEST)
        try:
            raw = read_manifest_text(self._route.target.store, self._target_key(segment, Suffix.MANIFEST), name)
        except ObjectNotFoundError as error:
            raise LeftAloneError(f"{name} was deleted from the target a moment ago; copy again") from error
        if raw == segment.raw and segment.way is CopyWay.VERBATIM:
            return
        if not same_but_for_data_key(raw, segment.raw):
            raise SegmentAlreadyExistsError(f"{name} in the target differs from the source's")
        wrapped = SegmentManifest.from_bytes(raw, None, self._route.target.manifest_rules).encryption
        if wrapped is None:
            return
        if self._route.recoding.changes_encryption and not self._route.recoding.opens(wrapped):
            raise SegmentAlreadyExistsError(
                f"{name} in the target has a data key that was encrypted with a key pair which the target's settings "
                "do not list; `tieredstore keys rotate` encrypts the data key with another pair"
            )

    def _manifest(self, segment: VerbatimSegment) -> bytes:
        wrapped = segment.stored.manifest.encryption
        if segment.way is CopyWay.VERBATIM or wrapped is None:
            return segment.raw
        return with_data_key(segment.raw, *self._route.recoding.rewrap(wrapped), self._route.source.manifest_rules)

    def _body(self, segment: VerbatimSegment, suffix: Suffix) -> Generator[bytes]:
        """Yield the object's bytes. Raise SegmentNotFoundError if the segment is deleted during the read."""
        objects, size = segment.stored.objects, segment.stored.sizes[suffix]
        try:
            yield from parts_of(self._route.source.store, self._source_key(segment, suffix), size)
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
        """Return True if the existing object has the source's bytes. The caller has compared the sizes."""
        stored = parts_of(self._route.target.store, self._target_key(segment, suffix), segment.stored.sizes[suffix])
        try:
            return all(ours == theirs for ours, theirs in zip(self._body(segment, suffix), stored, strict=True))
        except (ObjectNotFoundError, RangeNotSatisfiableError) as error:
            raise PreconditionFailedError(f"{self._show(segment, suffix)} has disappeared") from error

    def _require_data(self, segment: VerbatimSegment) -> None:
        """Raise LeftAloneError unless log and indexes are in the target with their full sizes."""
        for suffix in _DATA:
            key, size = self._target_key(segment, suffix), segment.stored.sizes[suffix]
            try:
                is_whole = len(self._route.store.get(key, max(0, size - 1), size)) == min(1, size) and ends_at(
                    self._route.store, key, size
                )
            except (ObjectNotFoundError, RangeNotSatisfiableError):
                is_whole = False
            if not is_whole:
                raise LeftAloneError(
                    f"{self._show(segment, suffix)} was deleted from the target before its manifest was written; copy "
                    "again, and find out what deletes young objects there (a clean-up, or a rule of the bucket)"
                )

    def _source_key(self, segment: VerbatimSegment, suffix: Suffix) -> str:
        return object_key(self._route.source.prefix, segment.stored.objects.main_path, suffix)

    def _target_key(self, segment: VerbatimSegment, suffix: Suffix) -> str:
        return object_key(self._route.target.prefix, segment.stored.objects.main_path, suffix)

    @staticmethod
    def _show(segment: VerbatimSegment, suffix: Suffix) -> str:
        return f"{segment.stored.objects.main_path}.{suffix.value}"


def _check(age: AttemptAge) -> None:
    """Raise LeftAloneError if the oldest object of this copy is too old for the copy to be committed."""
    try:
        age.check()
    except StoreUnavailableError as error:
        raise LeftAloneError(str(error)) from error


SEGMENTS_AT_ONCE: Final = 4
"""The default number of segments copied in parallel. Each segment has several parts of 8 MiB in memory."""

_ID_LENGTH: Final = 1 + 22
"""Length of a segment's id at the end of its path, with the dash before it."""

_OF_ONE_SEGMENT: Final = (
    CorruptDataError,
    UnknownKeyError,
    WrongKeyError,
    ObjectArchivedError,
    InvalidSegmentError,
    SegmentTooLargeError,
    SegmentAlreadyExistsError,
    LeftAloneError,
)
"""Errors that concern only one segment. After such an error, the copy continues with the next segment."""

_ALL: Final = Scope()


@dataclass(frozen=True, slots=True)
class CopyStep(Step[SegmentObjects]):
    """The result of copying one segment.

    ``item`` is the source's segment. ``last_offset`` is inclusive, None if unknown. ``segment_id`` is the copy's id,
    None without a copy. ``sent`` is the number of bytes written. In a dry run, ``sent`` is the number of bytes to
    write. For a segment to transcode, ``sent`` is the source's size. ``error`` is the reason of a failure.
    """

    way: CopyWay | None = None
    last_offset: int | None = None
    segment_id: Uuid | None = None
    sent: int = 0
    error: TieredStoreError | None = None


@dataclass(frozen=True, slots=True)
class BucketCopy:
    """Copies segments into another bucket. With ``dry_run``, writes nothing.

    Differences between the two buckets' settings decide what changes (see ``Recoding``). With ``new_data_keys``, each
    encrypted segment is written again under a new data key. A segment's manifest is written last. With ``read_back``,
    each object is read back and compared after its write. If a run is stopped or killed, the next run completes the
    copy.
    """

    source: Bucket
    target: Bucket
    _: KW_ONLY
    decrypt: bool = False
    new_data_keys: bool = False
    read_back: bool = True
    dry_run: bool = False
    parallel: int = SEGMENTS_AT_ONCE
    clock: Callable[[], float] = boot_clock_s

    def run(self, scope: Scope = _ALL) -> Iterator[CopyStep]:
        """Yield a step for each segment in scope, in the order of the source's listing. Memory does not grow with the
        number of segments.

        Raise ConfigError if both buckets are the same place, if their keys would mix, or if the target's conditional
        writes are not atomic. Errors of a store end the run.
        """
        source, target = self.source, self.target
        require_target(source, target, "mirror")
        _refuse_joined_prefixes(source, target)
        recoding = Recoding.between(
            source.settings, target.settings, decrypt=self.decrypt, new_data_keys=self.new_data_keys
        )
        store = (ProvenStore if self.read_back else TargetStore)(target.store)
        route = Route(source, target, recoding, store, self.clock)
        with contextlib.closing(Transcoder(route)) as transcoder:
            verbatim = VerbatimCopies(route, dry_run=self.dry_run)
            copying = _Copying(route, verbatim, transcoder, self.dry_run)
            yield from step_for_each(copying.copy, source, target, scope, self.parallel)


def require_target(source: Bucket, target: Bucket, tool: str) -> None:
    """Raise ConfigError if both buckets are the same place, or if the target's store lacks a feature that ``tool``
    needs."""
    if _root(source) == _root(target):
        raise ConfigError("source and target are the same place: nothing would be copied")
    require_conditional_writes(target.store, tool)
    refuse_other_layout(target.store, target.prefix)


def _root(bucket: Bucket) -> str:
    """Return the store and the prefix as one text, because a folder may be in the store's root or in the prefix."""
    return f"{bucket.store.identity.rstrip('/')}/{bucket.prefix}"


def _refuse_joined_prefixes(source: Bucket, target: Bucket) -> None:
    """Raise ConfigError if, in one store, one prefix is the other and some letters without a slash.

    The keys under the longer prefix would then be keys of other topics under the shorter prefix. Each copy would copy
    the earlier copies again.
    """
    shorter, longer = sorted((_root(source), _root(target)), key=len)
    if longer.startswith(shorter) and "/" not in longer[len(shorter) :]:
        raise ConfigError(
            "source and target are in one store, and the key.prefix of one continues that of the other without a "
            "slash, so the segments of one would look like other topics of the other: end the target's key.prefix with "
            "a slash, or choose another one"
        )


@dataclass(frozen=True, slots=True)
class Pair:
    """A segment of one bucket, and the other bucket's segments of the same partition and base offset."""

    objects: SegmentObjects
    beside: tuple[SegmentObjects, ...] = ()


def pair_up(first: Iterable[SegmentObjects], other: Iterable[SegmentObjects]) -> Iterator[Pair]:
    """Merge two listings in key order, without holding them in memory."""
    places = ((place, tuple(beside)) for place, beside in itertools.groupby(other, _place))
    there = next(places, None)
    for objects in first:
        own = _place(objects)
        while there is not None and there[0] < own:
            there = next(places, None)
        yield Pair(objects, there[1] if there is not None and there[0] == own else ())


def _place(objects: SegmentObjects) -> str:
    """Return the segment's path without its id: partition and offset."""
    return objects.main_path[:-_ID_LENGTH]


def step_for_each(
    job: Callable[[Pair], CopyStep], first: Bucket, other: Bucket, scope: Scope, parallel: int
) -> Iterator[CopyStep]:
    """Do the job for each segment of the bucket ``first`` in scope, several in parallel. Yield the steps in key order.

    If an error of the job concerns only its segment, the error is in the step.
    """
    listed = (list_segments(bucket.store, bucket.prefix, scope) for bucket in (first, other))
    with ThreadPool(parallel, "tieredstore-mirror") as pool:
        yield from in_parallel(
            pool,
            partial(_step_of, job),
            pair_up(*listed),
            at_once=2 * parallel,
            weigh=lambda pair: manifest_size(pair.objects),
            max_weight=MAX_MANIFESTS_IN_FLIGHT,
        )


def _step_of(job: Callable[[Pair], CopyStep], pair: Pair) -> CopyStep:
    if pair.objects.find(Suffix.MANIFEST) is None:
        return CopyStep(pair.objects, Outcome.LEFTOVER)
    try:
        return job(pair)
    except SegmentNotFoundError:
        return CopyStep(pair.objects, Outcome.GONE)
    except _OF_ONE_SEGMENT as error:
        return CopyStep(pair.objects, Outcome.FAILED, error=error)


@dataclass(frozen=True, slots=True)
class _Copying:
    """Copies one segment after another. Thread-safe."""

    route: Route
    verbatim: VerbatimCopies
    transcoder: Transcoder
    dry_run: bool

    def copy(self, pair: Pair) -> CopyStep:
        """Copy one segment."""
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
        """Read and parse the manifest. Raise SegmentCorruptError if another object is missing or has the wrong size."""
        objects = look_again(self.route.source.store, self.route.source.prefix, objects)
        name = f"{objects.main_path}.{Suffix.MANIFEST.value}"
        try:
            raw = read_manifest_text(self.route.source.store, manifest_info(objects).key, name)
        except ObjectNotFoundError as error:
            raise SegmentNotFoundError(f"{name} was deleted while it was listed") from error
        manifest = parse_manifest(raw, name, known_segment(objects), self.route.source.manifest_rules)
        segment = StoredSegment(objects, manifest)
        for suffix, size in segment.sizes.items():
            info = objects.find(suffix)
            if info is None or info.size != size:
                what = "is missing" if info is None else f"has {info.size} bytes instead of {size}"
                raise SegmentCorruptError(f"{objects.main_path}.{suffix.value} {what}: the segment is damaged")
        return raw, segment


PART: Final = 8 << 20
"""Maximum bytes that one request reads."""


class TargetStore(DelegatingStore):
    """The target's store. An error about archived objects here ends the run, because the next copies would fail too."""

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Read what was written. Raise StoreError if the store has archived it."""
        try:
            return self.inner.get(key, start, stop)
        except ObjectArchivedError as error:
            raise StoreError(
                f"{self.identity} archives what is written to it, so no copy can be checked: choose a storage class "
                f"that can be read at once ({error})"
            ) from error


class ProvenStore(TargetStore):
    """Reads back and compares each object that it writes. If an object differs, deletes it and raises StoreError.

    A key rotation may rewrite a manifest before this store reads it back. So a manifest whose data key is wrapped
    differently is accepted.
    """

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Write the object and read it back."""
        sent = Digest()
        whole = body if isinstance(body, bytes) else None
        try:
            self.inner.put(key, sent.of(body), if_absent=if_absent)
        finally:
            # Close the generator here. A store that refuses a write before it reads the body leaves the generator open.
            if isinstance(body, Generator):
                body.close()
        if not (self._holds(key, sent) or self._holds_manifest(key, whole)):
            with contextlib.suppress(StoreError):
                self.inner.delete([key])
            raise StoreError(
                f"{self.identity} does not return the bytes that were written to {key!r}; the object was deleted"
            )

    def _holds(self, key: str, sent: Digest) -> bool:
        stored = Digest()
        try:
            for part in parts_of(self, key, sent.size):
                stored.take(part)
        except (ObjectNotFoundError, RangeNotSatisfiableError):
            return False
        return (stored.size, stored.sha256) == (sent.size, sent.sha256) and ends_at(self, key, sent.size)

    def _holds_manifest(self, key: str, sent: bytes | None) -> bool:
        """Return True if the object is a manifest that a key rotation has rewrapped. The caller keeps it, because
        readers may have seen it.
        """
        if sent is None or not key.endswith(f".{Suffix.MANIFEST.value}"):
            return False
        try:
            stored = self.inner.get_small(key, MAX_MANIFEST_SIZE)
        except ObjectNotFoundError:
            return False
        return stored is not None and same_but_for_data_key(stored, sent)


def parts_of(store: ObjectStore, key: str, size: int) -> Generator[bytes]:
    """Yield the ``size`` bytes of an object, with one request for each part."""
    for start in range(0, size, PART):
        yield store.get(key, start, min(start + PART, size))


def ends_at(store: ObjectStore, key: str, size: int) -> bool:
    """Return True if the object has no more than ``size`` bytes. The check requests one byte beyond ``size``; ``head``
    would read the whole file if the store is a folder.
    """
    try:
        store.get(key, size, size + 1)
    except RangeNotSatisfiableError:
        return True
    return False
