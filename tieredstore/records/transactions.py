"""The transactions of one segment, and those that a read with read_committed must know: aborted ones, and those without
an outcome in the segments.

As in Kafka, the ``.txnindex`` of a segment has an entry for each transaction whose abort marker is in the segment. The
entry also has the last stable offset at the time of the marker: every transaction that began before this offset had an
outcome then. Because committed transactions have no entry, only the producer snapshot at the end of a segment shows
which transactions are open there.

A broker makes index and snapshot from its own copy of the log, which may begin in the middle of a transaction because
retention deleted the first part. Then the broker's transaction index lacks the transaction or begins it too late, and
its producer snapshots lack the open transaction.

But the earlier segments, which another broker uploaded, have the transaction's first part, and their last producer
snapshot has the open transaction. So each marker is matched with the transactions that are open at the end of earlier
segments. An index is trusted only for transactions that its broker has seen from the beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from tieredstore.catalog.lineage import Span
from tieredstore.catalog.log_sections import open_log, position_before
from tieredstore.errors import BatchCorruptError, IndexesCorruptError, IndexNotRecordedError
from tieredstore.kafka.checkpoints import open_transactions, parse_leader_epochs, parse_producer_snapshot
from tieredstore.kafka.end_markers import TransactionStep, play_markers
from tieredstore.kafka.indexes import AbortedTransaction, read_txn_index
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import IndexType, RemoteLogSegmentMetadata
from tieredstore.process.parallel import in_parallel
from tieredstore.records.report import Undecided

if TYPE_CHECKING:
    from tieredstore.process.thread_pool import ThreadPool
    from tieredstore.remote import RemoteStorageManager


def find_open_at_end(source: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> dict[int, int]:
    """Return the producers with open transactions at the segment's end, and the first offset of each transaction.

    The call makes two requests for the producer snapshot, or none if another index of the segment was read before.

    Raise IndexesCorruptError if the snapshot is damaged.
    """
    try:
        with source.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT) as stream:
            return open_transactions(parse_producer_snapshot(stream.read()))
    except BatchCorruptError as error:
        raise IndexesCorruptError(f"{segment}: {error}") from error


def read_aborted(source: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> Sequence[AbortedTransaction]:
    """Return the entries of the segment's transaction index.

    The call takes two requests, or none if the segment is known to have no entries. Raise IndexesCorruptError if the
    index is damaged.
    """
    # If txn_idx_empty is None, the manifest does not say if the index is empty, so read the index.
    if segment.txn_idx_empty:
        return ()
    try:
        with source.fetch_index(segment, IndexType.TRANSACTION) as stream:
            return parse_aborted(stream.read(), segment)
    except IndexNotRecordedError:
        return ()


def parse_aborted(raw: bytes, segment: RemoteLogSegmentMetadata) -> Sequence[AbortedTransaction]:
    """Parse the segment's transaction index. Raise IndexesCorruptError if the index is damaged."""
    try:
        entries = read_txn_index(raw, segment.start_offset)
    except BatchCorruptError as error:
        raise IndexesCorruptError(f"{segment}: {error}") from error
    # An index has no checksum. Without this check, the index of a later segment would hide the aborts of this one.
    if entries and entries[-1].last_offset > segment.end_offset:
        raise IndexesCorruptError(
            f"the transaction index of {segment} has a marker at offset {entries[-1].last_offset}, beyond its end"
        )
    return entries


def end_markers(
    source: RemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    start: int,
    producers: Collection[int],
    position: int = 0,
) -> Generator[TransactionStep]:
    """Yield the markers that end transactions of ``producers``, from offset ``start`` on, in order of offsets.

    The caller may remove entries of ``producers`` between two markers.

    Read the log from byte ``position`` on. A batch must begin at this byte.
    """
    with closing(steps_of(source, segment, position)) as steps:
        for step in steps:
            if step.aborts is not None and step.offset >= start and step.producer_id in producers:
                yield step


def steps_of(
    source: RemoteStorageManager, segment: RemoteLogSegmentMetadata, position: int = 0
) -> Generator[TransactionStep]:
    """Yield the beginnings and ends of transactions in a log, from byte ``position`` on. A batch must begin there.

    Raise SegmentCorruptError for an invalid batch.
    """
    with open_log(source, segment, position) as batches:
        yield from batches.steps()


class Transactions:
    """The transactions in ``spans`` (parts of segments without a gap), for a read that begins at ``start``."""

    def __init__(self, source: RemoteStorageManager, spans: Sequence[Span], start: int) -> None:
        self._source = source
        self._spans = spans
        self._start = start
        self._known: Mapping[Span, Sequence[AbortedTransaction]] = {}
        self._looked_into = 0
        self._stable = -1
        self._aborted: list[AbortedTransaction] = []
        # If the layout stores no transaction indexes, they are built from the logs in order. Such an index already
        # includes transactions that were open in earlier segments, so PendingTransactions is not needed.
        self._pending = PendingTransactions(source, spans, start) if source.layout.tells_transactions else None

    def know(self, entries: Mapping[Span, Sequence[AbortedTransaction]]) -> None:
        """Reuse results of :func:`find_aborted` for some of the spans."""
        self._known = entries

    def skip_to(self, number: int) -> None:
        """Skip to span ``number``. Call this only if the read finds no record of a transaction in the earlier spans."""
        if self._pending is not None:
            self._pending.skip_to(number)
            self._looked_into = max(self._looked_into, number)

    def find_aborted(self, number: int, start: int, stop: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions with records at offsets from ``start`` up to ``stop`` (exclusive) of span
        ``number``.

        Call this method with ascending ``number`` and ``start``. It reads the transaction indexes from span ``number``
        on, until one shows a last stable offset beyond ``stop``. Each such index costs two requests. Segments without
        an index cost only the requests of `PendingTransactions`.
        """
        while self._looked_into < len(self._spans) and (self._looked_into <= number or self._stable < stop):
            self._look_into_next()
        # Forget transactions that ended before ``start``: no later call needs them, because ``start`` only ascends.
        self._aborted = [entry for entry in self._aborted if entry.last_offset >= start]
        return [entry for entry in self._aborted if entry.first_offset < stop]

    def reach_over(self, start: int) -> bool:
        """Return True if a transaction that began before ``start`` is open at the end of the first span.

        Such a transaction may have no record after ``start``, so that a scan of the records would miss it. Return True
        also if the span ends before its segment does, because the segment's snapshot then describes a later offset.
        This costs two requests for the producer snapshot, or none if the offset index was read before.
        """
        first = self._spans[0]
        if _is_cut(first):
            return True
        return any(offset < start for offset in find_open_at_end(self._source, first.segment).values())

    def first_undecided(self, stop: int) -> Undecided | None:
        """Return the first transaction that is open at the end of the spans, if it begins before ``stop``.

        This costs two requests for the indexes of the last segment, and the requests of `PendingTransactions`. It costs
        none if an index has already shown that every transaction in the read has an outcome.
        """
        if self._pending is None:
            # Visit all spans, because a snapshot built from a log includes an earlier open transaction only if the
            # earlier logs were read.
            while self._looked_into < len(self._spans):
                self._look_into_next()
        # Every transaction that began before the last stable offset ``_stable`` has an outcome, so no transaction of
        # this read is open.
        if self._stable >= stop:
            return None
        last = self._spans[-1]
        pending = self._pending
        if pending is None and _is_cut(last):
            # The last span ends before its segment does, but the snapshot describes the end of the segment. So read
            # the segment's batches instead.
            pending = PendingTransactions(self._source, self._spans, self._start)
        opened = find_open_at_end(self._source, last.segment) if pending is None else pending.find_open_at_end()
        offset, producer = min(((first, producer) for producer, first in opened.items()), default=(stop, -1))
        if offset >= stop:
            return None
        return Undecided(last.segment.topic_id_partition, producer, offset, last.stop)

    def _look_into_next(self) -> None:
        span = self._spans[self._looked_into]
        entries = self._known[span] if span in self._known else find_aborted(self._source, span)
        ended: Sequence[AbortedTransaction] = ()
        # The last stable offset in the index may be too high. It is not valid beyond the span's end, nor beyond the
        # first transaction that is still pending there.
        limit = span.stop
        if self._pending is not None:
            # ``pending`` may describe a later span already, so use the value recorded for this span.
            ended, pending_from = self._pending.find_ended(self._looked_into)
            limit = min(limit, pending_from)
        told = {(entry.producer_id, entry.last_offset) for entry in ended}
        self._aborted += [entry for entry in entries if (entry.producer_id, entry.last_offset) not in told]
        self._aborted += ended
        self._stable = max([self._stable, *(min(entry.last_stable_offset, limit) for entry in entries)])
        self._looked_into += 1


class PendingTransactions:
    """Finds transactions that a broker may not know. They were open at the end of another broker's segments, where this
    broker's segments begin.

    The ``spans`` follow each other without a gap. The read begins at offset ``start``.

    Segments that one broker uploaded in one leader epoch cost no request. At the first segment of another broker, the
    indexes of this segment are read. The indexes of the segment before it are read too, unless the new broker's log
    reaches back to ``start``.

    If the new broker does not know an open transaction, the log is read up to the transaction's end marker.
    """

    def __init__(self, source: RemoteStorageManager, spans: Sequence[Span], start: int) -> None:
        self._source = source
        self._spans = spans
        self._start = start
        self._next = 0
        self._ended: dict[int, tuple[Sequence[AbortedTransaction], int]] = {}
        self.pending: dict[int, int] = {}
        """Transactions that are open at the end of the visited spans, but unknown to the last span's broker. Maps
        producer ids to first offsets.
        """

    def skip_to(self, number: int) -> None:
        """Skip to span ``number``. Call this only if the read finds no record of a transaction in the earlier spans."""
        self._next = max(self._next, number + 1)

    def find_ended(self, number: int) -> tuple[Sequence[AbortedTransaction], int]:
        """Return the pending transactions with an abort marker in span ``number``, which the span's index may lack, or
        give too late a first offset.

        Also return the smallest first offset of the transactions still pending at the span's end; MAX_OFFSET if there
        are none.
        """
        while self._next <= number:
            ended = list(self._go_through(self._next))
            if ended or self.pending:
                self._ended[self._next] = ended, min(self.pending.values(), default=MAX_OFFSET)
            self._next += 1
        return self._ended.get(number, ((), MAX_OFFSET))

    def find_open_at_end(self) -> Mapping[int, int]:
        """Return the transactions that are open at the end of all spans, as first offsets by producer id."""
        last = len(self._spans) - 1
        # If the last segment's broker had the log from the start of the read on, the segment's producer snapshot is
        # complete.
        if self._knows_from(self._spans[last].segment) <= self._start:
            return self._find_open(last)
        self.find_ended(last)
        return {**self._find_open(last), **self.pending}

    def _go_through(self, number: int) -> Iterator[AbortedTransaction]:
        span = self._spans[number]
        is_other_broker = number > 0 and not _is_of_one_broker(self._spans[number - 1], span)
        if is_other_broker:
            known_from = self._knows_from(span.segment)
            if known_from <= self._start:
                self.pending = {}
                return
            opened = {**self._find_open(number - 1), **self.pending}
            self.pending = {producer: first for producer, first in opened.items() if first < known_from}
        if self.pending:
            self._forget_known(span.segment)
        if self.pending:
            yield from self._markers_in(span)

    def _forget_known(self, segment: RemoteLogSegmentMetadata) -> None:
        """Drop pending transactions that the segment's indexes have, because the segment's broker and later brokers
        know them.
        """
        known = find_open_at_end(self._source, segment)
        known.update((entry.producer_id, entry.first_offset) for entry in read_aborted(self._source, segment))
        self.pending = {producer: first for producer, first in self.pending.items() if known.get(producer) != first}

    def _markers_in(self, span: Span) -> Iterator[AbortedTransaction]:
        """Remove pending transactions that end in the span; yield those that were aborted."""
        position = position_before(self._source, span.segment, span.start)
        for marker in end_markers(self._source, span.segment, span.start, self.pending, position):
            if marker.offset >= span.stop:
                return
            first = self.pending.pop(marker.producer_id)
            if marker.aborts:
                # Use the lowest possible last stable offset, because other transactions may be open that this method
                # does not know.
                yield AbortedTransaction(marker.producer_id, first, marker.offset, first)
            if not self.pending:
                return

    def _find_open(self, number: int) -> dict[int, int]:
        """Return the transactions that are open at the end of span ``number``, as far as the segments' brokers know
        them.
        """
        first = number
        while first and _is_cut(self._spans[first]):
            first -= 1
        span = self._spans[first]
        # If the span ends before its segment does, the segment's snapshot describes a later offset. So read the
        # batches instead.
        opened = {} if _is_cut(span) else find_open_at_end(self._source, span.segment)
        for later in self._spans[first + (not _is_cut(span)) : number + 1]:
            least = later.start if later is not self._spans[0] else 0
            steps = steps_of(self._source, later.segment)
            opened = play_markers((step for step in steps if least <= step.offset < later.stop), opened)[1]
        return opened

    def _knows_from(self, segment: RemoteLogSegmentMetadata) -> int:
        """Return the first offset of the log that the segment's broker had; MAX_OFFSET if unknown.

        This is the start of the first leader epoch, because a broker removes epochs that end before its log begins.
        """
        try:
            with self._source.fetch_index(segment, IndexType.LEADER_EPOCH) as stream:
                raw = stream.read()
            epochs = parse_leader_epochs(raw) if raw else ()
        except (IndexNotRecordedError, BatchCorruptError):
            return MAX_OFFSET
        return epochs[0][1] if epochs else MAX_OFFSET


def find_aborted_in_each(
    source: RemoteStorageManager, spans: Sequence[Span], pool: ThreadPool, *, at_once: int
) -> dict[Span, Sequence[AbortedTransaction]]:
    """Return the result of :func:`find_aborted` for each span, in parallel.

    But indexes that are built from the logs are read one after the other, because each needs the open transactions of
    the previous span.
    """
    look = partial(find_aborted, source)
    if source.layout.tells_transactions:
        return dict(zip(spans, in_parallel(pool, look, spans, at_once=at_once), strict=True))
    return {span: look(span) for span in spans}


def find_aborted(source: RemoteStorageManager, span: Span) -> Sequence[AbortedTransaction]:
    """Return the aborted transactions whose markers are in the span, in order: see :func:`read_aborted`."""
    # A marker outside of the span belongs to another span, or to a leader epoch that was truncated.
    return [entry for entry in read_aborted(source, span.segment) if span.start <= entry.last_offset < span.stop]


def _is_of_one_broker(before: Span, span: Span) -> bool:
    """Return True if one broker uploaded both segments in one leader epoch, and so knows all their transactions."""
    one, other = before.segment, span.segment
    return (
        one.broker_id == other.broker_id >= 0
        and one.segment_leader_epochs[-1:] != ()
        and other.segment_leader_epochs[-1:] != ()
        and one.segment_leader_epochs[-1][0] == other.segment_leader_epochs[-1][0]
        and not _is_cut(before)
    )


def _is_cut(span: Span) -> bool:
    """Return True if the span ends before its segment does."""
    return span.stop <= span.segment.end_offset
