"""A consumer of a topic's records, alone or as a member of a group."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

import pyarrow as pa

from tieredstore.errors import AlreadyClosedError, ConfigError, DataLossError, FencedError, InvalidRangeError
from tieredstore.kafka.records._slabs import shared_pool
from tieredstore.process.closing import Closing
from tieredstore.process.futures import any_done
from tieredstore.pubsub.consume.partition_state import (
    ConsumedRecord,
    Fetches,
    PartitionState,
    SharedReading,
    with_places,
)
from tieredstore.pubsub.counts import CONSUMERS, ConsumerCounts, export
from tieredstore.pubsub.format.batches import BatchIndex
from tieredstore.pubsub.format.decoder import BatchDecoder, OnCorrupt
from tieredstore.pubsub.queue.auditor import auditor_of
from tieredstore.pubsub.queue.groups import StoreGroup
from tieredstore.pubsub.queue.memq_topics import open_topics
from tieredstore.pubsub.queue.queues import Claim, GroupMember, Position
from tieredstore.pubsub.queue.topics import BatchLog, Topics, check_topic_name
from tieredstore.query.positions import time_of

if TYPE_CHECKING:
    from tieredstore.query.positions import GivenPlace
    from tieredstore.remote.stores import StoreLike

Start: TypeAlias = Literal["earliest", "latest"]
OnDataLoss: TypeAlias = Literal["fail", "report"]
Delivery: TypeAlias = Literal["at-least-once", "effectively-once"]

_LONGEST_WAIT_S: Final = 0.2
_SHORTEST_WAIT_S: Final = 0.005


class BatchConsumer(Closing):
    """Reads a topic of batches, each record at least once: after a crash, it reads again from the last commit. For one
    thread.

    Without ``group``, a consumer reads all partitions from ``start``, and ignores partitions added later. With a
    group, the members share the partitions. Reading begins at the group's commit, or at ``start`` if there is none.

    By default, damage and data loss raise errors. With ``on_corrupt="skip"``, the consumer skips damaged Messages (see
    ``skipped``). With ``on_data_loss="report"``, it continues after missing objects, and after queue entries that are
    missing or freed by retention (see ``losses``). If the queue does not reach its position, it begins again at the
    queue's start.

    With ``delivery="effectively-once"``, the consumer skips a Message if the read partition had the same Message within
    ``pubsub.dedup.window.ms``. ``doubles`` counts these Messages.

    Close a consumer after use: a later read raises AlreadyClosedError. The last two parameters are for tests.

    Example::

        with tieredstore.BatchConsumer("store.properties", "orders", group="billing") as consumer:
            for record in consumer.records():
                print(record.key, record.value)
            consumer.commit()
    """

    def __init__(
        self,
        source: StoreLike | Topics,
        topic: str,
        /,
        *,
        group: str | None = None,
        start: Start = "earliest",
        on_corrupt: OnCorrupt = "fail",
        on_data_loss: OnDataLoss = "fail",
        delivery: Delivery = "at-least-once",
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Open ``topic`` in the store that ``source`` names. Raise TopicNotFoundError if there is no such topic."""
        check_topic_name(topic)
        _check_choice("start", start, Start)
        _check_choice("on_corrupt", on_corrupt, OnCorrupt)
        _check_choice("on_data_loss", on_data_loss, OnDataLoss)
        _check_choice("delivery", delivery, Delivery)
        self.topic = topic
        self.group = group
        self._start: Start = start
        self._on_data_loss = on_data_loss
        self._monotonic = monotonic
        self._sleep = sleep
        self._partitions: dict[int, PartitionState] = {}
        self._turn = 0
        self._member: GroupMember | None = None
        self._version: int | None = None  # version of the group's claims from which ``_partitions`` was made
        self._is_closed = False
        self.losses: list[str] = []
        with contextlib.ExitStack() as opened:
            topics = opened.enter_context(open_topics(source))
            self._log = opened.enter_context(BatchLog(topics, topics.get(topic)))
            self._queue = self._log.queue
            settings, slabs = topics.batches, shared_pool()
            self._shared = SharedReading(
                self._log,
                Fetches(self._log, settings.fetches),
                lambda: BatchDecoder(on_corrupt=on_corrupt, max_expanded_bytes=settings.max_expanded_bytes, pool=slabs),
                auditor_of(settings, topic, is_producer=False),
                on_corrupt == "skip",
                delivery == "effectively-once",
                monotonic,
            )
            opened.callback(self._shared.close)
            self.skipped: list[str] = self._shared.skipped
            self.counts: ConsumerCounts = self._shared.counts
            opened.callback(export(CONSUMERS, self.counts))
            if group is not None:
                self._member = self._queue.member(group) or StoreGroup(
                    topics.folder, group, topic, lambda: self._queue.partitions, monotonic=monotonic
                )
                opened.callback(self._member.leave)
            else:
                for partition in range(self._queue.partitions):
                    self._open(partition, None)
            self._opened = opened.pop_all()

    @property
    def doubles(self) -> int:
        """Number of Messages skipped as repetitions."""
        return self.counts.repeated_messages

    def poll(self, timeout_s: float = 1.0) -> pa.RecordBatch | None:
        """Return the next records of one batch, or None if no records arrive in time. :meth:`commit` then includes
        these records.

        Columns: ``key value headers message_id timestamp message record partition offset``.
        """
        state = self._poll(timeout_s)
        if state is None:
            return None
        rows = state.take_rest()
        self.counts.records += rows.num_rows
        return rows

    def records(self, timeout_s: float = 1.0) -> Iterator[ConsumedRecord]:
        """Yield records until no record arrives for ``timeout_s``. :meth:`commit` includes a record once it is yielded.

        Before each record, this method checks that the record's partition still belongs to this group member. A loop
        may stop at any record. The next call then continues with the next record.
        """
        while (state := self._poll(timeout_s)) is not None:
            self.counts.records += 1
            yield state.take()

    def assignment(self) -> list[int]:
        """Return the partitions that this consumer reads now. Like :meth:`poll`, this call takes part in the group."""
        self._follow_group()
        return sorted(self._partitions)

    def position(self) -> dict[int, Position]:
        """Return the position after the last record handed out, for each partition that this consumer reads."""
        return {partition: state.position for partition, state in self._partitions.items()}

    def committed(self) -> dict[int, Position | None]:
        """Return the group's commit for each partition that this consumer reads."""
        claims = {} if self._member is None else self._member.claims()
        return {partition: claim.committed for partition, claim in claims.items()}

    def commit(self, positions: Mapping[int, Position] | None = None) -> None:
        """Commit ``positions`` for the group, by default the positions after all records handed out.

        If another member now owns one of the partitions, stop reading that partition and commit the other partitions.
        Then raise FencedError. Raise ConfigError without a group.
        """
        if self._member is None:
            raise ConfigError("a consumer without a group cannot commit: pass group=..., or store position()")
        wanted = self.position() if positions is None else dict(positions)
        for partition, position in wanted.items():
            if partition in self._partitions and position > self._partitions[partition].position:
                raise InvalidRangeError(f"cannot commit {tuple(position)}: partition {partition} was not read that far")
        try:
            self._member.commit(wanted)
        except FencedError:
            self._let_go(self._member.claims())
            raise
        self.counts.commits += 1

    def seek(self, partition: int, position: Position | int) -> None:
        """Continue a partition at another position; a number is an offset. A group's member may not seek beyond the
        queue's end, because a commit there would look like a loss of the queue."""
        if partition not in self._partitions:
            raise InvalidRangeError(f"this consumer does not read partition {partition} of {self.topic}")
        at = position if isinstance(position, Position) else Position(position)
        if self._member is not None and at.offset > (end := self._queue.end(partition)):
            raise InvalidRangeError(f"offset {at.offset} is beyond the end of {self.topic}-{partition} ({end})")
        self._move(partition, at)

    def seek_to_time(self, time: GivenPlace) -> None:
        """Continue all partitions at the first batch whose notification is not older than ``time`` (an aware datetime,
        a date or a text)."""
        moment = time_of("time", time)
        if moment is None:
            raise ConfigError("time is None: give a time, such as yesterday or 2026-01-31T08:00Z")
        for partition in list(self._partitions):
            self._move(partition, Position(self._queue.offset_at(partition, moment.timestamp_ms)))

    def seek_to_last(self, records: int) -> None:
        """Move each partition without a commit of the group to its last ``records`` records."""
        committed = self.committed()
        for partition in list(self._partitions):
            if committed.get(partition) is None:
                self._move(partition, self._log.position_before_end(partition, records))

    def read_at(self, partition: int, offset: int, message: int = -1, record: int = -1) -> pa.RecordBatch:
        """Return all records of a batch, all records of one Message, or one record. The consumer's position does not
        change.

        One ranged GET reads the index, a second GET the Message. Raise InvalidRangeError if the Message or record does
        not exist.
        """
        try:
            entries = self._queue.read(partition, offset)
        except DataLossError as error:
            if error.continue_at is None or error.continue_at > offset:
                raise
            entries = []  # the offset is beyond the end
        if not entries or entries[0].offset != offset:
            raise InvalidRangeError(f"queue {self.topic}/{partition} has no offset {offset}")
        batch = self._log.batch_of(partition, entries[0])
        store, key, decoder = self._log.store, batch.key, self._shared.decoder()
        if message < 0:
            batches = list(decoder.decode(store.get(key), key))
        else:
            index = BatchIndex(store.get(key, 0, batch.notification.header_size), key, batch.size)
            batches = list(decoder.decode_message(store.get(key, *index.byte_range(message)), index.place(message)))
            if record >= 0:
                batches = [
                    each.slice(row, 1)
                    for each in batches
                    for row, number in enumerate(each.column("record").to_pylist())
                    if number == record
                ]
                if not batches:
                    raise InvalidRangeError(f"{self._log.place(partition, offset)} has no record {record}")
        table = pa.Table.from_batches(batches, decoder.schema).combine_chunks()
        (rows,) = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=decoder.schema)]
        return with_places(rows, partition, offset)

    def close(self) -> None:
        """Give up partitions and end threads. The group reads uncommitted records again."""
        self._is_closed = True
        for partition in list(self._partitions):
            self._release(partition)
        self._opened.close()

    # ---

    def _open(self, partition: int, position: Position | None, term: int = 0) -> None:
        """Read ``partition`` from ``position``, or from the consumer's start."""
        self._release(partition)
        if position is None:
            is_late = self._start == "latest"
            position = Position(self._queue.end(partition) if is_late else self._queue.start(partition))
        self._partitions[partition] = PartitionState(self._shared, partition, position, term)
        self.counts.partitions = len(self._partitions)

    def _release(self, partition: int) -> None:
        if (state := self._partitions.pop(partition, None)) is not None:
            state.close()
        self.counts.partitions = len(self._partitions)

    def _move(self, partition: int, position: Position) -> None:
        self._open(partition, position, self._partitions[partition].term)

    def _follow_group(self) -> None:
        if self._member is None:
            return
        self._member.tick()
        if (version := self._member.version) is not None and version == self._version:
            return
        claims = self._member.claims()
        self._let_go(claims)
        for partition, claim in claims.items():
            if partition not in self._partitions:
                self._open(partition, claim.committed, claim.term)
        self._version = version  # set last: if the queue does not answer, the next call opens the remaining partitions

    def _let_go(self, claims: Mapping[int, Claim]) -> None:
        """Stop reading each partition that another member owns, because that member continues from the committed
        position. Do the same for a partition that another member has owned for a while since this consumer began to
        read it.
        """
        for partition, state in list(self._partitions.items()):
            if partition not in claims or claims[partition].term != state.term:
                self._release(partition)

    def _poll(self, timeout_s: float) -> PartitionState | None:
        """Return a partition of this consumer with rows to take; None if none arrive in time."""
        end_s = self._monotonic() + timeout_s
        while True:
            if self._is_closed:
                raise AlreadyClosedError(f"this consumer of {self.topic} was closed; open another consumer to continue")
            self._follow_group()
            states = list(self._partitions.values())
            for state in states:
                if state.at_hand is not None:
                    return state
            self._turn += 1
            # Begin with another partition each time, so that a busy partition does not starve the others.
            first = self._turn % len(states) if states else 0
            for state in states[first:] + states[:first]:
                if self._ask(state):
                    return state
            left_s = end_s - self._monotonic()
            if left_s <= 0:
                return None
            self._wait(states, left_s)

    def _wait(self, states: list[PartitionState], left_s: float) -> None:
        """Wait until a fetch ends, or until the next read of a queue is due."""
        under_way = [future for state in states for future in state.under_way]
        looks_s = [state.lookout.next_look_s - self._monotonic() for state in states if not state.has_ahead]
        wait_s = max(0.001, min([left_s, _LONGEST_WAIT_S, *looks_s]))
        if under_way:
            any_done(under_way, wait_s)
        else:
            is_ahead = any(state.has_ahead for state in states)
            self._sleep(min(wait_s, _SHORTEST_WAIT_S) if is_ahead else wait_s)

    def _ask(self, state: PartitionState) -> bool:
        """Return True if a partition has rows to take. After a data loss, follow ``on_data_loss``: raise the error, or
        record the loss and skip it.
        """
        try:
            state.look()
            return state.fill()
        except DataLossError as error:
            self.counts.losses += 1
            if self._on_data_loss == "fail":
                raise
            self.losses.append(str(error))
            state.pass_over(error.continue_at)
            return False


def _check_choice(name: str, given: object, kind: object) -> None:
    if given not in (choices := get_args(kind)):
        raise ConfigError(f"{name} is {given!r:.60}; it must be {' or '.join(choices)}")
