"""The interface of stores: the verbs for data, and the administrative questions about a bucket.

A store implements all of ``ObjectStore``. It may implement ``StoreAdmin``, or single verbs of it; ``admin_of`` returns
the answers, "unknown" for missing verbs.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from tieredstore.backends.contract import staging
from tieredstore.backends.contract.bodies import Digest
from tieredstore.backends.contract.ranges import check_whole
from tieredstore.backends.values import AbandonedWrite, Body, Buffer, ObjectInfo, Prepared
from tieredstore.errors import ConfigError, PreconditionFailedError, TieredStoreError

__all__ = [
    "DRAFT_PREFIX",
    "AbandonedWrite",
    "Body",
    "BucketLifecycle",
    "Buffer",
    "DelegatingStore",
    "Digest",
    "LifecycleRule",
    "LifecycleState",
    "ObjectInfo",
    "ObjectStore",
    "Prepared",
    "StoreAdmin",
    "admin_of",
]

_logger: Final = logging.getLogger(__name__)

DRAFT_PREFIX: Final = ".~tieredstore-"
"""Begins the last path component of a write's hidden file, and never that of an object's key."""


@dataclass(frozen=True, slots=True)
class LifecycleRule:
    """One rule of a bucket.

    ``prefixes``: none for all objects; ``is_limited``: it has further conditions. ``action`` is its effect in the
    service's words. ``content`` is the whole rule: rules with equal content are the same.
    """

    name: str
    is_enabled: bool
    prefixes: tuple[str, ...]
    is_limited: bool
    action: str
    aborts_after_days: int | None
    content: str

    def aborts_all_under(self, prefix: str) -> bool:
        """Return True if it eventually aborts every unfinished multipart upload under ``prefix``."""
        if not self.is_enabled or self.is_limited or self.aborts_after_days is None:
            return False
        return not self.prefixes or any(prefix.startswith(one) for one in self.prefixes)


@dataclass(frozen=True, slots=True)
class LifecycleState:
    """All rules of a bucket at one moment, and their ``text`` as the service returns it (empty without any).
    ``version`` must be sent back with a change.
    """

    rules: tuple[LifecycleRule, ...]
    text: str
    version: str | None = None


class BucketLifecycle(ABC):
    """A bucket's rules. Errors are those of a store."""

    has_condition: ClassVar[bool]
    """True if a change is refused when the rules have changed since they were read."""

    note: ClassVar[str] = ""
    """A sentence about unfinished uploads in this service; empty if the rule covers all."""

    @abstractmethod
    def read(self) -> LifecycleState:
        """Read the present rules."""

    @abstractmethod
    def add_abort_rule(self, name: str, prefix: str, days: int, state: LifecycleState) -> None:
        """Add a rule to those of ``state``: abort unfinished multipart uploads under ``prefix`` after ``days``.

        The other rules stay unchanged. Raise PreconditionFailedError if they have changed, where the service can tell,
        and StoreError if the existing rules are not understood well enough to be kept. Only :meth:`read` proves
        success.
        """


class ObjectStore(ABC):
    """A flat map from keys to bytes; objects are written whole.

    Keys are non-empty text of at most 1,024 bytes of UTF-8, components separated by ``/``. Ranges are half-open. A
    store is used from many threads at once and is picklable: it makes clients and handles on first use, and again after
    fork or unpickling.

    Errors, the same for every store: ``ObjectNotFoundError``, ``RangeNotSatisfiableError``,
    ``PreconditionFailedError``, ``InvalidKeyError``, ``AccessDeniedError``, ``StoreUnavailableError`` (retryable; the
    store's own retries are exhausted), and ``StoreError`` for all others. No exception of an SDK leaks out.
    """

    @property
    @abstractmethod
    def identity(self) -> str:
        """The place of the objects, as a URL without credentials: equal for two stores with the same objects."""

    @property
    def conditional_writes(self) -> bool:
        """True if ``if_absent`` and ``replace`` are atomic among all processes: exactly one of several racing writers
        wins.

        Tools that move shared state, such as key rotation, refuse a store without them.
        """
        return True

    @abstractmethod
    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Write the whole object atomically: readers see the old object (or none) until all of the new one is durable.

        If ``body`` raises, or the store fails, the key is unchanged and nothing of the attempt stays (parts are
        aborted); an error of ``body`` is raised on. A generator given as ``body`` is closed when the call ends in any
        way. With ``if_absent``, raise ``PreconditionFailedError`` if the key is taken; exactly one of several racing
        writers wins.
        """

    def put_once(self, key: str, body: Buffer, mark: str) -> None:  # noqa: ARG002  most stores keep no marks
        """Write the object if its key is free, as one attempt of the write that ``mark`` (32 hexadecimal digits) names.

        Any process may repeat it with the same body, in sequence or in parallel: once one attempt has written the
        object, all succeed and change nothing. Raise ``PreconditionFailedError`` if another write's object has the key.
        A store that keeps no marks, like this one, recognizes its object by the content.
        """
        try:
            self.put(key, body, if_absent=True)
        except PreconditionFailedError:
            if not staging.holds_bytes(self, key, body):
                raise

    @abstractmethod
    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return exactly the bytes ``start:stop`` (to the end without ``stop``), by one request.

        ``start == stop`` gives ``b""`` without a request. A negative start, or a stop before the start, is
        ``InvalidRangeError``. A range that is not wholly inside the object raises ``RangeNotSatisfiableError``; so does
        ``start`` at or past the end without ``stop``, except for the whole of an empty object.
        """

    def get_small(self, key: str, most: int) -> bytes | None:
        """Return the whole object, by one request; None if it has more than ``most`` bytes.

        For objects that only an attacker would make large: our stores then do not read the body. This default reads it
        first.
        """
        data = self.get(key)
        return data if len(data) <= most else None

    @property
    def small_batch(self) -> int:
        """The best number of keys for ``get_small_batch``: 1 if each is a request, several of which run in parallel;
        more if a call takes less time than a thread switch.
        """
        return 1

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """Return the result of ``get_small`` for each key, or its error."""
        answers: list[bytes | TieredStoreError | None] = []
        for key in keys:
            try:
                answers.append(self.get_small(key, most))
            except TieredStoreError as error:
                answers.append(error)
        return answers

    @abstractmethod
    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Fill all of ``buffer`` with the bytes from ``start``, by one request; none for an empty buffer.

        Errors as in ``get``. After an error the buffer's content is undefined.
        """

    def get_whole(self, key: str, buffer: bytearray | memoryview) -> None:
        """Fill all of ``buffer`` with the whole object, by one request.

        Raise RangeNotSatisfiableError if that is longer or shorter; our cloud stores then do not read the body.
        """
        data = self.get(key)
        with memoryview(buffer).cast("B") as view:
            check_whole(key, len(data), len(view))
            view[:] = data

    @abstractmethod
    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield all objects whose key starts with ``prefix`` and is greater than ``start_after``, sorted by the key's
        UTF-8 bytes.

        Pages are requested as they are consumed. Unfinished writes are not listed.
        """

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete the keys, in batches where the store can; an absent key is no error.

        If some cannot be deleted, the others still are; then one of the errors is raised, naming how many failed. The
        keys of one call are deleted in no particular order.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Return size and etag of one object; raise ``ObjectNotFoundError`` if it is absent."""

    @abstractmethod
    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """Replace the object if it still has this etag; return the new etag.

        Raise ``PreconditionFailedError`` if it has another one or is absent; exactly one of several racing replacers
        wins.
        """

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """Store all bytes of an object durably, without an object under its key yet.

        :meth:`publish` makes it an object, :meth:`discard` removes it, from any process. If neither is called, it is
        left to the removal of abandoned writes. Stores that cannot hold a write back, like this one, write an object
        under ``staging_prefix``, which the caller must clean. Errors, and the treatment of ``body``, are as in ``put``.
        """
        return staging.prepare(self, key, body, staging_prefix)

    def publish(self, prepared: Prepared) -> None:
        """Make it the object of its key, atomically, if the key is free.

        Any process may repeat it: once published, it succeeds and changes nothing. If another object has the key, raise
        ``PreconditionFailedError``; if the key is free and the bytes are gone (discarded, or dropped by the store in
        time), raise ``PreparedGoneError``: prepare them again.
        """
        staging.publish(self, prepared)

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """Remove the leftovers of ``write``, or a prepared upload; never an object made of it.

        Return False if its writer is alive, if it is not removable, or, where the store can tell, if it no longer
        exists.
        """
        return isinstance(write, Prepared) and staging.discard(self, write)

    def close(self) -> None:  # noqa: B027  most stores hold nothing that needs closing
        """Release connections and handles. A closed store opens again on the next use."""


class StoreAdmin:
    """Questions of tools about a bucket that readers and writers of objects do not ask. Each default answer is
    "unknown".
    """

    def now_ms(self) -> int | None:
        """Return the store's own time, in ms since the epoch, by the clock of ``modified_ms`` and ``started_ms``.

        One request. None if the store has none: then nothing in it is known to be old.
        """
        return None

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite] | None:  # noqa: ARG002
        """Yield leftovers of killed writers under keys that start with ``prefix``, in no order.

        A store that cannot distinguish a killed writer from a live one yields both, and possibly prepared uploads:
        discard only those older than any write can last. Return None if the store cannot list them; yield nothing if
        nothing stays, or the service drops it unlisted.
        """
        return None

    def kept_after_delete(self) -> Sequence[str]:
        """Return what stays of a deleted object (versions, soft deletes, locked objects), one sentence each.

        A failed request is a sentence too. Empty if deleted objects are gone.
        """
        return ["whether the store keeps what is deleted is unknown: it does not tell"]

    def rules_on(self, prefix: str) -> Sequence[str] | None:  # noqa: ARG002
        """Return the bucket's rules that delete objects under ``prefix``, or move them out of reach, one sentence each.

        None if the store cannot list them.
        """
        return None

    def lifecycle(self) -> BucketLifecycle | str:
        """Return the bucket's rules, to read and extend; or a sentence why this store has none."""
        return "the store does not tell its lifecycle rules"

    def caller(self) -> str:
        """Return the identity of requests as this store knows it, without any secret; empty if unknown."""
        return ""


class _SingleAnswers(StoreAdmin):
    """The administrative verbs of a store that does not derive from ``StoreAdmin``."""

    def __init__(self, store: ObjectStore) -> None:
        for verb in (name for name in vars(StoreAdmin) if not name.startswith("_")):
            answer: object = getattr(store, verb, None)
            if answer is not None:
                setattr(self, verb, answer)


def admin_of(store: ObjectStore) -> StoreAdmin:
    """Return the administrative verbs of ``store``; missing ones answer "unknown"."""
    return store if isinstance(store, StoreAdmin) else _SingleAnswers(store)


def store_time_ms(store: ObjectStore) -> int:
    """Return the store's own time, which measures the age of its objects; raise ConfigError if it has no clock."""
    now_ms = admin_of(store).now_ms()
    if now_ms is None:
        raise ConfigError(f"{store.identity} does not tell its time, so nobody knows how old anything in it is")
    return now_ms


def find_abandoned_writes(store: ObjectStore, prefix: str = "") -> Iterator[AbandonedWrite]:
    """Return the abandoned writes under ``prefix``; if the store cannot list them, warn and return none."""
    writes = admin_of(store).abandoned_writes(prefix)
    if writes is None:
        _logger.warning("%s does not tell what killed writers left: unfinished writes were not checked", store.identity)
        return iter(())
    return writes


class DelegatingStore(ObjectStore, StoreAdmin):
    """The base of wrappers: reads and writes of one key go to the store and key that ``target`` returns.

    Listings, deletions, batches, prepared objects and administrative questions go to ``inner``.
    ``put_once`` and ``get_whole`` use the wrapper's own ``put`` and ``get``, unless it passes them on itself.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def target(self, key: str, *, writes: bool = False) -> tuple[ObjectStore, str]:  # noqa: ARG002  a wrapper's matter
        """Return the store for a request about ``key``, and the key there."""
        return self.inner, key

    @property
    def identity(self) -> str:
        """The inner store's: these are its objects."""
        return self.inner.identity

    @property
    def conditional_writes(self) -> bool:
        """The inner store's."""
        return self.inner.conditional_writes

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Call the target."""
        store, there = self.target(key, writes=True)
        store.put(there, body, if_absent=if_absent)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Call the target."""
        store, there = self.target(key)
        return store.get(there, start, stop)

    def get_small(self, key: str, most: int) -> bytes | None:
        """Call the target."""
        store, there = self.target(key)
        return store.get_small(there, most)

    @property
    def small_batch(self) -> int:
        """The inner store's."""
        return self.inner.small_batch

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """Call ``inner``."""
        return self.inner.get_small_batch(keys, most)

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Call the target."""
        store, there = self.target(key)
        store.get_into(there, start, buffer)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Call ``inner``."""
        return self.inner.list(prefix, start_after)

    def delete(self, keys: Iterable[str]) -> None:
        """Call ``inner``."""
        self.inner.delete(keys)

    def head(self, key: str) -> ObjectInfo:
        """Call the target."""
        store, there = self.target(key)
        info = store.head(there)
        return info if there == key else replace(info, key=key)

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """Call the target."""
        store, there = self.target(key, writes=True)
        return store.replace(there, body, etag)

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """Call ``inner``."""
        return self.inner.prepare(key, body, staging_prefix=staging_prefix)

    def publish(self, prepared: Prepared) -> None:
        """Call ``inner``."""
        self.inner.publish(prepared)

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """Call ``inner``."""
        return self.inner.discard(write)

    def close(self) -> None:
        """Call ``inner``."""
        self.inner.close()

    def now_ms(self) -> int | None:
        """Call ``inner``."""
        return admin_of(self.inner).now_ms()

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite] | None:
        """Call ``inner``."""
        return admin_of(self.inner).abandoned_writes(prefix)

    def kept_after_delete(self) -> Sequence[str]:
        """Call ``inner``."""
        return admin_of(self.inner).kept_after_delete()

    def rules_on(self, prefix: str) -> Sequence[str] | None:
        """Call ``inner``."""
        return admin_of(self.inner).rules_on(prefix)

    def lifecycle(self) -> BucketLifecycle | str:
        """Call ``inner``."""
        return admin_of(self.inner).lifecycle()

    def caller(self) -> str:
        """Call ``inner``."""
        return admin_of(self.inner).caller()
