# Parsers of a batch's header. The caller has checked that all bytes of the batch are present. batches.py describes the
# layouts.

from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t

from tieredstore.kafka.records._parse cimport *

cdef enum:
    HEADER_SIZE = 61
    PREFIX_SIZE = 17
    CODEC_BITS = 7
    LOG_APPEND_TIME = 8
    TRANSACTIONAL = 16
    CONTROL = 32
    LAST_CODEC = 4

cdef struct Batch:
    int64_t place  # byte position in the log
    int64_t size
    int64_t base_offset, last_offset, base_timestamp, max_timestamp, producer_id
    int32_t leader_epoch, base_sequence, count
    uint32_t crc
    int16_t producer_epoch, attributes
    int magic

# An aborted transaction.
cdef struct AbortedRange:
    int64_t producer_id, first_offset, last_offset


cdef inline bint read_batch_header(const uint8_t* head, Batch* batch, Body* body) noexcept nogil:
    """Parse the rest of a header of magic 2. Size, base offset and magic have already been read."""
    cdef int32_t last_delta
    if batch.size < HEADER_SIZE:
        return fail(body, SHORT_HEADER, batch.size, 0)
    batch.leader_epoch = big_32(head + 12)
    batch.crc = <uint32_t>big_32(head + 17)
    batch.attributes = <int16_t>big_16(head + 21)
    last_delta = big_32(head + 23)
    batch.base_timestamp, batch.max_timestamp = big_64(head + 27), big_64(head + 35)
    batch.producer_id, batch.producer_epoch = big_64(head + 43), <int16_t>big_16(head + 51)
    batch.base_sequence, batch.count = big_32(head + 53), big_32(head + 57)
    if batch.base_offset < 0 or last_delta < 0 or batch.base_offset > INT64_MAX - last_delta:
        return fail(body, BAD_OFFSETS, batch.base_offset, last_delta)
    batch.last_offset = batch.base_offset + last_delta
    # Compaction removes records but keeps the offsets: fewer records than offsets are valid, more are not.
    if not 0 <= batch.count <= <int64_t>last_delta + 1:
        return fail(body, BAD_COUNT, batch.count, <int64_t>last_delta + 1)
    return (batch.attributes & CODEC_BITS) <= LAST_CODEC or fail(body, BAD_CODEC, batch.attributes & CODEC_BITS, 0)


cdef inline bint read_message_header(const uint8_t* head, Batch* batch, Message* message, Body* body) noexcept nogil:
    """Parse an old message (magic 0 or 1) as a batch. For a compressed set the number of records is -1: unknown yet."""
    if not read_message(head, head + batch.size, message):
        return fail(body, BAD_MESSAGE, batch.size, 0)
    batch.last_offset, batch.leader_epoch, batch.base_sequence = batch.base_offset, -1, -1
    batch.producer_id, batch.producer_epoch = -1, -1
    batch.attributes = <int16_t>message.attributes
    batch.crc = <uint32_t>big_32(head + FRAME)
    batch.base_timestamp = batch.max_timestamp = message.timestamp
    batch.count = 1
    if batch.base_offset < 0:
        return fail(body, BAD_OFFSETS, batch.base_offset, 0)
    if batch.attributes & CODEC_BITS:
        batch.base_timestamp, batch.count = -1, -1
    return (batch.attributes & CODEC_BITS) <= LAST_CODEC or fail(body, BAD_CODEC, batch.attributes & CODEC_BITS, 0)


cdef inline bint crc_holds(const uint8_t* head, const Batch* batch, Body* body) noexcept nogil:
    cdef uint32_t computed
    if batch.magic == 2:
        computed = crc32c(head + 21, batch.size - 21)
    else:
        computed = crc32_ieee(head + 16, batch.size - 16)
    return computed == batch.crc or fail(body, BAD_CRC, computed, batch.crc)


cdef inline bint is_aborted(const Batch* batch, const AbortedRange* ranges, Py_ssize_t count) noexcept nogil:
    """Return True if the batch belongs to an aborted transaction: find the last range of its producer that begins
    before the batch ends, and check that this range reaches the batch.
    """
    cdef Py_ssize_t low = 0, high = count, middle
    cdef const AbortedRange* entry
    while low < high:
        middle = (low + high) // 2
        entry = ranges + middle
        if entry.producer_id < batch.producer_id or (
            entry.producer_id == batch.producer_id and entry.first_offset <= batch.last_offset
        ):
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return False
    entry = ranges + low - 1
    return entry.producer_id == batch.producer_id and entry.last_offset >= batch.base_offset


cdef inline bint only_zeros(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(size):
        if at[i]:
            return False
    return True
