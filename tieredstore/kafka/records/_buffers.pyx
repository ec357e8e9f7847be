# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The memory of unfinished columns, and its release to Arrow.

Each buffer is one slab, sized by recent use. columns.py makes arrays from the buffers, in their order.
"""

cimport cython
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcpy, memset

from tieredstore.kafka.records._slabs cimport SlabPool, adopt_slab

cdef extern from "_bytes.h" nogil:
    enum:
        STRIDE

cdef enum:
    # If a buffer uses less than half of a slab above this size, copy the buffer: otherwise a batch that is kept for
    # long occupies the whole slab.
    WORTH_SHRINKING = 32 * 1024


@cython.no_gc
cdef class ColumnBuffers:
    """The buffers of the columns whose bits are in ``wanted``, and their number of rows."""

    def __cinit__(self, SlabPool pool, int wanted):
        self.pool, self.wanted = pool, wanted
        self.header_keys_ascii = True

    def __dealloc__(self):
        cdef Py_ssize_t buffer
        for buffer in range(BUFFERS):
            if self.buffers[buffer].data != NULL:
                self.pool.give_back(self.buffers[buffer].data, self.buffers[buffer].capacity)

    # --- memory ---

    cdef bint _rows_room(self, Py_ssize_t count) noexcept nogil:
        """Make room for ``count`` more rows in all columns of fixed-size fields."""
        cdef Py_ssize_t rows = self.rows + count
        cdef int wanted = self.wanted
        return (
            (not wanted & OFFSET or self._room(OFFSETS, 8 * rows))
            and (not wanted & TIMESTAMP or self._room(TIMESTAMPS, 8 * rows))
            and (not wanted & TIMESTAMP_TYPE or self._room(TIMESTAMP_TYPES, rows))
            and (not wanted & LEADER_EPOCH or self._room(LEADER_EPOCHS, 4 * rows))
            and (not wanted & KEY or self._room(KEY_ENDS, 4 * (rows + 1)))
            and (not wanted & VALUE or self._room(VALUE_ENDS, 4 * (rows + 1)))
            and (not wanted & HEADERS or self._room(HEADERS_ENDS, 4 * (rows + 1)))
        )

    cdef bint _more_room(self, int buffer, Py_ssize_t used, Py_ssize_t size) noexcept nogil:
        """Make room for ``size`` bytes after the ``used`` bytes of the buffer."""
        self.buffers[buffer].used = used
        return self._room(buffer, used + size + STRIDE)

    cdef bint _binary_room(self, int first, Py_ssize_t count, Py_ssize_t more_bytes, Py_ssize_t nulls) noexcept nogil:
        if not self._room(first + 1, 4 * (count + 1)) or not self._room(
            first + 2, self.buffers[first + 2].used + more_bytes + (STRIDE if more_bytes else 0)
        ):
            return False
        return self._null_room(first, count, nulls)

    cdef bint _null_room(self, int first, Py_ssize_t count, Py_ssize_t nulls) noexcept nogil:
        if nulls == 0:
            return True
        # At the first null of a column, mark all rows before it as valid.
        cdef bint first_null = self.buffers[first].used == 0
        if not self._room(first, (count + 7) // 8):
            return False
        if first_null:
            memset(self.buffers[first].data, 0xFF, (count + 7) // 8)
        self.buffers[first].used = (count + 7) // 8
        return True

    cdef bint _grow(self, int buffer, Py_ssize_t size) noexcept with gil:
        cdef Column* column = &self.buffers[buffer]
        cdef Py_ssize_t room = max(size, 2 * column.capacity, self.pool.usual[buffer] + self.pool.usual[buffer] // 8)
        cdef uint8_t* data = self.pool.take(&room)
        if data == NULL:
            return False
        if column.data != NULL:
            memcpy(data, column.data, column.used)
            self.pool.give_back(column.data, column.capacity)
        column.data, column.capacity = data, room
        return True

    # --- handing over ---

    def take(self):
        """Return the columns of all rows since the last call, for RecordColumns.build; None if there are no rows.

        The tuple has: the number of rows; the number of header rows; the nulls of key, value, headers and header
        values; True if all header keys are ASCII; and for each buffer its slab and the bytes used of it, or None.
        """
        if self.rows == 0:
            return None
        cdef Py_ssize_t headers_nulls = 0
        if self.wanted & HEADERS:
            headers_nulls = self._mark_lists()
        nulls = (self.key_nulls, self.value_nulls, headers_nulls, self.header_value_nulls)
        taken = (
            self.rows, self.header_rows, nulls, self.header_keys_ascii,
            [self._take_buffer(buffer) for buffer in range(BUFFERS)],
        )
        self.rows = self.header_rows = self.bytes = 0
        self.key_nulls = self.value_nulls = self.header_value_nulls = 0
        self.header_keys_ascii = True
        return taken

    cdef Py_ssize_t _mark_lists(self) except -1:
        """Make the headers of a record without headers null: Kafka does not distinguish no headers from an empty list.
        """
        cdef const int32_t* ends = <int32_t*>self.buffers[HEADERS_ENDS].data
        cdef uint8_t* valid
        cdef Py_ssize_t i, nulls = 0
        if not self._room(HEADERS_VALID, (self.rows + 7) // 8):
            raise MemoryError("there is no memory for the columns")
        valid = self.buffers[HEADERS_VALID].data
        self.buffers[HEADERS_VALID].used = (self.rows + 7) // 8
        memset(valid, 0, self.buffers[HEADERS_VALID].used)
        if self.header_rows == 0:
            return self.rows
        for i in range(self.rows):
            if ends[i] == ends[i + 1]:
                nulls += 1
            else:
                valid[i >> 3] |= <uint8_t>(1 << (i & 7))
        return nulls

    cdef object _take_buffer(self, int buffer):
        cdef Column* column = &self.buffers[buffer]
        cdef Py_ssize_t room = column.used
        cdef uint8_t* data
        if column.data == NULL:
            return None
        if column.capacity > WORTH_SHRINKING and 2 * column.used < column.capacity:
            data = self.pool.take(&room)
            if data == NULL:
                raise MemoryError("there is no memory for the columns")
            memcpy(data, column.data, column.used)
            self.pool.give_back(column.data, column.capacity)
        else:
            data, room = column.data, column.capacity
        taken = (adopt_slab(self.pool, data, room), column.used)
        # The last columns of a log have few rows, and say little about the next log. So lower the estimate slowly.
        self.pool.usual[buffer] = max(column.used, self.pool.usual[buffer] - self.pool.usual[buffer] // 4)
        column.used, column.capacity, column.data = 0, 0, NULL
        return taken
