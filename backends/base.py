"""The contract of stores: the verbs that data needs, and the questions that administration asks of a bucket.

A store has all of ``ObjectStore``. What it knows of its bucket beside that it answers by ``StoreAdmin``, all of it or
single verbs; ``admin_of`` gives the answers, "unknown" where there is none.
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
"""What the last component of a path begins with that is a hidden file of a write, and never an object's key."""


@dataclass(frozen=True, slots=True)
class LifecycleRule:
    """One rule of a bucket.

    ``prefixes``: none for all objects; ``is_limited``: it has other conditions beside them. ``action`` is what it does,
    in the service's words. ``content`` is all that it says: rules of the same content are the same.
    """

    name: str
    is_enabled: bool
    prefixes: tuple[str, ...]
    is_limited: bool
    action: str
    aborts_after_days: int | None
    content: str

    def aborts_all_under(self, prefix: str) -> bool:
        """Whether it ends every unfinished multipart upload under ``prefix`` some day."""
        if not self.is_enabled or self.is_limited or self.aborts_after_days is None:
            return False
        return not self.prefixes or any(prefix.startswith(one) for one in self.prefixes)


@dataclass(frozen=True, slots=True)
class LifecycleState:
    """All rules of a bucket at some moment: what they say, and their ``text`` as the service tells it (empty without
    any). ``version`` is what the service wants to have back with a change."""

    rules: tuple[LifecycleRule, ...]
    text: str
    version: str | None = None


class BucketLifecycle(ABC):
    """A bucket's rules. Errors are those of a store."""

    has_condition: ClassVar[bool]
    """Whether a change is refused where somebody else has changed the rules since they were read."""

    note: ClassVar[str] = ""
    """What is to be known of unfinished uploads in this service, a sentence; empty where the rule says it all."""

    @abstractmethod
    def read(self) -> LifecycleState:
        """The rules as they are now."""

    @abstractmethod
    def add_abort_rule(self, name: str, prefix: str, days: int, state: LifecycleState) -> None:
        """Add a rule to those of ``state``, which stay as they are: unfinished multipart uploads under ``prefix`` are
        aborted after ``days``.

        PreconditionFailedError if they have changed, where the service can tell. StoreError if what is there is not
        understood well enough to be left as it is. That it succeeded only :meth:`read` proves.
        """


class ObjectStore(ABC):
    """A flat map from keys to bytes, whole objects written at once.

    Keys are non-empty text of at most 1,024 bytes of UTF-8, components parted by ``/``. Ranges are half-open.
    A store is used from many threads at once and is picklable: clients and handles are made on first use, and again
    after fork or unpickling.

    Errors, the same for every store: ``ObjectNotFoundError``, ``RangeNotSatisfiableError``,
    ``PreconditionFailedError``, ``InvalidKeyError``, ``AccessDeniedError``, ``StoreUnavailableError`` (retryable; the
    store's own retries are used up), and ``StoreError`` for what is none of these. Nothing of an SDK leaks out.
    """

    @property
    @abstractmethod
    def identity(self) -> str:
        """Where the objects lie, as a URL without credentials: equal for two stores that hold the same objects."""

    @property
    def conditional_writes(self) -> bool:
        """Whether ``if_absent`` and ``replace`` are atomic among all processes: of racing writers exactly one wins.

        What moves shared state (key rotation, for one) refuses a store that says no.
        """
        return True

    @abstractmethod
    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Write the whole object at once: readers see the old object (or none) until all of the new one is durable.

        If ``body`` raises, or the store fails, the key is as it was and nothing of the attempt stays (parts are
        aborted); what ``body`` raised is raised on. A generator given as ``body`` is closed when the call ends, however
        it ends. With ``if_absent``: ``PreconditionFailedError`` if the key is taken, and of several racing writers
        exactly one wins.
        """

    def put_once(self, key: str, body: Buffer, mark: str) -> None:  # noqa: ARG002  most stores keep no marks
        """Write the object if its key is free, as one try of the write that ``mark`` (32 hexadecimal digits) names.

        To be tried as often as one likes with the same body, one after the other or side by side, by whom one likes:
        once one try has written the object, all of them succeed and change nothing. ``PreconditionFailedError`` if
        another write's object has the key. A store that keeps no marks, as this one, tells another's object by its
        content.
        """
        try:
            self.put(key, body, if_absent=True)
        except PreconditionFailedError:
            if not staging.holds_bytes(self, key, body):
                raise

    @abstractmethod
    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Exactly the bytes ``start:stop`` (to the end without ``stop``), by one request.

        ``start == stop`` gives ``b""`` without a request. A negative start, or a stop before the start, is
        ``InvalidRangeError``. A range that is not wholly inside the object raises ``RangeNotSatisfiableError``; so does
        ``start`` at or past the end without ``stop``, but for the whole of an empty object.
        """

    def get_small(self, key: str, most: int) -> bytes | None:
        """The whole object, by one request; None if it has more than ``most`` bytes.

        For what is small unless somebody means harm: our stores then read nothing of it. Here it is read first.
        """
        data = self.get(key)
        return data if len(data) <= most else None

    @property
    def small_batch(self) -> int:
        """How many keys ``get_small_batch`` is best given: 1 where each is a request, of which several are made side by
        side, more where a call is over sooner than another thread is at it."""
        return 1

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """What ``get_small`` gives for each of the keys, or the error that it raises."""
        answers: list[bytes | TieredStoreError | None] = []
        for key in keys:
            try:
                answers.append(self.get_small(key, most))
            except TieredStoreError as error:
                answers.append(error)
        return answers

    @abstractmethod
    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Fill all of ``buffer`` with the bytes from ``start``, by one request; an empty buffer needs none.

        Errors as ``get``. After an error the buffer's content is undefined.
        """

    def get_whole(self, key: str, buffer: bytearray | memoryview) -> None:
        """Fill all of ``buffer`` with the whole object, by one request; RangeNotSatisfiableError if that is longer or
        shorter, of which our stores in the cloud then read nothing."""
        data = self.get(key)
        with memoryview(buffer).cast("B") as view:
            check_whole(key, len(data), len(view))
            view[:] = data

    @abstractmethod
    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """All objects whose key starts with ``prefix`` and is greater than ``start_after``, sorted by key (by its
        UTF-8 bytes), page by page as they are consumed. Unfinished writes are not listed."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete the keys, in batches where the store can; an absent key is no error.

        If some cannot be deleted the others still are; then one of their errors is raised, naming how many failed.
        No order is kept among the keys of one call.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Size and etag of one object, or ``ObjectNotFoundError``."""

    @abstractmethod
    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """Replace the object if it still has this etag, and return the new one.

        ``PreconditionFailedError`` if it has another one or is gone; of several racing replacers exactly one wins.
        """

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """Bring all bytes of an object into the store, durably, so that nobody sees it under its key.

        :meth:`publish` makes it an object, :meth:`discard` takes it away; either from another process, or never: what
        nobody publishes is for who removes abandoned writes. Stores that cannot hold a write back, as this one, write
        an object under ``staging_prefix``; what begins so is the caller's to clean. Errors, and what becomes of
        ``body``, are as for ``put``.
        """
        return staging.prepare(self, key, body, staging_prefix)

    def publish(self, prepared: Prepared) -> None:
        """Make it the object of its key, all at once, if the key is free.

        To be repeated as often as one likes, by whom one likes: once published it succeeds and changes nothing. If
        another object has the key, ``PreconditionFailedError``; if the key is free and the bytes are gone (discarded,
        or dropped by the store in the time that has passed), ``PreparedGoneError``, and they have to be prepared anew.
        """
        staging.publish(self, prepared)

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """Take away what ``write`` left, or what was prepared; never an object that it became.

        False if its writer is at work, if it is not removable, or, where the store can tell, if it is gone.
        """
        return isinstance(write, Prepared) and staging.discard(self, write)

    def close(self) -> None:  # noqa: B027  most stores hold nothing that needs closing
        """Give connections and handles back. A closed store may be used again: it opens anew."""


class StoreAdmin:
    """What tools ask about a bucket, and no writer or reader of objects. Each answer here is "unknown"."""

    def now_ms(self) -> int | None:
        """The store's own time, in ms since the epoch, of the clock that ``modified_ms`` and ``started_ms`` are of.

        One request. None where the store does not tell: then nothing in it is known to be old.
        """
        return None

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite] | None:  # noqa: ARG002
        """What killed writers left under keys that start with ``prefix``, in no order.

        A store that cannot tell a killed writer from one at work yields both: the caller discards only what is older
        than any write can last, and what is prepared may be among them. None where the store does not tell; nothing
        where nothing stays, or where the service drops it unlisted.
        """
        return None

    def kept_after_delete(self) -> Sequence[str]:
        """What stays of an object that is deleted (versions, soft deletes, locked objects), a sentence each.

        A failure to ask is a sentence too. Nothing where what is deleted is gone.
        """
        return ["whether the store keeps what is deleted is unknown: it does not tell"]

    def rules_on(self, prefix: str) -> Sequence[str] | None:  # noqa: ARG002
        """The bucket's own rules that delete objects under ``prefix``, or move them out of reach: a sentence each.

        None where the store does not tell.
        """
        return None

    def lifecycle(self) -> BucketLifecycle | str:
        """The bucket's own rules, to be read and added to; or a sentence on why this store has none to be asked for."""
        return "the store does not tell its lifecycle rules"

    def caller(self) -> str:
        """Whose requests these are, as this store knows it, without any secret; empty where it does not."""
        return ""


class _SingleAnswers(StoreAdmin):
    """The administrative verbs that a store has without deriving from ``StoreAdmin``."""

    def __init__(self, store: ObjectStore) -> None:
        for verb in (name for name in vars(StoreAdmin) if not name.startswith("_")):
            answer: object = getattr(store, verb, None)
            if answer is not None:
                setattr(self, verb, answer)


def admin_of(store: ObjectStore) -> StoreAdmin:
    """Return the administrative verbs of ``store``; those that it does not have answer "unknown"."""
    return store if isinstance(store, StoreAdmin) else _SingleAnswers(store)


def store_time_ms(store: ObjectStore) -> int:
    """Return the store's own time, by which ages of its objects are measured; ConfigError if it has no clock."""
    now_ms = admin_of(store).now_ms()
    if now_ms is None:
        raise ConfigError(f"{store.identity} does not tell its time, so nobody knows how old anything in it is")
    return now_ms


def find_abandoned_writes(store: ObjectStore, prefix: str = "") -> Iterator[AbandonedWrite]:
    """Return the abandoned writes under ``prefix``; where the store does not tell, none, and a warning says so."""
    writes = admin_of(store).abandoned_writes(prefix)
    if writes is None:
        _logger.warning("%s does not tell what killed writers left: unfinished writes were not checked", store.identity)
        return iter(())
    return writes


class DelegatingStore(ObjectStore, StoreAdmin):
    """The base of wrappers: every call goes to the store and the key that ``target`` says.

    ``put_once`` and ``get_whole`` are made of the wrapper's own ``put`` and ``get``, unless it passes them on itself.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def target(self, key: str, *, writes: bool = False) -> tuple[ObjectStore, str]:  # noqa: ARG002  a wrapper's matter
        """The store that a request about ``key`` goes to, and the key there."""
        return self.inner, key

    @property
    def identity(self) -> str:
        """The inner store's: these are its objects."""
        return self.inner.identity

    @property
    def conditional_writes(self) -> bool:
        """As ``inner``."""
        return self.inner.conditional_writes

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """As the target."""
        store, there = self.target(key, writes=True)
        store.put(there, body, if_absent=if_absent)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """As the target."""
        store, there = self.target(key)
        return store.get(there, start, stop)

    def get_small(self, key: str, most: int) -> bytes | None:
        """As the target."""
        store, there = self.target(key)
        return store.get_small(there, most)

    @property
    def small_batch(self) -> int:
        """As ``inner``."""
        return self.inner.small_batch

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """As ``inner``."""
        return self.inner.get_small_batch(keys, most)

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """As the target."""
        store, there = self.target(key)
        store.get_into(there, start, buffer)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """As ``inner``."""
        return self.inner.list(prefix, start_after)

    def delete(self, keys: Iterable[str]) -> None:
        """As ``inner``."""
        self.inner.delete(keys)

    def head(self, key: str) -> ObjectInfo:
        """As the target."""
        store, there = self.target(key)
        info = store.head(there)
        return info if there == key else replace(info, key=key)

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """As the target."""
        store, there = self.target(key, writes=True)
        return store.replace(there, body, etag)

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """As ``inner``."""
        return self.inner.prepare(key, body, staging_prefix=staging_prefix)

    def publish(self, prepared: Prepared) -> None:
        """As ``inner``."""
        self.inner.publish(prepared)

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """As ``inner``."""
        return self.inner.discard(write)

    def close(self) -> None:
        """As ``inner``."""
        self.inner.close()

    def now_ms(self) -> int | None:
        """As ``inner``."""
        return admin_of(self.inner).now_ms()

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite] | None:
        """As ``inner``."""
        return admin_of(self.inner).abandoned_writes(prefix)

    def kept_after_delete(self) -> Sequence[str]:
        """As ``inner``."""
        return admin_of(self.inner).kept_after_delete()

    def rules_on(self, prefix: str) -> Sequence[str] | None:
        """As ``inner``."""
        return admin_of(self.inner).rules_on(prefix)

    def lifecycle(self) -> BucketLifecycle | str:
        """As ``inner``."""
        return admin_of(self.inner).lifecycle()

    def caller(self) -> str:
        """As ``inner``."""
        return admin_of(self.inner).caller()
