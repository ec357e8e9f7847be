"""``restore produce``: a run that writes a bucket's records into a running cluster, and then writes the offset map.

Each transaction has records of the source, the position after these records, and their new offsets. The newest
committed position therefore shows exactly which records the target has. If a process is killed, the next process
continues from this position. After a transient failure, a new producer continues from this position.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from tieredstore.api.outcomes import Outcome
from tieredstore.errors import (
    BrokerUnavailableError,
    ConfigError,
    CorruptDataError,
    PreconditionFailedError,
    StoreUnavailableError,
    TieredStoreError,
)
from tieredstore.live import LiveReader
from tieredstore.model import OffsetSpan, TopicPartition
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.restore.produce.continuation import check_same, check_stops, first_position, map_file, next_offsets
from tieredstore.restore.produce.runs import (
    CONTROL_TOPIC,
    ControlTopic,
    OffsetRun,
    OnProgress,
    Partitioning,
    RunPosition,
    SourceRange,
    offsets_to_bytes,
)
from tieredstore.restore.produce.source import SourceBatch, SourceTopics, consecutive
from tieredstore.restore.produce.target import TargetCluster
from tieredstore.restore.produce.transactions import SETTLES_S, Transactions

OnStep: TypeAlias = Callable[[str], object]
"""A callback that gets the name of each operation before the operation begins, so that tests can end the process
there."""

_logger: Final = logging.getLogger(__name__)

_MOST_RECORDS: Final = 100_000
_MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_S: Final = 10.0
_OFFSETS_IN_RECORD: Final = 2000
"""Maximum number of offset runs in one control record. This many offset runs take at most 700 KB, less than the default
``max.message.bytes``."""
_UNMAPPED: Final = 2_000
"""After this many control records with offsets, the run writes its offset map to the bucket. It also writes the map at
the end of the run.
"""

_TURN_RECORDS: Final = 20_000
"""Number of consecutive records to take from one source partition, if keys are hashed again. A higher number gives
fewer offset runs. With a lower number, groups read fewer records a second time.
"""

_GIVE_UP_S: Final = 300.0
_PAUSE_S: Final = 1.0


@dataclass(slots=True)
class _Transaction:
    """The contents of the open transaction so far.

    ``sent`` has the offset runs that each target partition received, in order. ``begins`` has the target offset at
    which each partition's first offset run begins.
    """

    since: float
    is_rehashed: bool
    begins: Mapping[TopicPartition, int]
    next: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    sent: dict[TopicPartition, list[OffsetRun]] = field(default_factory=dict[TopicPartition, list[OffsetRun]])
    records: int = 0
    size: int = 0

    def note_sent(self, target: TopicPartition, where: TopicPartition, offsets: Sequence[int]) -> None:
        """Note that the records of the source partition ``where`` at ``offsets`` were sent to ``target``."""
        runs = self.sent.setdefault(target, [])
        for start, length in consecutive(offsets):
            begin = runs[-1].target_end if runs else self.begins[target]
            run = OffsetRun(*where, start, target[1], begin, length)
            is_same = bool(runs) and runs[-1][:2] == where
            joined = runs[-1].join(run, is_rehashed=self.is_rehashed) if is_same else None
            runs[len(runs) - (joined is not None) :] = [joined or run]
        self.records += len(offsets)

    def is_full(self, most_records: int, most_s: float) -> bool:
        return (
            self.records >= most_records
            or self.size >= _MOST_BYTES
            or (self.records > 0 and time.monotonic() - self.since > most_s)
        )


class ProduceRun:
    """One run of ``restore produce`` in this process. ``properties`` are the properties of the target cluster's
    clients.

    A transaction ends at the end of a batch, once it has at least ``most_records`` records or is ``most_s`` old. It may
    also end earlier.
    """

    def __init__(
        self,
        source: SourceTopics,
        properties: Mapping[str, str],
        *,
        on_progress: OnProgress | None = None,
        on_step: OnStep | None = None,
        give_up_s: float = _GIVE_UP_S,
        most_records: int = _MOST_RECORDS,
        most_s: float = _MOST_S,
    ) -> None:
        self._source = source
        self._properties = properties
        self._options = source.options
        self._on_progress: OnProgress = on_progress or (lambda _: None)
        self._on_step: OnStep = on_step or (lambda _: None)
        self._give_up_s = give_up_s
        self._most_records, self._most_s = most_records, most_s
        self._committed_at = time.monotonic()
        self._partitionings: dict[str, Partitioning] = {}
        """The rule that chooses the target partitions of each source topic's records."""
        self._next: dict[TopicPartition, int] = {}
        """The offset that the next record of each target partition will get, if no other producer writes."""
        self._begun: RunPosition | None = None
        """The position from which this process has continued the run."""
        self.losses: Sequence[tuple[TopicPartition, OffsetSpan]] = ()
        """The offsets that this process left out because the source has lost them, known after the last commit. The
        ends are exclusive."""
        self._records: int | None = None
        """The number of records at the newest known position; None before this process knows a position.
        ``on_progress`` gets the differences between these numbers.
        """

    def outcomes(self) -> Generator[Outcome]:
        """Produce the remaining records of the run, and yield an outcome for each partition.

        Raise ConfigError if the target is not empty or has records of another writer. Raise DataLossError or
        CorruptDataError if the source has lost or damaged records. Raise FencedError if another process has begun the
        same run.
        """
        self._committed_at = time.monotonic()
        while True:
            try:
                after = self._attempt()
            except TieredStoreError as error:
                if not error.retryable or time.monotonic() - self._committed_at > self._give_up_s:
                    raise
                _logger.warning("%s; continuing from the last commit", error)
                time.sleep(_PAUSE_S)
            else:
                break
        before = self._begun or after
        self.losses = self._source.losses_in(before.sources)
        for where, done in sorted(after.sources.items()):
            yield self._outcome(where, before.sources[where], done)

    def _attempt(self) -> RunPosition:
        """Produce the remaining records, and return the position after them."""
        properties, options = self._properties, self._options
        with ExitStack() as stack:
            cluster = stack.enter_context(TargetCluster(properties))
            reader = stack.enter_context(LiveReader(properties, isolation="read_committed"))
            targets = [cluster.existing_target(topic) for topic in options.topics.values()]
            most = min(int(each.settings["max.message.bytes"]) for each in (*targets, cluster.control_topic()))
            control = ControlTopic(reader, options.run, settles_s=SETTLES_S)
            transactions = stack.enter_context(Transactions(properties, options.run, most_batch_bytes=most))
            transactions.start()
            self._on_step("resume")
            position = control.newest_position()
            is_new = position is None
            if position is None:
                position = first_position(self._source, reader, targets)
            else:
                check_same(self._source, position, targets)
                if self._begun is None:
                    check_stops(self._source, position)
            self._next = next_offsets(self._source, reader, targets, position)
            self._source.check(position.sources)
            if is_new:
                transactions.begin()
                self._commit(transactions, position)
            # After an error, the position shows whether the last transaction was committed.
            self._note_progress(position)
            if position.is_finished:
                return position
            self._partitionings = {
                topic: Partitioning(options.partitioner, target.partition_count)
                for topic, target in zip(options.topics, targets, strict=True)
            }
            self._begun = self._begun or position
            if not position.is_produced:
                # Set CreateTime only after the committed position has recorded the topics' old setting, so that the
                # next process can restore the setting if this process is killed.
                cluster.set_times(dict.fromkeys(position.append_times, "CreateTime"))
            position = self._produce(transactions, control, position)
            position = self._map(transactions, control, position)
            if position.append_times:
                self._on_step("times")
                cluster.set_times(position.append_times)
                position = replace(position, append_times={})
                transactions.begin()
                self._commit(transactions, position)
            return position

    def _produce(self, transactions: Transactions, control: ControlTopic, position: RunPosition) -> RunPosition:
        open_one: _Transaction | None = None
        is_rehashed = position.partitioner != "keep"
        batches = self._source.batches(position.sources, _TURN_RECORDS if is_rehashed else 1)
        try:
            # Read on another thread, so that the transaction can end while the source has no committed records for
            # minutes. Otherwise, the broker would abort the transaction.
            with ThreadPool(1, "tieredstore-restore") as reader:
                while True:
                    reading = reader.submit(next, batches, None)
                    if open_one is not None and not is_done(reading, self._most_s):
                        position, open_one = self._end(transactions, open_one, position), None
                    if (batch := outcome(reading)) is None:
                        break
                    if open_one is None:
                        self._on_step("begin")
                        transactions.begin()
                        open_one = _Transaction(time.monotonic(), is_rehashed, self._next)
                    self._on_step("produce")
                    self._send(transactions, open_one, batch)
                    if open_one.is_full(self._most_records, self._most_s):
                        position, open_one = self._end(transactions, open_one, position), None
                        if position.offset_records - position.mapped >= _UNMAPPED:
                            position = self._map(transactions, control, position)
        finally:
            # After Ctrl-C, the thread may still run the generator, which cannot be closed then.
            with suppress(ValueError):
                batches.close()
        return position if open_one is None else self._end(transactions, open_one, position)

    def _send(self, transactions: Transactions, open_one: _Transaction, batch: SourceBatch) -> None:
        """Send each record of a batch to its target partition."""
        (topic, number), offsets = batch.where, batch.offsets()
        target = self._options.topics[topic]
        if len(batch) and not open_one.is_rehashed:
            transactions.send(target, number, batch.rows(), len(batch))
            open_one.note_sent((target, number), batch.where, offsets)
        elif len(batch):
            rows = list(batch.rows())
            for partition, places in self._partitionings[topic].shares([row[0] for row in rows], number).items():
                transactions.send(target, partition, (rows[place] for place in places), len(places))
                open_one.note_sent((target, partition), batch.where, [offsets[place] for place in places])
        open_one.next[batch.where] = batch.next
        open_one.size += batch.size

    def _end(self, transactions: Transactions, done: _Transaction, position: RunPosition) -> RunPosition:
        """Commit the transaction with its records, their target offsets, and the position after them. Return that
        position."""
        self._on_step("flush")
        for (topic, partition), offset in transactions.flush().items():
            if offset != (expected := self._next[topic, partition]):
                # This error is retryable. The next attempt finds the unexpected record and names it.
                raise BrokerUnavailableError(
                    f"the next record of {topic}-{partition} got offset {offset} instead of {expected}"
                )
        runs = [run for of_target in done.sent.values() for run in of_target]
        ends = {target: of_target[-1].target_end for target, of_target in done.sent.items()}
        self._on_step("positions")
        number = position.offset_records
        for at in range(0, len(runs), _OFFSETS_IN_RECORD):
            number += 1
            part = offsets_to_bytes(runs[at : at + _OFFSETS_IN_RECORD])
            transactions.send_control(CONTROL_TOPIC, self._offsets_key(number), part)
        moved = {where: replace(position.sources[where], next=offset) for where, offset in done.next.items()}
        new = replace(
            position,
            sources={**position.sources, **moved},
            ends={**position.ends, **ends},
            records=position.records + done.records,
            offset_records=number,
        )
        self._commit(transactions, new)
        # Add 1, because the end marker of the transaction takes an offset too.
        self._next |= {where: end + 1 for where, end in ends.items()}
        self._note_progress(new)
        return new

    def _note_progress(self, position: RunPosition) -> None:
        """Report the records since the last known position."""
        if self._records is not None and position.records > self._records:
            self._on_progress(position.records - self._records)
        self._records = position.records

    def _commit(self, transactions: Transactions, position: RunPosition) -> None:
        transactions.send_control(CONTROL_TOPIC, self._options.run.encode(), position.to_bytes())
        self._on_step("commit")
        transactions.commit()
        self._committed_at = time.monotonic()
        self._on_step("committed")

    def _map(self, transactions: Transactions, control: ControlTopic, position: RunPosition) -> RunPosition:
        """Move the offset runs from the control topic to the offset map in the bucket."""
        numbers = range(position.mapped + 1, position.offset_records + 1)
        if not numbers:
            return position
        self._on_step("map")
        self._save_offsets(transactions, control, position)
        self._on_step("tombstone")
        transactions.begin()
        for number in numbers:
            transactions.send_control(CONTROL_TOPIC, self._offsets_key(number), None)
        new = replace(position, mapped=position.offset_records)
        self._commit(transactions, new)
        return new

    def _save_offsets(self, transactions: Transactions, control: ControlTopic, position: RunPosition) -> None:
        file = map_file(self._source)
        for topic, target in position.topics.items():
            file.map.add_topic(topic, target, is_rehashed=position.partitioner != "keep")
        for (topic, number), source in position.sources.items():
            # The map uses ``target_start`` only for a target partition that got no records of the run. The end of such
            # a partition has not changed since the run began, so the present end is right.
            end = position.ends.get((position.topics[topic], number), 0)
            file.map.begin((topic, number), source.start, target_start=end)
        contradiction: CorruptDataError | None = None
        for runs in control.offset_runs(position.mapped, position.offset_records):
            try:
                file.map.extend(runs)
            except CorruptDataError as error:
                if file.is_new:
                    raise
                contradiction = error
                break
        for where, source in position.sources.items():
            file.map.advance(where, source.next)
        restored = {where: range(source.start, source.next) for where, source in position.sources.items()}
        mapped = {(topic, at): each for topic in file.map.topics for at, each in file.map.partitions(topic).items()}
        if contradiction is not None or (mapped, file.map.records) != (restored, position.records):
            # If this process is fenced, the later process may have extended the map. Then this commit raises
            # FencedError.
            transactions.begin()
            self._commit(transactions, position)
            raise ConfigError(
                f"the offset map of the run {self._options.run} in the bucket does not match the run: it was deleted, "
                "or a run of this name into another cluster has written it. Restore into empty topics by a run of "
                "another name (--run); or bring this run's map back, or move the other map away, and run again"
            ) from contradiction
        try:
            file.save()
        except PreconditionFailedError as error:
            # Another process of this run, which is fenced by now, has written the object. So raise a retryable error.
            raise StoreUnavailableError(
                f"the offset map of the run {self._options.run} has changed: {error}"
            ) from error

    def _offsets_key(self, number: int) -> bytes:
        return f"{self._options.run}/{number}".encode()

    def _outcome(self, where: TopicPartition, before: SourceRange, after: SourceRange) -> Outcome:
        topic, number = where
        target, is_kept = self._options.topics[topic], self._options.partitioner == "keep"
        is_new, has_any = before.next < after.stop, after.start < after.stop
        return Outcome(
            action="produce", status="done" if is_new else "kept", code="restored" if is_new else "there", topic=topic,
            partition=number, base_offset=after.start if has_any else None,
            last_offset=after.stop - 1 if has_any else None, name=f"{target}-{number}" if is_kept else target,
        )  # fmt: skip
