# Parsers of records and of old messages (magic 0 and 1). They copy nothing: their results point into the body, which
# must not move until the columns are filled. The caller copies records to the columns at once, but collects messages
# and headers in a table (Rows) first.
#
# Each parser compares every size with the number of remaining bytes before it uses the size. A parser that returns
# False has set the fault.

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc

cdef extern from "_bytes.h" nogil:
    int64_t big_64(const uint8_t* at)
    int32_t big_32(const uint8_t* at)
    int big_16 "big_16"(const uint8_t* at)
    uint32_t crc32_ieee(const uint8_t* at, size_t size)
    uint32_t crc32c(const uint8_t* at, size_t size)
    uint32_t crc32c_portable(const uint8_t* at, size_t size)
    uint32_t crc32c_by_instruction(const uint8_t* at, size_t size)
    void build_checksums()

# Faults; decoder.py has their messages. For faults up to BATCH_TOO_LARGE the next batch cannot be found.
cdef enum Fault:
    NO_FAULT
    BAD_LENGTH
    BAD_MAGIC
    BATCH_TOO_LARGE
    SHORT_HEADER
    BAD_OFFSETS
    BAD_COUNT
    BAD_CODEC
    OFFSETS_GO_BACK
    BAD_CRC
    TOO_MANY_RECORDS
    BAD_RECORD
    BAD_OFFSET_DELTA
    BAD_HEADERS
    LEFTOVER
    BAD_MESSAGE
    BAD_INNER_MESSAGE
    BAD_INNER_CRC
    NO_INNER_MESSAGE
    BAD_INNER_OFFSETS
    OUTSIDE_OF_LOG
    TOO_MANY_HEADERS
    OUT_OF_MEMORY

cdef enum:
    # The most rows of one Arrow record batch, and the most records parsed before they are copied.
    MAX_ROWS = 131072
    MAX_BLOCK_ROWS = 16384
    # The smallest record has one byte each for length, attributes, two deltas, two sizes and the number of headers.
    LEAST_RECORD = 7
    LEAST_HEADER = 2
    # Size of the fields offset and size, which the size does not count.
    FRAME = 12
    LEAST_MESSAGE = 14

# A size of -1 is a null.
cdef struct Header:
    const uint8_t* key
    const uint8_t* value
    int32_t key_size
    int32_t value_size

cdef struct Record:
    const uint8_t* key
    const uint8_t* value
    int32_t key_size
    int32_t value_size

# The fields of a magic 2 record.
cdef struct Fields:
    const uint8_t* key
    const uint8_t* value
    int32_t key_size, value_size
    int32_t delta
    int64_t offset, timestamp_delta
    bint is_kept  # True if the record's offset is in the requested range

# A block of parsed messages, or the headers of a block of records, and the bytes that their columns will take.
cdef struct Rows:
    Record* records
    int64_t* offsets
    int64_t* timestamps
    Header* headers
    const uint8_t* limit  # the end of the memory that the rows point into
    Py_ssize_t count, header_count
    bint keep_headers  # True if headers are requested; otherwise they are only checked
    Py_ssize_t capacity, offsets_capacity, timestamps_capacity, header_capacity
    int64_t key_bytes, value_bytes, header_key_bytes, header_value_bytes
    Py_ssize_t key_nulls, value_nulls, header_value_nulls

# The unread part of one batch's records.
cdef struct Body:
    const uint8_t* at
    const uint8_t* end
    int32_t index, count
    int32_t last_delta, max_delta
    int64_t headers, most_headers  # headers read so far, and the most headers that the batch may have
    int64_t base_offset, base_timestamp
    int64_t last_offset  # the last offset of the messages in a compressed message
    int64_t append_time
    bint has_append_time
    int magic
    int64_t start_offset, stop_offset
    int fault
    int64_t first_detail, second_detail

cdef struct Message:
    const uint8_t* start
    const uint8_t* key
    const uint8_t* value
    int64_t offset, timestamp
    int32_t size, key_size, value_size
    int magic, attributes


cdef inline bint fail(Body* body, int fault, int64_t first, int64_t second) noexcept nogil:
    body.fault, body.first_detail, body.second_detail = fault, first, second
    return False


cdef inline bint grow(void** items, Py_ssize_t* capacity, Py_ssize_t needed, size_t item_size) noexcept nogil:
    """Make room for ``needed`` items. Double the room at least, so that the total cost of growing is linear."""
    cdef Py_ssize_t room = capacity[0]
    cdef void* moved
    if needed <= room:
        return True
    room = max(needed, 2 * room, <Py_ssize_t>1024)
    moved = realloc(items[0], room * item_size)
    if moved == NULL:
        return False
    items[0], capacity[0] = moved, room
    return True


cdef inline bint make_room(Rows* rows, Py_ssize_t count) noexcept nogil:
    return (
        grow(<void**>&rows.records, &rows.capacity, count, sizeof(Record))
        and grow(<void**>&rows.offsets, &rows.offsets_capacity, count, sizeof(int64_t))
        and grow(<void**>&rows.timestamps, &rows.timestamps_capacity, count, sizeof(int64_t))
    )


cdef inline void empty(Rows* rows) noexcept nogil:
    rows.count = rows.header_count = 0
    rows.key_bytes = rows.value_bytes = rows.header_key_bytes = rows.header_value_bytes = 0
    rows.key_nulls = rows.value_nulls = rows.header_value_nulls = 0


cdef inline void count_row(Rows* rows, const Record* record) noexcept nogil:
    """Add the record to the rows; the caller has already stored it after the last row."""
    # A size is -1 (null) or more: shifting its sign bit avoids a branch.
    rows.key_bytes += record.key_size & ~(record.key_size >> 31)
    rows.value_bytes += record.value_size & ~(record.value_size >> 31)
    rows.key_nulls -= record.key_size >> 31
    rows.value_nulls -= record.value_size >> 31
    rows.count += 1


cdef inline bint read_varint(const uint8_t** at, const uint8_t* end, int32_t* number) noexcept nogil:
    """Read a zig-zag number of up to five bytes. Drop bits above 32, as Java does."""
    cdef const uint8_t* byte = at[0]
    cdef uint32_t raw
    cdef int shift = 7
    if byte >= end:
        return False
    raw = byte[0]
    if raw >= 0x80:
        raw &= 0x7F
        while True:
            byte += 1
            if byte >= end or shift > 28:
                return False
            raw |= <uint32_t>(byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                break
            shift += 7
    number[0] = <int32_t>(raw >> 1) ^ -<int32_t>(raw & 1)
    at[0] = byte + 1
    return True


cdef inline bint read_varlong(const uint8_t** at, const uint8_t* end, int64_t* number) noexcept nogil:
    """Read a zig-zag number of up to ten bytes and 64 bits, as read_varint does."""
    cdef const uint8_t* byte = at[0]
    cdef uint64_t raw = 0
    cdef int shift = 0
    # Within a batch nearly all timestamp deltas have at most two bytes.
    if end - byte >= 2:
        if byte[0] < 0x80:
            number[0] = <int64_t>(byte[0] >> 1) ^ -<int64_t>(byte[0] & 1)
            at[0] = byte + 1
            return True
        if byte[1] < 0x80:
            raw = (byte[0] & 0x7F) | <uint64_t>byte[1] << 7
            number[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
            at[0] = byte + 2
            return True
    while True:
        if byte >= end or shift > 63:
            return False
        raw |= <uint64_t>(byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            break
        shift += 7
        byte += 1
    number[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
    at[0] = byte + 1
    return True


cdef inline bint read_sized(
    const uint8_t** at, const uint8_t* end, const uint8_t** data, int32_t* size
) noexcept nogil:
    """Read a size and as many bytes. Any negative size is a null, as in Java."""
    if not read_varint(at, end, size):
        return False
    data[0] = at[0]
    if size[0] < 0:
        size[0] = -1
        return True
    if size[0] > end - at[0]:
        return False
    at[0] += size[0]
    return True


cdef inline bint read_headers(const uint8_t** at, const uint8_t* end, Body* body, Rows* rows, bint keep) noexcept nogil:
    cdef int32_t count
    cdef Header header
    if not read_varint(at, end, &count) or count < 0 or count > (end - at[0]) // LEAST_HEADER:
        return fail(body, BAD_HEADERS, body.index, body.count)
    # A header may take only two bytes of the batch, but takes sizeof(Header) bytes in memory. So the limit on the
    # memory of a batch limits the number of its headers too.
    body.headers += count
    if body.headers > body.most_headers:
        return fail(body, TOO_MANY_HEADERS, body.headers, body.most_headers)
    keep = keep and rows.keep_headers
    if keep and count and not grow(
        <void**>&rows.headers, &rows.header_capacity, rows.header_count + count, sizeof(Header)
    ):
        return fail(body, OUT_OF_MEMORY, 0, 0)
    while count:
        if (
            not read_sized(at, end, &header.key, &header.key_size)
            or header.key_size < 0
            or not read_sized(at, end, &header.value, &header.value_size)
        ):
            return fail(body, BAD_HEADERS, body.index, body.count)
        if keep:
            rows.headers[rows.header_count] = header
            rows.header_count += 1
            rows.header_key_bytes += header.key_size
            rows.header_value_bytes += header.value_size & ~(header.value_size >> 31)
            rows.header_value_nulls -= header.value_size >> 31
        count -= 1
    return True


cdef inline bint read_record(
    const uint8_t** place, Body* body, int32_t last_delta, Rows* rows, bint store, Fields* record
) noexcept nogil:
    """Read the record of magic 2 that begins at ``place``, and store its headers in ``rows``. ``last_delta`` is the
    offset delta of the record before it.

    Values that change with each record are variables of the caller, so that they can stay in registers.
    """
    cdef const uint8_t* at = place[0]
    cdef const uint8_t* end = body.end
    cdef const uint8_t* headers
    cdef int32_t size, delta
    if not read_varint(&at, end, &size) or size < LEAST_RECORD - 1 or size > end - at:
        return fail(body, BAD_RECORD, body.index, body.count)
    end = at + size
    at += 1  # the record's attributes: none are defined
    if not read_varlong(&at, end, &record.timestamp_delta) or not read_varint(&at, end, &delta):
        return fail(body, BAD_RECORD, body.index, body.count)
    # Java's client accepts deltas in any order. But readers here stop and continue at offsets, which works only if the
    # offsets of a batch increase.
    if delta <= last_delta or delta > body.max_delta:
        return fail(body, BAD_OFFSET_DELTA, body.index, delta)
    record.delta, record.offset = delta, body.base_offset + delta
    record.is_kept = store and body.start_offset <= record.offset < body.stop_offset
    if not read_sized(&at, end, &record.key, &record.key_size):
        return fail(body, BAD_RECORD, body.index, body.count)
    if not read_sized(&at, end, &record.value, &record.value_size):
        return fail(body, BAD_RECORD, body.index, body.count)
    if at < end and at[0] == 0:
        at += 1
    else:
        # Take the address of a separate variable, because a variable is kept in memory, not in a register, if its
        # address is taken.
        headers = at
        if not read_headers(&headers, end, body, rows, record.is_kept):
            return False
        at = headers
    if at != end:
        return fail(body, BAD_RECORD, body.index, body.count)
    place[0] = end
    return True


cdef inline bint read_short(const uint8_t** at, int32_t* number) noexcept nogil:
    """Read a zig-zag number of at most three bytes, which must be present; return False for a longer number."""
    cdef const uint8_t* byte = at[0]
    cdef uint32_t raw = byte[0]
    if raw >= 0x80:
        byte += 1
        raw = (raw & 0x7F) | <uint32_t>byte[0] << 7
        if byte[0] >= 0x80:
            byte += 1
            raw = (raw & 0x3FFF) | <uint32_t>byte[0] << 14
            if byte[0] >= 0x80:
                return False
    number[0] = <int32_t>(raw >> 1) ^ -<int32_t>(raw & 1)
    at[0] = byte + 1
    return True


cdef inline bint read_usual_record(
    const uint8_t** place, const Body* body, int32_t last_delta, Fields* record
) noexcept nogil:
    """Read a record with short numbers and no headers, as read_record does, but with as few checks as possible.

    Return False for any other record, without setting a fault: the caller then uses read_record. Each read is checked
    only against the end of the body. Positions only grow: if the record ends where its size says, no read before that
    went beyond its end.
    """
    cdef const uint8_t* at = place[0]
    cdef const uint8_t* limit = body.end
    cdef const uint8_t* end
    cdef int32_t size, time, delta, skipped
    # Before the key there are at most four numbers of three bytes, and the attributes.
    if limit - at < 13 or not read_short(&at, &size) or not 0 <= size <= limit - at:
        return False
    end = at + size
    at += 1
    if not read_short(&at, &time) or not read_short(&at, &delta) or not read_short(&at, &size):
        return False
    skipped = size & ~(size >> 31)
    if delta <= last_delta or delta > body.max_delta or skipped > limit - at - 3:
        return False
    record.key, record.key_size = at, size | (size >> 31)
    at += skipped
    if not read_short(&at, &size):
        return False
    skipped = size & ~(size >> 31)
    if skipped > limit - at - 1:
        return False
    record.value, record.value_size = at, size | (size >> 31)
    at += skipped
    if at[0] or at + 1 != end:
        return False
    record.timestamp_delta, record.delta, record.offset = time, delta, body.base_offset + delta
    record.is_kept = body.start_offset <= record.offset < body.stop_offset
    place[0] = end
    return True


cdef inline bint read_sized_32(
    const uint8_t** at, const uint8_t* end, const uint8_t** data, int32_t* size
) noexcept nogil:
    if end - at[0] < 4:
        return False
    size[0] = big_32(at[0])
    at[0] += 4
    data[0] = at[0]
    if size[0] < 0:
        size[0] = -1
        return True
    if size[0] > end - at[0]:
        return False
    at[0] += size[0]
    return True


cdef inline bint read_message(const uint8_t* at, const uint8_t* end, Message* message) noexcept nogil:
    """Read the message of magic 0 or 1 at ``at``; return False if there is none, without setting a fault."""
    if end - at < FRAME + LEAST_MESSAGE:
        return False
    message.start = at
    message.offset = big_64(at)
    message.size = big_32(at + 8)
    message.magic, message.attributes = <int8_t>at[16], at[17]
    if message.size < LEAST_MESSAGE + 8 * message.magic or message.size > end - at - FRAME:
        return False
    if message.magic != 0 and message.magic != 1:
        return False
    end = at + FRAME + message.size
    message.timestamp = big_64(at + 18) if message.magic else -1
    at += 18 + 8 * message.magic
    if not read_sized_32(&at, end, &message.key, &message.key_size):
        return False
    return read_sized_32(&at, end, &message.value, &message.value_size) and at == end


cdef inline bint message_crc_holds(const Message* message) noexcept nogil:
    return crc32_ieee(message.start + 16, message.size - 4) == <uint32_t>big_32(message.start + FRAME)


cdef inline void keep_message(const Message* message, Body* body, Rows* rows) noexcept nogil:
    """Make the message a row if its offset is requested. The caller has made room for the row."""
    cdef Record* record = rows.records + rows.count
    cdef int64_t offset = body.base_offset + message.offset
    if not body.start_offset <= offset < body.stop_offset:
        return
    record.key, record.key_size = message.key, message.key_size
    record.value, record.value_size = message.value, message.value_size
    rows.offsets[rows.count] = offset
    rows.timestamps[rows.count] = body.append_time if body.has_append_time else message.timestamp
    count_row(rows, record)


cdef inline bint check_messages(Body* body, bint check_crc, int64_t previous, int64_t wrapper) noexcept nogil:
    """Count and check the inner messages of a compressed message, and find their base offset.

    ``wrapper`` is the offset of the compressed message. Offsets of inner messages are absolute in magic 0, and relative
    in magic 1. In magic 1 the last inner message has the offset ``wrapper``, unless that is 0, as clients send it: then
    the offsets count from 0. All offsets must come after ``previous``.
    """
    cdef const uint8_t* at = body.at
    cdef Message message
    cdef int64_t last = -1, first = 0
    body.count = 0
    while at < body.end:
        if not read_message(at, body.end, &message) or message.magic != body.magic or message.attributes & 7:
            return fail(body, BAD_INNER_MESSAGE, body.count, body.magic)
        if check_crc and not message_crc_holds(&message):
            return fail(body, BAD_INNER_CRC, body.count, 0)
        if message.offset <= last:
            return fail(body, BAD_INNER_OFFSETS, message.offset, wrapper)
        if body.count == 0:
            first = message.offset
        last = message.offset
        body.count += 1
        at += FRAME + message.size
    if body.count == 0:
        return fail(body, NO_INNER_MESSAGE, 0, 0)
    body.base_offset = wrapper - last if body.magic == 1 and wrapper else 0
    if (wrapper and last > wrapper) or body.base_offset + first <= previous:
        return fail(body, BAD_INNER_OFFSETS, body.base_offset + first, wrapper)
    body.last_offset = body.base_offset + last
    return True
