"""Key rotation: wraps every manifest's data key again under the active key pair.

The data key itself, and so all data and indexes, stay unchanged. One text of a manifest changes, and none of its other
bytes (see ``format.data_key_field``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.catalog.stored import MAX_MANIFESTS_IN_FLIGHT, known_segment, manifest_info, manifest_size
from tieredstore.errors import (
    CorruptDataError,
    ObjectNotFoundError,
    PreconditionFailedError,
    UnknownKeyError,
    WrongKeyError,
)
from tieredstore.format.data_key_field import with_data_key
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import WrappedDataKey
from tieredstore.format.manifest_rules import DEFAULT_RULES, ManifestRules
from tieredstore.ops.steps import Outcome, Step, require_conditional_writes
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote.manifest_object import parse_manifest, read_manifest_text
from tieredstore.transform.keyring import KeyRing

FAILURES: Final = frozenset({Outcome.UNKNOWN_KEY, Outcome.WRONG_KEY, Outcome.DAMAGED})
"""Segments that still need another pair than the active one, and will after a second run too."""


@dataclass(frozen=True, slots=True)
class RotationStep(Step[SegmentObjects]):
    """One segment of a rotation; ``key_id`` is the pair before it."""

    key_id: str | None = None


_LOOKS: Final = 2
"""The most attempts on a manifest that another process changes at the same time."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Wraps data keys by the active pair of a ring.

    Data keys already wrapped by the active pair cost no RSA. Each new wrapping is opened and compared before it is
    written, by a conditional replacement: a manifest deleted in between never comes back. After a stop or kill at any
    point each manifest is unchanged or rotated; a second run does the rest. A ``dry_run`` does everything except the
    write.
    """

    store: ObjectStore
    key_ring: KeyRing
    _: KW_ONLY
    rules: ManifestRules = DEFAULT_RULES
    dry_run: bool = True
    parallel: int = READERS

    def run(self, listed: Iterable[SegmentObjects]) -> Iterator[RotationStep]:
        """Yield a step for each of the listed segments, in their order; leftovers have none.

        Holds neither the listing nor manifests. Raise ConfigError for a store without atomic conditional writes; errors
        of the store end the run.
        """
        require_conditional_writes(self.store, "key rotation")
        with_manifest = (objects for objects in listed if objects.find(Suffix.MANIFEST) is not None)
        # RSA releases the interpreter's lock, so these threads use all cores.
        with ThreadPool(self.parallel, "tieredstore-rotate") as pool:
            yield from in_parallel(
                pool,
                self._rotate,
                with_manifest,
                at_once=4 * self.parallel,
                weigh=manifest_size,
                max_weight=MAX_MANIFESTS_IN_FLIGHT,
            )

    def _rotate(self, objects: SegmentObjects) -> RotationStep:
        name = f"{objects.main_path}.{Suffix.MANIFEST.value}"
        etag = manifest_info(objects).etag
        for _ in range(_LOOKS):
            try:
                return self._rotate_once(objects, name, etag)
            except ObjectNotFoundError:
                return RotationStep(objects, Outcome.GONE)
            except PreconditionFailedError:
                etag = None  # the listing is out of date
        return RotationStep(objects, Outcome.CHANGED, reason=f"{name} is being changed by another process")

    def _rotate_once(self, objects: SegmentObjects, name: str, etag: str | None) -> RotationStep:
        key = manifest_info(objects).key
        if etag is None:
            # Before the content: any write in between makes the replacement fail.
            etag = self.store.head(key).etag
        try:
            raw = read_manifest_text(self.store, key, name)
            wrapped = parse_manifest(raw, name, known_segment(objects), self.rules).encryption
        except CorruptDataError as error:
            return RotationStep(objects, Outcome.DAMAGED, reason=str(error))
        if wrapped is None:
            return RotationStep(objects, Outcome.PLAIN)
        if wrapped.key_id == self.key_ring.active_id:
            return RotationStep(objects, Outcome.ACTIVE, key_id=wrapped.key_id)
        try:
            changed = with_data_key(raw, self.key_ring.active_id, self._rewrap(wrapped), self.rules)
        except (UnknownKeyError, WrongKeyError, CorruptDataError) as error:
            return RotationStep(objects, _left_alone(error), f"{name}: {error}", wrapped.key_id)
        if not self.dry_run:
            self._replace(key, changed, etag)
        return RotationStep(objects, Outcome.ROTATED, key_id=wrapped.key_id)

    def _rewrap(self, old: WrappedDataKey) -> bytes:
        data_key = self.key_ring.unwrap(old.key_id, old.wrapped)
        rewrapped = self.key_ring.wrap(data_key)
        # The new wrapping replaces the old one: check that it opens, and to the same key.
        if self.key_ring.unwrap(self.key_ring.active_id, rewrapped) != data_key:
            raise WrongKeyError(
                f"the active key pair {self.key_ring.active_id!r} does not give back the data key that it wrapped; "
                "nothing was changed"
            )
        return rewrapped

    def _replace(self, key: str, changed: bytes, etag: str | None) -> None:
        if etag is None:
            raise PreconditionFailedError(f"the store returned no etag of {key!r}, so it was not replaced")
        self.store.replace(key, changed, etag)


def _left_alone(error: UnknownKeyError | WrongKeyError | CorruptDataError) -> Outcome:
    if isinstance(error, UnknownKeyError):
        return Outcome.UNKNOWN_KEY
    return Outcome.WRONG_KEY if isinstance(error, WrongKeyError) else Outcome.DAMAGED
