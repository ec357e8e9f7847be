# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Parser of write requests, of which a broker gets many thousands per second."""

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "_parse.h" nogil:
    int32_t signed_16(const uint8_t* at)
    int32_t signed_32(const uint8_t* at)
    int64_t signed_64(const uint8_t* at)
    int is_ascii(const uint8_t* at, int32_t size)

cdef enum:
    HEAD_SIZE = 15
    SLOTS_FROM = 4


cdef const uint8_t* behind_ascii(const uint8_t* at, const uint8_t* end) noexcept:
    """Return the end of a text like ``behind_text``, but return NULL also for a text that is not ASCII."""
    cdef const uint8_t* after = behind_text(at, end)
    if after != NULL and not is_ascii(at + 2, <int32_t>(after - at - 2)):
        return NULL
    return after


cdef const uint8_t* behind_text(const uint8_t* at, const uint8_t* end) noexcept:
    """Return the end of a text that follows its length at ``at``; return NULL if the text would pass ``end``."""
    cdef int32_t size
    if at == NULL or end - at < 2:
        return NULL
    size = signed_16(at)
    return at + 2 + size if 0 <= size <= end - at - 2 else NULL


def write_fields(const uint8_t[::1] packet):
    """Parse a write request of version 2 to 5. Return None for any other packet, or if an id or address is not ASCII.

    The result has the version, the request id, a flag (True if the client wants no answer), the topic in UTF-8, the
    CRC-32 of the data, and where the data begins. The data is the rest of the packet.
    """
    cdef Py_ssize_t length = packet.shape[0]
    cdef const uint8_t* start
    cdef const uint8_t* end
    cdef const uint8_t* topic
    cdef const uint8_t* at
    cdef int32_t version, crc, count
    if length < HEAD_SIZE + 1:
        return None
    start = &packet[0]
    end = start + length
    version = signed_16(start + 4)
    if signed_32(start) != length - 4 or not 2 <= version <= 5 or start[14] != 0:
        return None
    topic = start + HEAD_SIZE + 1
    at = behind_text(topic, end)
    if at == NULL or end - at < 4:
        return None
    cdef Py_ssize_t topic_size = at - topic - 2
    crc = signed_32(at)
    at += 4
    if version >= SLOTS_FROM:
        at = behind_ascii(at, end)
        if at == NULL or end - at < 2:
            return None
        count = signed_16(at)
        at += 2
        if count < 0:
            return None
        for _ in range(count):
            at = behind_ascii(at, end)
            if at == NULL or end - at < 4:
                return None
            at += 4
    if end - at < 4 or signed_32(at) != end - at - 4:
        return None
    return (
        version, signed_64(start + 6), start[HEAD_SIZE] != 0, topic[2 : 2 + topic_size], crc & 0xFFFFFFFF,
        at + 4 - start,
    )
