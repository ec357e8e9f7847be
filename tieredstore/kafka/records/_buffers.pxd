cimport cython
from libc.stdint cimport int64_t, uint8_t

from tieredstore.kafka.records._slabs cimport SlabPool

# The bits of ``wanted``, one per column.
cdef enum:
    KEY = 1
    VALUE = 2
    HEADERS = 4
    OFFSET = 8
    TIMESTAMP = 16
    TIMESTAMP_TYPE = 32
    LEADER_EPOCH = 64

# A binary column has three consecutive buffers: the validity bits, where each value ends, and the bytes.
cdef enum:
    KEY_VALID
    KEY_ENDS
    KEY_DATA
    VALUE_VALID
    VALUE_ENDS
    VALUE_DATA
    HEADERS_VALID
    HEADERS_ENDS
    HEADER_KEY_VALID
    HEADER_KEY_ENDS
    HEADER_KEY_DATA
    HEADER_VALUE_VALID
    HEADER_VALUE_ENDS
    HEADER_VALUE_DATA
    OFFSETS
    TIMESTAMPS
    TIMESTAMP_TYPES
    LEADER_EPOCHS
    BUFFERS

cdef struct Column:
    uint8_t* data
    Py_ssize_t used, capacity

cdef class ColumnBuffers:
    cdef int wanted
    cdef SlabPool pool
    cdef Column buffers[BUFFERS]
    cdef Py_ssize_t rows, header_rows
    cdef Py_ssize_t key_nulls, value_nulls, header_value_nulls
    cdef bint header_keys_ascii
    cdef int64_t bytes

    @cython.final
    cdef inline bint _room(self, int buffer, Py_ssize_t size) noexcept nogil:
        """Make room for ``size`` bytes in total; return False if memory runs out."""
        return size <= self.buffers[buffer].capacity or self._grow(buffer, size)

    cdef bint _rows_room(self, Py_ssize_t count) noexcept nogil
    cdef bint _more_room(self, int buffer, Py_ssize_t used, Py_ssize_t size) noexcept nogil
    cdef bint _binary_room(self, int first, Py_ssize_t count, Py_ssize_t more_bytes, Py_ssize_t nulls) noexcept nogil
    cdef bint _null_room(self, int first, Py_ssize_t count, Py_ssize_t nulls) noexcept nogil
    cdef bint _grow(self, int buffer, Py_ssize_t size) noexcept with gil
    cdef Py_ssize_t _mark_lists(self) except -1
    cdef object _take_buffer(self, int buffer)
