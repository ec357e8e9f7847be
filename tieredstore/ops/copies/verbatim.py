"""Segments that go from one bucket to another as they are, under the ids that they have.

All who copy a segment write the same bytes under the same keys, so that whoever comes second goes on with what stands.
Nothing is ever deleted here: somebody else may count on it.

Garbage collections take what is old and has no manifest. What an earlier run left is gone on with while it is young,
its age counted into the attempt's; what is older is left to them, and the segment waits until it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.backends.base import ObjectInfo, ObjectStore, admin_of
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.catalog.stored import StoredSegment
from tieredstore.errors import (
    ObjectNotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    SegmentAlreadyExists,
    SegmentCorrupt,
    SegmentNotFound,
    StoreUnavailable,
)
from tieredstore.format.data_key_field import same_but_for_data_key, with_data_key
from tieredstore.format.keys import Suffix, object_key
from tieredstore.format.manifest import SegmentManifest
from tieredstore.ops.copies.proven_store import ends_at, parts_of
from tieredstore.ops.copies.recoding import CopyWay, Recoding
from tieredstore.remote.copy.attempt import AttemptAge
from tieredstore.remote.manifest_object import read_manifest_text

if TYPE_CHECKING:
    from tieredstore.ops.bucket import Bucket

_LOOKS: Final = 1 + len(Suffix)
"""How often the target is looked at where somebody else copies the same segment at the same time: before, and each time
that an object came to stand meanwhile."""

_DATA: Final = (Suffix.LOG, Suffix.INDEXES)


class LeftAlone(StoreUnavailable):
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

    def __init__(
        self,
        source: Bucket,
        target: Bucket,
        recoding: Recoding,
        store: ObjectStore,
        *,
        dry_run: bool,
        clock: Callable[[], float],
    ) -> None:
        """``store`` is the target's, or one that proves what is written into it."""
        self._source = source
        self._target = target
        self._recoding = recoding
        self._store = store
        self._dry_run = dry_run
        self._clock = clock
        self._began_s = clock()
        self._began_ms = admin_of(target.store).now_ms()
        self._max_age_s = target.settings.upload_max_age_ms / 1000

    def write(self, segment: VerbatimSegment, listed: SegmentObjects | None) -> int:
        """The bytes that were sent, 0 if all of it stood; ``listed`` is what the target has under the segment's id.

        SegmentAlreadyExists if other bytes stand there, LeftAlone if nobody may go on with what does.
        """
        standing = {} if listed is None else dict(listed.objects)
        for _ in range(_LOOKS):
            try:
                return self._write(segment, standing)
            except PreconditionFailed:
                standing = self._looked_at(segment)
        raise LeftAlone(f"{segment.stored.objects.main_path} is being written and deleted by others; copy it again")

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
        age = AttemptAge(self._clock, self._max_age_s, segment.stored.metadata, before_s=before_s)
        for suffix in missing:
            _check(age)
            self._store.put(self._target_key(segment, suffix), self._body(segment, suffix), if_absent=True)
        if not is_committed:
            self._commit(segment, manifest, age)
        return sent

    def _commit(self, segment: VerbatimSegment, manifest: bytes, age: AttemptAge) -> None:
        for suffix in _DATA:
            self._require(segment, suffix)
        _check(age)
        key = self._target_key(segment, Suffix.MANIFEST)
        self._store.put(key, manifest, if_absent=True)
        try:
            _check(age)
        except LeftAlone:
            # A write that took so long may have met a clean-up that found no manifest yet. What is whole stays:
            # somebody else may have been told already that it stands.
            self._require_or_take_back(segment, key)

    def _require_or_take_back(self, segment: VerbatimSegment, manifest_key: str) -> None:
        try:
            for suffix in _DATA:
                self._require(segment, suffix)
        except LeftAlone:
            self._store.delete([manifest_key])
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
                raise SegmentAlreadyExists(
                    f"{self._shown(segment, suffix)} stands in the target with other bytes than the source has; "
                    "remove it if it is not wanted"
                )
        return before_s

    def _leftover_age_s(self, info: ObjectInfo) -> float:
        if self._began_ms is None or info.modified_ms is None:
            raise LeftAlone(f"{self._target.shown(info.key)} has no manifest, and nobody knows how old it is")
        now_ms = self._began_ms + (self._clock() - self._began_s) * 1000
        age_s = max(0.0, (now_ms - info.modified_ms) / 1000)
        if age_s >= self._max_age_s:
            raise LeftAlone(
                f"{self._target.shown(info.key)} has no manifest and is older than {self._max_age_s:g} s "
                "(upload.max.age.ms), so that a clean-up may be about to take it: let `tieredstore gc` do so, and "
                "copy again"
            )
        return age_s

    def _require_equal_manifest(self, segment: VerbatimSegment) -> None:
        """SegmentAlreadyExists unless the target's manifest is the source's, or differs in its data key's wrapping and
        the target's ring opens that."""
        name = self._shown(segment, Suffix.MANIFEST)
        try:
            raw = read_manifest_text(self._target.store, self._target_key(segment, Suffix.MANIFEST), name)
        except ObjectNotFound as error:
            raise LeftAlone(f"{name} was deleted from the target a moment ago; copy again") from error
        if raw == segment.raw and segment.way is CopyWay.VERBATIM:
            return
        if not same_but_for_data_key(raw, segment.raw):
            raise SegmentAlreadyExists(f"{name} stands in the target and is another one than the source's")
        wrapped = SegmentManifest.from_bytes(raw).encryption
        if wrapped is None:
            return
        if self._recoding.changes_encryption and not self._recoding.opens(wrapped):
            raise SegmentAlreadyExists(
                f"{name} stands in the target under a key pair that is not on its ring; `tieredstore keys rotate` "
                "puts it under another one"
            )

    def _manifest(self, segment: VerbatimSegment) -> bytes:
        wrapped = segment.stored.manifest.encryption
        if segment.way is CopyWay.VERBATIM or wrapped is None:
            return segment.raw
        return with_data_key(segment.raw, *self._recoding.rewrapped(wrapped), self._source.manifest_rules)

    def _body(self, segment: VerbatimSegment, suffix: Suffix) -> Generator[bytes]:
        """The object's bytes; SegmentNotFound if the segment is deleted meanwhile."""
        objects = segment.stored.objects
        try:
            yield from parts_of(self._source.store, self._source_key(segment, suffix), segment.sizes[suffix])
        except (ObjectNotFound, RangeNotSatisfiable) as error:
            try:
                self._source.store.head(self._source_key(segment, Suffix.MANIFEST))
            except ObjectNotFound:
                raise SegmentNotFound(f"{objects.main_path} was deleted while it was copied") from error
            raise SegmentCorrupt(
                f"{objects.main_path}.{suffix.value} is missing or short, and its manifest exists: the segment is "
                "damaged"
            ) from error

    def _is_equal(self, segment: VerbatimSegment, suffix: Suffix) -> bool:
        """Whether what stands has the source's bytes, as many of which it has."""
        stored = parts_of(self._target.store, self._target_key(segment, suffix), segment.sizes[suffix])
        try:
            return all(ours == theirs for ours, theirs in zip(self._body(segment, suffix), stored, strict=True))
        except (ObjectNotFound, RangeNotSatisfiable) as error:
            raise PreconditionFailed(f"{self._shown(segment, suffix)} is gone again") from error

    def _require(self, segment: VerbatimSegment, suffix: Suffix) -> None:
        """LeftAlone if what was written, or stood, is gone."""
        key, size = self._target_key(segment, suffix), segment.sizes[suffix]
        try:
            is_whole = len(self._store.get(key, max(0, size - 1), size)) == min(1, size) and ends_at(
                self._store, key, size
            )
        except (ObjectNotFound, RangeNotSatisfiable):
            is_whole = False
        if not is_whole:
            raise LeftAlone(
                f"{self._shown(segment, suffix)} was deleted from the target before its manifest was written; copy "
                "again, and see what deletes young objects there (a clean-up, or a rule of the bucket)"
            )

    def _looked_at(self, segment: VerbatimSegment) -> dict[Suffix, ObjectInfo]:
        """What the target has by now."""
        standing: dict[Suffix, ObjectInfo] = {}
        for suffix in Suffix:
            try:
                standing[suffix] = self._target.store.head(self._target_key(segment, suffix))
            except ObjectNotFound:
                continue
        return standing

    def _source_key(self, segment: VerbatimSegment, suffix: Suffix) -> str:
        return object_key(self._source.prefix, segment.stored.objects.main_path, suffix)

    def _target_key(self, segment: VerbatimSegment, suffix: Suffix) -> str:
        return object_key(self._target.prefix, segment.stored.objects.main_path, suffix)

    @staticmethod
    def _shown(segment: VerbatimSegment, suffix: Suffix) -> str:
        return f"{segment.stored.objects.main_path}.{suffix.value}"


def _check(age: AttemptAge) -> None:
    """LeftAlone if the attempt, with what it goes on with, has become too old to commit."""
    try:
        age.check()
    except StoreUnavailable as error:
        raise LeftAlone(str(error)) from error
