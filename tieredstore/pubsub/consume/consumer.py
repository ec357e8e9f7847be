"""A consumer: the records of a topic by its queue, alone or as a member of a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

from tieredstore.errors import AlreadyClosed, ConfigError, DataLoss, Fenced, InvalidRange
from tieredstore.kafka.records._slabs import shared_pool
from tieredstore.process.closing import Closing
from tieredstore.process.futures import any_done
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.consume.partition_state import FetchRoom, PartitionReader, rotated
from tieredstore.pubsub.consume.rows_at_hand import ConsumedRecord, with_places
from tieredstore.pubsub.consume.seen_messages import SeenMessages
from tieredstore.pubsub.counts import ConsumerCounts
from tieredstore.pubsub.format.batches import BatchIndex
from tieredstore.pubsub.format.decoder import BatchDecoder, OnCorrupt
from tieredstore.pubsub.format.notifications import parse_notification
from tieredstore.pubsub.queue.auditor import auditor_of
from tieredstore.pubsub.queue.groups import StoreGroup
from tieredstore.pubsub.queue.queues import GroupMember, Position
from tieredstore.pubsub.queue.topics import Topics

# What its type stubs say of arrays is partial.
arrow: Any = pa

Start: TypeAlias = Literal["earliest", "latest"]
OnDataLoss: TypeAlias = Literal["fail", "report"]
Delivery: TypeAlias = Literal["at-least-once", "effectively-once"]

_LOOKS_AHEAD: Final = 2
_LONGEST_WAIT_S: Final = 0.2
_SHORTEST_WAIT_S: Final = 0.005


class Consumer(Closing):
    """Reads a topic, at least once: after a crash what was not committed comes again. For one thread.

    Without ``group`` it reads all partitions from ``start`` on (and sees no partitions that are added). With one, it
    shares them with the group's members, and begins where the group has committed, or at ``start``.
    ``on_corrupt="skip"`` leaves out damaged Messages (``skipped``), ``on_data_loss="report"`` goes on behind objects
    that are not there and entries that retention has freed (``losses``); both otherwise raise.
    ``delivery="effectively-once"`` leaves out Messages whose equals came within ``pubsub.dedup.window.ms`` before in
    the read partition (``doubles`` counts them): a notification or a Message that stands twice is read once. To be
    closed: whoever reads on is AlreadyClosed then, and not told that there is nothing more.
    """

    def __init__(
        self,
        topics: Topics,
        topic: str,
        *,
        group: str | None = None,
        start: Start = "earliest",
        on_corrupt: OnCorrupt = "fail",
        on_data_loss: OnDataLoss = "fail",
        delivery: Delivery = "at-least-once",
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if start not in ("earliest", "latest") or on_data_loss not in ("fail", "report"):
            raise ConfigError(f"start={start!r} or on_data_loss={on_data_loss!r} is not known")
        if delivery not in ("at-least-once", "effectively-once"):
            raise ConfigError(f"delivery={delivery!r} is not known: it is at-least-once or effectively-once")
        self._settings = topics.settings.pubsub
        self._topics = topics
        self._topic = topics.get(topic)
        self._queue = topics.queue(self._topic)
        self._start: Start = start
        self._on_corrupt: OnCorrupt = on_corrupt
        self._on_data_loss = on_data_loss
        self._is_once = delivery == "effectively-once"
        self._monotonic = monotonic
        self._sleep = sleep
        self._room = FetchRoom(self._settings.fetches, self._settings.fetch_bytes)
        # Objects take no more threads than there is room for; the others look for what comes behind them.
        self._pool = ThreadPool(self._settings.fetches + _LOOKS_AHEAD, "tieredstore-pubsub-fetch")
        self._slabs = shared_pool()
        self._readers: dict[int, PartitionReader] = {}
        self._turn = 0
        self._auditor = auditor_of(self._settings, topic, is_producer=False)
        self._group: GroupMember | None = None
        self._is_closed = False
        self.losses: list[str] = []
        self.skipped: list[str] = []
        self.doubles = 0
        self.counts = ConsumerCounts()
        self._forget_counts = self.counts.export()
        if group is not None:
            self._group = self._queue.member(group) or StoreGroup(
                topics.folder, group, self._topic.name, lambda: self._queue.partitions, monotonic=monotonic
            )
        else:
            for partition in range(self._queue.partitions):
                self._open(partition, None)

    def poll(self, timeout_s: float = 1.0) -> pa.RecordBatch | None:
        """The next records of one batch, as Arrow: ``key value headers message_id timestamp message record partition
        offset``; None when none came in time. What it gives counts as handed out."""
        reader = self._poll(timeout_s)
        if reader is None:
            return None
        rows: Any = reader.take_rest()
        self.counts.records += rows.num_rows
        given: pa.RecordBatch = rows
        return given

    def records(self, timeout_s: float = 1.0) -> Iterator[ConsumedRecord]:
        """Records one by one, until none came for ``timeout_s``; each counts as handed out when it is given.

        Before each record the group is asked whether its partition is still this member's. A loop may be left at any
        record: whoever asks next gets the one behind it.
        """
        while (reader := self._poll(timeout_s)) is not None:
            self.counts.records += 1
            yield reader.take()

    def assignment(self) -> list[int]:
        """The partitions that this consumer reads by now; takes part in the group, as polling does."""
        self._follow_group()
        return sorted(self._readers)

    def position(self) -> dict[int, Position]:
        """Behind what was handed out, of each partition that this consumer reads."""
        return {partition: reader.position for partition, reader in self._readers.items()}

    def committed(self) -> dict[int, Position | None]:
        """What the group has committed, of each partition that this consumer reads."""
        return {} if self._group is None else self._group.owned()

    def commit(self, positions: Mapping[int, Position] | None = None) -> None:
        """Make positions durable for the group: those of what was handed out, or some before them.

        Fenced if another member reads a partition by now: the others were committed, and of that one nothing is given
        any more. ConfigError without a group.
        """
        if self._group is None:
            raise ConfigError("a consumer without a group has nowhere to commit: give it a group, or keep position()")
        wanted = self.position() if positions is None else dict(positions)
        for partition, position in wanted.items():
            if partition in self._readers and position > self._readers[partition].position:
                raise InvalidRange(f"partition {partition} was not handed out up to {tuple(position)}")
        try:
            self._group.commit(wanted)
        except Fenced:
            self._let_go()
            raise
        self.counts.commits += 1

    def seek(self, partition: int, position: Position | int) -> None:
        """Read a partition from another place on; a number is an offset."""
        if partition not in self._readers:
            raise InvalidRange(f"this consumer does not read partition {partition} of {self._topic.name}")
        self._move(partition, position if isinstance(position, Position) else Position(position))

    def seek_to_time(self, ms: int) -> None:
        """Read all partitions from the first batch on that was notified at ``ms`` or later."""
        for partition in list(self._readers):
            self._move(partition, Position(self._queue.offset_at(partition, ms)))

    def read_at(self, partition: int, offset: int, message: int = -1, record: int = -1) -> pa.RecordBatch:
        """A batch, one of its Messages, or one record, without moving: its index by one ranged GET, a Message by a
        second. InvalidRange if there is no such place."""
        entries = self._queue.read(partition, offset)
        if not entries or entries[0].offset != offset:
            raise InvalidRange(f"queue {self._topic.name}/{partition} has no offset {offset}")
        where = f"queue {self._topic.name}/{partition}, offset {offset}"
        notification = parse_notification(entries[0].raw, where)
        key = self._topics.check_place(notification, self._topic, where)
        store, decoder = self._topics.store, self._decoder()
        if message < 0:
            batches = list(decoder.decode(store.get(key), key))
        else:
            index = BatchIndex(store.get(key, 0, notification.header_size), key, notification.total_size)
            batches = list(decoder.decode_message(store.get(key, *index.extent(message)), index.place(message)))
        one: pa.RecordBatch = self._one(partition, offset, batches, record if message >= 0 else -1)
        return one

    def close(self) -> None:
        """Give up partitions and threads. What was not committed comes again."""
        self._is_closed = True
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._group is not None:
            self._group.leave()
        self._queue.close()
        if self._auditor is not None:
            self._auditor.close()
        self.counts.partitions = 0
        self._forget_counts()

    # ---

    def _decoder(self) -> BatchDecoder:
        return BatchDecoder(
            on_corrupt=self._on_corrupt, max_expanded_bytes=self._settings.max_expanded_bytes, pool=self._slabs
        )

    def _open(self, partition: int, position: Position | None, term: int = 0) -> None:
        """Read ``partition`` from there on, or from where the consumer starts."""
        if (before := self._readers.pop(partition, None)) is not None:
            before.close()
        if position is None:
            is_late = self._start == "latest"
            position = Position(self._queue.end(partition) if is_late else self._queue.start(partition))
        self._readers[partition] = PartitionReader(
            self._topics, self._topic, self._queue, self._pool, self._room, partition, position, self._decoder,
            self._settings.fetches, self._seen(partition), self._monotonic, self._auditor, self._on_corrupt == "skip",
            term,
        )  # fmt: skip

    def _move(self, partition: int, position: Position) -> None:
        self._open(partition, position, self._readers[partition].term)

    def _seen(self, partition: int) -> SeenMessages | None:
        if not self._is_once:
            return None
        return SeenMessages(self._topics, self._topic, self._queue, partition, self._settings.dedup_window_ms)

    def _follow_group(self) -> None:
        if self._group is None:
            return
        self._group.tick()
        terms = self._group.terms()
        if terms == {partition: reader.term for partition, reader in self._readers.items()}:
            return
        self._let_go()
        for partition, committed in self._group.owned().items():
            if partition not in self._readers:
                self._open(partition, committed, terms[partition])

    def _let_go(self) -> None:
        """Read nothing more of what is another member's by now, or was meanwhile: it goes on at what was committed."""
        terms = {} if self._group is None else self._group.terms()
        for partition, reader in list(self._readers.items()):
            if terms.get(partition) != reader.term:
                self._readers.pop(partition).close()

    def _poll(self, timeout_s: float) -> PartitionReader | None:
        """A partition that has rows at hand and is this consumer's now; None when none came in time."""
        end_s = self._monotonic() + timeout_s
        while True:
            if self._is_closed:
                raise AlreadyClosed(f"this consumer of {self._topic.name} was closed; open another one to read on")
            self._follow_group()
            readers = list(self._readers.values())
            for reader in readers:
                if reader.at_hand is not None:
                    return reader
            self._turn += 1
            for reader in rotated(readers, self._turn) if readers else ():
                if self._ask(reader):
                    return reader
            left_s = end_s - self._monotonic()
            if left_s <= 0:
                return None
            self._wait(readers, left_s)

    def _wait(self, readers: Sequence[PartitionReader], left_s: float) -> None:
        """Pass the time until something may be there: an object that is under way, or the next look at a queue."""
        under_way = [future for reader in readers for future in reader.under_way]
        looks_s = [reader.next_look_s - self._monotonic() for reader in readers if not reader.has_ahead]
        wait_s = max(0.001, min([left_s, _LONGEST_WAIT_S, *looks_s]))
        if under_way:
            any_done(under_way, wait_s)
        else:
            is_ahead = any(reader.has_ahead for reader in readers)
            self._sleep(min(wait_s, _SHORTEST_WAIT_S) if is_ahead else wait_s)

    def _ask(self, reader: PartitionReader) -> bool:
        """Whether a partition has rows at hand now; a loss is raised, or noted and passed over."""
        try:
            reader.look()
            has_rows = reader.fill()
        except DataLoss as error:
            self.counts.losses += 1
            if self._on_data_loss == "fail":
                raise
            self.losses.append(str(error))
            reader.pass_over()
            return False
        self._take_counts(reader)
        return has_rows

    def _take_counts(self, reader: PartitionReader) -> None:
        """What the reader left out, and what it has fetched since."""
        self.counts.damaged_messages += len(reader.skipped)
        self.counts.repeated_messages += reader.doubles
        self.counts.looks += reader.looks
        self.counts.batches += reader.fetched
        self.counts.stored_bytes += reader.fetched_bytes
        self.counts.partitions = len(self._readers)
        self.skipped += reader.skipped
        reader.skipped.clear()
        self.doubles += reader.doubles
        reader.doubles = reader.looks = reader.fetched = reader.fetched_bytes = 0

    def _one(self, partition: int, offset: int, batches: list[Any], record: int) -> Any:
        if record >= 0:
            batches = [rows for batch in batches if (rows := _only(batch, record)).num_rows]
            if not batches:
                raise InvalidRange(
                    f"queue {self._topic.name}/{partition}, offset {offset} has no record {record} there"
                )
        if not batches:
            batches = [arrow.RecordBatch.from_pylist([], schema=self._decoder().schema)]
        table = arrow.Table.from_batches(batches).combine_chunks()
        whole = table.to_batches()
        return with_places(whole[0] if whole else batches[0], partition, offset)


def _only(batch: Any, record: int) -> Any:
    numbers = batch.column("record").to_pylist()
    return batch.slice(numbers.index(record), 1) if record in numbers else batch.slice(0, 0)
