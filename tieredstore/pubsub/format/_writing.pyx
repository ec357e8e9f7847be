# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Writing of records into a Message's body, in growing memory or in the caller's.

Room for a header before the body lets an uncompressed Message get its header without a copy. Memory that has grown to a
whole Message is kept for the next Message, because fresh memory costs a page fault every 4 KiB, which takes longer than
writing the records. In the caller's memory, the Message is written in place.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from tieredstore.pubsub.errors import InvalidRecordError

# Include <time.h>, which declares clock_gettime: Cython's posix.time includes only <sys/time.h>, and Python 3.13's
# headers for the stable ABI no longer include <time.h>.
cdef extern from "<time.h>" nogil:
    pass

cdef extern from "_parse.h" nogil:
    enum:
        FIELDS_WITHOUT_ID_AND_HEADERS
    uint8_t* write_16(uint8_t* at, unsigned int number)
    uint8_t* write_32(uint8_t* at, unsigned int number)
    uint8_t* write_64(uint8_t* at, uint64_t number)

cdef enum:
    LEAST_ROOM = 4096
    MOST_ID = 255
    MOST_SHORT = 32767
    # Bytes of a record besides its data: lengths and timestamp.
    LENGTHS = 21
    # Bytes before the body; a header has at most 163.
    HEAD_ROOM = 192
    # From this size on, memory grows at once to the size of a whole Message, and is kept for later Messages.
    LEAST_KEPT = 262144
    MOST_KEPT = 4194304
    MOST_KEPT_TOGETHER = 67108864
    BLOCKS = 64

# Free blocks of memory, all of the size of recent large Messages. The interpreter's lock guards them.
cdef void* kept_blocks[BLOCKS]
cdef Py_ssize_t kept_size = 0
cdef int kept_count = 0


cdef void* take_block(Py_ssize_t size) noexcept:
    global kept_count
    if size == kept_size and kept_count:
        kept_count -= 1
        return kept_blocks[kept_count]
    return malloc(size)


cdef void give_block(void* block, Py_ssize_t size) noexcept:
    global kept_count, kept_size
    if size != kept_size and LEAST_KEPT <= size <= MOST_KEPT:
        # Free the kept blocks, because recent Messages have another size.
        while kept_count:
            kept_count -= 1
            free(kept_blocks[kept_count])
        kept_size = size
    if size == kept_size and kept_count < min(BLOCKS, MOST_KEPT_TOGETHER // size):
        kept_blocks[kept_count] = block
        kept_count += 1
    else:
        free(block)


cdef int64_t now_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1_000_000


@cython.final
@cython.no_gc
cdef class BodyWriter:
    """The records of one Message, as a buffer of bytes. Nothing can be appended while a view of it exists.

    ``payload`` counts the bytes of values and keys; ``least_ms`` and ``most_ms`` are the least and the greatest
    timestamp.
    """

    cdef uint8_t* memory  # owned memory: HEAD_ROOM bytes, then room for the body
    cdef uint8_t[::1] lent
    cdef uint8_t* body
    cdef Py_ssize_t used, room, most, head, head_room
    cdef readonly Py_ssize_t count, payload
    cdef readonly int64_t least_ms, most_ms
    cdef int held
    cdef bint is_lent

    def __cinit__(self, Py_ssize_t most, lent=None, Py_ssize_t head=0):
        """Begin an empty body of at most ``most`` bytes. ``lent`` is the caller's memory for the Message, with
        ``head`` bytes for its header."""
        self.most, self.head_room = most, HEAD_ROOM
        self.least_ms, self.most_ms = INT64_MAX, INT64_MIN
        if lent is not None:
            self.lent, self.is_lent = lent, True
            if head < 0 or most < 1 or most > self.lent.shape[0] - head:
                raise InvalidRecordError(f"{self.lent.shape[0]} bytes cannot hold a header of {head} bytes and a body of {most}")
            self.body, self.room, self.head_room = &self.lent[0] + head, most, head

    def __dealloc__(self):
        if self.memory != NULL:
            give_block(self.memory, HEAD_ROOM + self.room)

    def __len__(self):
        return self.used

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        # Even an empty body needs an address.
        if self.body == NULL:
            self._make_room(1)
        PyBuffer_FillInfo(buffer, self, self.body - self.head, self.head + self.used, 1, flags)
        self.held += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        self.held -= 1

    def add_header(self, bytes header):
        """Return the Message of ``header`` and this body without a copy; nothing can be appended afterwards.

        The buffer then includes the header. In the caller's memory, the header must have the announced size."""
        cdef Py_ssize_t size = len(header)
        if size > self.head_room or (size < self.head_room and self.is_lent):
            raise InvalidRecordError(f"a header of {size} bytes does not fit the {self.head_room} bytes before the body")
        if self.head:
            raise BufferError("the Message already has its header")
        if self.body == NULL:
            self._make_room(1)
        memcpy(self.body - size, <const char*>header, size)
        self.head = size
        return memoryview(self)

    cdef int _make_room(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room = max(self.used + more, 2 * self.room, LEAST_ROOM)
        cdef uint8_t* memory
        if room >= LEAST_KEPT and self.used + more <= self.most <= MOST_KEPT - HEAD_ROOM:
            room = self.most
            memory = <uint8_t*>take_block(HEAD_ROOM + room)
            if memory != NULL and self.memory != NULL:
                memcpy(memory, self.memory, HEAD_ROOM + self.used)
                give_block(self.memory, HEAD_ROOM + self.room)
        else:
            memory = <uint8_t*>realloc(self.memory, HEAD_ROOM + room)
        if memory == NULL:
            raise MemoryError("out of memory for the records of a Message")
        self.memory, self.body, self.room = memory, memory + HEAD_ROOM, room
        return 0

    def take(self, bytes value, bytes key, headers, bytes message_id, timestamp_ms, Py_ssize_t most_bytes=INT64_MAX):
        """Append a record and return its number; −1, without effect, if it does not fit.

        ``headers`` are name-value pairs, or None. ``timestamp_ms`` None means now. ``most_bytes`` limits the body
        including the record's value and key. Raise InvalidRecordError if the format cannot hold the record."""
        if value is None:
            raise InvalidRecordError("a record's value is None: MemQ has no null; an empty value is b''")
        cdef Py_ssize_t value_size = len(value)
        cdef Py_ssize_t key_size = 0 if key is None else len(key)
        if self.used + LENGTHS + value_size + key_size > most_bytes:
            return -1
        cdef int64_t timestamp
        try:
            timestamp = now_ms() if timestamp_ms is None else timestamp_ms
        except OverflowError:
            raise InvalidRecordError(f"a record's timestamp {timestamp_ms} has more than 64 bits") from None
        cdef Py_ssize_t id_size = 0 if message_id is None else len(message_id)
        cdef bytes packed = None if not headers else _packed(headers)
        cdef Py_ssize_t headers_size = 0 if packed is None else len(packed)
        cdef Py_ssize_t fields = FIELDS_WITHOUT_ID_AND_HEADERS + id_size + headers_size
        if id_size > MOST_ID:
            raise InvalidRecordError(f"a record's message id has {id_size} bytes; MemQ's format holds at most {MOST_ID}")
        if fields > MOST_SHORT:
            raise InvalidRecordError(
                f"a record's headers and message id take {headers_size + id_size} bytes; MemQ's format holds at most "
                f"{MOST_SHORT - FIELDS_WITHOUT_ID_AND_HEADERS}"
            )
        cdef Py_ssize_t size = 2 + fields + 4 + key_size + 4 + value_size
        if self.held or self.head:
            raise BufferError("the Message is closed: its bytes are in use")
        if size > self.most - self.used:
            return -1
        if size > self.room - self.used:
            self._make_room(size)
        cdef uint8_t* at = write_16(self.body + self.used, <unsigned int>fields)
        at = write_64(at, <uint64_t>timestamp)
        at[0] = <uint8_t>id_size
        at += 1
        if id_size:
            memcpy(at, <const char*>message_id, id_size)
        at = write_16(at + id_size, <unsigned int>headers_size)
        if headers_size:
            memcpy(at, <const char*>packed, headers_size)
        at = write_32(at + headers_size, <unsigned int>key_size)
        if key_size:
            memcpy(at, <const char*>key, key_size)
        at = write_32(at + key_size, <unsigned int>value_size)
        memcpy(at, <const char*>value, value_size)
        self.used += size
        self.count += 1
        self.payload += value_size + key_size
        self.least_ms, self.most_ms = min(self.least_ms, timestamp), max(self.most_ms, timestamp)
        return self.count - 1


cdef bytes _packed(headers):
    """Return headers as stored."""
    cdef list parts = []
    cdef set names = set()
    cdef Py_ssize_t size
    for header in headers:
        if len(header) != 2:
            raise InvalidRecordError("a record's header is not a name (str) with a value (bytes)")
        name, value = header
        if type(name) is not str or type(value) is not bytes:
            raise InvalidRecordError("a record's header is not a name (str) with a value (bytes)")
        if name in names:
            raise InvalidRecordError("a record has two headers of the same name; MemQ's reader keeps only the last")
        names.add(name)
        try:
            encoded = name.encode()
        except UnicodeEncodeError:
            raise InvalidRecordError("a header's name has a lone surrogate, which UTF-8 cannot encode") from None
        size = max(len(encoded), len(value))
        if size > MOST_SHORT:
            raise InvalidRecordError(f"a header's name or value has {size} bytes; MemQ's format holds at most {MOST_SHORT}")
        parts += (len(encoded).to_bytes(2, "big"), encoded, len(value).to_bytes(2, "big"), value)
    return b"".join(parts)
