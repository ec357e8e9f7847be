# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Copies records and messages into columns.

Records of magic 2 are parsed and copied in one pass, from the body to the columns. Older messages, and headers, are
first parsed into blocks, which are then appended a column at a time. Columns that were not requested cost nothing.
"""

cimport cython
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from tieredstore.kafka.records._appending cimport *
from tieredstore.kafka.records._buffers cimport *
from tieredstore.kafka.records._parse cimport (
    LEFTOVER, MAX_BLOCK_ROWS, OUT_OF_MEMORY, Body, Fields, Header, Record, Rows, fail, read_record, read_usual_record,
)
from tieredstore.kafka.records._slabs cimport SlabPool


@cython.final
@cython.no_gc
cdef class ColumnBuilder(ColumnBuffers):
    """The unfinished columns whose bits are in ``wanted``."""

    def __cinit__(self, SlabPool pool, int wanted):
        self.null_keys = <uint16_t*>malloc(2 * MAX_BLOCK_ROWS * sizeof(uint16_t))
        if self.null_keys == NULL:
            raise MemoryError
        self.null_values = self.null_keys + MAX_BLOCK_ROWS

    def __dealloc__(self):
        free(self.null_keys)

    cdef bint append_records(
        self, Body* body, Rows* block, int32_t rows, Py_ssize_t most_bytes, int32_t leader_epoch, int8_t timestamp_type
    ) noexcept nogil:
        """Append the next ``rows`` records of a magic 2 body, or fewer, so that at most about ``most_bytes`` are read.

        Return False for a fault; no row is added then. ``block``, empty at first, receives the headers of the rows.
        """
        # Local variables can stay in registers, so that only the data go through memory.
        cdef const uint8_t* at = body.at
        cdef const uint8_t* start = at
        cdef const uint8_t* limit = body.end
        cdef int wanted = self.wanted
        cdef int32_t last_delta = body.last_delta, index = body.index, end_index = index + rows
        cdef Py_ssize_t count = 0, skipped_bytes = 0, null_keys = 0, null_values = 0
        cdef bint is_usual = True
        cdef Py_ssize_t key_start = self.buffers[KEY_DATA].used, value_start = self.buffers[VALUE_DATA].used
        cdef Py_ssize_t key_end = key_start, value_end = value_start, key_room, value_room
        cdef uint64_t base_timestamp = <uint64_t>body.base_timestamp, time_mask = ~<uint64_t>0
        cdef uint8_t* keys
        cdef uint8_t* values
        cdef int32_t* key_ends
        cdef int32_t* value_ends
        cdef int32_t* header_ends
        cdef int64_t* offsets
        cdef int64_t* timestamps
        cdef Fields record
        if not self._rows_room(rows):
            return fail(body, OUT_OF_MEMORY, 0, 0)
        if body.has_append_time:
            base_timestamp, time_mask = <uint64_t>body.append_time, 0
        keys, key_room = self.buffers[KEY_DATA].data, self.buffers[KEY_DATA].capacity - STRIDE
        values, value_room = self.buffers[VALUE_DATA].data, self.buffers[VALUE_DATA].capacity - STRIDE
        key_ends = <int32_t*>self.buffers[KEY_ENDS].data + self.rows
        value_ends = <int32_t*>self.buffers[VALUE_ENDS].data + self.rows
        header_ends = <int32_t*>self.buffers[HEADERS_ENDS].data + self.rows
        offsets = <int64_t*>self.buffers[OFFSETS].data + self.rows
        timestamps = <int64_t*>self.buffers[TIMESTAMPS].data + self.rows
        if wanted & KEY:
            key_ends[0] = <int32_t>key_end
        if wanted & VALUE:
            value_ends[0] = <int32_t>value_end
        if wanted & HEADERS:
            header_ends[0] = <int32_t>self.header_rows
        while index < end_index and at - start < most_bytes:
            if is_usual and not read_usual_record(&at, body, last_delta, &record):
                # In most batches either all records are usual or nearly none. So after the first unusual record, do not
                # try read_usual_record again.
                is_usual = False
                if wanted & HEADERS:
                    fill(header_ends + 1, <int32_t>self.header_rows, count)
            if not is_usual:
                body.index = index  # error messages name this index
                if not read_record(&at, body, last_delta, block, True, &record):
                    break
            last_delta = record.delta
            index += 1
            if not record.is_kept:
                continue
            if not wanted & KEY:
                skipped_bytes += record.key_size & ~(record.key_size >> 31)
            else:
                if record.key_size > 0:
                    if key_end + record.key_size > key_room:
                        if not self._more_room(KEY_DATA, key_end, record.key_size):
                            fail(body, OUT_OF_MEMORY, 0, 0)
                            break
                        keys, key_room = self.buffers[KEY_DATA].data, self.buffers[KEY_DATA].capacity - STRIDE
                    copy_key(keys + key_end, record.key, record.key_size, limit)
                    key_end += record.key_size
                elif record.key_size < 0:
                    self.null_keys[null_keys] = <uint16_t>count
                    null_keys += 1
                key_ends[count + 1] = <int32_t>key_end
            if not wanted & VALUE:
                skipped_bytes += record.value_size & ~(record.value_size >> 31)
            else:
                if record.value_size > 0:
                    if value_end + record.value_size > value_room:
                        if not self._more_room(VALUE_DATA, value_end, record.value_size):
                            fail(body, OUT_OF_MEMORY, 0, 0)
                            break
                        values, value_room = self.buffers[VALUE_DATA].data, self.buffers[VALUE_DATA].capacity - STRIDE
                    copy_wide(values + value_end, record.value, record.value_size, limit)
                    value_end += record.value_size
                elif record.value_size < 0:
                    self.null_values[null_values] = <uint16_t>count
                    null_values += 1
                value_ends[count + 1] = <int32_t>value_end
            if not is_usual and wanted & HEADERS:
                header_ends[count + 1] = <int32_t>(self.header_rows + block.header_count)
            if wanted & OFFSET:
                offsets[count] = record.offset
            if wanted & TIMESTAMP:
                # Java's sums wrap around on overflow; in C only unsigned sums do.
                timestamps[count] = <int64_t>(base_timestamp + (<uint64_t>record.timestamp_delta & time_mask))
            count += 1
        body.at, body.last_delta = at, last_delta
        if not body.fault:
            body.index = index
        if not body.fault and body.index == body.count and at != limit:
            fail(body, LEFTOVER, limit - at, body.count)
        if not body.fault and count == 0:
            return True
        if body.fault or not self._commit_records(block, count, null_keys, null_values):
            self.buffers[KEY_DATA].used, self.buffers[VALUE_DATA].used = key_start, value_start
            return body.fault == 0 and fail(body, OUT_OF_MEMORY, 0, 0)
        if is_usual and wanted & HEADERS:
            fill(header_ends + 1, <int32_t>self.header_rows, count)
        if wanted & KEY:
            self.buffers[KEY_ENDS].used, self.buffers[KEY_DATA].used = 4 * (self.rows + count + 1), key_end
        if wanted & VALUE:
            self.buffers[VALUE_ENDS].used, self.buffers[VALUE_DATA].used = 4 * (self.rows + count + 1), value_end
        self._append_constants(count, leader_epoch, timestamp_type)
        self.rows += count
        self.bytes += key_end - key_start + value_end - value_start + skipped_bytes
        self.bytes += block.header_key_bytes + block.header_value_bytes
        return True

    cdef bint _commit_records(
        self, Rows* block, Py_ssize_t count, Py_ssize_t null_keys, Py_ssize_t null_values
    ) noexcept nogil:
        """Finish rows that are already written; return False if memory runs out."""
        if not (
            self._null_room(KEY_VALID, self.rows + count, self.key_nulls + null_keys)
            and self._null_room(VALUE_VALID, self.rows + count, self.value_nulls + null_values)
            and (not block.header_count or self._headers_room(block))
        ):
            return False
        mark_nulls(&self.buffers[KEY_VALID], self.rows, count, self.null_keys, null_keys)
        mark_nulls(&self.buffers[VALUE_VALID], self.rows, count, self.null_values, null_values)
        self.key_nulls += null_keys
        self.value_nulls += null_values
        if self.wanted & OFFSET:
            self.buffers[OFFSETS].used += 8 * count
        if self.wanted & TIMESTAMP:
            self.buffers[TIMESTAMPS].used += 8 * count
        if self.wanted & HEADERS:
            self.buffers[HEADERS_ENDS].used = 4 * (self.rows + count + 1)
            self._append_headers(block)
        return True

    cdef bint append(self, const Rows* block, int32_t leader_epoch, int8_t timestamp_type) noexcept nogil:
        """Append the messages of a block; return False if memory runs out."""
        cdef const Record* first = block.records
        cdef int32_t* ends
        if block.count == 0:
            return True
        if not self._make_room(block):
            return False
        if self.wanted & KEY:
            append_binary(
                &self.buffers[KEY_VALID], self.rows, block.count,
                <uint8_t*>&first.key, <uint8_t*>&first.key_size, sizeof(Record), block.limit,
            )
        if self.wanted & VALUE:
            append_binary(
                &self.buffers[VALUE_VALID], self.rows, block.count,
                <uint8_t*>&first.value, <uint8_t*>&first.value_size, sizeof(Record), block.limit,
            )
        if self.wanted & HEADERS:
            # Magic 0 and 1 have no headers.
            ends = <int32_t*>self.buffers[HEADERS_ENDS].data + self.rows
            fill(ends, <int32_t>self.header_rows, block.count + 1)
            self.buffers[HEADERS_ENDS].used = 4 * (self.rows + block.count + 1)
        self._append_numbers(block)
        self._append_constants(block.count, leader_epoch, timestamp_type)
        self.key_nulls += block.key_nulls
        self.value_nulls += block.value_nulls
        self.rows += block.count
        self.bytes += block.key_bytes + block.value_bytes
        return True

    cdef void _append_numbers(self, const Rows* block) noexcept nogil:
        if self.wanted & OFFSET:
            memcpy(self.buffers[OFFSETS].data + 8 * self.rows, block.offsets, 8 * block.count)
            self.buffers[OFFSETS].used += 8 * block.count
        if self.wanted & TIMESTAMP:
            memcpy(self.buffers[TIMESTAMPS].data + 8 * self.rows, block.timestamps, 8 * block.count)
            self.buffers[TIMESTAMPS].used += 8 * block.count

    cdef void _append_constants(self, Py_ssize_t count, int32_t leader_epoch, int8_t timestamp_type) noexcept nogil:
        if self.wanted & TIMESTAMP_TYPE:
            memset(self.buffers[TIMESTAMP_TYPES].data + self.rows, timestamp_type, count)
            self.buffers[TIMESTAMP_TYPES].used += count
        if self.wanted & LEADER_EPOCH:
            fill(<int32_t*>self.buffers[LEADER_EPOCHS].data + self.rows, leader_epoch, count)
            self.buffers[LEADER_EPOCHS].used += 4 * count

    cdef void _append_headers(self, const Rows* block) noexcept nogil:
        cdef const Header* first = block.headers
        cdef Py_ssize_t i
        if block.header_count == 0:
            return
        append_binary(
            &self.buffers[HEADER_KEY_VALID], self.header_rows, block.header_count,
            <uint8_t*>&first.key, <uint8_t*>&first.key_size, sizeof(Header), block.limit,
        )
        append_binary(
            &self.buffers[HEADER_VALUE_VALID], self.header_rows, block.header_count,
            <uint8_t*>&first.value, <uint8_t*>&first.value_size, sizeof(Header), block.limit,
        )
        for i in range(block.header_count):
            if has_high_byte(first[i].key, first[i].key_size):
                self.header_keys_ascii = False
        self.header_rows += block.header_count
        self.header_value_nulls += block.header_value_nulls

    # --- room for all of a block ---

    cdef bint _make_room(self, const Rows* block) noexcept nogil:
        cdef Py_ssize_t rows = self.rows + block.count
        cdef int wanted = self.wanted
        return (
            self._rows_room(block.count)
            and (not wanted & KEY or self._binary_room(KEY_VALID, rows, block.key_bytes, self.key_nulls + block.key_nulls))
            and (
                not wanted & VALUE
                or self._binary_room(VALUE_VALID, rows, block.value_bytes, self.value_nulls + block.value_nulls)
            )
        )

    cdef bint _headers_room(self, const Rows* block) noexcept nogil:
        cdef Py_ssize_t headers = self.header_rows + block.header_count
        cdef Py_ssize_t nulls = self.header_value_nulls + block.header_value_nulls
        return (
            self._binary_room(HEADER_KEY_VALID, headers, block.header_key_bytes, 0)
            and self._binary_room(HEADER_VALUE_VALID, headers, block.header_value_bytes, nulls)
        )
