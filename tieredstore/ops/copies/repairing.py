"""Repairs damaged segments from a good copy. The keys stay the same, because brokers look for a segment only under its
keys.

This module is separate from ``copying``, which never overwrites an object.

First every byte of a segment is verified in the source and in the target. Then each object of the target that differs
from the source's copy (the good copy) is replaced, if its etag is unchanged. The manifest is replaced last.

A replacement is atomic, so a killed run leaves each object either damaged or repaired. The next run does the rest.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.backends.base import Digest
from tieredstore.catalog.listing import Scope, SegmentObjects
from tieredstore.catalog.stored import StoredSegment
from tieredstore.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    RangeNotSatisfiableError,
    SegmentCorruptError,
    SegmentNotFoundError,
    UnknownKeyError,
    WrongKeyError,
)
from tieredstore.format.data_key_field import same_but_for_data_key, with_data_key
from tieredstore.format.keys import Suffix, object_key
from tieredstore.format.manifest import MAX_MANIFEST_SIZE, SegmentManifest
from tieredstore.ops.copies.copying import (
    SEGMENTS_AT_ONCE,
    CopyStep,
    Pair,
    parts_of,
    require_target,
    step_for_each,
)
from tieredstore.ops.copies.recoding import Recoding
from tieredstore.ops.steps import Outcome
from tieredstore.ops.verification.findings import Finding, FindingKind, Severity
from tieredstore.ops.verification.selection import Level, Subject
from tieredstore.ops.verification.verification import CheckedSegment, SegmentCheck
from tieredstore.remote.copy.writer import WriteOptions
from tieredstore.remote.key_ring import key_ring_of
from tieredstore.remote.manifest_object import read_manifest_text

if TYPE_CHECKING:
    from tieredstore.format.manifest import WrappedDataKey
    from tieredstore.ops.bucket import Bucket
    from tieredstore.transform.keyring import KeyRing

_ALL: Final = Scope()
_LOOKS: Final = 3
"""The maximum number of attempts at a segment that another process keeps changing."""

_DATA: Final = (Suffix.INDEXES, Suffix.LOG)


@dataclass(frozen=True, slots=True)
class Repair:
    """Replaces damaged objects of segments in ``target`` by the objects of the same segments in ``source``.

    Both buckets need their private keys, to verify encrypted segments. With ``dry_run``, nothing is written.

    The outcomes:

    - REPAIRED: the damaged objects were replaced
    - THERE: the target's segment is sound
    - LEFTOVER: the target's segment has no manifest
    - GONE: the target's segment was deleted during the run
    - CHANGED: another process changed the segment during each attempt
    - FAILED: the step has the error
    """

    source: Bucket
    target: Bucket
    _: KW_ONLY
    dry_run: bool = True
    parallel: int = SEGMENTS_AT_ONCE

    def run(self, scope: Scope = _ALL) -> Iterator[CopyStep]:
        """Yield a step for each of the target's segments in scope, in key order.

        A step's ``item`` is the target's segment. The step's ``reason`` names the repaired objects.

        Raise ConfigError in the cases of ``require_target``. Errors of a store end the run.
        """
        require_target(self.source, self.target, "mirror --repair")
        with contextlib.ExitStack() as opened:
            source, target = (opened.enter_context(_open(bucket)) for bucket in (self.source, self.target))
            repairing = _Repairing(source, target, self.dry_run)
            yield from step_for_each(repairing.repair, self.target, self.source, scope, self.parallel)


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two buckets, with its key ring and the verifier of its segments."""

    bucket: Bucket
    ring: KeyRing | None
    segment_check: SegmentCheck

    def verify(self, objects: SegmentObjects) -> CheckedSegment:
        """Check every byte of the segment."""
        return self.segment_check.check(Subject(objects, Level.DATA, self.bucket))

    def key(self, objects: SegmentObjects, suffix: Suffix) -> str:
        """Return the key of one of the segment's objects."""
        return object_key(self.bucket.prefix, objects.main_path, suffix)

    def digest(self, objects: SegmentObjects, suffix: Suffix, size: int) -> str:
        """Return the SHA-256 of the first ``size`` bytes of an object."""
        digest = Digest()
        for part in parts_of(self.bucket.store, self.key(objects, suffix), size):
            digest.take(part)
        return digest.sha256


@contextlib.contextmanager
def _open(bucket: Bucket) -> Generator[_Side]:
    with bucket.open_uncached_manager(verifies_again=True) as manager:
        yield _Side(bucket, key_ring_of(bucket.settings), SegmentCheck(manager))


@dataclass(frozen=True, slots=True)
class _GoodCopy:
    """A verified segment of the source: its manifest's text, and the SHA-256 of its log and indexes."""

    stored: StoredSegment
    raw: bytes
    sha256: Mapping[Suffix, str]

    @property
    def wrapped(self) -> WrappedDataKey | None:
        """The wrapped data key; None if the segment is not encrypted."""
        return self.stored.manifest.encryption


@dataclass(frozen=True, slots=True)
class _Change:
    """An object to write. ``etag`` is the damaged object's etag; None if the object is missing."""

    suffix: Suffix
    etag: str | None
    size: int


@dataclass(frozen=True, slots=True)
class _Repairing:
    """Repairs one segment after another. Thread-safe."""

    source: _Side
    target: _Side
    dry_run: bool

    def repair(self, pair: Pair) -> CopyStep:
        """Repair one segment."""
        for _ in range(_LOOKS):
            with contextlib.suppress(PreconditionFailedError):
                return self._repair(pair)
        return CopyStep(pair.objects, Outcome.CHANGED, reason="another process is changing the segment")

    def _repair(self, pair: Pair) -> CopyStep:
        objects = pair.objects
        before = self.target.verify(objects)
        if before.is_gone:
            raise SegmentNotFoundError(f"{objects.main_path} was deleted from the target")
        step = CopyStep(objects, Outcome.THERE, segment_id=objects.segment_id.id)
        if before.is_sound:
            return dataclasses.replace(step, last_offset=before.claimed.end if before.claimed else None)
        damage = _worst(before)
        if damage.kind is FindingKind.UNKNOWN_KEY:
            raise UnknownKeyError(f"{objects.main_path} cannot be verified: {damage.detail}")
        good = self._read_good_copy(pair, damage)
        changes = self._changes(objects, good)
        if not changes:
            raise SegmentCorruptError(
                f"{objects.main_path} equals the good copy, but does not fit the target's settings: {damage.detail}"
            )
        if not self.dry_run:
            for change in changes:
                self._write(objects, good, change)
            self._prove(objects, good)
        return dataclasses.replace(
            step,
            outcome=Outcome.REPAIRED,
            last_offset=good.stored.last_offset,
            sent=sum(change.size for change in changes),
            reason=", ".join(f".{change.suffix.value}" for change in changes),
        )

    def _read_good_copy(self, pair: Pair, damage: Finding) -> _GoodCopy:
        """Verify the source's copy. Raise SegmentCorruptError if it is missing or damaged too."""
        path = pair.objects.main_path
        copy = next((other for other in pair.beside if other.segment_id == pair.objects.segment_id), None)
        if copy is None:
            raise SegmentCorruptError(f"{path} is damaged, and the source has no copy of it: {damage.detail}")
        checked = self.source.verify(copy)
        if not checked.is_sound or checked.stored is None:
            reason = "deleted or damaged" if checked.is_gone or not checked.findings else _worst(checked).detail
            raise SegmentCorruptError(f"{path}: the source's copy is not sound, so nothing was replaced: {reason}")
        try:
            raw = read_manifest_text(self.source.bucket.store, self.source.key(copy, Suffix.MANIFEST), path)
            stored = StoredSegment(copy, checked.stored.manifest)
            if SegmentManifest.from_bytes(raw, None, self.source.bucket.manifest_rules) != stored.manifest:
                raise PreconditionFailedError(f"the source's manifest of {path} changed while it was verified")
            sums = {suffix: self.source.digest(copy, suffix, stored.sizes[suffix]) for suffix in _DATA}
        except (ObjectNotFoundError, RangeNotSatisfiableError) as error:
            raise SegmentCorruptError(f"{path} was deleted from the source: nothing was replaced") from error
        return _GoodCopy(stored, raw, sums)

    def _changes(self, objects: SegmentObjects, good: _GoodCopy) -> list[_Change]:
        """Compare the target's objects with the good copy. Return the objects to write, the manifest last."""
        # Read each object's etag before its content. A concurrent write in between then makes the conditional
        # replacement fail.
        changes: list[_Change] = []
        store = self.target.bucket.store
        for suffix in _DATA:
            size = good.stored.sizes[suffix]
            try:
                info = store.head(self.target.key(objects, suffix))
                is_good = info.size == size and self.target.digest(objects, suffix, size) == good.sha256[suffix]
            except ObjectNotFoundError:
                changes.append(_Change(suffix, None, size))
                continue
            except RangeNotSatisfiableError as error:
                raise PreconditionFailedError(f"{objects.main_path} changed while it was compared") from error
            if not is_good:
                changes.append(_Change(suffix, info.etag or "", size))
        key = self.target.key(objects, Suffix.MANIFEST)
        try:
            etag = store.head(key).etag or ""
            raw = store.get_small(key, MAX_MANIFEST_SIZE)
        except ObjectNotFoundError as error:
            raise SegmentNotFoundError(f"{objects.main_path} was deleted from the target") from error
        if raw is None or not self._is_good_manifest(raw, good):
            changes.append(_Change(Suffix.MANIFEST, etag, len(good.raw)))
        return changes

    def _is_good_manifest(self, raw: bytes, good: _GoodCopy) -> bool:
        """Return True if the manifest equals the good copy's. Only the wrapping of the same data key may differ.

        Raise UnknownKeyError or WrongKeyError if the target's key ring does not open the data key. In this case, either
        the manifest or the key ring may be wrong.
        """
        if raw == good.raw:
            return True
        if good.wrapped is None or not same_but_for_data_key(raw, good.raw):
            return False
        ours = SegmentManifest.from_bytes(raw, None, self.target.bucket.manifest_rules).encryption
        if ours is None or self.target.ring is None or self.source.ring is None:
            return False
        data_key = self.source.ring.unwrap(good.wrapped.key_id, good.wrapped.wrapped)
        try:
            return self.target.ring.unwrap(ours.key_id, ours.wrapped) == data_key
        except WrongKeyError:
            # The target's key pair of this id opens the good copy's data key. So the pair is right, and the target's
            # manifest is damaged.
            if ours.key_id == good.wrapped.key_id and self._recoding().opens(good.wrapped):
                return False
            raise

    def _write(self, objects: SegmentObjects, good: _GoodCopy, change: _Change) -> None:
        key, store = self.target.key(objects, change.suffix), self.target.bucket.store
        if change.suffix is Suffix.MANIFEST:
            store.replace(key, self._manifest(good), change.etag or "")
        elif change.etag is None:
            store.put(key, self._body(good, change), if_absent=True)
        else:
            store.replace(key, self._body(good, change), change.etag)

    def _body(self, good: _GoodCopy, change: _Change) -> Generator[bytes]:
        """Yield the good copy's bytes. Raise SegmentCorruptError at the end if these bytes differ from the verified
        bytes. This error aborts the write, so the store keeps the old object.
        """
        objects, digest = good.stored.objects, Digest()
        try:
            for part in parts_of(self.source.bucket.store, self.source.key(objects, change.suffix), change.size):
                digest.take(part)
                yield part
        except (ObjectNotFoundError, RangeNotSatisfiableError) as error:
            raise SegmentCorruptError(f"{objects.main_path} was deleted from the source during the repair") from error
        if digest.sha256 != good.sha256[change.suffix]:
            raise SegmentCorruptError(
                f"{objects.main_path}.{change.suffix.value} in the source has changed since it was verified: the "
                "target's object was not replaced"
            )

    def _manifest(self, good: _GoodCopy) -> bytes:
        raw, wrapped, recoding = good.raw, good.wrapped, self._recoding()
        if wrapped is None or recoding.opens(wrapped):
            return raw
        return with_data_key(raw, *recoding.rewrap(wrapped), self.source.bucket.manifest_rules)

    def _recoding(self) -> Recoding:
        options = WriteOptions.of_settings(self.target.bucket.settings, self.target.ring)
        return Recoding(options, self.source.ring)

    def _prove(self, objects: SegmentObjects, good: _GoodCopy) -> None:
        """Read the segment again. Raise SegmentCorruptError unless it is sound and equal to the good copy."""
        after = self.target.verify(objects)
        if after.is_gone:
            raise SegmentNotFoundError(f"{objects.main_path} was deleted from the target")
        if not after.is_sound or self._changes(objects, good):
            raise SegmentCorruptError(
                f"{objects.main_path} was replaced, but the target does not return the good copy's bytes: run this "
                "again, and find out what changes the bytes"
            )


def _worst(result: CheckedSegment) -> Finding:
    """Return the first finding that affects readers."""
    return next(finding for finding in result.findings if finding.kind.severity is not Severity.NOTICE)
