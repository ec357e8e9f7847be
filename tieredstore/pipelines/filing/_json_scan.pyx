# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Times since the epoch in a column of JSON values, found without creating a Python object per value."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

cdef extern from "_json_scan.h" nogil:
    ctypedef struct json_scan:
        const unsigned char* at
        const unsigned char* end
        const char** names
        const size_t* lengths
        int depth
        int found
        int64_t number
    int json_whole_number(json_scan* scan)


def epoch_millis(
    const int32_t[::1] ends not None,
    const uint8_t[::1] data not None,
    const uint8_t[::1] valid,
    Py_ssize_t first,
    Py_ssize_t rows,
    list path not None,
    int64_t[::1] times not None,
    uint8_t[::1] told not None,
):
    """Fill ``times`` (ms) from a binary column's buffers, for ``rows`` rows from ``first`` on. Set a bit in ``told``
    for each time found.

    ``path`` are the names (bytes) that lead to the number, which is in s, ms, us or ns by its size. ``told`` must be
    zeroed. If a bit stays 0, the caller must parse that value itself.
    """
    cdef json_scan scan
    cdef Py_ssize_t row, depth = len(path)
    cdef int64_t size = data.shape[0]
    cdef bytes name
    if first < 0 or rows < 0 or ends.shape[0] < first + rows + 1 or times.shape[0] < rows:
        raise ValueError("the column has fewer rows")
    if told.shape[0] * 8 < rows or (valid is not None and valid.shape[0] * 8 < first + rows) or not depth:
        raise ValueError("the column has fewer rows")
    cdef const char** names = <const char**> malloc(depth * sizeof(char*))
    cdef size_t* lengths = <size_t*> malloc(depth * sizeof(size_t))
    try:
        if names == NULL or lengths == NULL:
            raise MemoryError
        for row in range(depth):
            name = path[row]
            names[row] = name
            lengths[row] = <size_t> len(name)
        scan.names, scan.lengths, scan.depth = names, lengths, <int> depth
        with nogil:
            for row in range(rows):
                if valid is not None and not valid[(first + row) >> 3] >> ((first + row) & 7) & 1:
                    continue
                if not 0 <= ends[first + row] < ends[first + row + 1] <= size:
                    continue
                scan.at = &data[ends[first + row]]
                scan.end = scan.at + (ends[first + row + 1] - ends[first + row])
                if json_whole_number(&scan):
                    times[row] = _millis(scan.number)
                    told[row >> 3] |= <uint8_t> (1 << (row & 7))
    finally:
        free(<void*> names)
        free(lengths)


cdef inline int64_t _millis(int64_t number) noexcept nogil:
    """Convert a number as ``times.to_millis`` does."""
    if number >= 1000000000000000000LL:
        return number // 1000000
    if number >= 1000000000000000LL:
        return number // 1000
    return number if number >= 1000000000000LL else number * 1000
