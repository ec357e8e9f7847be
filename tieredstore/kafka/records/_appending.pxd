# Append many values to a column at once. The caller has made room for all of them.

from libc.stdint cimport int32_t, uint8_t, uint16_t
from libc.string cimport memset

from tieredstore.kafka.records._buffers cimport Column

cdef extern from "_bytes.h" nogil:
    enum:
        STRIDE
    void copy_key(uint8_t* to, const uint8_t* source, size_t size, const uint8_t* limit)
    void copy_wide(uint8_t* to, const uint8_t* source, size_t size, const uint8_t* limit)
    int has_high_byte(const uint8_t* at, size_t size)


cdef inline void fill(int32_t* items, int32_t item, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(count):
        items[i] = item


# Append the keys or values of messages or of headers.
#
# ``data`` and ``sizes`` point to these two fields of the first item, and ``stride`` is the distance in bytes to the
# next item. All data are before ``limit``.
cdef inline void append_binary(
    Column* column, Py_ssize_t before, Py_ssize_t count, const uint8_t* data, const uint8_t* sizes, Py_ssize_t stride,
    const uint8_t* limit,
) noexcept nogil:
    cdef int32_t* ends = <int32_t*>column[1].data + before
    cdef uint8_t* target = column[2].data
    cdef int32_t end = <int32_t>column[2].used
    cdef int32_t size
    cdef Py_ssize_t i
    ends[0] = end
    for i in range(count):
        size = (<const int32_t*>(sizes + i * stride))[0]
        if size > 0:
            copy_wide(target + end, (<const uint8_t* const*>(data + i * stride))[0], size, limit)
            end += size
        ends[i + 1] = end
    column[1].used, column[2].used = 4 * (before + count + 1), end
    if column[0].used:
        mark_valid(column[0].data, before, count, sizes, stride)


cdef inline void mark_valid(
    uint8_t* valid, Py_ssize_t before, Py_ssize_t count, const uint8_t* sizes, Py_ssize_t stride
) noexcept nogil:
    cdef Py_ssize_t i, bit
    for i in range(count):
        bit = before + i
        if bit & 7 == 0:
            valid[bit >> 3] = 0
        if (<const int32_t*>(sizes + i * stride))[0] >= 0:
            valid[bit >> 3] |= <uint8_t>(1 << (bit & 7))
        else:
            valid[bit >> 3] &= <uint8_t>~(1 << (bit & 7))


cdef inline void mark_nulls(
    Column* column, Py_ssize_t before, Py_ssize_t count, const uint16_t* rows, Py_ssize_t nulls
) noexcept nogil:
    """Set the validity bits of ``count`` more rows; ``rows`` are the numbers of the rows that are null. Do nothing for
    a column without nulls.
    """
    cdef uint8_t* valid = column.data
    cdef Py_ssize_t i, bit, end = before + count
    if not column.used:
        return
    if before & 7:
        valid[before >> 3] |= <uint8_t>(0xFF << (before & 7))
    if (before + 7) // 8 < (end + 7) // 8:
        memset(valid + (before + 7) // 8, 0xFF, (end + 7) // 8 - (before + 7) // 8)
    for i in range(nulls):
        bit = before + rows[i]
        valid[bit >> 3] &= <uint8_t>~(1 << (bit & 7))
