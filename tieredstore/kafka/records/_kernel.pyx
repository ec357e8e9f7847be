# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Scanner of a log's batches: it turns pieces of a log into columns of records without running Python code.

The caller passes bytes (``set_piece``) and calls ``scan``, which reads batches until the caller must act, and returns
the reason. ``columns`` then returns the records. The scanner decompresses most bodies itself, and leaves the others to
the Python decompressor.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, int8_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc

from tieredstore.kafka.batches import CompressionType
from tieredstore.kafka.records._batch cimport *
from tieredstore.kafka.records._buffers cimport HEADERS
from tieredstore.kafka.records._columns cimport ColumnBuilder
from tieredstore.kafka.records._expand cimport Expanded, expand_body, free_expanded
from tieredstore.kafka.records._parse cimport *
from tieredstore.kafka.records._slabs cimport SlabPool

# Reasons for scan() to stop.
cdef enum State:
    PIECE_READ  # all of the piece of the log has been read
    PARTIAL_BATCH  # the remaining bytes of the piece of the log are the beginning of a batch
    COLUMNS_FULL  # take the columns before the next scan
    STOP_REACHED  # all further batches are at the stop offset or beyond
    ZERO_TAIL  # where a batch would begin, the rest of the piece of the log is zeros
    FAULTY  # the current batch is damaged
    COMPRESSED_BODY  # decompress the records of the current batch before anything else

cdef enum:
    # The largest decompressed body that the scanner makes itself. For larger bodies a call of the codec's library is
    # relatively cheap, and the library frees its memory.
    MOST_EXPANDED = 16 * 1024 * 1024

# In the order of the codec ids in a batch's attributes.
cdef tuple CODECS = tuple(CompressionType)

build_checksums()


cdef class Scanner:
    """A scan of one log from the beginning of a batch on. It works without the interpreter's lock. For one thread at a
    time.
    """

    cdef int64_t start_offset, stop_offset, end_offset, max_batch_bytes
    cdef Py_ssize_t target_bytes
    cdef bint check_crc, keep_headers
    cdef AbortedRange* aborted
    cdef Py_ssize_t aborted_count
    cdef object piece
    cdef Py_buffer opened
    cdef const uint8_t* data
    cdef Py_ssize_t size, at
    cdef int64_t position
    cdef readonly int64_t last_offset
    cdef Batch batch
    cdef Message message
    cdef Batch* seen
    cdef Py_ssize_t seen_count, seen_capacity
    cdef bint body_open, body_sliced
    cdef Body body
    cdef Rows block
    cdef Expanded expanded
    cdef readonly ColumnBuilder columns
    cdef object decompress

    def __cinit__(
        self, SlabPool pool, int wanted, int64_t start_offset, int64_t stop_offset, int64_t end_offset,
        list aborted, bint check_crc, bint keep_headers, int64_t max_batch_bytes, Py_ssize_t target_bytes,
        decompress,
    ):
        """``aborted`` is a sorted list of (producer id, first offset, last offset) that do not overlap.

        ``decompress`` is Decompressor.decompress.
        """
        self.decompress = decompress
        self.columns, self.check_crc, self.last_offset = ColumnBuilder(pool, wanted), check_crc, -1
        self.start_offset, self.stop_offset, self.end_offset = start_offset, stop_offset, end_offset
        self.keep_headers, self.max_batch_bytes, self.target_bytes = keep_headers, max_batch_bytes, target_bytes
        self.block.keep_headers = self.columns.wanted & HEADERS
        self.expanded.most = <size_t>min(max_batch_bytes, MOST_EXPANDED)
        self.leave_out(aborted)

    def __dealloc__(self):
        PyBuffer_Release(&self.opened)
        free_expanded(&self.expanded)
        free(self.aborted)
        free(self.seen)
        free(self.block.records)
        free(self.block.offsets)
        free(self.block.timestamps)
        free(self.block.headers)

    # --- called by the decoder ---

    def leave_out(self, list aborted):
        """From the next batch on, leave out these transactions instead of the previous ones."""
        cdef AbortedRange* ranges = <AbortedRange*>malloc(max(len(aborted), 1) * sizeof(AbortedRange))
        cdef Py_ssize_t count = 0
        if ranges == NULL:
            raise MemoryError
        free(self.aborted)
        self.aborted, self.aborted_count = ranges, 0
        for producer_id, first_offset, last_offset in aborted:
            ranges[count] = AbortedRange(producer_id, first_offset, last_offset)
            count += 1
        self.aborted_count = count

    def set_piece(self, const uint8_t[::1] piece, int64_t position):
        """Continue with these bytes of the log, which begin at ``position`` with a batch."""
        self.piece = piece
        self.data = &piece[0] if piece.shape[0] else NULL
        self.size, self.at, self.position = piece.shape[0], 0, position

    def release(self):
        """Release the piece."""
        self.piece = None
        PyBuffer_Release(&self.opened)
        self.data, self.size, self.at = NULL, 0, 0

    cdef bint _decompress(self) except -1:
        """Decompress the records of the current batch; return False if the decompressed bytes are not valid records."""
        # Pass a copy of the bytes: the traceback of a library's error may keep a reference to its input.
        stored = PyBytes_FromStringAndSize(<const char*>self.data + self._compressed_at(), self._compressed_size())
        body = self.decompress(CODECS[self.batch.attributes & CODEC_BITS], self.batch.magic, memoryview(stored))
        # Use the buffer directly, because making a memoryview takes the time of a few records.
        PyBuffer_Release(&self.opened)
        PyObject_GetBuffer(body, &self.opened, PyBUF_SIMPLE)
        return self._open_body(<const uint8_t*>self.opened.buf if self.opened.len else self.data, self.opened.len)

    def skip_batch(self):
        """Continue after the current batch, as if it were absent."""
        self.body_open = False
        self.body.fault = NO_FAULT
        self.at += self.batch.size

    def scan(self):
        """Read on; return the State that is the reason for stopping. Raise BatchCorruptError for a body that cannot be
        decompressed.
        """
        cdef int state = COMPRESSED_BODY
        while state == COMPRESSED_BODY:
            with nogil:
                state = self._scan()
            if state == COMPRESSED_BODY and not self._decompress():
                state = FAULTY
        self._expect_memory()
        return state

    cdef int _expect_memory(self) except -1:
        if self.body.fault == OUT_OF_MEMORY:
            raise MemoryError("there is no memory for the records")
        return 0

    @property
    def pending_bytes(self):
        """The bytes of keys, values and headers that have not been taken yet."""
        return self.columns.bytes

    # --- read by the decoder ---

    @property
    def place(self):
        """The start of the current batch in the piece of the log; between batches, the first byte that was not read."""
        return self.at

    @property
    def fault(self):
        """The fault of the current batch: a Fault and the two numbers of its message."""
        return self.body.fault, self.body.first_detail, self.body.second_detail

    @property
    def batch_at_hand(self):
        """The current batch: its position in the log, its size, and its base offset. After a fault of length or magic
        the last two may be damaged.
        """
        return self.position + self.at, self.batch.size, self.batch.base_offset

    def take_headers(self):
        """Return the fields of BatchHeader for all batches that were read since the last call."""
        taken = [
            (
                batch.place, batch.size, batch.base_offset, batch.last_offset, batch.magic, batch.crc,
                batch.attributes, batch.base_timestamp, batch.max_timestamp, batch.leader_epoch,
                batch.producer_id, batch.producer_epoch, batch.base_sequence,
                None if batch.count < 0 else batch.count,
            )
            for batch in self.seen[: self.seen_count]
        ]
        self.seen_count = 0
        return taken

    # --- the walk ---

    cdef int _scan(self) noexcept nogil:
        cdef int state
        while True:
            if self.body_open:
                state = self._drain()
                if state != PIECE_READ:
                    return state
            if self.last_offset >= self.stop_offset - 1:
                return STOP_REACHED
            if self.at == self.size:
                return PIECE_READ
            state = self._next_batch()
            if state != PIECE_READ:
                return state

    cdef int _fault(self, int fault, int64_t first, int64_t second) noexcept nogil:
        fail(&self.body, fault, first, second)
        return FAULTY

    cdef int _next_batch(self) noexcept nogil:
        """Examine one batch: step over it, open it, or return the State in which the caller must act."""
        cdef Batch* batch = &self.batch
        cdef int state = self._read_frame()
        if state != PIECE_READ:
            return state
        if self.check_crc and not crc_holds(self.data + self.at, batch, &self.body):
            return FAULTY
        if batch.last_offset >= self.end_offset:
            return self._fault(OUTSIDE_OF_LOG, batch.base_offset, self.end_offset)
        if batch.base_offset <= self.last_offset:
            return self._fault(OFFSETS_GO_BACK, batch.base_offset, self.last_offset)
        if not self._wanted():
            return self._leave_batch()
        if batch.attributes & CODEC_BITS:
            return self._expand_batch()
        if batch.magic == 2:
            if not self._open_body(self.data + self.at + HEADER_SIZE, batch.size - HEADER_SIZE):
                return FAULTY
            return PIECE_READ
        return self._keep_single_message()

    cdef int _read_frame(self) noexcept nogil:
        """Read the header of the batch at ``at``, and check that the batch is complete."""
        cdef const uint8_t* head = self.data + self.at
        cdef Py_ssize_t available = self.size - self.at
        cdef int32_t length
        if available < PREFIX_SIZE:
            return PARTIAL_BATCH
        length = big_32(head + 8)
        self.batch.base_offset, self.batch.size = big_64(head), FRAME + <int64_t>length
        self.batch.magic = <int8_t>head[16]
        if length < LEAST_MESSAGE:
            if only_zeros(head, PREFIX_SIZE):
                return ZERO_TAIL if only_zeros(head, available) else self._fault(BAD_LENGTH, 0, 0)
            return self._fault(BAD_LENGTH, length, 0)
        if not 0 <= self.batch.magic <= 2:
            return self._fault(BAD_MAGIC, self.batch.magic, 0)
        # No checksum covers the offset: a damaged offset must not look like the end of the requested range.
        if self.stop_offset <= self.batch.base_offset < self.end_offset and self.batch.magic == 2:
            return STOP_REACHED
        if self.batch.size > self.max_batch_bytes:
            return self._fault(BATCH_TOO_LARGE, self.batch.size, self.max_batch_bytes)
        if self.batch.size > available:
            return PARTIAL_BATCH
        self.batch.place = self.position + self.at
        if self.batch.magic == 2:
            return PIECE_READ if read_batch_header(head, &self.batch, &self.body) else FAULTY
        return PIECE_READ if read_message_header(head, &self.batch, &self.message, &self.body) else FAULTY

    cdef bint _wanted(self) noexcept nogil:
        cdef Batch* batch = &self.batch
        if batch.magic < 2 and batch.attributes & CODEC_BITS and batch.last_offset == 0:
            return True  # as clients send such a batch, its offset is 0 and says nothing about the messages in it
        if batch.last_offset < self.start_offset or batch.count == 0:
            return False
        if batch.magic < 2:
            return True
        return not batch.attributes & CONTROL and not (batch.attributes & TRANSACTIONAL and is_aborted(&self.batch, self.aborted, self.aborted_count))

    cdef int _leave_batch(self) noexcept nogil:
        """Step over the current batch, which is finished."""
        if self.keep_headers:
            if not grow(<void**>&self.seen, &self.seen_capacity, self.seen_count + 1, sizeof(Batch)):
                return self._fault(OUT_OF_MEMORY, 0, 0)
            self.seen[self.seen_count] = self.batch
            self.seen_count += 1
        self.last_offset = self.batch.last_offset
        self.at += self.batch.size
        self.body_open = False
        return PIECE_READ

    # --- the records of one batch ---

    cdef Py_ssize_t _compressed_at(self) noexcept nogil:
        return self.at + HEADER_SIZE if self.batch.magic == 2 else self.message.value - self.data

    cdef Py_ssize_t _compressed_size(self) noexcept nogil:
        return self.batch.size - HEADER_SIZE if self.batch.magic == 2 else max(self.message.value_size, 0)

    cdef int _expand_batch(self) noexcept nogil:
        """Decompress the current batch, or leave that to the decompressor."""
        cdef int codec = self.batch.attributes & CODEC_BITS
        if not expand_body(&self.expanded, codec, self.data + self._compressed_at(), self._compressed_size()):
            return COMPRESSED_BODY
        return PIECE_READ if self._open_body(self.expanded.data, self.expanded.used) else FAULTY

    cdef bint _open_body(self, const uint8_t* start, Py_ssize_t size) noexcept nogil:
        cdef Body* body = &self.body
        body.at, body.end = start, start + size
        body.index, body.last_delta, body.fault = 0, -1, NO_FAULT
        body.magic, body.count = self.batch.magic, self.batch.count
        body.base_offset, body.base_timestamp = self.batch.base_offset, self.batch.base_timestamp
        body.append_time = self.batch.max_timestamp
        body.has_append_time = self.batch.magic > 0 and self.batch.attributes & LOG_APPEND_TIME
        body.start_offset, body.stop_offset = self.start_offset, self.stop_offset
        body.headers, body.most_headers = 0, (self.max_batch_bytes - size) // <int64_t>sizeof(Header)
        if body.magic == 2:
            body.max_delta = <int32_t>(self.batch.last_offset - self.batch.base_offset)
            if body.count > size // LEAST_RECORD:
                return fail(body, TOO_MANY_RECORDS, body.count, size)
        elif not check_messages(body, self.check_crc, self.last_offset, self.batch.last_offset):
            return False
        else:
            self.batch.last_offset = max(self.batch.last_offset, body.last_offset)
            if self.batch.last_offset >= self.end_offset:
                return fail(body, OUTSIDE_OF_LOG, self.batch.base_offset, self.end_offset)
        # A large batch is copied to the columns in slices, so all of it is checked before the first slice.
        self.body_sliced = body.count > MAX_BLOCK_ROWS or size > 4 * self.target_bytes
        if self.body_sliced and body.magic == 2 and not self._check_body():
            return False
        self.body_open = True
        return True

    cdef bint _check_body(self) noexcept nogil:
        """Parse all records without keeping any, then return to the first."""
        cdef Body* body = &self.body
        cdef const uint8_t* start = body.at
        cdef int32_t last_delta = -1
        cdef Fields record
        while body.index < body.count:
            if not read_record(&body.at, body, last_delta, &self.block, False, &record):
                return False
            last_delta = record.delta
            body.index += 1
        if body.at != body.end:
            return fail(body, LEFTOVER, body.end - body.at, body.count)
        body.at, body.index, body.headers = start, 0, 0
        return True

    cdef int _drain(self) noexcept nogil:
        """Copy records to the columns, a block at a time, until the body is read or the columns are full."""
        cdef Body* body = &self.body
        cdef int32_t left
        while body.index < body.count:
            left = min(body.count - body.index, MAX_BLOCK_ROWS)
            if self._is_full(left, body.end - body.at):
                return COLUMNS_FULL
            if not self._read_block(left):
                self.body_open = False
                return FAULTY
        return self._leave_batch()

    cdef bint _is_full(self, Py_ssize_t rows, Py_ssize_t size) noexcept nogil:
        """Return True if the columns must be taken before this many rows and bytes are added."""
        return self.columns.rows > 0 and (
            self.columns.bytes >= self.target_bytes
            or self.columns.bytes + size > 2 * self.target_bytes
            or self.columns.rows + rows > MAX_ROWS
        )

    cdef bint _read_block(self, int32_t rows) noexcept nogil:
        """Read the next ``rows`` records, or fewer if the body is copied in slices and its records are large."""
        cdef Body* body = &self.body
        cdef Py_ssize_t most_bytes = self.target_bytes if self.body_sliced else INT64_MAX
        empty(&self.block)
        self.block.limit = body.end
        if body.magic != 2:
            return self._read_messages(rows, most_bytes) and self._append_block()
        return self.columns.append_records(
            body, &self.block, rows, most_bytes, self.batch.leader_epoch, self._timestamp_type()
        )

    cdef bint _read_messages(self, int32_t rows, Py_ssize_t most_bytes) noexcept nogil:
        cdef Body* body = &self.body
        cdef const uint8_t* start = body.at
        cdef Message message
        if not make_room(&self.block, rows):
            return fail(body, OUT_OF_MEMORY, 0, 0)
        while rows and body.at - start < most_bytes:
            if not read_message(body.at, body.end, &message):
                return fail(body, BAD_INNER_MESSAGE, body.index, body.magic)
            keep_message(&message, body, &self.block)
            body.at += FRAME + message.size
            body.index += 1
            rows -= 1
        if body.index == body.count and body.at != body.end:
            return fail(body, LEFTOVER, body.end - body.at, body.count)
        return True

    cdef inline int8_t _timestamp_type(self) noexcept nogil:
        if not self.batch.magic:
            return -1
        return 1 if self.batch.attributes & LOG_APPEND_TIME else 0

    cdef bint _append_block(self) noexcept nogil:
        self.block.limit = self.body.end
        if self.columns.append(&self.block, self.batch.leader_epoch, self._timestamp_type()):
            return True
        return fail(&self.body, OUT_OF_MEMORY, 0, 0)

    cdef int _keep_single_message(self) noexcept nogil:
        """Keep an uncompressed message of magic 0 or 1, which is a whole batch."""
        if self._is_full(1, self.batch.size):
            return COLUMNS_FULL
        empty(&self.block)
        if not make_room(&self.block, 1):
            return self._fault(OUT_OF_MEMORY, 0, 0)
        self.body.base_offset, self.body.has_append_time = 0, False
        self.body.start_offset, self.body.stop_offset = self.start_offset, self.stop_offset
        self.body.end = self.data + self.at + self.batch.size
        keep_message(&self.message, &self.body, &self.block)
        return self._leave_batch() if self._append_block() else FAULTY
