# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Decoding of expanded Messages into the buffers of Arrow columns.

A body is checked completely when it is added: it must have exactly the given number of records, and no other bytes.
Then columns of exactly the needed size are filled, some rows at a time. Filling checks every access again, because the
caller may have changed the body's memory.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

cdef extern from "_parse.h" nogil:
    enum:
        LEAST_RECORD
    enum fault:
        NO_FAULT
        CUT_OFF
        NEGATIVE_LENGTH
        FIELDS_DISAGREE
        HEADERS_DISAGREE
        TOO_FEW_RECORDS
        BYTES_LEFT
        OUTGROWN
    struct span:
        const uint8_t* at
        int32_t size
    struct record:
        int has_fields
        int64_t timestamp
        span id, headers, key, value
    struct totals:
        int64_t rows, key_bytes, key_nulls, value_bytes, id_bytes, id_nulls, timestamp_nulls
        int64_t headers, headers_nulls, name_bytes, header_value_bytes
        int names_ascii
    fault take_record(const uint8_t** at, const uint8_t* end, record* one)
    fault take_short(const uint8_t** at, const uint8_t* end, span* field)
    fault measure_record(const uint8_t** at, const uint8_t* end, totals* sums)
    void copy_span(uint8_t* to, const uint8_t* source, int32_t size)

# The buffers, in the order of fill().
cdef enum:
    KEY_VALID
    KEY_ENDS
    KEY_DATA
    VALUE_ENDS
    VALUE_DATA
    ID_VALID
    ID_ENDS
    ID_DATA
    TIMESTAMP_VALID
    TIMESTAMPS
    HEADERS_VALID
    HEADERS_ENDS
    NAME_ENDS
    NAME_DATA
    HEADER_VALUE_ENDS
    HEADER_VALUE_DATA
    MESSAGES
    RECORDS
    BUFFERS

# The bits of ``wanted``: the columns to decode.
cdef enum:
    KEY = 1
    VALUE = 2
    HEADERS = 4
    MESSAGE_ID = 8
    TIMESTAMP = 16
    MESSAGE = 32
    RECORD = 64

cdef struct Target:
    uint8_t* data[BUFFERS]
    int64_t key_end, value_end, id_end, headers, name_end, header_value_end


cdef class RecordReader:
    """Records of added Messages, in order. Not thread-safe."""

    cdef list bodies  # (memory, count, message)
    cdef totals sums
    cdef int place  # the current body; the next two are its progress
    cdef int64_t offset, record
    cdef int64_t rows_left
    cdef int wanted
    cdef int64_t bytes

    def __cinit__(self, int wanted):
        self.wanted = wanted
        self._start()

    cdef void _start(self):
        self.bodies, self.place, self.offset, self.record, self.rows_left, self.bytes = [], 0, 0, 0, 0, 0
        memset(&self.sums, 0, sizeof(totals))
        self.sums.names_ascii = 1

    @property
    def pending_bytes(self):
        """Bytes of the added bodies."""
        return self.bytes

    def add(self, const uint8_t[::1] body, int64_t count, int32_t message):
        """Add the body of Message ``message``, which must hold exactly ``count`` records.

        Return None on success. Otherwise add nothing, and return the fault, its byte offset in the body, and the
        record's number.
        """
        cdef const uint8_t* start = &body[0] if body.shape[0] else NULL
        cdef const uint8_t* at = start
        cdef const uint8_t* end = start + body.shape[0]
        cdef totals sums = self.sums
        cdef int64_t done = 0
        cdef int wrong = NO_FAULT
        with nogil:
            while done < count:
                if at == end:
                    wrong = TOO_FEW_RECORDS
                    break
                wrong = measure_record(&at, end, &sums)
                if wrong:
                    break
                done += 1
            if not wrong and at != end:
                wrong = BYTES_LEFT
        if wrong:
            return wrong, at - start, done
        if count:
            self.sums = sums
            self.bodies.append((body, count, message))
            self.rows_left += count
            self.bytes += body.shape[0]
        return None

    def take(self, object pool, int64_t most_rows, int64_t most_bytes):
        """Decode up to ``most_rows`` rows, from about ``most_bytes`` of bodies, into slabs of ``pool``.

        Return the number of rows; the null counts of key, id, timestamp and headers; the number of headers; True if all
        header names are ASCII; and for each buffer its slab and used bytes, or None. If no rows are left, release the
        bodies and return None.
        """
        cdef totals sums
        if not self.rows_left:
            self._start()
            return None
        if self.place == 0 and self.offset == 0 and self.rows_left <= most_rows and self.bytes <= most_bytes:
            sums = self.sums
        else:
            sums = self._measure(most_rows, most_bytes)
        buffers = self._buffers(pool, &sums)
        self._fill(buffers, &sums)
        nulls = (sums.key_nulls, sums.id_nulls, sums.timestamp_nulls, sums.headers_nulls)
        return sums.rows, nulls, sums.headers, bool(sums.names_ascii), buffers

    cdef totals _measure(self, int64_t most_rows, int64_t most_bytes) except *:
        """Return the totals of the next rows."""
        cdef totals sums
        cdef int place = self.place, wrong = NO_FAULT
        cdef int64_t offset = self.offset, done = self.record, taken = 0
        cdef const uint8_t[::1] body
        cdef const uint8_t* at
        cdef const uint8_t* end
        cdef const uint8_t* before
        cdef int64_t count
        memset(&sums, 0, sizeof(totals))
        sums.names_ascii = 1
        while place < len(self.bodies) and sums.rows < most_rows and taken < most_bytes:
            body, count = self.bodies[place][0], self.bodies[place][1]
            at, end = &body[0] + offset, &body[0] + body.shape[0]
            with nogil:
                while done < count and sums.rows < most_rows and taken < most_bytes and not wrong:
                    before = at
                    wrong = measure_record(&at, end, &sums)
                    taken += at - before
                    done += 1
            if wrong:
                raise RuntimeError("the bytes of a Message changed while its records were read")
            place, offset, done = place + 1, 0, 0
        return sums

    cdef list _buffers(self, object pool, totals* sums):
        cdef int64_t rows = sums.rows, bits = (sums.rows + 7) // 8
        cdef int wanted = self.wanted
        cdef list sizes = [None] * BUFFERS
        if wanted & KEY:
            sizes[KEY_VALID] = bits if sums.key_nulls else None
            sizes[KEY_ENDS], sizes[KEY_DATA] = 4 * (rows + 1), sums.key_bytes
        if wanted & VALUE:
            sizes[VALUE_ENDS], sizes[VALUE_DATA] = 4 * (rows + 1), sums.value_bytes
        if wanted & MESSAGE_ID:
            sizes[ID_VALID] = bits if sums.id_nulls else None
            sizes[ID_ENDS], sizes[ID_DATA] = 4 * (rows + 1), sums.id_bytes
        if wanted & TIMESTAMP:
            sizes[TIMESTAMP_VALID] = bits if sums.timestamp_nulls else None
            sizes[TIMESTAMPS] = 8 * rows
        if wanted & HEADERS:
            sizes[HEADERS_VALID] = bits if sums.headers_nulls else None
            sizes[HEADERS_ENDS] = 4 * (rows + 1)
            sizes[NAME_ENDS], sizes[NAME_DATA] = 4 * (sums.headers + 1), sums.name_bytes
            sizes[HEADER_VALUE_ENDS], sizes[HEADER_VALUE_DATA] = 4 * (sums.headers + 1), sums.header_value_bytes
        if wanted & MESSAGE:
            sizes[MESSAGES] = 4 * rows
        if wanted & RECORD:
            sizes[RECORDS] = 4 * rows
        return [None if size is None else (pool.slab(max(size, 1)), size) for size in sizes]

    cdef int _fill(self, list buffers, totals* sums) except -1:
        cdef Target target
        cdef uint8_t[::1] slab
        cdef const uint8_t[::1] body
        cdef const uint8_t* at
        cdef const uint8_t* end
        cdef int64_t row = 0, count, rows
        cdef int32_t message
        cdef int buffer, wrong = NO_FAULT
        memset(&target, 0, sizeof(Target))
        for buffer in range(BUFFERS):
            if buffers[buffer] is not None:
                slab = buffers[buffer][0]
                target.data[buffer] = &slab[0]
        for buffer in (KEY_ENDS, VALUE_ENDS, ID_ENDS, HEADERS_ENDS, NAME_ENDS, HEADER_VALUE_ENDS):
            if target.data[buffer]:
                (<int32_t*>target.data[buffer])[0] = 0
        while row < sums.rows:
            body, count, message = self.bodies[self.place]
            rows = min(count - self.record, sums.rows - row)
            at, end = &body[0] + self.offset, &body[0] + body.shape[0]
            with nogil:
                wrong = fill_rows(&target, sums, &at, end, row, rows, message, <int32_t>self.record)
            if wrong:
                raise RuntimeError("the bytes of a Message changed while its records were read")
            row, self.record, self.offset = row + rows, self.record + rows, at - &body[0]
            if self.record == count:
                self.place, self.record, self.offset = self.place + 1, 0, 0
        self.rows_left -= row
        return 0


cdef inline void mark(uint8_t* valid, int64_t row, bint is_valid) noexcept nogil:
    # Eight rows share a byte. Rows are written in order, so the first of the eight clears the slab's old content there.
    if row & 7 == 0:
        valid[row >> 3] = 0
    valid[row >> 3] |= <uint8_t>(is_valid << (row & 7))


cdef inline bint put_span(
    uint8_t* ends, uint8_t* data, int64_t* end, int64_t most, int64_t row, const span* field
) noexcept nogil:
    """Append a field to the column; return False if it exceeds the measured size."""
    if end[0] + field.size > most:
        return False
    copy_span(data + end[0], field.at, field.size)
    end[0] += field.size
    (<int32_t*>ends)[row + 1] = <int32_t>end[0]
    return True


cdef int fill_rows(
    Target* target, const totals* sums, const uint8_t** at, const uint8_t* end, int64_t row, int64_t count,
    int32_t message, int32_t number
) noexcept nogil:
    cdef record one
    cdef int64_t i
    cdef int wrong
    for i in range(row, row + count):
        wrong = take_record(at, end, &one)
        if wrong:
            return wrong
        if target.data[KEY_ENDS] and not put_span(
            target.data[KEY_ENDS], target.data[KEY_DATA], &target.key_end, sums.key_bytes, i, &one.key
        ):
            return OUTGROWN
        if target.data[VALUE_ENDS] and not put_span(
            target.data[VALUE_ENDS], target.data[VALUE_DATA], &target.value_end, sums.value_bytes, i, &one.value
        ):
            return OUTGROWN
        if target.data[ID_ENDS] and not put_span(
            target.data[ID_ENDS], target.data[ID_DATA], &target.id_end, sums.id_bytes, i, &one.id
        ):
            return OUTGROWN
        if target.data[KEY_VALID]:
            mark(target.data[KEY_VALID], i, one.key.size > 0)
        if target.data[ID_VALID]:
            mark(target.data[ID_VALID], i, one.id.size > 0)
        if target.data[TIMESTAMPS]:
            (<int64_t*>target.data[TIMESTAMPS])[i] = one.timestamp
        if target.data[TIMESTAMP_VALID]:
            mark(target.data[TIMESTAMP_VALID], i, one.has_fields)
        if target.data[HEADERS_ENDS]:
            wrong = fill_headers(target, sums, &one.headers)
            if wrong:
                return wrong
            (<int32_t*>target.data[HEADERS_ENDS])[i + 1] = <int32_t>target.headers
        if target.data[HEADERS_VALID]:
            mark(target.data[HEADERS_VALID], i, one.headers.size > 0)
        if target.data[MESSAGES]:
            (<int32_t*>target.data[MESSAGES])[i] = message
        if target.data[RECORDS]:
            (<int32_t*>target.data[RECORDS])[i] = number + <int32_t>(i - row)
    return NO_FAULT


cdef inline int fill_headers(Target* target, const totals* sums, const span* headers) noexcept nogil:
    cdef const uint8_t* at = headers.at
    cdef const uint8_t* end = headers.at + headers.size
    cdef span name, value
    cdef int wrong
    while at < end:
        wrong = take_short(&at, end, &name)
        if not wrong:
            wrong = take_short(&at, end, &value)
        if wrong:
            return wrong
        if target.headers == sums.headers:
            return OUTGROWN
        if not put_span(
            target.data[NAME_ENDS], target.data[NAME_DATA], &target.name_end, sums.name_bytes, target.headers, &name
        ):
            return OUTGROWN
        if not put_span(
            target.data[HEADER_VALUE_ENDS], target.data[HEADER_VALUE_DATA], &target.header_value_end,
            sums.header_value_bytes, target.headers, &value,
        ):
            return OUTGROWN
        target.headers += 1
    return NO_FAULT
