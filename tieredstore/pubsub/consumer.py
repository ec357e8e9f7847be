"""A consumer: the records of a topic by its queue, alone or as a member of a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from tieredstore.errors import AlreadyClosed, ConfigError, DataLoss, Fenced, InvalidRange
from tieredstore.kafka.arrow_values import repeated
from tieredstore.kafka.records._slabs import shared_pool
from tieredstore.process.closing import Closing
from tieredstore.process.futures import any_done
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.auditing import auditor_of
from tieredstore.pubsub.counts import ConsumerCounts
from tieredstore.pubsub.format.batches import BatchIndex
from tieredstore.pubsub.format.decoder import BatchDecoder, OnCorrupt
from tieredstore.pubsub.format.notifications import parse_notification
from tieredstore.pubsub.groups import StoreGroup
from tieredstore.pubsub.partition_reader import FetchRoom, PartitionReader, rotated
from tieredstore.pubsub.queues import GroupMember, Position
from tieredstore.pubsub.seen_messages import SeenMessages
from tieredstore.pubsub.topics import Topics

# What its type stubs say of arrays is partial.
arrow: Any = pa

Start: TypeAlias = Literal["earliest", "latest"]
OnDataLoss: TypeAlias = Literal["fail", "report"]
Delivery: TypeAlias = Literal["at-least-once", "effectively-once"]

_LOOKS_AHEAD: Final = 2
_LONGEST_WAIT_S: Final = 0.2
_SHORTEST_WAIT_S: Final = 0.005


class ConsumedRecord(NamedTuple):
    """One record and its place. ``timestamp`` in ms; None where the format has none."""

    partition: int
    offset: int
    message: int
    record: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    message_id: bytes | None
    timestamp: int | None


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
        self._handed_out: dict[int, Position] = {}
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
        rows = self._poll(timeout_s)
        if rows is None:
            return None
        reader, batch = rows
        self._handed_out[reader.partition] = reader.position
        reader.handed_out(reader.position.message, reader.position.record - 1)
        given: pa.RecordBatch = batch
        return given

    def records(self, timeout_s: float = 1.0) -> Iterator[ConsumedRecord]:
        """Records one by one, until none came for ``timeout_s``; each counts as handed out when it is given."""
        while (rows := self._poll(timeout_s)) is not None:
            reader, batch = rows
            record: ConsumedRecord | None = None
            try:
                for record in _records_of(batch):
                    self._handed_out[reader.partition] = Position(record.offset, record.message, record.record + 1)
                    yield record
            finally:
                if record is not None:
                    reader.handed_out(record.message, record.record)

    def assignment(self) -> list[int]:
        """The partitions that this consumer reads by now; takes part in the group, as polling does."""
        self._follow_group()
        return sorted(self._readers)

    def position(self) -> dict[int, Position]:
        """Behind what was handed out, of each partition that this consumer reads."""
        return dict(self._handed_out)

    def committed(self) -> dict[int, Position | None]:
        """What the group has committed, of each partition that this consumer reads."""
        return {} if self._group is None else self._group.owned()

    def commit(self, positions: Mapping[int, Position] | None = None) -> None:
        """Make positions durable for the group: those of what was handed out, or some before them.

        Fenced if another member reads a partition by now; ConfigError without a group.
        """
        if self._group is None:
            raise ConfigError("a consumer without a group has nowhere to commit: give it a group, or keep position()")
        wanted = self.position() if positions is None else dict(positions)
        for partition, position in wanted.items():
            if position > self._handed_out.get(partition, Position(-1)):
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
        self._open(partition, position if isinstance(position, Position) else Position(position))

    def seek_to_time(self, ms: int) -> None:
        """Read all partitions from the first batch on that was notified at ``ms`` or later."""
        for partition in list(self._readers):
            self._open(partition, Position(self._queue.offset_at(partition, ms)))

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

    def _open(self, partition: int, position: Position | None) -> None:
        """Read ``partition`` from there on, or from where the consumer starts."""
        if (before := self._readers.pop(partition, None)) is not None:
            before.close()
        if position is None:
            is_late = self._start == "latest"
            position = Position(self._queue.end(partition) if is_late else self._queue.start(partition))
        self._handed_out[partition] = position
        self._readers[partition] = PartitionReader(
            self._topics, self._topic, self._queue, self._pool, self._room, partition, position, self._decoder,
            self._settings.fetches, self._seen(partition), self._monotonic, self._auditor, self._on_corrupt == "skip",
        )  # fmt: skip

    def _seen(self, partition: int) -> SeenMessages | None:
        if not self._is_once:
            return None
        return SeenMessages(self._topics, self._topic, self._queue, partition, self._settings.dedup_window_ms)

    def _follow_group(self) -> None:
        if self._group is None:
            return
        self._group.tick()
        owned = self._group.owned()
        if owned.keys() != self._readers.keys():
            self._let_go()
            for partition, committed in owned.items():
                if partition not in self._readers:
                    self._open(partition, committed)

    def _let_go(self) -> None:
        """Read nothing more of what is another member's by now: it goes on at what was committed."""
        owned = {} if self._group is None else self._group.owned()
        for partition in [partition for partition in self._readers if partition not in owned]:
            self._readers.pop(partition).close()
            del self._handed_out[partition]

    def _poll(self, timeout_s: float) -> tuple[PartitionReader, Any] | None:
        if self._is_closed:
            raise AlreadyClosed(f"this consumer of {self._topic.name} was closed; open another one to read on")
        end_s = self._monotonic() + timeout_s
        while True:
            self._follow_group()
            readers = list(self._readers.values())
            self._turn += 1
            for reader in rotated(readers, self._turn) if readers else ():
                rows = self._ask(reader, 0.0)
                if rows is not None:
                    return reader, rows
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

    def _ask(self, reader: PartitionReader, timeout_s: float) -> Any:
        """The next records of a partition with their places; a loss is raised, or noted and passed over."""
        try:
            reader.look()
            rows = reader.next_records(timeout_s)
        except DataLoss as error:
            self.counts.losses += 1
            if self._on_data_loss == "fail":
                raise
            self.losses.append(str(error))
            reader.pass_over()
            return None
        self._take_counts(reader)
        if rows is None:
            self._handed_out[reader.partition] = max(self._handed_out[reader.partition], reader.position)
            return None
        offset, batch = rows
        placed = self._placed(reader.partition, offset, batch)
        reader.advance(placed.column("message")[-1].as_py(), placed.column("record")[-1].as_py())
        self.counts.records += placed.num_rows
        return placed

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

    def _placed(self, partition: int, offset: int, batch: Any) -> Any:
        columns = [
            *batch.columns,
            repeated(partition, batch.num_rows, arrow.int32()),
            repeated(offset, batch.num_rows, arrow.int64()),
        ]
        return arrow.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "partition", "offset"])

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
        return self._placed(partition, offset, whole[0] if whole else batches[0])


def _only(batch: Any, record: int) -> Any:
    numbers = batch.column("record").to_pylist()
    return batch.slice(numbers.index(record), 1) if record in numbers else batch.slice(0, 0)


def _records_of(batch: Any) -> Iterator[ConsumedRecord]:
    for row in batch.to_pylist():
        headers = tuple((header["key"], header["value"]) for header in row.pop("headers") or ())
        yield ConsumedRecord(headers=headers, **row)
