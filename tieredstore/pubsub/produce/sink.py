"""A streaming query's writes to a topic: each epoch (micro-batch) is written exactly once, across crashes and
repetitions.

::

    <own folder>/sinks/<topic>/<query>    {"epoch", "isDone", "aborts",
                                           "entries": [{"partition", "since", "notifications"}]}

Tasks store an epoch's batches. The driver writes a list of these batches into the query's record. Then it appends their
notifications to the topic's queue, and marks the record as done.

After a crash, the next driver continues from the record, and deletes the batches that its tasks have stored a second
time.

Each epoch and each abort changes the record by a conditional replace, so that a delayed write of an older record fails.

The record lists only the latest epoch's batches. A driver that is late with an earlier epoch therefore cannot tell if
that epoch's batches were notified. It leaves them to ``pubsub gc``, which checks the queue.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Annotated, Final

from pydantic import Field, NonNegativeInt, TypeAdapter

from tieredstore.errors import (
    CorruptDataError,
    DataLossError,
    FencedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    TieredStoreError,
)
from tieredstore.process.closing import Closing
from tieredstore.process.deadline import Deadline
from tieredstore.process.futures import outcome
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.errors import DeliveryFailedError, InvalidRecordError, NotificationCorruptError
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.messages import Compression, Headers, ProducerRequest, new_address
from tieredstore.pubsub.format.notifications import Notification, parse_notification
from tieredstore.pubsub.produce.batch_writer import BatchWriter, SealedBatch
from tieredstore.pubsub.produce.outbox import OpenMessage
from tieredstore.pubsub.queue.store_queue import ENTRY_NOTIFICATIONS
from tieredstore.pubsub.queue.topics import BatchLog
from tieredstore.versions import SINK

_MOST_RECORD_BYTES: Final = 64 << 20
_NO_EPOCH: Final = -1
BATCH_QUERY: Final = "batch-"
"""Prefix of the names of batch queries. A batch query has one epoch, which is never repeated."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch that a task has stored: its key and its notification. The notification is not appended yet."""

    key: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class _Entry:
    """Notifications that are appended to the queue together. ``since`` is the queue's end before the append."""

    partition: NonNegativeInt
    since: NonNegativeInt
    notifications: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """Progress of a query: the latest epoch, and the notifications of its batches. ``is_done`` is True once all these
    notifications are in the queue.

    ``aborts`` counts the aborts since the latest epoch. If the query has only aborted so far, the latest epoch is -1.
    """

    epoch: Annotated[int, Field(ge=_NO_EPOCH)]
    is_done: Annotated[bool, Field(alias="isDone")]
    entries: tuple[_Entry, ...]
    aborts: NonNegativeInt = 0

    def keys(self) -> Iterator[str]:
        """Yield the keys of the epoch's objects."""
        for entry in self.entries:
            for raw in entry.notifications:
                yield parse_notification(raw.encode(), "the record of a sink").key


_RECORD: Final = TypeAdapter(SinkRecord)


class SinkCommits:
    """The epochs of ``query``, which writes to the topic of ``log``. Used on one thread of the query's driver."""

    def __init__(self, log: BatchLog, query: str) -> None:
        self._log = log
        self._folder = log.topics.folder
        self._query = query
        self._key = self._folder.key("sinks", log.topic.name, query)

    def commit(self, epoch: int, batches: Sequence[StoredBatch]) -> bool:
        """Append the notifications of an epoch's batches. Return False if the epoch was recorded before.

        An epoch that was recorded before is a repetition, so its new batches are deleted.

        Raise FencedError if a later epoch was recorded, or if this epoch was notified with another number of records.
        In both cases, the query runs from an older checkpoint, so its epochs have other records than the recorded
        epochs. Skipping an epoch would therefore lose records.

        Raise DeliveryFailedError if a batch no longer exists; nothing was recorded then.

        A FencedError leaves the new batches in the store, because an earlier call of this run may have recorded them.
        ``pubsub gc`` deletes them if they were not recorded.

        When this method returns, the epoch is notified exactly once. After an error the epoch's state is unknown. The
        next commit of the same epoch then continues the work.
        """
        while True:
            stored = self._read()
            if stored is not None and not stored[0].is_done:
                self._finish(*stored)
                continue
            if stored is not None and stored[0].epoch >= epoch:
                self._check_same(stored[0], epoch, batches)
                self._discard(stored[0], batches)
                return False
            if not batches:
                return True
            self._check_stored(epoch, batches)
            record = SinkRecord(epoch, False, self._entries(epoch, batches), 0 if stored is None else stored[0].aborts)
            # Ignore the error. Either another driver won the race, or this write succeeded and its answer was lost. The
            # next read shows which.
            with contextlib.suppress(PreconditionFailedError):
                self._write(record, None if stored is None else stored[1])
            stored = self._read()
            if stored is not None and stored[0] == record:
                self._finish(*stored)
                return True

    def _check_stored(self, epoch: int, batches: Sequence[StoredBatch]) -> None:
        """Raise DeliveryFailedError if a batch no longer exists. Until the record names a batch, ``pubsub gc`` takes it
        for an orphan, and a task may have stored it long ago."""

        def is_stored(batch: StoredBatch) -> bool:
            try:
                self._log.store.get(batch.key, 0, 1)  # a folder's `head` would read the whole file
            except ObjectNotFoundError:
                return False
            return True

        with ThreadPool(READERS, "tieredstore-pubsub-sink") as pool:
            found = in_parallel(pool, is_stored, batches, at_once=2 * READERS)
            missing = [batch.key for batch, is_there in zip(batches, found, strict=True) if not is_there]
        if missing:
            raise DeliveryFailedError(
                f"epoch {epoch} of query {self._query} was not written: {len(missing)} of its {len(batches)} batches "
                f"no longer exist, such as {missing[0]}. `pubsub gc` may have deleted them before this commit: write "
                "the epoch again, and run gc with a --min-age that is longer than an epoch takes",
                maybe_stored=False,
            )

    def _check_same(self, recorded: SinkRecord, epoch: int, batches: Sequence[StoredBatch]) -> None:
        """Raise FencedError if the recorded epoch is later than ``epoch``, or had another number of records. The query
        then continues from an older checkpoint, or another driver has continued it."""
        if recorded.epoch > epoch:
            why = f"cannot be written, because the later epoch {recorded.epoch} has been written"
        else:
            before = _records_in(text.encode() for entry in recorded.entries for text in entry.notifications)
            now = _records_in(batch.raw for batch in batches)
            if before == now:
                return
            why = f"was written with {before} records before, but has {now} records now"
        raise FencedError(
            f"epoch {epoch} of query {self._query} {why}: the query continues from an older checkpoint, or another "
            "driver has continued it. Nothing was written. Restore the newer checkpoint; or give the query a new "
            f"checkpoint and start it at the first missing record; or remove {self._key}: then all epochs from "
            f"{epoch} on are written, and records of epochs that were already written are repeated"
        )

    def abort(self, epoch: int, batches: Sequence[StoredBatch]) -> None:
        """Delete the batches, except the batches that this epoch's record lists, because the epoch's next commit
        appends their notifications."""
        stored = self._read()
        while stored is None or stored[0].epoch < epoch:
            # The write of a failed commit may still arrive, and would record the batches that are deleted here. Change
            # the record first, so that this late write fails.
            before = SinkRecord(_NO_EPOCH, True, ()) if stored is None else stored[0]
            try:
                self._write(replace(before, aborts=before.aborts + 1), None if stored is None else stored[1])
            except PreconditionFailedError:
                # Read the record again to see which write has won. The winner may be another driver, the failed commit,
                # or this write if only its answer was lost.
                stored = self._read()
            else:
                self._discard(None, batches)
                return
        if stored[0].epoch == epoch:
            self._discard(stored[0], batches)

    def _entries(self, epoch: int, batches: Sequence[StoredBatch]) -> tuple[_Entry, ...]:
        """Distribute the batches over the read partitions. Each epoch begins at another partition."""
        entries: list[_Entry] = []
        count = self._log.queue.partitions
        for turn in range(min(count, len(batches))):
            partition = (epoch + turn) % count
            texts = [batch.raw.decode() for batch in batches[turn::count]]
            since = self._log.queue.end(partition)
            entries += (
                _Entry(partition, since, tuple(texts[first : first + ENTRY_NOTIFICATIONS]))
                for first in range(0, len(texts), ENTRY_NOTIFICATIONS)
            )
        return tuple(entries)

    def _finish(self, record: SinkRecord, etag: str) -> None:
        """Append all recorded notifications, then mark the epoch as done."""
        deadline = Deadline.after(self._log.settings.delivery_timeout_ms / 1000)
        for number, entry in enumerate(record.entries):
            mark = f"{self._query}/{record.epoch}/{number}"
            raw = [text.encode() for text in entry.notifications]
            try:
                self._log.queue.append_once(entry.partition, raw, mark, entry.since, deadline)
            except DataLossError as error:
                raise DataLossError(
                    f"{error}; it is unknown whether that queue got the batches of epoch {record.epoch} of query "
                    f"{self._query}: if it did, remove {self._key}; if not, set `since` in {self._key} to "
                    f"{error.continue_at}, and the next run adds the batches"
                ) from error
        with contextlib.suppress(PreconditionFailedError):  # another driver has finished the epoch
            self._write(replace(record, is_done=True), etag)

    def _discard(self, recorded: SinkRecord | None, batches: Sequence[StoredBatch]) -> None:
        kept = frozenset(() if recorded is None else recorded.keys())
        self._log.store.delete([batch.key for batch in batches if batch.key not in kept])

    def _read(self) -> tuple[SinkRecord, str] | None:
        stored = self._folder.read_with_etag(self._key, SINK, _RECORD, _MOST_RECORD_BYTES)
        if stored is not None:
            _check_record(stored[0], self._key)
        return stored

    def _write(self, record: SinkRecord, etag: str | None) -> None:
        body = SINK.to_bytes(_RECORD.dump_python(record, mode="json", by_alias=True))
        self._folder.write(self._key, body, etag)


def _read_record(log: BatchLog, key: str) -> SinkRecord:
    """Return a query's record. Raise CorruptDataError if it is invalid, ObjectNotFoundError if it is absent."""
    return _check_record(log.topics.folder.read(key, SINK, _RECORD, _MOST_RECORD_BYTES), key)


def _check_record(record: SinkRecord, key: str) -> SinkRecord:
    try:
        list(record.keys())
    except NotificationCorruptError as error:
        raise CorruptDataError(f"{key} is not a valid pub/sub sink record: {error!s:.200}") from error
    if record.epoch == _NO_EPOCH and (record.entries or not record.aborts):
        raise CorruptDataError(f"{key} is not a valid pub/sub sink record: it has neither an epoch nor aborts")
    return record


def _records_in(notifications: Iterable[bytes]) -> int:
    facts = (parse_notification(raw, "the record of a sink").facts for raw in notifications)
    return sum(each.records for each in facts if each is not None)


def list_pending_keys(log: BatchLog) -> Iterator[str]:
    """Yield the keys of batches that are recorded but not notified yet. Their queries will append the notifications
    later.
    """
    for info in log.store.list(log.topics.folder.key("sinks", log.topic.name, "")):
        try:
            record = _read_record(log, info.key)
        except ObjectNotFoundError:
            continue
        if not record.is_done:
            yield from record.keys()


def list_finished_batch_queries(log: BatchLog, before_ms: int) -> Iterator[str]:
    """Yield the keys of records that are no longer needed, because their batch queries ended before ``before_ms``."""
    for info in log.store.list(log.topics.folder.key("sinks", log.topic.name, BATCH_QUERY)):
        if info.modified_ms is not None and info.modified_ms < before_ms and _read_record(log, info.key).is_done:
            yield info.key


class SinkBatches(Closing):
    """Stores the batches of a task, with ``name`` in their keys. Not thread-safe.

    At any time, memory holds the batches that are being uploaded, and one batch that is being filled. Each instance has
    its own keys and producer id, so that two attempts of a task never collide. The driver appends the notifications of
    one attempt only.
    """

    def __init__(self, log: BatchLog, name: str) -> None:
        self._log = log
        self._settings = log.settings
        self._compression = Compression.of(self._settings.compression)
        self._writer = BatchWriter(log, host=name)
        self._pool = ThreadPool(self._settings.uploads, "tieredstore-pubsub-sink")
        self._under_way: deque[Future[Notification]] = deque()
        self._stored: list[StoredBatch] = []
        self._next_request = ProducerRequest(new_address(), time.time_ns() // 1_000_000, 0)
        self._batch = SealedBatch(self._settings)
        self._message = self._new_message()

    def add(
        self, value: bytes, key: bytes | None, headers: Headers | None, message_id: bytes | None, timestamp_ms: int
    ) -> None:
        """Add a record, and wait for an upload if needed. Raise InvalidRecordError if the record does not fit the
        format or a Message."""
        if not self._message.takes(message_id):
            self._seal_message()
        while self._message.body.take(value, key, headers, message_id, timestamp_ms) < 0:
            if not self._message.body.count:
                raise InvalidRecordError(f"a record does not fit a Message of {self._settings.message_bytes} bytes")
            self._seal_message()
        self._message.note_id(message_id, is_audited=False)

    def finish(self) -> tuple[StoredBatch, ...]:
        """Store all records and return their batches. Raise DeliveryFailedError on failure."""
        if self._message.body.count:
            self._seal_message()
        self._seal_batch()
        while self._under_way:
            self._take_stored()
        return tuple(self._stored)

    def discard(self) -> None:
        """Delete the stored batches as far as possible. Batches that remain are orphans, which ``pubsub gc`` finds."""
        while self._under_way:
            with contextlib.suppress(TieredStoreError):
                self._take_stored()
        with contextlib.suppress(TieredStoreError):
            self._log.store.delete([batch.key for batch in self._stored])

    def close(self) -> None:
        """Stop the threads, and close the topic."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._writer.close()

    def _new_message(self) -> OpenMessage:
        request = self._next_request
        self._next_request = request._replace(request_id=request.request_id + 1)
        return OpenMessage(BodyWriter(self._settings.message_bytes), request, 0.0)

    def _seal_message(self) -> None:
        sealed = self._message.seal(self._compression)
        if not self._batch.has_room_for(sealed):
            self._seal_batch()
        self._batch.add(sealed)
        self._message = self._new_message()
        if self._batch.is_full:
            self._seal_batch()

    def _seal_batch(self) -> None:
        if not self._batch.messages:
            return
        if len(self._under_way) >= self._settings.uploads:
            self._take_stored()
        deadline = Deadline.after(self._settings.delivery_timeout_ms / 1000)
        self._under_way.append(self._pool.submit(self._writer.store, self._batch.messages, deadline))
        self._batch = SealedBatch(self._settings)

    def _take_stored(self) -> None:
        notification = outcome(self._under_way.popleft())
        self._stored.append(StoredBatch(notification.key, notification.to_json()))
