from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t

from tieredstore.kafka.records._parse cimport Body, Rows
from tieredstore.kafka.records._slabs cimport SlabPool

# The bits of ``wanted``.
cdef enum:
    KEY = 1
    VALUE = 2
    HEADERS = 4
    OFFSET = 8
    TIMESTAMP = 16
    TIMESTAMP_TYPE = 32
    LEADER_EPOCH = 64

cdef enum:
    BUFFERS = 18

cdef struct Column:
    uint8_t* data
    Py_ssize_t used, capacity

cdef class ColumnBuilder:
    cdef int wanted
    cdef SlabPool pool
    cdef Column buffers[BUFFERS]
    cdef Py_ssize_t rows, header_rows
    cdef Py_ssize_t key_nulls, value_nulls, header_value_nulls
    cdef bint header_keys_ascii
    cdef int64_t bytes
    # The rows of a block that are nulls, by their numbers in the block.
    cdef uint16_t* null_keys
    cdef uint16_t* null_values

    cdef bint append_records(
        self, Body* body, Rows* block, int32_t rows, Py_ssize_t most_bytes, int32_t leader_epoch, int8_t timestamp_type
    ) noexcept nogil
    cdef bint _commit_records(
        self, Rows* block, Py_ssize_t count, Py_ssize_t null_keys, Py_ssize_t null_values
    ) noexcept nogil
    cdef bint append(self, const Rows* block, int32_t leader_epoch, int8_t timestamp_type) noexcept nogil
    cdef void _append_numbers(self, const Rows* block) noexcept nogil
    cdef void _append_constants(self, Py_ssize_t count, int32_t leader_epoch, int8_t timestamp_type) noexcept nogil
    cdef void _append_headers(self, const Rows* block) noexcept nogil
    cdef bint _make_room(self, const Rows* block) noexcept nogil
    cdef bint _rows_room(self, Py_ssize_t count) noexcept nogil
    cdef bint _more_room(self, int buffer, Py_ssize_t used, Py_ssize_t size) noexcept nogil
    cdef bint _headers_room(self, const Rows* block) noexcept nogil
    cdef bint _binary_room(self, int first, Py_ssize_t count, Py_ssize_t more_bytes, Py_ssize_t nulls) noexcept nogil
    cdef bint _null_room(self, int first, Py_ssize_t count, Py_ssize_t nulls) noexcept nogil
    cdef bint _room(self, int buffer, Py_ssize_t size) noexcept nogil
    cdef bint _grow(self, int buffer, Py_ssize_t size) noexcept with gil
    cdef Py_ssize_t _mark_lists(self) except -1
    cdef object _take_buffer(self, int buffer)
