# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A walk over the batch headers of an open log without running Python code.

Nearly all batches of a closed segment are ordinary: complete, in order and of magic 2. A walk passes ordinary batches,
and stops before the first batch that might not be. It reports no damage itself: the caller examines the batch at which
the walk stopped.
"""

from libc.stdint cimport int32_t, int64_t, int8_t, uint8_t
from libc.stdlib cimport free, realloc
from posix.unistd cimport pread

from tieredstore.kafka.records._batch cimport *
from tieredstore.kafka.records._parse cimport *

cdef enum:
    # If batches are small, one read (PIECE) covers many headers. Of a batch of SMALL bytes or more, only HEADERS bytes
    # are read.
    PIECE = 64 * 1024
    HEADERS = 256
    SMALL = 4 * 1024
    # The largest batch that the walk reads whole to compute its checksum. The caller checks larger batches.
    LARGEST = 1024 * 1024
    MOST_EPOCHS = 64

build_checksums()


cdef class HeaderWalk:
    """The state of a walk between two batches. For one thread at a time.

    ``position`` is the byte after the last passed batch and ``last_offset`` the last offset of that batch (-1 before
    the first batch). ``max_timestamp`` is the greatest timestamp so far (-1 without any). ``leader_epochs`` holds each
    epoch of the passed batches with the base offset of its first batch. ``is_contiguous`` is true while no offset from
    the base offset to ``last_offset`` is missing, as far as headers show.
    """

    cdef readonly int64_t position, last_offset, max_timestamp
    cdef readonly bint is_contiguous
    cdef readonly list leader_epochs
    cdef int64_t epoch
    # Epochs found since the interpreter's lock was released.
    cdef int64_t epochs[MOST_EPOCHS]
    cdef int64_t starts[MOST_EPOCHS]
    cdef int epoch_count
    cdef int descriptor
    cdef int64_t size, base_offset
    cdef bint checks_crcs
    cdef uint8_t* piece
    cdef Py_ssize_t room, held
    cdef int64_t start, usual
    cdef Batch batch
    cdef Body body

    def __init__(self, int descriptor, int64_t size, int64_t base_offset, bint checks_crcs):
        """Begin at the start of an open log of ``size`` bytes, of a segment that begins at ``base_offset``."""
        self.descriptor, self.size, self.base_offset, self.checks_crcs = descriptor, size, base_offset, checks_crcs
        self.last_offset = self.max_timestamp = self.epoch = -1
        self.leader_epochs, self.is_contiguous = [], True

    def __dealloc__(self):
        free(self.piece)

    def pass_ordinary(self):
        """Pass ordinary batches, without the interpreter's lock."""
        cdef bint goes_on = True
        while goes_on:
            with nogil:
                while self.epoch_count < MOST_EPOCHS and self._passes():
                    pass
            goes_on = self.epoch_count == MOST_EPOCHS
            for number in range(self.epoch_count):
                self.leader_epochs.append((self.epochs[number], self.starts[number]))
            self.epoch_count = 0

    def pass_this(self, header):
        """Pass a batch that the caller has examined."""
        cdef int64_t count = -1 if header.record_count is None else header.record_count
        if header.partition_leader_epoch > self.epoch:
            self.leader_epochs.append((header.partition_leader_epoch, header.base_offset))
            self.epoch = header.partition_leader_epoch
        self._go_on(header.size_in_bytes, header.base_offset, header.last_offset, count, header.max_timestamp)

    cdef void _go_on(
        self, int64_t size, int64_t base_offset, int64_t last_offset, int64_t count, int64_t max_timestamp
    ) noexcept nogil:
        # A count below 0 is unknown: the header of a compressed message set states only the set's last offset.
        if count >= 0 and (
            base_offset != max(self.last_offset + 1, self.base_offset) or count != last_offset - base_offset + 1
        ):
            self.is_contiguous = False
        self.position, self.last_offset, self.usual = self.position + size, last_offset, size
        self.max_timestamp = max(self.max_timestamp, max_timestamp)

    cdef bint _passes(self) noexcept nogil:
        """Return True if an ordinary batch begins at the position; otherwise leave the state as it was."""
        cdef Batch* batch = &self.batch
        cdef const uint8_t* head = self._bytes(HEADER_SIZE)
        if head == NULL:
            return False
        batch.base_offset, batch.size, batch.magic = big_64(head), FRAME + <int64_t>big_32(head + 8), <int8_t>head[16]
        if batch.magic != 2 or batch.size > self.size - self.position or not read_batch_header(head, batch, &self.body):
            return False
        if batch.base_offset <= self.last_offset or batch.base_offset < self.base_offset:
            return False
        if self.checks_crcs:
            head = self._bytes(batch.size)
            if head == NULL or not crc_holds(head, batch, &self.body):
                return False
        if batch.leader_epoch > self.epoch:
            self.epoch = self.epochs[self.epoch_count] = batch.leader_epoch
            self.starts[self.epoch_count] = batch.base_offset
            self.epoch_count += 1
        self._go_on(batch.size, batch.base_offset, batch.last_offset, batch.count, batch.max_timestamp)
        return True

    cdef const uint8_t* _bytes(self, int64_t count) noexcept nogil:
        """Return ``count`` bytes from the position on; NULL if the log has fewer, or if the buffer is too small for
        them.
        """
        cdef int64_t wanted
        if count > LARGEST or count > self.size - self.position:
            return NULL
        if not (self.start <= self.position and self.position + count <= self.start + self.held):
            wanted = max(count, PIECE if self.checks_crcs or self.usual < SMALL else HEADERS)
            if not self._has_room(wanted):
                return NULL
            # Read the file instead of mapping it: if a mapped file shrinks, an access kills the process.
            self.start, self.held = self.position, pread(self.descriptor, self.piece, wanted, self.position)
            if self.held < count:
                self.held = 0
                return NULL
        return self.piece + (self.position - self.start)

    cdef bint _has_room(self, int64_t wanted) noexcept nogil:
        cdef void* larger
        if wanted > self.room:
            larger = realloc(self.piece, wanted)
            if larger == NULL:
                return False
            self.piece, self.room, self.held = <uint8_t*>larger, wanted, 0
        return True
