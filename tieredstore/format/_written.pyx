# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The manifest of a known segment out of exactly the text that the plugin writes for it, byte for byte in its order.

Whatever else a text is, wrong or only unusual, is None here and left to the readers in Python, who say why. What is
taken was checked as they check it; values whose own checks were made here are put together without them.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

import zstandard

from tieredstore.backends._frozen cimport empty_value, leave_uncollected, set_slot, slot_of
from tieredstore.errors import CorruptData
from tieredstore.format._base64 cimport fill_alphabets, standard_letters, unpack_letters, unpacked_size, url_safe_letters
from tieredstore.format._text cimport Piece, Text, expect, letters, number, optional, quoted, string
from tieredstore.format.base64_text import decode_base64
from tieredstore.format.chunk_index import FixedChunkIndex, VariableChunkIndex
from tieredstore.format.chunk_sizes import MAX_BINARY_SIZE, zstd_of_thread
from tieredstore.format.manifest import IndexEntry, SegmentIndexes, SegmentManifest, WrappedDataKey
from tieredstore.format.manifest_rules import MAX_SMALL_CHUNKS
from tieredstore.format.sizes import ENCRYPTION_OVERHEAD
from tieredstore.model import RemoteLogSegmentMetadata

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    LONGEST = 65536  # of a manifest that is read so
    MOST_EPOCHS = 64
    INDEXES = 5

cdef int64_t INT32_MOST = 0x7FFFFFFF
cdef int64_t INT64_MOST = 0x7FFFFFFFFFFFFFFF
cdef int64_t SMALL_CHUNKS = MAX_SMALL_CHUNKS
cdef int64_t BINARY_MOST = MAX_BINARY_SIZE
cdef int64_t OVERHEAD = ENCRYPTION_OVERHEAD

fill_alphabets()

cdef Py_ssize_t CHUNK_SIZE = slot_of(VariableChunkIndex, b"original_chunk_size")
cdef Py_ssize_t FILE_SIZE = slot_of(VariableChunkIndex, b"original_file_size")
cdef Py_ssize_t PACKED = slot_of(VariableChunkIndex, b"packed_sizes")
cdef Py_ssize_t LAST_SIZE = slot_of(VariableChunkIndex, b"last_size")
cdef Py_ssize_t BASE_SIZE = slot_of(VariableChunkIndex, b"base_size")
cdef Py_ssize_t POSITION = slot_of(IndexEntry, b"position"), SIZE = slot_of(IndexEntry, b"size")
cdef Py_ssize_t INDEX_FIELDS[INDEXES]
INDEX_FIELDS[0] = slot_of(SegmentIndexes, b"offset")
INDEX_FIELDS[1] = slot_of(SegmentIndexes, b"timestamp")
INDEX_FIELDS[2] = slot_of(SegmentIndexes, b"producer_snapshot")
INDEX_FIELDS[3] = slot_of(SegmentIndexes, b"leader_epoch")
INDEX_FIELDS[4] = slot_of(SegmentIndexes, b"transaction")
cdef Py_ssize_t CHUNK_INDEX = slot_of(SegmentManifest, b"chunk_index")
cdef Py_ssize_t SEGMENT_INDEXES = slot_of(SegmentManifest, b"segment_indexes")
cdef Py_ssize_t COMPRESSION = slot_of(SegmentManifest, b"compression")
cdef Py_ssize_t ENCRYPTION = slot_of(SegmentManifest, b"encryption")
cdef Py_ssize_t METADATA = slot_of(SegmentManifest, b"metadata")
cdef Py_ssize_t SEGMENT_ID = slot_of(RemoteLogSegmentMetadata, b"remote_log_segment_id")
cdef Py_ssize_t START = slot_of(RemoteLogSegmentMetadata, b"start_offset")
cdef Py_ssize_t END = slot_of(RemoteLogSegmentMetadata, b"end_offset")
cdef Py_ssize_t LOG_SIZE = slot_of(RemoteLogSegmentMetadata, b"segment_size_in_bytes")
cdef Py_ssize_t MAX_TIMESTAMP = slot_of(RemoteLogSegmentMetadata, b"max_timestamp_ms")
cdef Py_ssize_t BROKER = slot_of(RemoteLogSegmentMetadata, b"broker_id")
cdef Py_ssize_t COPIED = slot_of(RemoteLogSegmentMetadata, b"event_timestamp_ms")
cdef Py_ssize_t EPOCHS = slot_of(RemoteLogSegmentMetadata, b"segment_leader_epochs")
cdef Py_ssize_t TXN_EMPTY = slot_of(RemoteLogSegmentMetadata, b"txn_idx_empty")
cdef Py_ssize_t CUSTOM = slot_of(RemoteLogSegmentMetadata, b"custom_metadata")

# What the parts of a manifest say that others of it have to agree with.
cdef struct Told:
    int64_t file_size
    int64_t least_chunk  # of the stored chunks that a list names; -1 without one
    int64_t over  # by which chunks of one size are stored longer than they are; -1 for those of a list
    int64_t least_index  # of the indexes that are not empty; -1 without any
    int64_t transactions  # bytes of the transaction index; -1 without one
    bint is_compressed, is_encrypted


cdef bytes unpacked_base64(Piece piece):
    """The bytes of standard base64 with or without its padding; None unless it is exactly that."""
    cdef Py_ssize_t size = piece.size
    cdef const uint8_t* at = <const uint8_t*>piece.at
    if size and size % 4 == 0 and at[size - 1] == b"=":
        size -= 2 if at[size - 2] == b"=" else 1
    cdef bytes whole = PyBytes_FromStringAndSize(NULL, unpacked_size(size))
    return whole if unpack_letters(standard_letters, at, size, <uint8_t*>PyBytes_AS_STRING(whole)) else None


cdef inline uint32_t big_endian(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3]


cdef object variable_index(int64_t chunk_size, int64_t file_size, bytes packed, Told* told, bint makes):
    """The index of a list of sizes that holds together, or True if none has to be made; None otherwise."""
    cdef int64_t count = (file_size + chunk_size - 1) // chunk_size
    cdef int64_t limit = 2 * chunk_size + 1024, base, last, rest
    cdef Py_ssize_t width, at
    cdef uint32_t least = 0xFFFFFFFFu, most = 0, one
    if not 0 < zstandard.frame_content_size(packed) <= BINARY_MOST:
        return None
    cdef bytes binary = zstd_of_thread().decompress(packed, allow_extra_data=False)
    cdef const uint8_t* raw = <const uint8_t*>PyBytes_AS_STRING(binary)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(binary)
    if size < 8 or big_endian(raw) != count or count < 1:
        return None
    base, width = 0, raw[8] if size > 8 else 0
    if count == 1:
        if size != 8:
            return None
    else:
        base = big_endian(raw + 4)
        if not 1 <= width <= 4 or base > INT32_MOST or size != 9 + (count - 1) * width + 4:
            return None
        for at in range(count - 1):
            # Of four bytes, which there are: the last size stands behind all of these.
            one = big_endian(raw + 9 + at * width) >> (32 - 8 * width)
            least, most = min(least, one), max(most, one)
        if base + least < 1 or base + most > min(limit, INT32_MOST):
            return None
    last, rest = big_endian(raw + size - 4), file_size - (count - 1) * chunk_size
    if not 1 <= last <= min(2 * rest + 1024, INT32_MOST):
        return None
    told.least_chunk = last if count == 1 else min(last, base + least)
    if not makes:
        return True
    index = empty_value(VariableChunkIndex)
    set_slot(index, CHUNK_SIZE, chunk_size)
    set_slot(index, FILE_SIZE, file_size)
    set_slot(index, PACKED, packed)
    set_slot(index, LAST_SIZE, last)
    set_slot(index, BASE_SIZE, base)
    leave_uncollected(index)
    return index


cdef object chunk_index(Text* text, Told* told, bint makes):
    """``chunkIndex`` up to the end of its object, or True if none has to be made; None where it cannot be taken."""
    cdef int64_t chunk_size, stored, last
    cdef bint is_variable
    expect(text, b'{"version":"1","chunkIndex":{"type":"')
    is_variable = optional(text, b"variable")
    if not is_variable:
        expect(text, b"fixed")
    expect(text, b'","originalChunkSize":')
    chunk_size = number(text, 1, INT32_MOST)
    expect(text, b',"originalFileSize":')
    told.file_size = number(text, 0, INT32_MOST)
    # So many chunks are not made before the rules have been asked.
    if not text.good or told.file_size // chunk_size >= SMALL_CHUNKS:
        return None
    if is_variable:
        expect(text, b',"transformedChunks":"')
        packed = unpacked_base64(letters(text))
        expect(text, b"}")
        if not text.good or packed is None:
            return None
        return variable_index(chunk_size, told.file_size, packed, told, makes)
    expect(text, b',"transformedChunkSize":')
    stored = number(text, 0, INT32_MOST)
    expect(text, b',"finalTransformedChunkSize":')
    last = number(text, 0, INT32_MOST)
    expect(text, b"}")
    told.over = stored - chunk_size
    return FixedChunkIndex(chunk_size, told.file_size, stored, last) if text.good else None


cdef object segment_indexes(Text* text, Told* told, bint makes):
    """``segmentIndexes``, each index right behind the one before it, or True if nothing has to be made."""
    cdef int64_t position, size, end = 0
    cdef Py_ssize_t place
    indexes = empty_value(SegmentIndexes) if makes else True
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
            if size and (told.least_index < 0 or size < told.least_index):
                told.least_index = size
            if place + 1 == INDEXES:
                told.transactions = size
            if makes:
                entry = empty_value(IndexEntry)
                set_slot(entry, POSITION, position)
                set_slot(entry, SIZE, size)
                leave_uncollected(entry)
        if makes:
            set_slot(indexes, INDEX_FIELDS[place], entry)
    expect(text, b"}")
    return indexes if text.good else None


cdef inline bint is_spelled(Text* text, bytes raw) noexcept:
    """Step over a uuid, as Kafka writes these 16 bytes."""
    cdef uint8_t unpacked[16]
    if text.end - text.at < 22 or not unpack_letters(url_safe_letters, <const uint8_t*>text.at, 22, unpacked):
        return False
    text.at += 22
    return not memcmp(unpacked, PyBytes_AS_STRING(raw), 16)


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


cdef object segment_metadata(Text* text, object segment_id, int64_t start_offset, Told* told, bint tells):
    """``remoteLogSegmentMetadata`` of the known segment, up to the end of its object; of the transaction index it has what
    the manifest ``tells``, if that counts."""
    cdef Py_ssize_t size = 0
    cdef const char* topic
    cdef int64_t start, end, timestamp, broker, copied
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
    if not text.good or epochs is None or start != start_offset or end < start:
        return None
    is_empty = None
    if optional(text, b',"txnIdxEmpty":true'):
        is_empty = True
    elif optional(text, b',"txnIdxEmpty":false'):
        is_empty = False
    expect(text, b"}")
    if not text.good:
        return None
    if tells:
        is_empty = told.transactions <= 0
    metadata = empty_value(RemoteLogSegmentMetadata)
    set_slot(metadata, SEGMENT_ID, segment_id)
    set_slot(metadata, START, start)
    set_slot(metadata, END, end)
    set_slot(metadata, LOG_SIZE, told.file_size)
    set_slot(metadata, MAX_TIMESTAMP, timestamp)
    set_slot(metadata, BROKER, broker)
    set_slot(metadata, COPIED, copied)
    set_slot(metadata, EPOCHS, epochs)
    set_slot(metadata, TXN_EMPTY, is_empty)
    set_slot(metadata, CUSTOM, None)
    leave_uncollected(metadata)
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


cdef bint is_encryption(Text* text):
    """Step over ``encryption`` behind its first quote; whether it is as it is written."""
    cdef Piece data_key = quoted(text), wrapped
    cdef Py_ssize_t at = 0
    cdef bint is_blank = True
    expect(text, b',"aad":"')
    cdef Piece aad = quoted(text)
    expect(text, b"}")
    while text.good and at < data_key.size and data_key.at[at] != b":":
        is_blank = is_blank and data_key.at[at] == b" "
        at += 1
    wrapped.at, wrapped.size = data_key.at + at + 1, data_key.size - at - 1
    if not text.good or is_blank or wrapped.size < 1 or aad.size % 4:
        return False
    return unpacked_base64(wrapped) is not None and unpacked_base64(aad) is not None


cdef void compression(Text* text, Told* told) noexcept:
    expect(text, b',"compression":')
    told.is_compressed = optional(text, b"true")
    if not told.is_compressed:
        expect(text, b"false")


cdef bint has_own_epochs(object metadata):
    """Whether it names leader epochs that can be the segment's; they ascend already."""
    cdef int64_t before = 0, first = -1, start
    for _, start in metadata.segment_leader_epochs:
        if start < before:
            return False
        first, before = start if first < 0 else first, start
    return 0 <= first <= metadata.start_offset and before <= metadata.end_offset


cdef Told nothing_told() noexcept:
    return Told(0, -1, -1, -1, -1, False, False)


cdef bint agree(Told* told) noexcept nogil:
    """Whether chunks, indexes, compression and encryption of a manifest say the same of each other."""
    cdef int64_t over = OVERHEAD if told.is_encrypted else 0
    if 0 < told.least_index <= OVERHEAD and told.is_encrypted:
        return False
    if told.least_chunk < 0:
        return not told.is_compressed and told.over == over
    # The sizes of a list follow from those of the log where nothing is compressed: few write one then.
    return told.is_compressed and told.least_chunk > over


def read_written(bytes raw not None, known, rules):
    """The manifest of the ``known`` segment; None for any text but the one that is written for such a manifest.

    CorruptData and ZstdError may be raised for one that contradicts itself, as well as None.
    """
    cdef Text text = Text(PyBytes_AS_STRING(raw), PyBytes_AS_STRING(raw) + PyBytes_GET_SIZE(raw), True)
    cdef Told told = nothing_told()
    chunks = chunk_index(&text, &told, True)
    if chunks is None:
        return None
    indexes = segment_indexes(&text, &told, True)
    if indexes is None:
        return None
    compression(&text, &told)
    wrapped = metadata = None
    if optional(&text, b',"encryption":{"dataKey":"'):
        wrapped = encryption(&text)
        if wrapped is None:
            return None
    elif rules.encryption_required:
        return None
    if optional(&text, b","):
        metadata = segment_metadata(&text, known.segment_id, known.start_offset, &told, False)
        if metadata is None:
            return None
    expect(&text, b"}")
    if not text.good or text.at != text.end:
        return None
    manifest = empty_value(SegmentManifest)
    set_slot(manifest, CHUNK_INDEX, chunks)
    set_slot(manifest, SEGMENT_INDEXES, indexes)
    set_slot(manifest, COMPRESSION, told.is_compressed)
    set_slot(manifest, ENCRYPTION, wrapped)
    set_slot(manifest, METADATA, metadata)
    # Compressed and not encrypted, no part of it says anything about another one.
    if wrapped is not None or not told.is_compressed or type(chunks) is not VariableChunkIndex:
        manifest.__post_init__()
    return manifest


def written_metadata(bytes raw not None, segment_id not None, int64_t start_offset, bint encryption_required, bint tells):
    """What a planning wants of the manifest that :func:`read_written` would read: its segment metadata, whole and
    checked, with what the manifest ``tells`` of the transaction index if that counts.

    None where there is none, or leader epochs are not the segment's, and where anything contradicts itself: whoever
    reads all of the manifest says what.
    """
    cdef Text text = Text(PyBytes_AS_STRING(raw), PyBytes_AS_STRING(raw) + PyBytes_GET_SIZE(raw), True)
    cdef Told told = nothing_told()
    if PyBytes_GET_SIZE(raw) > LONGEST:
        return None
    try:
        if chunk_index(&text, &told, False) is None:
            return None
    except (CorruptData, zstandard.ZstdError):
        return None
    if segment_indexes(&text, &told, False) is None:
        return None
    compression(&text, &told)
    told.is_encrypted = optional(&text, b',"encryption":{"dataKey":"')
    if told.is_encrypted:
        if not is_encryption(&text):
            return None
    elif encryption_required:
        return None
    expect(&text, b",")
    metadata = segment_metadata(&text, segment_id, start_offset, &told, tells)
    expect(&text, b"}")
    if metadata is None or not text.good or text.at != text.end or not agree(&told) or not has_own_epochs(metadata):
        return None
    return metadata
