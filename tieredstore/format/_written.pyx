# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The manifest of a known segment out of exactly the text that the plugin writes for it, byte for byte in its order.

Whatever else a text is, wrong or only unusual, is None here and left to the readers in Python, who say why. What is
taken was checked as they check it; values whose own checks were made here are put together without them.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

import zstandard

from tieredstore.format.base64_text import decode_base64
from tieredstore.format.chunk_index import FixedChunkIndex, VariableChunkIndex
from tieredstore.format.chunk_sizes import MAX_BINARY_SIZE, zstd_of_thread
from tieredstore.format.manifest import IndexEntry, SegmentIndexes, SegmentManifest, WrappedDataKey
from tieredstore.format.manifest_rules import MAX_SMALL_CHUNKS
from tieredstore.model import RemoteLogSegmentMetadata

cdef extern from "Python.h":
    int PyObject_GenericSetAttr(object instance, object name, object value) except -1
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    MOST_EPOCHS = 64
    INDEXES = 5

cdef int64_t INT32_MOST = 0x7FFFFFFF
cdef int64_t INT64_MOST = 0x7FFFFFFFFFFFFFFF
cdef int64_t SMALL_CHUNKS = MAX_SMALL_CHUNKS
cdef int64_t BINARY_MOST = MAX_BINARY_SIZE
cdef const char* URL_SAFE = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
cdef uint8_t SIXTH[256]  # the six bits that a character of standard base64 stands for; 255 for any other one


cdef void fill_alphabet() noexcept:
    cdef const char* standard = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    cdef int value
    for value in range(256):
        SIXTH[value] = 255
    for value in range(64):
        SIXTH[<uint8_t>standard[value]] = value


fill_alphabet()

cdef str CHUNK_SIZE = "original_chunk_size", FILE_SIZE = "original_file_size"
cdef str PACKED = "packed_sizes", LAST_SIZE = "last_size", BASE_SIZE = "base_size"
cdef str POSITION = "position", SIZE = "size"
cdef tuple INDEX_FIELDS = ("offset", "timestamp", "producer_snapshot", "leader_epoch", "transaction")
cdef str CHUNK_INDEX = "chunk_index", SEGMENT_INDEXES = "segment_indexes", COMPRESSION = "compression"
cdef str ENCRYPTION = "encryption", METADATA = "metadata"
cdef tuple METADATA_FIELDS = (
    "remote_log_segment_id", "start_offset", "end_offset", "segment_size_in_bytes", "max_timestamp_ms", "broker_id",
    "event_timestamp_ms", "segment_leader_epochs", "txn_idx_empty", "custom_metadata",
)
cdef object new = object.__new__

# Where the next byte is. Every step that does not fit leaves ``good`` false, and the ones behind it change nothing.
cdef struct Text:
    const char* at
    const char* end
    bint good

cdef struct Piece:
    const char* at
    Py_ssize_t size


cdef inline bint skip(Text* text, const char* expected, Py_ssize_t size) noexcept nogil:
    """Step over exactly these bytes, if they are next."""
    if not text.good or text.end - text.at < size or memcmp(text.at, expected, size):
        return False
    text.at += size
    return True


cdef inline void expect(Text* text, bytes expected) noexcept:
    text.good = skip(text, PyBytes_AS_STRING(expected), PyBytes_GET_SIZE(expected))


cdef inline bint optional(Text* text, bytes expected) noexcept:
    return skip(text, PyBytes_AS_STRING(expected), PyBytes_GET_SIZE(expected))


cdef inline int64_t number(Text* text, int64_t least, int64_t most) noexcept nogil:
    """A whole number as JSON writes it, within ``least..most``; of those below 0 there is only -1."""
    cdef int64_t value = 0, digit
    cdef const char* first = text.at
    if least < 0 and skip(text, b"-1", 2):
        return -1
    while text.at < text.end and b"0" <= text.at[0] <= b"9":
        digit = text.at[0] - 48
        if value > (most - digit) // 10:
            text.good = False
            return 0
        value = 10 * value + digit
        text.at += 1
    if text.at == first or value < least or (first[0] == b"0" and text.at - first > 1):
        text.good = False
    return value


cdef inline Piece quoted(Text* text) noexcept nogil:
    """A text of printable ASCII without escapes, up to its quote, which is stepped over."""
    cdef Piece piece
    piece.at = text.at
    while text.at < text.end and 32 <= text.at[0] < 127 and text.at[0] != b'"' and text.at[0] != b"\\":
        text.at += 1
    piece.size = text.at - piece.at
    if text.at == text.end or text.at[0] != b'"':
        text.good = False
    else:
        text.at += 1
    return piece


cdef inline str string(Piece piece):
    return PyUnicode_DecodeASCII(piece.at, piece.size, NULL)


cdef bytes unpacked_base64(Piece piece):
    """The bytes of standard base64 with or without its padding; None unless it is exactly that."""
    cdef Py_ssize_t size = piece.size, left, place = 0
    cdef const uint8_t* at = <const uint8_t*>piece.at
    cdef uint32_t first, second, third, fourth
    if size and size % 4 == 0 and at[size - 1] == b"=":
        size -= 2 if at[size - 2] == b"=" else 1
    left = size % 4
    if left == 1:
        return None
    cdef bytes whole = PyBytes_FromStringAndSize(NULL, size // 4 * 3 + max(left - 1, 0))
    cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(whole)
    while place + 4 <= size:
        first, second, third, fourth = SIXTH[at[place]], SIXTH[at[place + 1]], SIXTH[at[place + 2]], SIXTH[at[place + 3]]
        if (first | second | third | fourth) & 0xC0:
            return None
        first = first << 18 | second << 12 | third << 6 | fourth
        to[0], to[1], to[2] = <uint8_t>(first >> 16), <uint8_t>(first >> 8), <uint8_t>first
        to += 3
        place += 4
    if left:
        first, second = SIXTH[at[place]], SIXTH[at[place + 1]]
        third = SIXTH[at[place + 2]] if left == 3 else 0
        # The readers in Python know what to think of bits that no byte takes.
        if (first | second | third) & 0xC0 or (third & 3 if left == 3 else second & 15):
            return None
        to[0] = <uint8_t>(first << 2 | second >> 4)
        if left == 3:
            to[1] = <uint8_t>(second << 4 | third >> 2)
    return whole


cdef inline uint32_t big_endian(const uint8_t* at, Py_ssize_t width) noexcept nogil:
    cdef uint32_t value = 0
    for _ in range(width):
        value = value << 8 | at[0]
        at += 1
    return value


cdef object variable_index(int64_t chunk_size, int64_t file_size, bytes packed):
    """The index of a list of sizes that holds together; None otherwise."""
    cdef int64_t count = (file_size + chunk_size - 1) // chunk_size
    cdef int64_t limit = 2 * chunk_size + 1024, base, last, rest
    cdef Py_ssize_t width, at
    cdef uint32_t least = 0xFFFFFFFFu, most = 0, one
    if not 0 < zstandard.frame_content_size(packed) <= BINARY_MOST:
        return None
    cdef bytes binary = zstd_of_thread().decompress(packed, allow_extra_data=False)
    cdef const uint8_t* raw = <const uint8_t*>PyBytes_AS_STRING(binary)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(binary)
    if size < 8 or big_endian(raw, 4) != count or count < 1:
        return None
    base, width = 0, raw[8] if size > 8 else 0
    if count == 1:
        if size != 8:
            return None
    else:
        base = big_endian(raw + 4, 4)
        if not 1 <= width <= 4 or base > INT32_MOST or size != 9 + (count - 1) * width + 4:
            return None
        for at in range(count - 1):
            one = big_endian(raw + 9 + at * width, width)
            least, most = min(least, one), max(most, one)
        if base + least < 1 or base + most > min(limit, INT32_MOST):
            return None
    last, rest = big_endian(raw + size - 4, 4), file_size - (count - 1) * chunk_size
    if not 1 <= last <= min(2 * rest + 1024, INT32_MOST):
        return None
    index = new(VariableChunkIndex)
    PyObject_GenericSetAttr(index, CHUNK_SIZE, chunk_size)
    PyObject_GenericSetAttr(index, FILE_SIZE, file_size)
    PyObject_GenericSetAttr(index, PACKED, packed)
    PyObject_GenericSetAttr(index, LAST_SIZE, last)
    PyObject_GenericSetAttr(index, BASE_SIZE, base)
    return index


cdef object chunk_index(Text* text, int64_t* file_size, object known_log_size):
    """``chunkIndex`` up to the end of its object; None where it cannot be taken."""
    cdef int64_t chunk_size
    cdef bint is_variable
    expect(text, b'{"version":"1","chunkIndex":{"type":"')
    is_variable = optional(text, b"variable")
    if not is_variable:
        expect(text, b"fixed")
    expect(text, b'","originalChunkSize":')
    chunk_size = number(text, 1, INT32_MOST)
    expect(text, b',"originalFileSize":')
    file_size[0] = number(text, 0, INT32_MOST)
    # So many chunks are not made before the rules have been asked.
    if not text.good or file_size[0] // chunk_size >= SMALL_CHUNKS:
        return None
    if is_variable:
        expect(text, b',"transformedChunks":"')
        packed = unpacked_base64(quoted(text))
        expect(text, b"}")
        return variable_index(chunk_size, file_size[0], packed) if text.good and packed is not None else None
    expect(text, b',"transformedChunkSize":')
    stored = number(text, 0, INT32_MOST)
    expect(text, b',"finalTransformedChunkSize":')
    last = number(text, 0, INT32_MOST)
    expect(text, b"}")
    return FixedChunkIndex(chunk_size, file_size[0], stored, last) if text.good else None


cdef object segment_indexes(Text* text):
    """``segmentIndexes``, each index right behind the one before it."""
    cdef int64_t position, size, end = 0
    cdef Py_ssize_t place
    indexes = new(SegmentIndexes)
    expect(text, b',"segmentIndexes":{')
    for place in range(INDEXES):
        expect(text, (b'"offset":', b',"timestamp":', b',"producerSnapshot":', b',"leaderEpoch":', b',"transaction":')[place])
        entry = None
        if place + 1 < INDEXES or not optional(text, b"null"):
            expect(text, b'{"position":')
            position = number(text, 0, INT32_MOST)
            expect(text, b',"size":')
            size = number(text, 0, INT32_MOST)
            expect(text, b"}")
            if not text.good or position != end:
                return None
            end += size
            entry = new(IndexEntry)
            PyObject_GenericSetAttr(entry, POSITION, position)
            PyObject_GenericSetAttr(entry, SIZE, size)
        PyObject_GenericSetAttr(indexes, INDEX_FIELDS[place], entry)
    expect(text, b"}")
    return indexes if text.good else None


cdef inline bint is_spelled(Text* text, bytes raw) noexcept:
    """Step over a uuid, as Kafka writes these 16 bytes."""
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(raw)
    cdef uint32_t bits
    cdef int place
    if text.end - text.at < 22:
        return False
    for place in range(5):
        bits = at[0] << 16 | at[1] << 8 | at[2]
        if (
            text.at[0] != URL_SAFE[bits >> 18]
            or text.at[1] != URL_SAFE[bits >> 12 & 63]
            or text.at[2] != URL_SAFE[bits >> 6 & 63]
            or text.at[3] != URL_SAFE[bits & 63]
        ):
            return False
        at += 3
        text.at += 4
    if text.at[0] != URL_SAFE[at[0] >> 2] or text.at[1] != URL_SAFE[(at[0] & 3) << 4]:
        return False
    text.at += 2
    return True


cdef tuple leader_epochs(Text* text):
    """In ascending order, as whoever writes them sorts them; None otherwise."""
    cdef int64_t epoch, before = -1, start
    cdef list epochs = []
    expect(text, b',"segmentLeaderEpochs":{')
    if optional(text, b"}"):
        return ()
    while text.good:
        expect(text, b'"')
        epoch = number(text, 0, INT32_MOST)
        expect(text, b'":')
        start = number(text, 0, INT64_MOST)
        if not text.good or epoch <= before or len(epochs) == MOST_EPOCHS:
            return None
        epochs.append((epoch, start))
        before = epoch
        if not optional(text, b","):
            expect(text, b"}")
            return tuple(epochs)
    return None


cdef object segment_metadata(Text* text, object known, int64_t file_size):
    """``remoteLogSegmentMetadata`` of the known segment, up to the end of its object."""
    cdef Py_ssize_t size = 0
    cdef const char* topic
    cdef int64_t start, end, timestamp, broker, copied
    segment_id = known.segment_id
    where = segment_id.topic_id_partition
    if not where.topic.isascii():  # nor is the text; a name with odd bytes in it has no UTF-8 at all
        return None
    topic = PyUnicode_AsUTF8AndSize(where.topic, &size)
    expect(text, b'"remoteLogSegmentMetadata":{"remoteLogSegmentId":{"topicIdPartition":{"topicId":"')
    text.good = text.good and is_spelled(text, where.topic_id.bytes)
    expect(text, b'","topicPartition":{"topic":"')
    cdef Piece name = quoted(text)
    expect(text, b',"partition":')
    if not text.good or not size or name.size != size or memcmp(name.at, topic, size):
        return None
    if number(text, 0, INT32_MOST) != where.partition:
        return None
    expect(text, b'}},"id":"')
    text.good = text.good and is_spelled(text, segment_id.id.bytes)
    expect(text, b'"},"startOffset":')
    start = number(text, 0, INT64_MOST)
    expect(text, b',"endOffset":')
    end = number(text, 0, INT64_MOST - 1)
    expect(text, b',"maxTimestampMs":')
    timestamp = number(text, -1, INT64_MOST)
    expect(text, b',"brokerId":')
    broker = number(text, -1, INT32_MOST)
    expect(text, b',"eventTimestampMs":')
    copied = number(text, -1, INT64_MOST)
    epochs = leader_epochs(text)
    if not text.good or epochs is None or start != known.start_offset or end < start:
        return None
    is_empty = None
    if optional(text, b',"txnIdxEmpty":true'):
        is_empty = True
    elif optional(text, b',"txnIdxEmpty":false'):
        is_empty = False
    expect(text, b"}")
    if not text.good:
        return None
    metadata = new(RemoteLogSegmentMetadata)
    values = (segment_id, start, end, file_size, timestamp, broker, copied, epochs, is_empty, None)
    for place in range(len(METADATA_FIELDS)):
        PyObject_GenericSetAttr(metadata, METADATA_FIELDS[place], values[place])
    return metadata


cdef object encryption(Text* text):
    cdef Piece data_key = quoted(text)
    expect(text, b',"aad":"')
    cdef Piece aad = quoted(text)
    expect(text, b"}")
    if not text.good:
        return None
    key_id, colon, wrapped = string(data_key).partition(":")
    if not colon or ":" in wrapped:
        return None
    return WrappedDataKey(
        key_id,
        decode_base64(wrapped, "encryption.dataKey", padded=False),
        decode_base64(string(aad), "encryption.aad", padded=True),
    )


def read_written(bytes raw not None, known, rules):
    """The manifest of the ``known`` segment; None for any text but the one that is written for such a manifest.

    CorruptData and ZstdError may be raised for one that contradicts itself, as well as None.
    """
    cdef Text text
    cdef int64_t file_size = 0
    cdef bint is_compressed
    text.at = PyBytes_AS_STRING(raw)
    text.end = text.at + PyBytes_GET_SIZE(raw)
    text.good = True
    chunks = chunk_index(&text, &file_size, known.log_size)
    if chunks is None:
        return None
    indexes = segment_indexes(&text)
    if indexes is None:
        return None
    expect(&text, b',"compression":')
    is_compressed = optional(&text, b"true")
    if not is_compressed:
        expect(&text, b"false")
    wrapped = metadata = None
    if optional(&text, b',"encryption":{"dataKey":"'):
        wrapped = encryption(&text)
        if wrapped is None:
            return None
    elif rules.encryption_required:
        return None
    if optional(&text, b","):
        metadata = segment_metadata(&text, known, file_size)
        if metadata is None:
            return None
    expect(&text, b"}")
    if not text.good or text.at != text.end:
        return None
    manifest = new(SegmentManifest)
    PyObject_GenericSetAttr(manifest, CHUNK_INDEX, chunks)
    PyObject_GenericSetAttr(manifest, SEGMENT_INDEXES, indexes)
    PyObject_GenericSetAttr(manifest, COMPRESSION, is_compressed)
    PyObject_GenericSetAttr(manifest, ENCRYPTION, wrapped)
    PyObject_GenericSetAttr(manifest, METADATA, metadata)
    # Compressed and not encrypted, no part of it says anything about another one.
    if wrapped is not None or not is_compressed or type(chunks) is not VariableChunkIndex:
        manifest.__post_init__()
    return manifest
