# cython: language_level=3, boundscheck=False, wraparound=False
"""Frames of Zstandard, and beginnings of them, straight into the memory where they belong."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t

cdef extern from "_blocks.h" nogil:
    void find_blocks()
    void* new_context()
    void free_context(void* context)
    int64_t take_beginning(void* context, const uint8_t* source, size_t size, uint8_t* to, size_t room, size_t wanted)
    int64_t take_whole(void* context, const uint8_t* source, size_t size, uint8_t* to, size_t room)

cdef enum:
    KEPT = 16  # contexts that nobody uses just now

cdef void* idle[KEPT]
cdef int idle_count = 0

find_blocks()


def decompress_whole(const uint8_t[::1] frame not None, uint8_t[::1] room not None):
    """Write the frame's content, which has to fill ``room``; False if it does not, or cannot be had here.

    Then the frame is damaged or not alone, or the system has no library for it; what ``room`` holds nobody knows.
    Without the interpreter's lock.
    """
    return _decompress(frame, room, 0)


def decompress_beginning(const uint8_t[::1] frame not None, uint8_t[::1] room not None, Py_ssize_t wanted):
    """Write the first ``wanted`` bytes of the frame's content, and up to a block more, into ``room``; False if that
    cannot be done here.

    Then the frame is damaged, or shorter, or its content is longer than ``room``; or the system has no library for it.
    What ``room`` holds behind the bytes that were wanted nobody knows. Without the interpreter's lock.
    """
    return 0 < wanted <= room.shape[0] and _decompress(frame, room, wanted)


cdef bint _decompress(const uint8_t[::1] frame, uint8_t[::1] room, size_t wanted) except -1:
    """All of the frame if nothing less is ``wanted``."""
    # Each context is one thread's as long as it works; between that they are all threads'.
    global idle_count
    cdef size_t size = frame.shape[0], space = room.shape[0]
    cdef int64_t written = -1
    cdef void* context
    if not size or not space:
        return False
    if idle_count:
        idle_count -= 1
        context = idle[idle_count]
    else:
        context = new_context()
    if context == NULL:
        return False
    with nogil:
        if wanted:
            written = take_beginning(context, &frame[0], size, &room[0], space, wanted)
        else:
            written = take_whole(context, &frame[0], size, &room[0], space)
    if idle_count < KEPT:
        idle[idle_count] = context
        idle_count += 1
    else:
        free_context(context)
    return written >= 0 if wanted else written == <int64_t>space
