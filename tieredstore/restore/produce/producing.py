"""``restore produce``: a run from a bucket into a running cluster, from its first transaction to its map of offsets.

Each transaction has records of the source, the position after them, and the offsets that they got. So whatever ends a
process, the newest committed position tells exactly what is in the target, and the next process goes on from there.
A failure that may pass takes the same way: a new producer begins where the committed position is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from tieredstore.api.outcomes import Outcome
from tieredstore.errors import (
    BrokerUnavailableError,
    ConfigError,
    PreconditionFailedError,
    ResourceNotFoundError,
    StoreUnavailableError,
    TieredStoreError,
)
from tieredstore.live.broker_state import BrokerState
from tieredstore.live.cluster import LiveCluster
from tieredstore.model import TopicPartition
from tieredstore.restore.produce.control_topic import ControlTopic, TargetLogs
from tieredstore.restore.produce.offset_map import OffsetMapFile
from tieredstore.restore.produce.partitioning import Partitioning
from tieredstore.restore.produce.runs import (
    CONTROL_TOPIC,
    OffsetRun,
    OnProgress,
    ProduceOptions,
    RunPosition,
    SourceRange,
    offsets_to_bytes,
)
from tieredstore.restore.produce.source import SourceBatch, SourceTopics, consecutive
from tieredstore.restore.produce.target import TargetCluster
from tieredstore.restore.produce.transactions import TRANSACTION_MS, Transactions

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource

OnStep: TypeAlias = Callable[[str], object]
"""Called before each operation with its name, so that tests can end the process there."""

_Answer = TypeVar("_Answer")

_logger: Final = logging.getLogger(__name__)

_MOST_RECORDS: Final = 100_000
_MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_S: Final = 10.0
_OFFSETS_IN_RECORD: Final = 10_000
"""Runs of offsets in one control record: some 400 KB, under the default ``max.message.bytes``."""
_UNMAPPED: Final = 2_000
"""Control records with offsets after which the bucket's map is written; the last ones are mapped at the end."""

_CALL_S: Final = 60.0
_GIVE_UP_S: Final = 300.0
_PAUSE_S: Final = 1.0


@dataclass(slots=True)
class _Transaction:
    """What the open transaction has so far.

    ``sent`` has what each target partition got, in the order of sending: source partition, first offset, number.
    """

    since: float
    next: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    sent: dict[TopicPartition, list[tuple[TopicPartition, int, int]]] = field(
        default_factory=dict[TopicPartition, list[tuple[TopicPartition, int, int]]]
    )
    records: int = 0
    size: int = 0

    def note_sent(self, target: TopicPartition, where: TopicPartition, offsets: Sequence[int]) -> None:
        """Note records that were sent to one target partition."""
        self.sent.setdefault(target, []).extend((where, start, length) for start, length in consecutive(offsets))
        self.records += len(offsets)

    def is_full(self, most_records: int) -> bool:
        return (
            self.records >= most_records
            or self.size >= _MOST_BYTES
            or (self.records > 0 and time.monotonic() - self.since > _MOST_S)
        )


class ProduceRun:
    """One run of ``restore produce`` in this process. ``properties`` are those of the target cluster's clients.

    ``timeout_s`` is the longest time that a call waits for the brokers without progress. A transaction ends with the
    batch that brings it to ``most_records``, or earlier.
    """

    def __init__(
        self,
        source: SegmentSource,
        properties: Mapping[str, str],
        options: ProduceOptions,
        *,
        on_progress: OnProgress | None = None,
        on_step: OnStep | None = None,
        timeout_s: float = _CALL_S,
        give_up_s: float = _GIVE_UP_S,
        most_records: int = _MOST_RECORDS,
    ) -> None:
        self._source = source
        self._properties = properties
        self._options = options
        self._on_progress: OnProgress = on_progress or (lambda _records, _size: None)
        self._on_step: OnStep = on_step or (lambda _: None)
        self._timeout_s = timeout_s
        self._give_up_s = give_up_s
        self._most_records = most_records
        self._committed_at = time.monotonic()
        self._partitionings: dict[str, Partitioning] = {}
        """How the records of each source topic are placed."""
        self._next: dict[TopicPartition, int] = {}
        """The offset that the next record of each target partition gets if nothing else is written."""
        self._begun: RunPosition | None = None
        """The position from which this process went on."""

    def outcomes(self) -> Generator[Outcome]:
        """Produce what is left of the run, and yield an outcome for each partition.

        Raise ConfigError for a target that is not empty or has foreign records, DataLossError and CorruptDataError for
        the source, and FencedError if another process has begun the same run.
        """
        self._committed_at = time.monotonic()
        while True:
            try:
                after = self._attempt()
            except TieredStoreError as error:
                if not error.retryable or time.monotonic() - self._committed_at > self._give_up_s:
                    raise
                _logger.warning("%s; going on from the last commit", error)
                time.sleep(_PAUSE_S)
            else:
                break
        before = self._begun or after
        for where, done in sorted(after.sources.items()):
            yield self._outcome(where, before.sources[where], done)

    def _attempt(self) -> RunPosition:
        """Produce what is left, and return the position after it."""
        properties, run = self._properties, self._options.run
        with ExitStack() as stack:
            control = stack.enter_context(
                ControlTopic(properties, run, timeout_s=self._timeout_s, settles_s=TRANSACTION_MS / 1000 + 30)
            )
            control.provide()
            transactions = stack.enter_context(
                Transactions(properties, run, most_batch_bytes=self._most_batch_bytes(), timeout_s=self._timeout_s)
            )
            transactions.start()
            self._on_step("resume")
            position = control.newest_position()
            if position is not None and position.is_finished:
                self._check_same(position, None)
                return position
            source = stack.enter_context(SourceTopics(self._source, self._options))
            targets = stack.enter_context(TargetLogs(properties, timeout_s=self._timeout_s))
            position = self._begin(transactions, source, targets, position)
            self._begun = self._begun or position
            position = self._produce(transactions, control, source, position)
            position = self._map(transactions, control, position)
            return self._set_times_back(transactions, position)

    def _begin(
        self, transactions: Transactions, source: SourceTopics, targets: TargetLogs, position: RunPosition | None
    ) -> RunPosition:
        """Return the position to go on from, once source and target are as it says."""
        if position is not None:
            self._check_same(position, source.topic_ids)
            self._place(targets, position.sources, position.ends)
            self._next = targets.check_ends(position.ends)
            source.check(position.sources)
            self._keep_times(position)
            return position
        options, ranges = self._options, source.ranges()
        source.check(ranges)
        ends = targets.starts(self._place(targets, ranges))
        self._next = targets.check_ends(ends)
        new = RunPosition(
            topics=dict(options.topics),
            topic_ids=source.topic_ids,
            partitioner=options.partitioner,
            sources=ranges,
            ends=ends,
            append_times=self._cluster(lambda cluster: cluster.append_times(options.topics.values())),
        )
        transactions.begin()
        self._commit(transactions, new)
        self._keep_times(new)
        return new

    def _keep_times(self, position: RunPosition) -> None:
        """Let records have their own times. The position that says so is committed: a killed run sets them back."""
        if position.append_times and not position.is_produced:
            self._cluster(lambda cluster: cluster.keep_times(position.append_times))

    def _set_times_back(self, transactions: Transactions, position: RunPosition) -> RunPosition:
        """Give LogAppendTime back to the topics that had it."""
        if not position.append_times:
            return position
        self._on_step("times")
        self._cluster(lambda cluster: cluster.set_times_back(position.append_times))
        new = replace(position, append_times={})
        transactions.begin()
        self._commit(transactions, new)
        return new

    def _cluster(self, call: Callable[[TargetCluster], _Answer]) -> _Answer:
        with TargetCluster(self._properties, timeout_s=self._timeout_s) as cluster:
            return call(cluster)

    def _place(
        self,
        targets: TargetLogs,
        sources: Collection[TopicPartition],
        before: Collection[TopicPartition] | None = None,
    ) -> list[TopicPartition]:
        """Return the target partitions that records may go to. Raise ConfigError if they do not fit the source, or if
        they are others than ``before``, when the run began.
        """
        options = self._options
        partitions: list[TopicPartition] = []
        for topic, target in options.topics.items():
            numbers = sorted(number for name, number in sources if name == topic)
            self._partitionings[topic] = Partitioning(options.partitioner, targets.count(target))
            partitions += [(target, number) for number in self._partitionings[topic].targets(target, numbers)]
        if before is not None and set(partitions) != set(before):
            raise ConfigError(
                f"the target of the run {options.run} has {len(partitions)} partitions, and had {len(before)} when the "
                "run began, so keys would go elsewhere: restore into a new topic by a run of another name (--run)"
            )
        return partitions

    def _check_same(self, position: RunPosition, topic_ids: Mapping[str, str] | None) -> None:
        run, options = self._options.run, self._options
        if position.topics != dict(options.topics) or position.partitioner != options.partitioner:
            raise ConfigError(
                f"the run {run} restores other topics, or by another partitioner, than asked for now: give this run "
                "another name (--run)"
            )
        if topic_ids is not None and position.topic_ids != topic_ids:
            raise ConfigError(
                f"the run {run} began with other topics of these names, by their topic ids: give this run another name "
                "(--run)"
            )

    def _produce(
        self, transactions: Transactions, control: ControlTopic, source: SourceTopics, position: RunPosition
    ) -> RunPosition:
        open_one: _Transaction | None = None
        with closing(source.batches(position.sources)) as batches:
            for batch in batches:
                if open_one is None:
                    self._on_step("begin")
                    transactions.begin()
                    open_one = _Transaction(time.monotonic())
                self._on_step("produce")
                self._send(transactions, open_one, batch)
                if open_one.is_full(self._most_records):
                    position, open_one = self._end(transactions, open_one, position), None
                    if position.offset_records - position.mapped >= _UNMAPPED:
                        position = self._map(transactions, control, position)
        return position if open_one is None else self._end(transactions, open_one, position)

    def _send(self, transactions: Transactions, open_one: _Transaction, batch: SourceBatch) -> None:
        """Send each record of a batch to its target partition."""
        (topic, number), offsets = batch.where, batch.offsets()
        target = self._options.topics[topic]
        if not len(batch):
            pass
        elif self._options.partitioner == "keep":
            transactions.send(target, number, batch.rows(), len(batch))
            open_one.note_sent((target, number), batch.where, offsets)
        else:
            rows = list(batch.rows())
            for partition, places in self._partitionings[topic].shares([row[0] for row in rows], number).items():
                transactions.send(target, partition, (rows[place] for place in places), len(places))
                open_one.note_sent((target, partition), batch.where, [offsets[place] for place in places])
        open_one.next[batch.where] = batch.next
        open_one.size += batch.size

    def _end(self, transactions: Transactions, done: _Transaction, position: RunPosition) -> RunPosition:
        """Commit records, the offsets that they got, and the position after them. Return that position."""
        self._on_step("flush")
        firsts = transactions.flush()
        runs, ends = self._assign(done.sent, firsts)
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
        # The marker of the transaction takes an offset.
        self._next |= {where: end + 1 for where, end in ends.items()}
        self._on_progress(done.records, done.size)
        return new

    def _assign(
        self,
        sent: Mapping[TopicPartition, Iterable[tuple[TopicPartition, int, int]]],
        firsts: Mapping[TopicPartition, int],
    ) -> tuple[list[OffsetRun], dict[TopicPartition, int]]:
        """Return the runs of offsets, and the ends of the target partitions, by the first offset of each."""
        runs: list[OffsetRun] = []
        ends: dict[TopicPartition, int] = {}
        for target, of_target in sent.items():
            offset = firsts[target]
            if offset != self._next[target]:
                # The next attempt looks what it is, and names a record.
                raise BrokerUnavailableError(
                    f"the next record of {target[0]}-{target[1]} got offset {offset} instead of {self._next[target]}"
                )
            by_source: dict[TopicPartition, list[OffsetRun]] = {}
            for where, start, length in of_target:
                known = by_source.setdefault(where, [])
                run = OffsetRun(*where, start, target[1], offset, length)
                last = known[-1] if known else None
                if last and (last.start + last.length, last.target_start + last.length) == (start, offset):
                    known[-1] = last._replace(length=last.length + length)
                else:
                    known.append(run)
                offset += length
            runs += chain.from_iterable(by_source.values())
            ends[target] = offset
        return runs, ends

    def _commit(self, transactions: Transactions, position: RunPosition) -> None:
        transactions.send_control(CONTROL_TOPIC, self._options.run.encode(), position.to_bytes())
        self._on_step("commit")
        transactions.commit()
        self._committed_at = time.monotonic()
        self._on_step("committed")

    def _map(self, transactions: Transactions, control: ControlTopic, position: RunPosition) -> RunPosition:
        """Move offsets from the control topic into the bucket's map."""
        numbers = range(position.mapped + 1, position.offset_records + 1)
        if not numbers:
            return position
        self._on_step("map")
        self._save_offsets(control, position)
        self._on_step("tombstone")
        transactions.begin()
        for number in numbers:
            transactions.send_control(CONTROL_TOPIC, self._offsets_key(number), None)
        new = replace(position, mapped=position.offset_records)
        self._commit(transactions, new)
        return new

    def _save_offsets(self, control: ControlTopic, position: RunPosition) -> None:
        file = OffsetMapFile(self._source.store, self._source.layout.prefix, self._options.run)
        for topic, target in position.topics.items():
            file.map.add_topic(topic, target, is_rehashed=position.partitioner != "keep")
        for (topic, number), source in position.sources.items():
            # The end counts only where nothing was produced: there it is the one that the run began with.
            end = position.ends.get((position.topics[topic], number), 0)
            file.map.begin((topic, number), source.start, target_start=end)
        for runs in control.offset_runs(position.mapped, position.offset_records):
            file.map.extend(runs)
        for where, source in position.sources.items():
            file.map.advance(where, source.next)
        try:
            file.save()
        except PreconditionFailedError as error:
            # A process of this run that has been fenced since wrote the same.
            raise StoreUnavailableError(
                f"the offset map of the run {self._options.run} has changed: {error}"
            ) from error

    def _offsets_key(self, number: int) -> bytes:
        return f"{self._options.run}/{number}".encode()

    def _most_batch_bytes(self) -> int:
        """Return the smallest ``max.message.bytes`` of the topics to write; raise ResourceNotFoundError without one."""
        targets = sorted(self._options.topics.values())
        with LiveCluster(self._properties, isolation="read_committed", timeout_s=self._timeout_s) as cluster:
            there = cluster.describe(targets)
        if missing := [name for name in targets if name not in there]:
            raise ResourceNotFoundError(f"there is no topic {missing[0]} in the cluster: create it, empty")
        with BrokerState(self._properties, timeout_s=self._timeout_s) as state:
            settings = state.topic_settings([*targets, CONTROL_TOPIC])
        return min(int(each["max.message.bytes"]) for each in settings.values())

    def _outcome(self, where: TopicPartition, before: SourceRange, after: SourceRange) -> Outcome:
        topic, number = where
        target, is_kept = self._options.topics[topic], self._options.partitioner == "keep"
        is_new, has_any = before.next < after.stop, after.start < after.stop
        return Outcome(
            action="produce", status="done" if is_new else "kept", code="restored" if is_new else "there", topic=topic,
            partition=number, base_offset=after.start if has_any else None,
            last_offset=after.stop - 1 if has_any else None, name=f"{target}-{number}" if is_kept else target,
        )  # fmt: skip
