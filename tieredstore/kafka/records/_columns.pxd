from libc.stdint cimport int8_t, int32_t, uint16_t

from tieredstore.kafka.records._buffers cimport ColumnBuffers
from tieredstore.kafka.records._parse cimport Body, Rows

cdef class ColumnBuilder(ColumnBuffers):
    # The numbers of the block's rows that are null.
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
    cdef bint _headers_room(self, const Rows* block) noexcept nogil
