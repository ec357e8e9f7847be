from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from tieredstore.kafka.records._parse cimport Rows
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

    cdef bint append(self, const Rows* block, int32_t leader_epoch, int8_t timestamp_type) noexcept nogil
    cdef void _append_numbers(self, const Rows* block, int32_t leader_epoch, int8_t timestamp_type) noexcept nogil
    cdef void _append_headers(self, const Rows* block) noexcept nogil
    cdef bint _make_room(self, const Rows* block) noexcept nogil
    cdef bint _headers_room(self, const Rows* block) noexcept nogil
    cdef bint _binary_room(self, int first, Py_ssize_t count, Py_ssize_t more_bytes, Py_ssize_t nulls) noexcept nogil
    cdef bint _room(self, int buffer, Py_ssize_t size) noexcept nogil
    cdef bint _grow(self, int buffer, Py_ssize_t size) noexcept with gil
    cdef Py_ssize_t _mark_lists(self) except -1
    cdef object _take_buffer(self, int buffer)
