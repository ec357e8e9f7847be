"""A notification queue in the object store. Entries are numbered without gaps. Each entry is an object that is put only
if absent.

::

    <own folder>/queues/<topic>/<partition>/<20 digits>    an entry: a line of JSON, and a line per notification
    <own folder>/queues/<topic>/<partition>/start          the first number that retention has not freed; absent: 0

If two writers put an entry with the same number, the store accepts one entry. The other writer takes the next number.

The offset of a notification is the entry's number × 256 + the notification's place in the entry. A reader needs no
listing, because the next entry has the next number.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from random import random
from typing import Annotated, Final

from pydantic import Field, NonNegativeInt, TypeAdapter

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import (
    AccessDeniedError,
    DataLossError,
    InvalidRangeError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreUnavailableError,
    TieredStoreError,
)
from tieredstore.process.deadline import Deadline
from tieredstore.process.forks import ForkSafeLock
from tieredstore.pubsub.errors import NotificationCorruptError
from tieredstore.pubsub.queue.hedging import Hedge
from tieredstore.pubsub.queue.own_objects import OwnFolder
from tieredstore.pubsub.queue.queues import (
    NotificationQueue,
    QueueCursor,
    QueuedNotification,
    QueueSite,
    TopicPartitions,
)
from tieredstore.versions import QUEUE_ENTRY, QUEUE_START

ENTRY_NOTIFICATIONS: Final = 256
"""Maximum number of notifications in one entry."""

_NUMBER: Final = re.compile(r"[0-9]{20}")
_MOST_ENTRY_BYTES: Final = 8 << 20
_LOSSES_BEFORE_SEARCH: Final = 4
# A writer lists the numbers that differ only in the last four digits, and at least the next thousand.
_NEAR_DIGITS: Final = 4
_NEAR: Final = 1000
_FIRST_DELAY_S: Final = 0.1
_MOST_DELAY_S: Final = 5.0
# An idle reader asks for the next entry. Every ``_ASK_START_EVERY`` times it asks for the queue's start instead,
# because otherwise it might wait forever for an entry that retention has freed.
_ASK_START_EVERY: Final = 15


@dataclass(frozen=True, slots=True)
class _Entry:
    mark: str
    appended_ms: int
    notifications: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        head = QUEUE_ENTRY.to_bytes({"mark": self.mark, "ms": self.appended_ms, "count": len(self.notifications)})
        return head + b"".join(raw + b"\n" for raw in self.notifications)


@dataclass(frozen=True, slots=True)
class _Head:
    """First line of an entry."""

    mark: str
    ms: int
    count: Annotated[int, Field(ge=1, le=ENTRY_NOTIFICATIONS)]


@dataclass(frozen=True, slots=True)
class _Start:
    """JSON object ``start``."""

    number: NonNegativeInt


_HEAD: Final = TypeAdapter(_Head)
_START: Final = TypeAdapter(_Start)

_PUTS_AT_ONCE: Final = 24
"""Maximum number of concurrent puts of all partitions, including puts that hang."""


@dataclass(slots=True)
class _Attempt:
    """An entry to store. ``number`` is the next number to try."""

    entry: _Entry
    number: int | None = None
    losses: int = 0


class StoreQueue(NotificationQueue):
    """The queue of ``topic`` in the store of ``folder``, which must have atomic conditional writes."""

    def __init__(
        self,
        folder: OwnFolder,
        topic: str,
        partitions: Callable[[], int],
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder = folder
        self._topic = topic
        self._partitions = partitions
        self._sleep = sleep
        self._known: dict[int, _StoredPartition] = {}
        # Puts run in these threads. A put that hangs keeps its thread until the store's own deadline, but its hedge
        # (the second attempt) can succeed earlier.
        self._hedge = Hedge("tieredstore-pubsub-queue", _PUTS_AT_ONCE)

    @classmethod
    def open(cls, site: QueueSite) -> StoreQueue:
        """Return the queue of a topic, in the same store as the topic's objects."""
        return cls(site.folder, site.topic, TopicPartitions(site))

    def close(self) -> None:
        """Stop the threads; the caller closes the store."""
        self._hedge.close()

    @property
    def partitions(self) -> int:
        """Number of read partitions of the topic."""
        return self._partitions()

    def append(self, partition: int, notifications: Sequence[bytes], deadline: Deadline) -> list[int]:
        """Append at most 256 notifications as one entry, by one PUT and one GET if no other writer interferes."""
        return self.at(partition).append(self._new_entry(notifications, uuid.uuid4().hex), deadline)

    def append_once(
        self, partition: int, notifications: Sequence[bytes], mark: str, since: int, deadline: Deadline
    ) -> list[int]:
        """Append exactly once.

        Look for the mark in every entry from ``since`` on, and put the entry at the first free number. An earlier
        request that is still under way does no harm, because it puts the same entry at the same number.

        Raise DataLossError also if an entry after ``since`` is lost, because it may be this one."""
        return self.at(partition).append_once(self._new_entry(notifications, mark), since, deadline)

    def read(self, partition: int, offset: int) -> list[QueuedNotification]:
        """Return the notifications of one entry, with one GET. At the queue's end, further requests check the reader's
        place.
        """
        return self.cursor(partition, offset).read()

    def cursor(self, partition: int, offset: int) -> QueueCursor:
        """Return a cursor that saves requests at the queue's end. Only some reads of the cursor check the reader's
        place."""
        return _EntryCursor(self, partition, offset)

    def start(self, partition: int) -> int:
        """Return the start, with one GET."""
        return self.at(partition).start_number() * ENTRY_NOTIFICATIONS

    def end(self, partition: int) -> int:
        """Find the end of the partition, by a search with a logarithmic number of HEADs."""
        entries = self.at(partition)
        return entries.search_end(entries.start_number()) * ENTRY_NOTIFICATIONS

    def offset_at(self, partition: int, ms: int) -> int:
        """Search the entries by bisection. The offset is inexact if the writers' clocks differ."""
        return self.at(partition).number_at(ms) * ENTRY_NOTIFICATIONS

    def freeable(self, offset: int) -> int:
        """Return the first offset of the entry that has ``offset``, because only whole entries are freed."""
        return offset - offset % ENTRY_NOTIFICATIONS

    def free(self, partition: int, offset: int) -> None:
        """Free whole entries before ``offset``."""
        self.at(partition).free(offset)

    def at(self, partition: int) -> _StoredPartition:
        """Return the entries of a partition."""
        if not 0 <= partition < self.partitions:
            raise InvalidRangeError(
                f"topic {self._topic} has no read partition {partition}, only 0 to {self.partitions - 1}"
            )
        if partition not in self._known:
            found = _StoredPartition(self._folder, self._topic, partition, self._hedge, self._sleep)
            self._known.setdefault(partition, found)  # another thread may have been faster
        return self._known[partition]

    def _new_entry(self, notifications: Sequence[bytes], mark: str) -> _Entry:
        if not 0 < len(notifications) <= ENTRY_NOTIFICATIONS or any(b"\n" in raw for raw in notifications):
            raise InvalidRangeError(f"an entry holds 1 to {ENTRY_NOTIFICATIONS} notifications, each one line")
        return _Entry(mark, time.time_ns() // 1_000_000, tuple(notifications))


class _StoredPartition:
    """The entries of one partition, by number.

    The appending threads of this process take turns with a lock, because otherwise one of two concurrent puts to the
    same number would fail.
    """

    def __init__(
        self, folder: OwnFolder, topic: str, partition: int, hedge: Hedge, sleep: Callable[[float], None]
    ) -> None:
        self._folder = folder
        self._store: ObjectStore = folder.store
        self._beginning = folder.key("queues", topic, str(partition), "")
        self._start_key = f"{self._beginning}start"
        self._name = f"queue {topic}/{partition}"
        self._hedge = hedge
        self._sleep = sleep
        self._turn = ForkSafeLock()
        self._lock = ForkSafeLock()
        self._free: int | None = None  # the lowest number that may be free; None if unknown

    def append(self, entry: _Entry, deadline: Deadline) -> list[int]:
        if not self._turn.acquire(max(0.0, deadline.remaining_s())):
            raise StoreUnavailableError(
                f"{self._name}: the notification was not appended in time, because earlier notifications are still "
                "waiting"
            )
        try:
            return self._until_stored(self._try, _Attempt(entry), deadline)
        finally:
            self._turn.release()

    def append_once(self, entry: _Entry, since: int, deadline: Deadline) -> list[int]:
        self.check_not_freed(since)
        return self._until_stored(self._try_at_each, _Attempt(entry, since // ENTRY_NOTIFICATIONS), deadline)

    def _until_stored(self, step: Callable[[_Attempt], int | None], attempt: _Attempt, deadline: Deadline) -> list[int]:
        """Repeat a step until it has stored the entry. Return the offsets of the entry's notifications."""
        delay_s = _FIRST_DELAY_S
        while True:
            try:
                number = step(attempt)
            except TieredStoreError as error:
                # It is unknown if the write succeeded, so repeat the step, which puts the same entry at the same
                # number.
                if not error.retryable:
                    raise
                late = StoreUnavailableError(f"{self._name}: the notification was not appended: {error}")
                if delay_s >= deadline.remaining_s():
                    raise late from error
                self._sleep(delay_s * (0.5 + random() / 2))  # noqa: S311  jitter
                if deadline.remaining_s() <= 0:  # the process may have been suspended during the pause
                    raise late from error
                delay_s = min(2 * delay_s, _MOST_DELAY_S)
                continue
            if number is not None:
                first = number * ENTRY_NOTIFICATIONS
                return list(range(first, first + len(attempt.entry.notifications)))

    def _try_at_each(self, attempt: _Attempt) -> int | None:
        """Look for the entry at one number, and put the entry there if the number is free. Return the number, or None
        if another entry has the number."""
        number = attempt.number or 0
        stored = self._entry(number)
        if stored is None:
            with contextlib.suppress(AccessDeniedError):  # a writer's credentials may not allow listings
                self.check_present(number)
        is_ours = stored is not None and stored.mark == attempt.entry.mark
        if not is_ours and (stored is not None or not self._put_at(number, attempt.entry)):
            attempt.number = number + 1
            return None
        self._saw_taken(number)
        # If retention has freed the entry's number in the meantime, raise an error, because then it is unknown if any
        # reader has seen the entry.
        self.check_not_freed(number * ENTRY_NOTIFICATIONS)
        return number

    def _try(self, attempt: _Attempt) -> int | None:
        """Try to store the entry at one number. Return the number, or None if the entry needs another number.

        Change ``attempt.number`` only if no reader can see this entry at the old number, because otherwise readers
        might see the entry twice.
        """
        if attempt.number is None:
            # The number is free if no other process has written since the last append.
            attempt.number = self._search_new(self.start_number()) if self._free is None else self._free
        number = attempt.number
        if not self._put_at(number, attempt.entry):
            attempt.losses += 1
            is_far = attempt.losses % _LOSSES_BEFORE_SEARCH == 0
            attempt.number = self._search_new(number) if is_far else number + 1
            self._saw_taken(number)
            return None
        start = self.start_number()
        self._saw_taken(max(number, start - 1))
        if number >= start:
            return number
        # Retention freed this number before the entry was written. A late reader would see the entry here instead of a
        # loss, so delete it if the credentials allow this, and take another number.
        with contextlib.suppress(TieredStoreError):
            self._store.delete([self._key(number)])
        attempt.number = self._search_new(start)
        return None

    def _put_at(self, number: int, entry: _Entry) -> bool:
        """Store the entry at ``number`` if the number is free. Return True if the entry is there, even from an earlier
        attempt; False if another entry is there."""
        return self._hedge.run(partial(self._put_or_compare, number, entry))

    def _put_or_compare(self, number: int, entry: _Entry) -> bool:
        try:
            self._store.put(self._key(number), entry.to_bytes(), if_absent=True)
        except PreconditionFailedError:
            other = self._entry(number)
            return other is not None and other.mark == entry.mark
        return True

    def read_entry(self, offset: int) -> list[QueuedNotification] | None:
        """Return the notifications of one entry from ``offset`` on; None if the entry does not exist."""
        number, place = divmod(offset, ENTRY_NOTIFICATIONS)
        entry = self._entry(number)
        if entry is None:
            return None
        self._saw_taken(number)
        first, last = number * ENTRY_NOTIFICATIONS, len(entry.notifications) - 1
        return [
            QueuedNotification(first + at, entry.appended_ms, raw, ENTRY_NOTIFICATIONS - 1 - at if at == last else 0)
            for at, raw in enumerate(entry.notifications)
            if at >= place
        ]

    def number_at(self, ms: int) -> int:
        """Return the number of the first entry appended at ``ms`` or later."""
        first = self.start_number()
        stop = self.search_end(first)
        while first < stop:
            middle = (first + stop) // 2
            entry = self._entry(middle)
            # If the entry is missing, retention has just deleted it. It is older than all remaining entries, so
            # continue after it.
            if entry is None or entry.appended_ms < ms:
                first = middle + 1
            else:
                stop = middle
        return first

    def free(self, offset: int) -> None:
        number = offset // ENTRY_NOTIFICATIONS
        stored = self._folder.read_with_etag(self._start_key, QUEUE_START, _START)
        start = 0 if stored is None else stored[0].number
        # If another process frees all entries during the search, the search finds no end. So read the start again.
        if number > self.search_end(start) and number > self.start_number():
            raise InvalidRangeError(f"{self._name} ends before offset {offset}")
        if number > start:
            etag = None if stored is None else stored[1]
            self._folder.write(self._start_key, QUEUE_START.to_bytes({"number": number}), etag)
        # Delete all entries before the start, because a killed run may have left some, and a delayed writer may have
        # added some.
        end = self._key(max(number, start))
        listed = self._store.list(self._beginning)
        self._store.delete([info.key for info in takewhile(lambda info: info.key < end, listed)])

    def _key(self, number: int) -> str:
        return f"{self._beginning}{number:020}"

    def start_number(self) -> int:
        """Return the first number that retention has not freed."""
        try:
            return self._folder.read(self._start_key, QUEUE_START, _START).number
        except ObjectNotFoundError:
            return 0

    def check_not_freed(self, offset: int) -> None:
        """Raise DataLossError if retention has freed ``offset``."""
        start = self.start_number() * ENTRY_NOTIFICATIONS
        if offset < start:
            raise DataLossError.until(start, f"{self._name}: retention has freed offsets {offset} to {start - 1}")

    def _entry(self, number: int) -> _Entry | None:
        key = self._key(number)
        try:
            raw = self._store.get_small(key, _MOST_ENTRY_BYTES)
        except ObjectNotFoundError:
            return None
        if raw is None:
            raise NotificationCorruptError(f"{key} is larger than {_MOST_ENTRY_BYTES} bytes, the limit of an entry")
        return _parse_entry(raw, key)

    def _exists(self, number: int) -> bool:
        try:
            self._store.head(self._key(number))
        except ObjectNotFoundError:
            return False
        return True

    def _saw_taken(self, number: int) -> None:
        with self._lock:
            self._free = max(self._free or 0, number + 1)

    def search_end(self, least: int) -> int:
        """Return the first number after all entries, and at least ``least``. A missing number before the last entry is
        not free, because its entry was deleted."""
        free = self._search_free(least)
        later = deque(self._entries_after(free), maxlen=1)
        return later[0] + 1 if later else free

    def check_present(self, number: int) -> None:
        """Raise DataLossError if the entry ``number`` is missing although a later entry exists. The check takes one
        listing.
        """
        later = next(self._entries_after(number), None)
        # Check again, because another writer may have put the entry before the listing, or retention may have freed it.
        if later is not None and not self._exists(number) and self.start_number() <= number:
            raise DataLossError.until(
                later * ENTRY_NOTIFICATIONS,
                f"{self._name}: the entry of offset {number * ENTRY_NOTIFICATIONS} is missing ({self._key(number)})",
            )

    def check_reached(self, offset: int) -> None:
        """Raise DataLossError if ``offset`` is beyond the end, for example because the topic was created again. The
        check usually takes one HEAD."""
        before = (offset - 1) // ENTRY_NOTIFICATIONS  # the entry that a reader at ``offset`` has read last
        if before < 0 or self._exists(before):
            return
        start = self.start_number()
        if before >= start and before >= (end := self.search_end(start)):
            raise DataLossError.until(
                start * ENTRY_NOTIFICATIONS,
                f"{self._name}: offset {offset} is beyond the end, {end * ENTRY_NOTIFICATIONS}, so its last entries "
                "are lost, or this is not the queue that was read before",
            )

    def _entries_after(self, number: int, beginning: str | None = None) -> Iterator[int]:
        """List the numbers of later entries; with ``beginning``, only of keys that begin with it."""
        for info in self._store.list(beginning or self._beginning, self._key(number)):
            if _NUMBER.fullmatch(name := info.key.removeprefix(self._beginning)):
                yield int(name)

    def _search_new(self, least: int) -> int:
        """Return the number for a new entry: a free number after which no entry is listed, if entries can be listed.

        If the search has found no entry, list all entries, because the queue's start may be lost. Otherwise list only
        the next thousands, because a listing on Azure begins at its prefix, and a queue may have millions of entries.
        """
        number = self._search_free(least)
        with contextlib.suppress(AccessDeniedError):  # a writer's credentials may not allow listings
            while (last := self._last_listed(number, is_near=number > least)) is not None:
                number = self._search_free(last + 1)
        return number

    def _last_listed(self, number: int, *, is_near: bool) -> int | None:
        """Return the last listed entry after ``number``, or None."""
        near = (self._key(least)[:-_NEAR_DIGITS] for least in (number + _NEAR, number))
        for beginning in dict.fromkeys(near) if is_near else [self._beginning]:
            if later := deque(self._entries_after(number, beginning), maxlen=1):
                return later[0]
        return None

    def _search_free(self, least: int) -> int:
        if not self._exists(least):
            return least
        taken, step = least, 1
        while self._exists(taken + step):
            taken, step = taken + step, 2 * step
        free = taken + step
        while free - taken > 1:
            middle = (taken + free) // 2
            if self._exists(middle):
                taken = middle
            else:
                free = middle
        return free


class _EntryCursor(QueueCursor):
    """Reads the entries of a partition one by one, each with one GET.

    At the queue's end, a read asks only for the next entry, with these exceptions:

    - The first read at the end also checks the queue's start.
    - Every fifteenth read after the first checks the start instead of asking for the next entry, and that the queue
      reaches the cursor.
    - A cursor's first read, if at the end, also checks that no entry is missing, and that the queue reaches the cursor.
    - The sixteenth read in a row at the end also checks that no entry is missing.
    """

    def __init__(self, queue: StoreQueue, partition: int, offset: int) -> None:
        super().__init__(queue, partition, offset)
        self._entries = queue.at(partition)
        self._misses = 0
        self._is_new = True

    def read(self) -> list[QueuedNotification]:
        is_asking_start = self._misses % _ASK_START_EVERY == 0
        if not self._misses or not is_asking_start:
            while (found := self._entries.read_entry(self.offset)) is not None:
                self.offset += ENTRY_NOTIFICATIONS - self.offset % ENTRY_NOTIFICATIONS  # the next entry
                self._misses, self._is_new = 0, False
                if found:  # otherwise, the offset was after the entry's last notification
                    return found
        if is_asking_start:
            self._entries.check_not_freed(self.offset)
        if (self._is_new and not self._misses) or self._misses == _ASK_START_EVERY:
            # List later entries only once until a new entry arrives, because a listing costs more than a GET.
            self.check_end()
        if is_asking_start and (self._is_new or self._misses):
            self._entries.check_reached(self.offset)
        self._misses += 1
        return []

    def check_end(self) -> None:
        """Raise DataLossError if the next entry is missing, but later entries exist."""
        self._entries.check_present(self.offset // ENTRY_NOTIFICATIONS)


def _parse_entry(raw: bytes, key: str) -> _Entry:
    line, _, rest = raw.partition(b"\n")
    head = QUEUE_ENTRY.parse(_HEAD, line, key, NotificationCorruptError)
    lines = rest.split(b"\n")
    if lines[-1] or len(lines) - 1 != head.count:
        raise NotificationCorruptError(
            f"{key} is not a valid pub/sub queue entry: its first line does not match the {len(lines) - 1} lines "
            "after it"
        )
    return _Entry(head.mark, head.ms, tuple(lines[:-1]))
