"""One attempt to copy a segment: the keys it has written, the check of its objects, and its time limit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Self

from tieredstore.backends.base import Body, ObjectStore
from tieredstore.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RangeNotSatisfiableError,
    SegmentAlreadyExistsError,
    StoreError,
    StoreUnavailableError,
    TieredStoreError,
)
from tieredstore.format.keys import Suffix
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.remote.layout import KeyLayout
from tieredstore.remote.manifest_object import delete_manifest_first

_logger: Final = logging.getLogger(__name__)


class AttemptAge:
    """Time limit of an attempt to copy. A clean-up may delete objects without a manifest after twice this time."""

    def __init__(
        self, clock: Callable[[], float], most_s: float, metadata: RemoteLogSegmentMetadata, *, before_s: float = 0.0
    ) -> None:
        """Count the attempt's age from now, or from ``before_s`` ago if this attempt continues an earlier one."""
        self._clock = clock
        self._began_s = clock() - before_s
        self._most_s = most_s
        self._metadata = metadata

    def check(self) -> None:
        """Raise StoreUnavailableError if the attempt has exceeded its time limit."""
        if self._clock() - self._began_s > self._most_s:
            raise StoreUnavailableError(
                f"the copy of {self._metadata} has taken longer than {self._most_s:g} s (upload.max.age.ms), so it is "
                "not committed: a clean-up may delete its objects; copy it again"
            )


class Attempt:
    """The keys that one copy has written. A failed copy deletes all of them."""

    def __init__(
        self, store: ObjectStore, layout: KeyLayout, metadata: RemoteLogSegmentMetadata, age: AttemptAge
    ) -> None:
        self._store = store
        self._layout = layout
        self._metadata = metadata
        self._age = age
        self._written: list[str] = []
        self._denied: str | None = None

    def require(self, suffix: Suffix, size: int) -> None:
        """Raise StoreUnavailableError if the object is absent, StoreError if its size is not ``size``. This takes one
        request.

        The request reads the last byte of the object, because this is cheap on every store. A ``head`` is not cheap on
        a store in a folder, because it reads the whole object.
        """
        key = self._layout.key(self._metadata, suffix)
        shown = self._layout.show(key)
        try:
            whole = len(self._store.get(key, max(0, size - 1))) == min(1, size)
        except ObjectNotFoundError as error:
            raise StoreUnavailableError(
                f"{shown} was deleted before its manifest was written, so {self._metadata} is not committed; copy it "
                "again, and see what deletes young objects there (a clean-up, or a rule of the bucket)"
            ) from error
        except RangeNotSatisfiableError:
            whole = False
        if not whole:
            raise StoreError(f"{shown} does not have the expected {size} bytes, so {self._metadata} is not committed")

    def put(self, suffix: Suffix, body: Body) -> None:
        """Write one object. Raise SegmentAlreadyExistsError if its key is taken."""
        self._age.check()
        key = self._layout.key(self._metadata, suffix)
        # Record the key before the write, because the object may exist even if the response is lost.
        self._written.append(key)
        try:
            self._store.put(key, body, if_absent=True)
        except PreconditionFailedError as error:
            self._written.remove(key)  # another attempt has written this object, so do not roll it back
            raise SegmentAlreadyExistsError(
                f"{self._layout.show(key)} exists: {self._metadata} is being copied by another process under the "
                "same id; every attempt needs a new id"
            ) from error
        except AccessDeniedError as error:
            self._denied = key
            raise AccessDeniedError(f"writing was denied: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        try:
            delete_manifest_first(self._store, self._written)
        except TieredStoreError as second:
            # A denied write has probably stored nothing, so do not report its object. The deletion above includes the
            # object's key nevertheless, because an earlier request of the same write may have succeeded although its
            # response was lost.
            left = [key for key in self._written if key != self._denied]
            if not left:
                return
            shown = ", ".join(map(self._layout.show, left))
            _logger.warning("clean-up after a failed copy failed too; these objects may stay: %s (%s)", shown, second)
            error.add_note(f"clean-up failed too ({second}); these objects may stay: {shown}")
