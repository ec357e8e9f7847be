"""Legal holds, which protect segments, by topic or offsets, from deletion by any tool and any user.

A legal hold is an object in the bucket, ``<prefix>!tieredstore/holds/<name>.json``. Deleting tools on all machines read
it repeatedly. An unreadable hold protects everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Final, cast

from pydantic import TypeAdapter, with_config

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import (
    ConfigError,
    CorruptDataError,
    NewerVersionError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from tieredstore.model import TopicIdPartition
from tieredstore.process.deadline import boot_clock_s
from tieredstore.process.forks import ForkSafeLock
from tieredstore.versions import HOLD

LOOK_AGAIN_S: Final = 10.0
"""A tool that deletes reads the legal holds again after this many seconds."""

_FOLDER: Final = "!tieredstore/holds/"
_ENDING: Final = ".json"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MOST_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class LegalHold:
    """A legal hold on all topics, on one topic, or on some of its partitions or offsets (both ends inclusive)."""

    name: str
    topic: str | None = None
    partition: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.name), str) or not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"{self.name!r:.120} is not a valid name of a hold: use letters, digits, dots, dashes and underscores"
            )
        if self.topic is None and (self.partition, self.first_offset, self.last_offset) != (None, None, None):
            raise ConfigError("a partition or offsets need a topic: name the topic too")
        first, last = self.first_offset or 0, self.last_offset
        if first < 0 or (last is not None and last < first):
            raise ConfigError(f"offsets {first} to {last} are not a valid range")

    def covers(self, where: TopicIdPartition, first: int, last: int | None) -> bool:
        """Return True if the legal hold protects any of the offsets ``first`` to ``last`` (None if the end is
        unknown).
        """
        return (
            (self.topic is None or self.topic == where.topic)
            and (self.partition is None or self.partition == where.partition)
            and (self.last_offset is None or first <= self.last_offset)
            and (self.first_offset is None or last is None or last >= self.first_offset)
        )


def place_hold(store: ObjectStore, prefix: str, hold: LegalHold) -> None:
    """Write the legal hold to the bucket. Raise PreconditionFailedError if its name is taken, ConfigError if readers
    could not read the hold.
    """
    raw = _readable(hold)
    try:
        store.put(_key(prefix, hold.name), raw, if_absent=True)
    except PreconditionFailedError as error:
        raise _make_error(hold) from error


def check_free(store: ObjectStore, prefix: str, hold: LegalHold) -> None:
    """Raise the errors of :func:`place_hold`. Write nothing."""
    _readable(hold)
    try:
        store.head(_key(prefix, hold.name))
    except ObjectNotFoundError:
        return
    raise _make_error(hold)


def _readable(hold: LegalHold) -> bytes:
    """Return the hold's document. Read it first, because an unreadable hold stops every deletion."""
    try:
        raw = HOLD.to_bytes(asdict(hold), indent=1)
        if len(raw) <= _MOST_BYTES and _parse(hold.name, raw) == hold:
            return raw
    except (CorruptDataError, TypeError):  # TypeError: a value that JSON cannot express, such as bytes
        pass
    raise ConfigError(f"the hold {hold.name!r:.120} could not be read: give a reason of at most 10,000 letters")


def _make_error(hold: LegalHold) -> PreconditionFailedError:
    return PreconditionFailedError(f"there is a hold {hold.name!r} already; release it, or choose another name")


def find_hold(store: ObjectStore, prefix: str, name: str) -> LegalHold | None:
    """Return the legal hold of this name; None if the hold is unreadable. Raise ObjectNotFoundError if it does not
    exist.
    """
    LegalHold(name)
    try:
        return _parse(name, store.get_small(_key(prefix, name), _MOST_BYTES))
    except CorruptDataError:
        return None


def release_hold(store: ObjectStore, prefix: str, name: str) -> None:
    """Remove a legal hold, even an unreadable one. Raise ObjectNotFoundError if the hold does not exist."""
    LegalHold(name)
    key = _key(prefix, name)
    store.head(key)
    store.delete([key])


def list_holds(store: ObjectStore, prefix: str) -> Iterator[LegalHold]:
    """Yield all legal holds, sorted by name. Raise CorruptDataError for an unreadable one."""
    for info in store.list(f"{prefix}{_FOLDER}"):
        if info.key.endswith(_ENDING):
            try:
                raw = store.get_small(info.key, _MOST_BYTES)
            except ObjectNotFoundError:
                continue  # the legal hold was released after the listing
            yield _parse(info.key.removeprefix(f"{prefix}{_FOLDER}").removesuffix(_ENDING), raw)


class Holds:
    """A bucket's legal holds, for tools that delete. The holds are read again after ``LOOK_AGAIN_S``. Thread-safe."""

    def __init__(self, store: ObjectStore, prefix: str, clock: Callable[[], float] = boot_clock_s) -> None:
        self._store = store
        self._prefix = prefix
        self._clock = clock
        self._lock = ForkSafeLock()
        self._holds: tuple[LegalHold, ...] = ()
        self._read_at_s = -float("inf")

    def on(self, where: TopicIdPartition, first: int, last: int | None) -> LegalHold | None:
        """Return a legal hold on these offsets, or None. Raise CorruptDataError if any hold is unreadable."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._read_at_s >= LOOK_AGAIN_S:
                self._holds = tuple(list_holds(self._store, self._prefix))
                self._read_at_s = now_s
            holds = self._holds
        return next((hold for hold in holds if hold.covers(where, first, last)), None)


def _key(prefix: str, name: str) -> str:
    return f"{prefix}{_FOLDER}{name}{_ENDING}"


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class _Document:
    """The fields of a legal hold's JSON document."""

    name: str
    topic: str | None
    partition: int | None
    first_offset: int | None
    last_offset: int | None
    reason: str


_DOCUMENT: Final = TypeAdapter(_Document)


def _parse(name: str, raw: bytes | None) -> LegalHold:
    fault = "the file contains a hold with another name"
    try:
        hold = LegalHold(**asdict(HOLD.parse(_DOCUMENT, raw, _key("", name))))
        if hold.name == name:
            return hold
    except NewerVersionError:
        raise
    except (CorruptDataError, ConfigError) as error:
        fault = str(error)
    # No hold can be placed, or released, under a name that is not valid.
    way_out = "fix it, or release it by `tieredstore holds release`" if _NAME.fullmatch(name) else "delete that object"
    raise CorruptDataError(
        f"the legal hold {name!r:.120} cannot be read, so nothing is deleted: {way_out} ({_key('', name)}: {fault})"
    )
