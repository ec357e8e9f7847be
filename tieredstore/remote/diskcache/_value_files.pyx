# cython: language_level=3, boundscheck=False, wraparound=False
"""Reads values of the disk cache from their files. Each piece is checksummed while it is in the processor's cache.
The interpreter's lock is released once for all pieces.
"""

from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint8_t, uint32_t

cdef extern from "_bytes.h" nogil:
    uint32_t crc32c_continued(uint32_t crc, const uint8_t* at, size_t size)
    void build_checksums()

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pread(int descriptor, void* to, size_t size, Py_ssize_t at)

cdef enum:
    PIECE = 131072  # small enough for a core's own cache

build_checksums()


cdef Py_ssize_t take(
    int descriptor, Py_ssize_t start, uint8_t* to, Py_ssize_t size, uint32_t* crc, int* trouble
) noexcept nogil:
    """Return the number of bytes read. It is below ``size`` only at the end of the file or after an error, and
    ``trouble`` then has the errno of that error.
    """
    cdef Py_ssize_t done = 0, came
    trouble[0] = 0
    while done < size:
        came = pread(descriptor, to + done, min(size - done, <Py_ssize_t>PIECE), start + done)
        if came <= 0:
            trouble[0] = errno if came else 0
            break
        crc[0] = crc32c_continued(crc[0], to + done, came)
        done += came
    return done


def read_checked(int descriptor, Py_ssize_t start, uint8_t[::1] buffer not None, uint32_t crc):
    """Fill ``buffer`` from byte ``start`` of a file.

    Return the number of bytes read, which is lower at the end of the file, and the CRC-32C that continues ``crc`` over
    these bytes.
    """
    cdef Py_ssize_t done = 0, size = buffer.shape[0]
    cdef int trouble = EINTR
    while done < size and trouble:
        with nogil:
            done += take(descriptor, start + done, &buffer[done], size - done, &crc, &trouble)
        if trouble == EINTR:
            PyErr_CheckSignals()
        elif trouble:
            errno = trouble
            PyErr_SetFromErrno(OSError)
    return done, crc
