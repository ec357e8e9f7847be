"""Key rotation: wraps the data key in each manifest again, by the active key pair.

Data keys stay the same, and so do all data and indexes. In a manifest, only the text of the wrapped key changes (see
``format.data_key_field``).
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


@dataclass(frozen=True, slots=True)
class RotationStep(Step[SegmentObjects]):
    """The result of one segment in a rotation. ``key_id`` is the pair that wrapped its data key before."""

    key_id: str | None = None


_LOOKS: Final = 2
"""The maximum number of attempts at a manifest that another process keeps changing."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Wraps data keys by the active pair of a key ring.

    Data keys that the active pair wraps already cost no RSA. Each new wrapping is opened and compared before it is
    written. The write is conditional, so a manifest that was deleted meanwhile never returns. If a run is stopped or
    killed, each manifest is unchanged or rotated, and the next run does the rest. A ``dry_run`` does everything but
    write.
    """

    store: ObjectStore
    key_ring: KeyRing
    _: KW_ONLY
    rules: ManifestRules = DEFAULT_RULES
    dry_run: bool = True
    parallel: int = READERS

    def run(self, listed: Iterable[SegmentObjects]) -> Iterator[RotationStep]:
        """Yield a step for each listed segment that has a manifest, in their order.

        Memory does not grow with the listing. Raise ConfigError for a store without atomic conditional writes. Errors
        of the store end the run.
        """
        require_conditional_writes(self.store, "key rotation")
        with_manifest = (objects for objects in listed if objects.find(Suffix.MANIFEST) is not None)
        # RSA releases the interpreter lock, so these threads use all cores.
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
                etag = None  # the listed etag is out of date
        return RotationStep(objects, Outcome.CHANGED, reason=f"{name} is being changed by another process")

    def _rotate_once(self, objects: SegmentObjects, name: str, etag: str | None) -> RotationStep:
        key = manifest_info(objects).key
        if etag is None:
            # Read the etag before the content: a write in between then makes the replacement fail.
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
        # Check that the new wrapping, which replaces the old one, opens to the same data key.
        if self.key_ring.unwrap(self.key_ring.active_id, rewrapped) != data_key:
            raise WrongKeyError(
                f"the active key pair {self.key_ring.active_id!r} does not unwrap the data key that it wrapped; "
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
