"""Interface of stores: methods for data, and administrative questions about a bucket.

A store implements all of ``ObjectStore``. It may implement all, some or none of the methods of ``StoreAdmin``; for
missing methods ``admin_of`` answers "unknown".
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, TypeVar

from tieredstore.backends.contract import staging
from tieredstore.backends.contract.bodies import Digest
from tieredstore.backends.contract.checks import check_whole
from tieredstore.backends.values import AbandonedWrite, Body, Buffer, ObjectInfo, ObjectVersion, Prepared
from tieredstore.errors import ConfigError, PreconditionFailedError, TieredStoreError

__all__ = [
    "DRAFT_PREFIX",
    "AbandonedWrite",
    "Body",
    "BucketLifecycle",
    "BucketVersions",
    "Buffer",
    "DelegatingStore",
    "Digest",
    "LifecycleRule",
    "LifecycleState",
    "ObjectInfo",
    "ObjectStore",
    "ObjectVersion",
    "Prepared",
    "StoreAdmin",
    "admin_of",
]

_logger: Final = logging.getLogger(__name__)

Result = TypeVar("Result")

DRAFT_PREFIX: Final = ".~tieredstore-"
"""Start of a draft's name. A draft is the hidden file of an unfinished write. No component of a key may start with this
text.
"""


@dataclass(frozen=True, slots=True)
class LifecycleRule:
    """One lifecycle rule of a bucket.

    A rule with empty ``prefixes`` applies to all objects. ``is_limited`` is True if the rule has conditions besides the
    prefix. ``action`` is the effect in the service's words. Two rules are the same if their ``content`` is equal.
    """

    name: str
    is_enabled: bool
    prefixes: tuple[str, ...]
    is_limited: bool
    action: str
    aborts_after_days: int | None
    content: str

    def aborts_all_under(self, prefix: str) -> bool:
        """Return True if the rule aborts every unfinished multipart upload under ``prefix``."""
        if not self.is_enabled or self.is_limited or self.aborts_after_days is None:
            return False
        return not self.prefixes or any(prefix.startswith(one) for one in self.prefixes)


@dataclass(frozen=True, slots=True)
class LifecycleState:
    """All lifecycle rules of a bucket at one moment.

    ``text`` is the service's own document, empty if the bucket has no rules. ``version`` identifies this state: a
    request that changes the rules must send it back.
    """

    rules: tuple[LifecycleRule, ...]
    text: str
    version: str | None = None


class BucketLifecycle(ABC):
    """The lifecycle rules of a bucket. All methods raise the errors of a store."""

    note: ClassVar[str] = ""
    """A sentence about the unfinished uploads that no lifecycle rule of this service can abort; empty if rules can
    abort all.
    """

    @abstractmethod
    def read(self) -> LifecycleState:
        """Read the current rules."""

    @abstractmethod
    def add_abort_rule(self, name: str, prefix: str, days: int, state: LifecycleState) -> None:
        """Add a rule that aborts unfinished multipart uploads under ``prefix`` after ``days`` days.

        The other rules stay unchanged. Raise PreconditionFailedError if the service detects that the rules have changed
        since ``state``. Raise StoreError if this code cannot parse the existing rules well enough to keep them. To
        confirm the change, call :meth:`read`.
        """


class BucketVersions(ABC):
    """The versions that a bucket keeps of its objects, including deleted objects. All methods raise the errors of a
    store.

    The methods take and return the bucket's own keys, even if a wrapper of the store translates keys.
    """

    @abstractmethod
    def list(self, prefix: str) -> Iterator[ObjectVersion]:
        """Yield all versions and delete markers of the keys that start with ``prefix``.

        The versions of one key come newest first, and so do its delete markers. The order is otherwise undefined.
        """

    @abstractmethod
    def remove_marker(self, marker: ObjectVersion) -> None:
        """Remove a delete marker. The newest version below the marker becomes visible again, if no other marker and no
        newer object hides it. If the marker is absent, do nothing.

        Raise StoreError if a later object could get the marker's id, because the request would then remove that object.
        """

    @abstractmethod
    def obstacle(self) -> str | None:
        """Return a sentence that says why an object could not be restored if it is deleted now; None if no reason is
        known.
        """


class ObjectStore(ABC):
    """A flat map from keys to bytes. Objects are written whole.

    Keys are non-empty text of at most 1,024 bytes of UTF-8, with components separated by ``/``. Ranges are half-open.

    Many threads may use a store at once. A store is picklable, because each process makes its clients and handles on
    first use, also after a fork or unpickling.

    Every store raises the same errors: ``ObjectNotFoundError``, ``RangeNotSatisfiableError``,
    ``PreconditionFailedError``, ``InvalidKeyError``, ``AccessDeniedError``, ``StoreUnavailableError`` (retryable,
    raised after the store's own retries), and ``StoreError`` for all others. A store never raises exceptions of an SDK.
    """

    @property
    @abstractmethod
    def identity(self) -> str:
        """URL of the bucket or folder, without credentials; equal for two stores of one bucket or folder."""

    @property
    def conditional_writes(self) -> bool:
        """True if ``if_absent`` and ``replace`` are atomic among all processes: exactly one of several racing writers
        wins.

        Key rotation and other tools that change shared state refuse a store without conditional writes.
        """
        return True

    @abstractmethod
    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Write the whole object atomically. Until the new object is durable, readers see the old object, or none.

        If ``body`` raises or the store fails, the key is unchanged and no bytes stay behind, because the store aborts
        a multipart upload. An error of ``body`` passes through. If ``body`` is a generator, the call closes it in any
        case.

        With ``if_absent``, raise ``PreconditionFailedError`` if the key is taken. Exactly one of several racing writers
        wins.
        """

    def put_once(self, key: str, body: Buffer, mark: str) -> None:  # noqa: ARG002  most stores keep no marks
        """Write the object if its key is free. ``mark`` (32 hexadecimal digits) names the write.

        Any process may repeat the call with the same body and mark, in sequence or in parallel. After one call has
        written the object, all other calls succeed and change nothing. Raise ``PreconditionFailedError`` if another
        write made the object under the key.

        This default implementation stores no marks: it accepts any object with the same content.
        """
        try:
            self.put(key, body, if_absent=True)
        except PreconditionFailedError:
            if not staging.holds_bytes(self, key, body):
                raise

    @abstractmethod
    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return exactly the bytes ``start:stop``, with one request. Without ``stop``, read to the end of the object.

        ``start == stop`` gives ``b""`` without a request. A negative start, or a stop before the start, raises
        ``InvalidRangeError``. A range that is not wholly inside the object raises ``RangeNotSatisfiableError``.

        Without ``stop``, a ``start`` at or past the end raises ``RangeNotSatisfiableError`` too. Exception: ``start=0``
        of an empty object gives ``b""``.
        """

    def get_small(self, key: str, most: int) -> bytes | None:
        """Return the whole object, with one request; None if it has more than ``most`` bytes.

        The limit protects the reader if an attacker has put a large object in place of a small one. Our stores do not
        read the body of a larger object; this default implementation does.
        """
        data = self.get(key)
        return data if len(data) <= most else None

    @property
    def small_batch(self) -> int:
        """Best number of keys for ``get_small_batch``.

        The number is 1 if each key needs a request, because the caller can then send requests in parallel. It is higher
        if reading an object takes less time than a thread switch, so that parallel reads would be slower.
        """
        return 1

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """Return, for each key, the result of ``get_small`` or its error."""
        answers: list[bytes | TieredStoreError | None] = []
        for key in keys:
            try:
                answers.append(self.get_small(key, most))
            except TieredStoreError as error:
                answers.append(error)
        return answers

    @abstractmethod
    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Fill all of ``buffer`` with the bytes from ``start``, with one request; for an empty buffer, send none.

        Raise the errors of ``get``. After an error the buffer's content is undefined.
        """

    def get_whole(self, key: str, buffer: bytearray | memoryview) -> None:
        """Fill ``buffer`` with the whole object, with one request.

        Raise RangeNotSatisfiableError if the object is longer or shorter than ``buffer``. Our cloud stores then do not
        read the object's body.
        """
        data = self.get(key)
        with memoryview(buffer).cast("B") as view:
            check_whole(key, len(data), len(view))
            view[:] = data

    @abstractmethod
    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with ``prefix`` and is greater than ``start_after``, sorted by UTF-8
        bytes.

        The store requests each page when the caller reaches it. Unfinished writes are not listed.
        """

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete the keys, in batches where the store can. An absent key is no error.

        If a deletion fails, continue with the other keys. Then raise one of the errors, with the number of failures.
        The order of deletions is undefined.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Return size and etag of an object; raise ``ObjectNotFoundError`` if it is absent."""

    @abstractmethod
    def replace(self, key: str, body: Body, etag: str) -> str:
        """Replace the object if it still has ``etag``; return the new etag.

        Raise ``PreconditionFailedError`` if the object has another etag or is absent. Exactly one of several racing
        writers wins. The handling of ``body``, and the errors, are those of ``put``.
        """

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """Store all bytes of an object durably, but do not make it visible under ``key`` yet.

        Any process may then call :meth:`publish` or :meth:`discard`. If no process does, the bytes stay until abandoned
        writes are removed.

        This default implementation is for stores that cannot hide bytes. It writes an object under ``staging_prefix``,
        and the caller must delete the objects that stay there. The handling of ``body``, and the errors, are those of
        ``put``.
        """
        return staging.prepare(self, key, body, staging_prefix)

    def publish(self, prepared: Prepared) -> None:
        """Make the prepared object visible under its key, atomically, if the key is free.

        Any process may repeat the call: after the first success it changes nothing. If another object has the key,
        raise ``PreconditionFailedError``. If the key is free but the bytes were discarded or have expired, raise
        ``PreparedGoneError``: call ``prepare`` again.
        """
        staging.publish(self, prepared)

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """Remove the bytes of an abandoned or prepared write, but never a published object.

        Return False if the writer is alive or the write is not removable. If the store can detect that the write no
        longer exists, return False too.
        """
        return isinstance(write, Prepared) and staging.discard(self, write)

    def close(self) -> None:  # noqa: B027  most stores hold nothing that needs closing
        """Release connections and handles. The store opens them again on the next use."""


class StoreAdmin:
    """Administrative questions about a bucket, asked by tools. Each default method answers "unknown"."""

    def now_ms(self) -> int | None:
        """Return the store's own time in ms since the epoch, by the clock that sets ``modified_ms`` and ``started_ms``.

        This costs one request. Return None if the store has no clock: the age of its objects is then unknown.
        """
        return None

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite] | None:  # noqa: ARG002
        """Yield the unfinished writes of killed writers to keys that start with ``prefix``. The order is undefined.

        Some stores cannot distinguish the bytes of a killed writer from those of a live writer or a prepared upload.
        Such stores yield all three kinds. So discard only a write that is older than any live write can be.

        Return None if the store cannot list unfinished writes. Yield nothing if killed writers leave no bytes, or if
        the service drops those bytes by itself and cannot list them.
        """
        return None

    def kept_after_delete(self) -> Sequence[str]:
        """Return one sentence for each way the bucket keeps deleted objects: versions, soft delete, object locks.

        A failed request is reported by a sentence too. If the bucket keeps no deleted objects, return an empty
        sequence.
        """
        return ["the store cannot say if it keeps deleted objects"]

    def rules_on(self, prefix: str) -> Sequence[str] | None:  # noqa: ARG002
        """Return one sentence for each rule of the bucket that deletes or archives objects under ``prefix``.

        Return None if the store cannot list its rules.
        """
        return None

    def lifecycle(self) -> BucketLifecycle | str:
        """Return an object that reads and extends the bucket's lifecycle rules. If the store has no such rules, return
        a sentence that says why.
        """
        return "the store cannot list its lifecycle rules"

    def versions(self) -> BucketVersions | str:
        """Return the versions that the bucket keeps. If this store has none or cannot list them, return a sentence that
        says why.
        """
        return "the store cannot list versions of deleted objects"

    def caller(self) -> str:
        """Return the identity that requests use, without any secret; empty if unknown."""
        return ""


class _SingleAnswers(StoreAdmin):
    """Administrative methods of a store that is not a ``StoreAdmin``; a missing method answers "unknown"."""

    def __init__(self, store: ObjectStore) -> None:
        for verb in (name for name in vars(StoreAdmin) if not name.startswith("_")):
            answer: object = getattr(store, verb, None)
            if answer is not None:
                setattr(self, verb, answer)


def admin_of(store: ObjectStore) -> StoreAdmin:
    """Return the administrative methods of ``store``; a missing method answers "unknown"."""
    return store if isinstance(store, StoreAdmin) else _SingleAnswers(store)


def store_time_ms(store: ObjectStore) -> int:
    """Return the store's own time, to compute the age of its objects. Raise ConfigError if the store has no clock."""
    now_ms = admin_of(store).now_ms()
    if now_ms is None:
        raise ConfigError(f"{store.identity} has no clock, so the age of its objects is unknown")
    return now_ms


def find_abandoned_writes(store: ObjectStore, prefix: str = "") -> Iterator[AbandonedWrite]:
    """Return the abandoned writes under ``prefix``; log a warning and return an empty iterator if the store cannot list
    them."""
    writes = admin_of(store).abandoned_writes(prefix)
    if writes is None:
        _logger.warning(
            "%s cannot list the unfinished writes of killed writers, so these were not checked", store.identity
        )
        return iter(())
    return writes


class DelegatingStore(ObjectStore, StoreAdmin):
    """Base class of wrappers: sends reads and writes of one key to the store and key that ``target`` returns.

    Listings, deletions, batches, prepared objects and administrative questions go to ``inner``. ``put_once`` and
    ``get_whole`` call the wrapper's own ``put`` and ``get``, unless a subclass overrides them.

    Subclasses may override :meth:`call`, which makes all requests except listings, deletions, and those with a body.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def target(self, key: str, *, writes: bool = False) -> tuple[ObjectStore, str]:  # noqa: ARG002  subclasses use it
        """Return the store for a request about ``key``, and the key in that store."""
        return self.inner, key

    def call(self, verb: str, key: str, request: Callable[[], Result]) -> Result:  # noqa: ARG002  as above
        """Return the result of ``request``, which calls another store. ``key`` is empty for a question about the whole
        store."""
        return request()

    @property
    def identity(self) -> str:
        """The identity of ``inner``, which has the objects."""
        return self.inner.identity

    @property
    def conditional_writes(self) -> bool:
        """True if ``inner`` has conditional writes."""
        return self.inner.conditional_writes

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Call the target."""
        store, there = self.target(key, writes=True)
        store.put(there, body, if_absent=if_absent)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Call the target."""
        store, there = self.target(key)
        return self.call("get", key, lambda: store.get(there, start, stop))

    def get_small(self, key: str, most: int) -> bytes | None:
        """Call the target."""
        store, there = self.target(key)
        return self.call("get", key, lambda: store.get_small(there, most))

    @property
    def small_batch(self) -> int:
        """The batch size of ``inner``."""
        return self.inner.small_batch

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """Call ``inner``."""
        return self.call("get", keys[0] if keys else "", lambda: self.inner.get_small_batch(keys, most))

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Call the target."""
        store, there = self.target(key)
        self.call("get", key, lambda: store.get_into(there, start, buffer))

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Call ``inner``."""
        return self.inner.list(prefix, start_after)

    def delete(self, keys: Iterable[str]) -> None:
        """Call ``inner``."""
        self.inner.delete(keys)

    def head(self, key: str) -> ObjectInfo:
        """Call the target."""
        store, there = self.target(key)
        info = self.call("head", key, lambda: store.head(there))
        return info if there == key else replace(info, key=key)

    def replace(self, key: str, body: Body, etag: str) -> str:
        """Call the target."""
        store, there = self.target(key, writes=True)
        return store.replace(there, body, etag)

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """Call ``inner``."""
        return self.inner.prepare(key, body, staging_prefix=staging_prefix)

    def publish(self, prepared: Prepared) -> None:
        """Call ``inner``."""
        self.call("publish", prepared.key, lambda: self.inner.publish(prepared))

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """Call ``inner``."""
        return self.call("discard", write.key, lambda: self.inner.discard(write))

    def close(self) -> None:
        """Call ``inner``."""
        self.inner.close()

    def now_ms(self) -> int | None:
        """Call ``inner``."""
        return self.call("now_ms", "", admin_of(self.inner).now_ms)

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite] | None:
        """Call ``inner``."""
        return admin_of(self.inner).abandoned_writes(prefix)

    def kept_after_delete(self) -> Sequence[str]:
        """Call ``inner``."""
        return self.call("kept_after_delete", "", admin_of(self.inner).kept_after_delete)

    def rules_on(self, prefix: str) -> Sequence[str] | None:
        """Call ``inner``."""
        return self.call("rules_on", prefix, lambda: admin_of(self.inner).rules_on(prefix))

    def lifecycle(self) -> BucketLifecycle | str:
        """Call ``inner``."""
        return admin_of(self.inner).lifecycle()

    def versions(self) -> BucketVersions | str:
        """Call ``inner``."""
        return admin_of(self.inner).versions()

    def caller(self) -> str:
        """Call ``inner``."""
        return self.call("caller", "", admin_of(self.inner).caller)
