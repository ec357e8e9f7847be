# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Check of many ordinary batches without running Python code.

Nearly all of a segment's millions of batches are ordinary: complete, in order, of the expected leader epoch, and at the
positions that the indexes have. A run passes ordinary batches, and stops before the first batch that might not be. It
reports no damage itself: the caller examines the batch at which the run stopped.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from tieredstore.kafka.records._batch cimport *
from tieredstore.kafka.records._parse cimport *

cdef enum:
    MOST_PRODUCERS = 16
    NO_EPOCH = -1

# The fields of a batch to compare with the next batch and with the indexes.
cdef struct Latest:
    int64_t position, end
    int64_t base_offset, last_offset, max_timestamp
    int32_t leader_epoch

build_checksums()


cdef class BatchRun:
    """The state of a run between two batches. For one thread at a time.

    The latest batch is pending until the next batch follows without a fault. Only then is the pending batch compared
    with its epoch and the indexes. ``next_entry`` and ``next_time`` are the numbers of the next entries in the two
    indexes. The columns of both indexes are as in the files, with offsets relative to ``first_offset``.
    """

    cdef const int32_t[::1] entry_offsets, entry_positions, time_offsets
    cdef const int64_t[::1] timestamps
    cdef readonly int64_t first_offset
    cdef public Py_ssize_t next_entry, next_time
    cdef public int64_t last_offset, max_timestamp
    cdef public int64_t epoch
    cdef public int64_t epoch_stop
    cdef public bint follows_transactions
    cdef int64_t producers[MOST_PRODUCERS]
    cdef Py_ssize_t producer_count, producer_slot
    cdef Batch batch, passed
    cdef Message message
    cdef Body body
    cdef Latest latest
    cdef bint has_latest

    def __init__(
        self, int64_t first_offset, const int32_t[::1] entry_offsets, const int32_t[::1] entry_positions,
        const int64_t[::1] timestamps, const int32_t[::1] time_offsets,
    ):
        if entry_offsets.shape[0] != entry_positions.shape[0] or timestamps.shape[0] != time_offsets.shape[0]:
            raise ValueError("the columns of an index differ in length")
        self.first_offset = first_offset
        self.entry_offsets, self.entry_positions = entry_offsets, entry_positions
        self.timestamps, self.time_offsets = timestamps, time_offsets
        self.last_offset = self.max_timestamp = -1
        self.epoch, self.epoch_stop = NO_EPOCH, -1

    def drop_indexes(self):
        """Stop comparing batches with the indexes."""
        self.next_entry, self.next_time = self.entry_offsets.shape[0], self.timestamps.shape[0]
        self.follows_transactions = False

    def begin_transaction(self, int64_t producer_id):
        """Record that this producer has an open transaction, so that its next batches count as ordinary."""
        if not self._is_in_transaction(producer_id):
            self.producers[self.producer_slot] = producer_id
            self.producer_slot = (self.producer_slot + 1) % MOST_PRODUCERS
            self.producer_count = min(self.producer_count + 1, MOST_PRODUCERS)

    def end_transactions(self):
        """Record that a transaction has ended, so that the next transactional batch of any producer may begin another.
        """
        self.producer_count = self.producer_slot = 0

    def walk(
        self, const uint8_t[::1] piece, int64_t position, int64_t last_offset,
        pending: tuple[int, int, int, int, int, int] | None,
    ) -> int:
        """Return how many bytes at the start of ``piece`` are ordinary batches; ``piece`` begins at ``position`` of the
        log.

        ``last_offset`` is the last offset of the batch before ``piece``. ``pending`` describes that batch if it has
        not been compared yet: position, size, base and last offset, greatest timestamp, leader epoch. If ``piece``
        has ordinary batches, the last of them is ``pending`` afterwards.
        """
        cdef Py_ssize_t at = 0
        cdef const uint8_t* data = &piece[0] if piece.shape[0] else NULL
        cdef Py_ssize_t size = piece.shape[0]
        cdef Latest* latest = &self.latest
        self.has_latest = pending is not None
        if pending is not None:
            latest.position, latest.end, latest.base_offset, latest.last_offset, latest.max_timestamp, epoch = pending
            latest.leader_epoch, latest.end = epoch, latest.position + latest.end
        with nogil:
            while self._passes(data + at, size - at, position + at, last_offset):
                at += self.batch.size
                last_offset = self.batch.last_offset
        return at

    @property
    def header(self):
        """Return the last ordinary batch as the fields of a BatchHeader."""
        cdef const Batch* batch = &self.passed
        return (
            batch.place, batch.size, batch.base_offset, batch.last_offset, batch.magic, batch.crc,
            batch.attributes, batch.base_timestamp, batch.max_timestamp, batch.leader_epoch,
            batch.producer_id, batch.producer_epoch, batch.base_sequence,
            None if batch.count < 0 else batch.count,
        )

    cdef bint _passes(self, const uint8_t* head, Py_ssize_t available, int64_t position, int64_t last) noexcept nogil:
        """Return True if an ordinary batch begins at ``head``; otherwise leave the state of the run as it was."""
        cdef Batch* batch = &self.batch
        if not self._is_whole(head, available) or batch.base_offset <= last or batch.base_offset < self.first_offset:
            return False
        if batch.magic == 2 and batch.attributes & TRANSACTIONAL and self.follows_transactions:
            if batch.attributes & CONTROL or not self._is_in_transaction(batch.producer_id):
                return False
        if not crc_holds(head, batch, &self.body) or (self.has_latest and not self._settle()):
            return False
        batch.place = position
        self.passed = batch[0]
        self.last_offset = batch.last_offset
        self.max_timestamp = max(self.max_timestamp, batch.max_timestamp)
        self.latest = Latest(
            position, position + batch.size, batch.base_offset, batch.last_offset, batch.max_timestamp,
            batch.leader_epoch,
        )
        self.has_latest = True
        return True

    cdef bint _is_whole(self, const uint8_t* head, Py_ssize_t available) noexcept nogil:
        """Return True if the batch is complete and has a valid header."""
        cdef Batch* batch = &self.batch
        cdef int32_t length
        if available < PREFIX_SIZE:
            return False
        length = big_32(head + 8)
        batch.base_offset, batch.size, batch.magic = big_64(head), FRAME + <int64_t>length, <int8_t>head[16]
        if length < LEAST_MESSAGE or batch.size > available:
            return False
        if batch.magic == 2:
            return read_batch_header(head, batch, &self.body)
        if batch.magic == 0 or batch.magic == 1:
            return read_message_header(head, batch, &self.message, &self.body)
        return False

    cdef bint _settle(self) noexcept nogil:
        """Return True if the pending batch fits its epoch and the indexes; then advance the indexes past it."""
        cdef const Latest* latest = &self.latest
        cdef Py_ssize_t entry = self.next_entry, time = self.next_time
        cdef int64_t relative = latest.last_offset - self.first_offset
        if latest.base_offset >= self.epoch_stop:
            return False
        if latest.leader_epoch != self.epoch and latest.leader_epoch != NO_EPOCH and self.epoch != NO_EPOCH:
            return False
        # An index entry names the last offset of one append, and the append's position.
        if entry < self.entry_offsets.shape[0] and latest.end > self.entry_positions[entry]:
            if self.entry_positions[entry] > latest.position or relative > self.entry_offsets[entry]:
                return False
            if relative == self.entry_offsets[entry]:
                entry += 1
                # The next entry must belong to a later batch.
                if entry < self.entry_offsets.shape[0] and self.entry_positions[entry] < latest.end:
                    return False
        # The batch with the offset of a time index entry must have the greatest timestamp so far.
        while time < self.timestamps.shape[0] and self.time_offsets[time] <= relative:
            if self.timestamps[time] != self.max_timestamp or latest.max_timestamp != self.max_timestamp:
                return False
            time += 1
        self.next_entry, self.next_time = entry, time
        return True

    cdef bint _is_in_transaction(self, int64_t producer_id) noexcept nogil:
        cdef Py_ssize_t number
        for number in range(self.producer_count):
            if self.producers[number] == producer_id:
                return True
        return False
