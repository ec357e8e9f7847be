"""Key rotation: wraps the data key in each manifest and each cluster snapshot again, by the active key pair.

A rotation does not change data keys, logs or indexes. In a manifest, only the text of the wrapped key changes (see
``format.data_key_field``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final, TypeAlias

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.catalog.stored import MAX_MANIFESTS_IN_FLIGHT, known_segment, manifest_info, manifest_size
from tieredstore.errors import (
    CorruptDataError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    UnknownKeyError,
    WrongKeyError,
)
from tieredstore.format.data_key_field import with_data_key
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import DEFAULT_RULES, ManifestRules, WrappedDataKey
from tieredstore.ops.keys.use import RotationNotes
from tieredstore.ops.snapshots.storing import Snapshots, StoredSnapshot
from tieredstore.ops.steps import Outcome, Step, require_conditional_writes
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote.manifest_object import parse_manifest, read_manifest_text
from tieredstore.transform.keyring import KeyRing


@dataclass(frozen=True, slots=True)
class RotationStep(Step[SegmentObjects | StoredSnapshot]):
    """The result of one item in a rotation. ``key_id`` is the pair that wrapped the item's data key before the
    rotation."""

    key_id: str | None = None


_Change: TypeAlias = Callable[[str, bytes], bytes]
"""A function that takes a key pair's id and the data key wrapped by this pair. The function returns the object's new
bytes."""


@dataclass(frozen=True, slots=True)
class _Wrapped:
    """An object with a data key, and its name in messages. ``read`` returns the wrapped data key, and a function that
    replaces it.
    """

    item: SegmentObjects | StoredSnapshot
    key: str
    name: str
    read: Callable[[], tuple[WrappedDataKey | None, _Change]]


_LOOKS: Final = 2
"""The maximum number of attempts at an object that another process keeps changing."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Wraps data keys with the active pair of a key ring.

    A data key that the active pair already wraps costs no RSA operation. Each new wrapping is opened and compared
    before it is written. The write is conditional, so it never restores an object that was deleted during the rotation.
    A ``dry_run`` does everything but write. ``notes`` records when a pair was replaced.

    If a run is stopped or killed, each object is either unchanged or rotated. The next run does the rest.
    """

    store: ObjectStore
    key_ring: KeyRing
    _: KW_ONLY
    rules: ManifestRules = DEFAULT_RULES
    dry_run: bool = True
    parallel: int = READERS
    notes: RotationNotes | None = None

    def run(self, listed: Iterable[SegmentObjects]) -> Iterator[RotationStep]:
        """Yield a step for each listed segment that has a manifest, in the order of the listing.

        Memory does not grow with the listing. Raise ConfigError for a store without atomic conditional writes. A
        refused read or write is a step. Any other error of the store ends the run.
        """
        require_conditional_writes(self.store, "key rotation")
        with_manifest = (objects for objects in listed if objects.find(Suffix.MANIFEST) is not None)
        # RSA releases the interpreter lock, so these threads use all cores.
        with ThreadPool(self.parallel, "tieredstore-rotate") as pool:
            yield from in_parallel(
                pool,
                self._rotate_segment,
                with_manifest,
                at_once=4 * self.parallel,
                weigh=manifest_size,
                max_weight=MAX_MANIFESTS_IN_FLIGHT,
            )

    def run_snapshots(self, snapshots: Snapshots) -> Iterator[RotationStep]:
        """Yield a step for each snapshot. Raise the errors of :meth:`run`, and NewerVersionError."""
        require_conditional_writes(self.store, "key rotation")
        for stored in snapshots.find_all():
            yield self._rotate(_Wrapped(stored, stored.key, stored.key, partial(snapshots.data_key, stored)), None)

    def _rotate_segment(self, objects: SegmentObjects) -> RotationStep:
        info, name = manifest_info(objects), f"{objects.main_path}.{Suffix.MANIFEST.value}"

        def read() -> tuple[WrappedDataKey | None, _Change]:
            raw = read_manifest_text(self.store, info.key, name)
            wrapped = parse_manifest(raw, name, known_segment(objects), self.rules).encryption
            return wrapped, lambda key_id, rewrapped: with_data_key(raw, key_id, rewrapped, self.rules)

        return self._rotate(_Wrapped(objects, info.key, name, read), info.etag)

    def _rotate(self, one: _Wrapped, etag: str | None) -> RotationStep:
        for _ in range(_LOOKS):
            try:
                return self._rotate_once(one, etag)
            except ObjectNotFoundError:
                return RotationStep(one.item, Outcome.GONE)
            except PreconditionFailedError:
                etag = None  # the listed etag is out of date
            except StoreError as error:
                if error.retryable:
                    raise
                return RotationStep(one.item, Outcome.REFUSED, f"{one.name}: {error}")
        return RotationStep(one.item, Outcome.CHANGED, reason=f"{one.name} is being changed by another process")

    def _rotate_once(self, one: _Wrapped, etag: str | None) -> RotationStep:
        if etag is None:
            # Read the etag before the content, because a write in between then makes the replacement fail.
            etag = self.store.head(one.key).etag
        try:
            wrapped, change = one.read()
        except CorruptDataError as error:
            return RotationStep(one.item, Outcome.DAMAGED, reason=str(error))
        if wrapped is None:
            return RotationStep(one.item, Outcome.PLAIN)
        if wrapped.key_id == self.key_ring.active_id:
            return RotationStep(one.item, Outcome.ACTIVE, key_id=wrapped.key_id)
        try:
            data_key = self.key_ring.unwrap(wrapped.key_id, wrapped.wrapped)
            changed = change(self.key_ring.active_id, self.key_ring.wrap_and_prove(data_key))
        except (UnknownKeyError, WrongKeyError, CorruptDataError) as error:
            return RotationStep(one.item, _outcome_of(error), f"{one.name}: {error}", wrapped.key_id)
        if not self.dry_run:
            if self.notes is not None:
                self.notes.before_write(wrapped.key_id)
            self._replace(one.key, changed, etag)
        return RotationStep(one.item, Outcome.ROTATED, key_id=wrapped.key_id)

    def _replace(self, key: str, changed: bytes, etag: str | None) -> None:
        if etag is None:
            raise PreconditionFailedError(f"the store returned no etag of {key!r}, so the object was not replaced")
        self.store.replace(key, changed, etag)


def _outcome_of(error: UnknownKeyError | WrongKeyError | CorruptDataError) -> Outcome:
    if isinstance(error, UnknownKeyError):
        return Outcome.UNKNOWN_KEY
    return Outcome.WRONG_KEY if isinstance(error, WrongKeyError) else Outcome.DAMAGED
