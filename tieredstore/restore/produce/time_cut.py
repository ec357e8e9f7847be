"""The cut of a restore to a time: the records of each partition that come before the time. One cut covers all topics.

In each partition the cut is the first offset with a timestamp at or after the time. As in Kafka's ``offsetsForTimes``,
the timestamps of transaction end markers count too. A transaction is restored only if its end marker comes before the
cut.

In protocol v2 (KIP-890) each transaction has a separate producer epoch, and its marker has that epoch plus 1. The parts
of a transaction in several partitions can therefore be recognized.

The restore leaves out all parts of a transaction if the marker of one part is at its partition's cut or later, or not
in the bucket yet. The search does not notice a part that never reached the bucket.

In older protocols an epoch covers many transactions. Each partition is then cut independently.

Three passes over the batch headers find the transactions to leave out:

1. From the start of each cut's segment to the cut. This pass finds open transactions and known producers.
2. From the cuts to the ends of the logs. This pass finds the markers that come too late.
3. Before the cuts. This pass collects the batches that the restore must leave out. In rare cases it must begin some
   segments before the cut's segment. The producer snapshots show where.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import pyarrow.compute as pc
from pydantic import Field, TypeAdapter

from tieredstore.catalog.lineage import Lineage
from tieredstore.catalog.log_sections import open_log, position_before
from tieredstore.errors import ConfigError
from tieredstore.model import OffsetSpan, TopicPartition
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.process.whole_files import read_named, whole_file
from tieredstore.reading.reader import TopicReader
from tieredstore.records.settings import ReadSettings
from tieredstore.restore.logdir.planning import count_known, stored_producers
from tieredstore.versions import RESTORE_CUT

if TYPE_CHECKING:
    from tieredstore.kafka.batches import BatchHeader
    from tieredstore.kafka.checkpoints import ProducerState
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.query import LogQuery
    from tieredstore.remote import RemoteStorageManager

_Count: TypeAlias = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """The cut in one partition. A restore has the offsets before ``stop``, except the spans in ``left_out``, which are
    in ascending order.

    The last four fields are counts:

    - ``earlier_records``: records at ``stop`` or later with times before the cut's time.
    - ``open_transactions``: transactions that began before ``stop`` and end later.
    - ``older_transactions``: open transactions of an older protocol, whose parts in other partitions are unknown.
    - ``split_transactions``: transactions that end before ``stop`` here, but not in another partition.
    """

    topic: str
    topic_id: str
    partition: _Count
    stop: _Count
    left_out: tuple[OffsetSpan, ...] = ()
    earlier_records: _Count = 0
    open_transactions: _Count = 0
    older_transactions: _Count = 0
    split_transactions: _Count = 0


@dataclass(frozen=True, slots=True)
class TimeCut:
    """The cut of all partitions: the offsets where a restore to a time stops. The cut can be saved to a file, so that
    another run stops at the same records.
    """

    time_ms: int
    partitions: tuple[PartitionCut, ...]

    def of_topics(
        self, topic_ids: Mapping[str, str], partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, PartitionCut]:
        """Return the cuts of these partitions. Raise ConfigError if a partition's cut is missing."""
        known = {(cut.topic, cut.partition): cut for cut in self.partitions if topic_ids.get(cut.topic) == cut.topic_id}
        for topic, number in sorted(partitions):
            if (topic, number) not in known:
                raise ConfigError(
                    f"the end offsets in the file lack {topic}-{number} of the topic id {topic_ids[topic]}: find them "
                    "again (--to TIME, with another --cut-file)"
                )
        return {where: known[where] for where in partitions}

    def write(self, path: Path) -> None:
        """Write the cut to a pipe, a device or a new file, which appears only when it is complete. Raise ConfigError if
        ``path`` cannot be written, or if another run has written the file in the meantime."""
        body = RESTORE_CUT.to_bytes(asdict(self), indent=2)
        try:
            if path.exists() and not path.is_file():
                path.write_bytes(body)
                return
            with whole_file(path, replaces=False) as file:
                file.write(body)
        except FileExistsError:
            raise ConfigError(
                f"{path} now has the end offsets of another run: run the command again to end at them, or name another "
                "--cut-file"
            ) from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None

    @classmethod
    def read(cls, path: Path) -> TimeCut:
        """Read the cut from a file. Raise CorruptDataError if the file is invalid, and NewerVersionError if a later
        release wrote it. Raise ResourceNotFoundError if the file does not exist.
        """
        raw = read_named(
            path, absent="find the end offsets by --to TIME first; --cut-file then writes them to this file"
        )
        return RESTORE_CUT.parse(_FILE, raw, str(path))


_FILE: Final = TypeAdapter(TimeCut)


Epochs: TypeAlias = dict[int, set[int]]
"""The epochs of transactions that end at the cut or later in some partition. The key is the producer id."""


def find_cut(source: RemoteStorageManager, query: LogQuery, time_ms: int, snapshot: LogSnapshot) -> TimeCut:
    """Find the cut for a time. ``query`` names the topics, and ``snapshot`` has their logs.

    The search reads each log from the segment with the cut to the log's end. For missing offsets, raise DataLossError
    or log a warning, as the query says.
    """
    reader = TopicReader(lambda: source, query, ReadSettings(columns=("timestamp",)))
    with reader, ThreadPool(READERS, "tieredstore-cut") as pool:
        logs = [log for _, log in sorted(snapshot.logs.items())]
        all_of = partial(in_parallel, pool, at_once=2 * READERS)
        searches = list(all_of(partial(_search, source, reader, time_ms), logs))
        newest: dict[int, int] = {}
        for search in searches:
            for producer, epoch in search.newest.items():
                newest[producer] = max(epoch, newest.get(producer, -1))
        late: Epochs = {}
        for found in all_of(lambda search: search.find_late(newest), searches):
            for producer, epochs in found.items():
                late.setdefault(producer, set()).update(epochs)
        cuts = all_of(lambda item: _cut(reader, time_ms, late, *item), zip(logs, searches, strict=True))
        return TimeCut(time_ms, tuple(cuts))


def _search(source: RemoteStorageManager, reader: TopicReader, time_ms: int, log: PartitionLog) -> TransactionSearch:
    assert log.lineage is not None  # true for each log in the bucket, and this reader uses no broker
    offset = reader.offset_at(log, time_ms)
    search = TransactionSearch(source, log.lineage, log.end if offset is None else min(offset, log.end))
    search.look_before()
    return search


def _cut(reader: TopicReader, time_ms: int, late: Epochs, log: PartitionLog, search: TransactionSearch) -> PartitionCut:
    left_out = search.collect(late)
    open_there = [each for each in left_out if each.is_open_at(search.stop)]
    earlier = sum(
        int(pc.sum(pc.less(records.column("timestamp"), time_ms)).as_py())
        for records in reader.read(log, search.stop, max(log.end, search.stop))
    )
    return PartitionCut(
        log.topic, str(log.topic_id), log.partition, search.stop,
        left_out=merge_spans(left_out, search.stop),
        earlier_records=earlier,
        open_transactions=len(open_there),
        older_transactions=sum(not each.has_own_epoch for each in open_there),
        split_transactions=len(left_out) - len(open_there),
    )  # fmt: skip


@dataclass(slots=True)
class LoggedTransaction:
    """A transaction in one partition's log: the epoch of its records, its first offset, and the offsets of its batches.
    If there is an end marker, ``end`` and ``end_epoch`` are its offset and epoch.
    """

    producer_id: int
    epoch: int
    first: int
    spans: list[OffsetSpan] = field(default_factory=list[OffsetSpan])
    end: int | None = None
    end_epoch: int | None = None

    @property
    def has_own_epoch(self) -> bool:
        """True if the transaction has its own producer epoch. In protocol v2, each transaction has one. In older
        protocols, a transaction has one only if the coordinator aborted it to fence its producer.
        """
        return self.end_epoch == self.epoch + 1

    def is_open_at(self, offset: int) -> bool:
        """Return True if the transaction has no end marker before ``offset``."""
        return self.end is None or self.end >= offset


class TransactionSearch:
    """The transactions of one partition around its cut (the offset ``stop``, where a restore to a time ends). Not
    thread-safe."""

    def __init__(self, source: RemoteStorageManager, lineage: Lineage, stop: int) -> None:
        self.stop = stop
        self.newest: dict[int, int] = {}
        """The latest epoch of each producer before the cut, after :meth:`look_before`."""
        self._source = source
        self._spans = lineage.spans
        # The index of the segment with the cut, or the number of segments if no segment has the cut.
        self._number = sum(span.stop <= stop for span in lineage.spans)
        self._open: dict[int, LoggedTransaction] = {}

    def look_before(self) -> None:
        """Find the transactions that are open at the cut, and the producers before the cut."""
        number, states = self._states_before(self._number)
        self.newest = {state.producer_id: state.producer_epoch for state in states}
        self._open = _open_of(states)
        for header in self._headers_before_cut(number):
            self.newest[header.producer_id] = max(header.producer_epoch, self.newest.get(header.producer_id, -1))
            follow(self._open, header)

    def find_late(self, newest: Mapping[int, int]) -> Epochs:
        """Return the epochs of transactions that end at the cut or later, or that have no end in the bucket. A
        transaction with an end is included only if it has its own producer epoch.

        In another partition, such a transaction may end before the cut. Then ``newest`` has a later epoch of its
        producer. So transactions without a later epoch in ``newest`` are left out.
        """
        late: Epochs = {}

        def note(producer: int, epoch: int) -> None:
            if epoch < newest.get(producer, -1):
                late.setdefault(producer, set()).add(epoch)

        opened = dict(self._open)
        for header in self._headers(self._number, self.stop):
            ended = follow(opened, header)
            if ended is not None and ended.has_own_epoch:
                note(ended.producer_id, ended.epoch)
        for transaction in opened.values():
            note(transaction.producer_id, transaction.epoch)
        return late

    def collect(self, late: Epochs) -> list[LoggedTransaction]:
        """Return the transactions to leave out, with their batches before the cut."""
        if not self._open and not any(self._knows_later(late, *one) for one in self.newest.items()):
            return []
        number, states = self._states_before(self._number)
        while number and any(self._began_before(state, late) for state in states):
            number, states = self._states_before(number - 1)
        opened, found = _open_of(states), list[LoggedTransaction]()
        for header in self._headers_before_cut(number):
            ended = follow(opened, header)
            if ended is not None and ended.has_own_epoch and ended.epoch in late.get(ended.producer_id, ()):
                found.append(ended)
        for one in opened.values():
            if (known := self._open.get(one.producer_id)) is not None:
                one.end, one.end_epoch = known.end, known.end_epoch
        return [each for each in (*found, *opened.values()) if each.spans]

    def _began_before(self, state: ProducerState, late: Epochs) -> bool:
        """Return True if, in this state, the producer had already begun a transaction that the restore must leave
        out."""
        if state.current_txn_first_offset >= 0:
            still_open = self._open.get(state.producer_id)
            if still_open is not None and still_open.first == state.current_txn_first_offset:
                return True
            if state.producer_epoch in late.get(state.producer_id, ()):
                return True
        return self._knows_later(late, state.producer_id, state.producer_epoch)

    @staticmethod
    def _knows_later(late: Epochs, producer: int, epoch: int) -> bool:
        return any(one < epoch for one in late.get(producer, ()))

    def _states_before(self, number: int) -> tuple[int, tuple[ProducerState, ...]]:
        """Find the last segment up to ``number`` for which the producers at its start are known. Return the segment's
        index and these producers."""
        for end in range(count_known(self._source, self._spans[:number]), 0, -1):
            span = self._spans[end - 1]
            if span.stop == span.segment.end_offset + 1:
                states = stored_producers(self._source, span)
                if states is not None:
                    return end, states
        return 0, ()

    def _headers_before_cut(self, number: int) -> Iterator[BatchHeader]:
        return takewhile(lambda header: header.base_offset < self.stop, self._headers(number, 0))

    def _headers(self, number: int, start: int) -> Iterator[BatchHeader]:
        """Yield the headers of transactional batches at ``start`` or later, beginning with segment ``number``."""
        for span in self._spans[number:]:
            first = max(span.start, start)
            with open_log(self._source, span.segment, position_before(self._source, span.segment, first)) as batches:
                for header in batches.headers():
                    if header.base_offset >= span.stop:
                        break
                    if header.is_transactional and header.base_offset >= first:
                        yield header


def follow(opened: dict[int, LoggedTransaction], header: BatchHeader) -> LoggedTransaction | None:
    """Add a transactional batch to its transaction. If the batch is an end marker, return the transaction that the
    marker ends.

    If an end marker follows no batch of its transaction, the transaction is of protocol v2, and has no records in this
    partition.
    """
    producer, first = header.producer_id, header.base_offset
    if not header.is_control:
        one = opened.setdefault(producer, LoggedTransaction(producer, header.producer_epoch, first))
        one.spans.append((first, header.last_offset + 1))
        return None
    one = opened.pop(producer, LoggedTransaction(producer, header.producer_epoch - 1, first))
    one.end, one.end_epoch = first, header.producer_epoch
    return one


def merge_spans(transactions: Iterable[LoggedTransaction], stop: int) -> tuple[OffsetSpan, ...]:
    """Return the offsets of the transactions' batches before ``stop`` as ascending spans, joined where possible."""
    merged: list[OffsetSpan] = []
    for first, end in sorted(span for transaction in transactions for span in transaction.spans):
        if merged and merged[-1][1] == first:
            merged[-1] = (merged[-1][0], min(end, stop))
        else:
            merged.append((first, min(end, stop)))
    return tuple(merged)


def _open_of(states: Iterable[ProducerState]) -> dict[int, LoggedTransaction]:
    """Return the transactions that are open in these states, by producer. A state does not list the transaction's
    earlier batches, so the result has no batches.
    """
    return {
        state.producer_id: LoggedTransaction(state.producer_id, state.producer_epoch, state.current_txn_first_offset)
        for state in states
        if state.current_txn_first_offset >= 0
    }
