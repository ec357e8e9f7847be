# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Segments out of a listing, and rows out of their manifests, where all is as it nearly always is.

What is not stays as it came, for whoever looks at keys and manifests one by one.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp

from tieredstore.backends._frozen cimport empty_value, get_slot, leave_uncollected, set_slot, slot_of
from tieredstore.backends.values import ObjectInfo
from tieredstore.catalog.segment_objects import SegmentObjects
from tieredstore.catalog.rows import SegmentRow, Stamp
from tieredstore.format._base64 cimport fill_alphabets, unpack_letters, url_safe_letters
from tieredstore.format._written import written_metadata
from tieredstore.format.keys import Suffix, partition_of_folder
from tieredstore.model import RemoteLogSegmentId, Uuid

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef Py_ssize_t KEY = slot_of(ObjectInfo, b"key"), SIZE = slot_of(ObjectInfo, b"size")
cdef Py_ssize_t ETAG = slot_of(ObjectInfo, b"etag"), MODIFIED_MS = slot_of(ObjectInfo, b"modified_ms")
cdef Py_ssize_t BYTES = slot_of(Uuid, b"bytes")
cdef Py_ssize_t PARTITION = slot_of(RemoteLogSegmentId, b"topic_id_partition"), ID = slot_of(RemoteLogSegmentId, b"id")
cdef Py_ssize_t SEGMENT_ID = slot_of(SegmentObjects, b"segment_id")
cdef Py_ssize_t START_OFFSET = slot_of(SegmentObjects, b"start_offset")
cdef Py_ssize_t OBJECTS = slot_of(SegmentObjects, b"objects"), MAIN_PATH = slot_of(SegmentObjects, b"main_path")
cdef Py_ssize_t STAMP_SIZE = slot_of(Stamp, b"size"), STAMP_ETAG = slot_of(Stamp, b"etag")
cdef Py_ssize_t STAMP_MODIFIED = slot_of(Stamp, b"modified_ms")
cdef Py_ssize_t PATH = slot_of(SegmentRow, b"path"), STAMP = slot_of(SegmentRow, b"stamp")
cdef Py_ssize_t METADATA = slot_of(SegmentRow, b"metadata"), HISTORY = slot_of(SegmentRow, b"history")
cdef Py_ssize_t PROVEN = slot_of(SegmentRow, b"is_proven")
cdef object LOG = Suffix.LOG, INDEXES = Suffix.INDEXES, MANIFEST = Suffix.MANIFEST

cdef enum:
    DIGITS = 20  # of an offset
    UUID = 22  # letters
    NAME = DIGITS + 1 + UUID

cdef int64_t INT64_MOST = 0x7FFFFFFFFFFFFFFF
fill_alphabets()

cdef struct Text:
    const char* at
    Py_ssize_t size


cdef bint ends(Text text, Text stem, const char* suffix, Py_ssize_t size) noexcept nogil:
    """Whether it is the stem and this suffix."""
    return (
        text.size == stem.size + size
        and not memcmp(text.at, stem.at, stem.size)
        and not memcmp(text.at + stem.size, suffix, size)
    )


cdef Text key_of(object info) except *:
    """The key of an ObjectInfo, good as long as that is held; of no bytes if it is none, or no ASCII."""
    cdef Text text = Text(NULL, 0)
    if type(info) is not ObjectInfo:
        return text
    key = get_slot(info, KEY)
    if type(key) is str and (<str>key).isascii():
        text.at = PyUnicode_AsUTF8AndSize(key, &text.size)
    return text


cdef object offset_in(const char* at):
    """The number of twenty digits, or None."""
    cdef int64_t value = 0, digit
    cdef int place
    for place in range(DIGITS):
        digit = at[place] - 48
        if not 0 <= digit <= 9 or value > (INT64_MOST - digit) // 10:
            return None
        value = 10 * value + digit
    return value


cdef object uuid_in(const char* text):
    """The uuid in Kafka's own spelling, or None."""
    cdef bytes raw = PyBytes_FromStringAndSize(NULL, 16)
    if not unpack_letters(url_safe_letters, <const uint8_t*>text, UUID, <uint8_t*>PyBytes_AS_STRING(raw)):
        return None
    uuid = empty_value(Uuid)
    set_slot(uuid, BYTES, raw)
    leave_uncollected(uuid)
    return uuid


cdef tuple three_objects(object indexes, object log, object manifest):
    """The objects of a segment in the order of their keys."""
    cdef tuple one = (INDEXES, indexes), two = (LOG, log), three = (MANIFEST, manifest), all_of_them = (one, two, three)
    leave_uncollected(one)
    leave_uncollected(two)
    leave_uncollected(three)
    leave_uncollected(all_of_them)
    return all_of_them


def grouped(list listed not None, str prefix not None):
    """What is listed, in its order: three objects of one segment that follow each other are a SegmentObjects, whatever
    else there is stays an ObjectInfo."""
    cdef list answers = []
    cdef Py_ssize_t count = len(listed), at = 0, prefix_size = 0, slash
    cdef const char* prefix_at = NULL
    cdef Text stem, folder = Text(NULL, 0)
    if not prefix.isascii():
        return listed
    prefix_at = PyUnicode_AsUTF8AndSize(prefix, &prefix_size)
    where = None
    while at < count:
        first = listed[at]
        stem = key_of(first)
        stem.size -= 8
        slash = stem.size - NAME - 1
        if (
            at + 2 >= count
            or slash <= prefix_size
            or memcmp(stem.at, prefix_at, prefix_size)
            or memcmp(stem.at + stem.size, b".indexes", 8)
            or stem.at[slash] != b"/"
            or stem.at[slash + 1 + DIGITS] != b"-"
            or not ends(key_of(listed[at + 1]), stem, b".log", 4)
            or not ends(key_of(listed[at + 2]), stem, b".rsm-manifest", 13)
        ):
            answers.append(first)
            at += 1
            continue
        # All segments of a partition have its folder.
        if folder.size != slash or memcmp(folder.at, stem.at, slash):
            folder = Text(stem.at, slash)
            where = partition_of_folder(PyUnicode_DecodeASCII(stem.at + prefix_size, slash - prefix_size, NULL))
        start_offset = offset_in(stem.at + slash + 1)
        uuid = uuid_in(stem.at + slash + 2 + DIGITS)
        if where is None or start_offset is None or uuid is None:
            answers.append(first)
            at += 1
            continue
        segment_id = empty_value(RemoteLogSegmentId)
        set_slot(segment_id, PARTITION, where)
        set_slot(segment_id, ID, uuid)
        leave_uncollected(segment_id)
        objects = empty_value(SegmentObjects)
        set_slot(objects, SEGMENT_ID, segment_id)
        set_slot(objects, START_OFFSET, start_offset)
        set_slot(objects, OBJECTS, three_objects(first, listed[at + 1], listed[at + 2]))
        set_slot(objects, MAIN_PATH, PyUnicode_DecodeASCII(stem.at + prefix_size, stem.size - prefix_size, NULL))
        leave_uncollected(objects)
        answers.append(objects)
        at += 3
    return answers


def rows_of(list segments not None, list manifests not None, bint encryption_required, bint tells):
    """The catalog's rows of whole segments with these manifests, in their order; None for each that is to be read
    another way. ``tells``: that there is no transaction index says that no transaction was aborted."""
    cdef list rows = []
    cdef Py_ssize_t at
    for at in range(len(segments)):
        objects, raw = segments[at], manifests[at]
        row = None
        if type(raw) is bytes and type(objects) is SegmentObjects:
            row = row_of(objects, <bytes>raw, encryption_required, tells)
        rows.append(row)
    return rows


cdef object row_of(object objects, bytes raw, bint encryption_required, bint tells):
    cdef tuple pairs = get_slot(objects, OBJECTS)
    if len(pairs) != 3 or (<tuple?>pairs[2])[0] is not MANIFEST:
        return None
    info = (<tuple>pairs[2])[1]
    if type(info) is not ObjectInfo:
        return None
    metadata = written_metadata(
        raw, get_slot(objects, SEGMENT_ID), get_slot(objects, START_OFFSET), encryption_required, tells
    )
    if metadata is None:
        return None
    stamp = empty_value(Stamp)
    set_slot(stamp, STAMP_SIZE, get_slot(info, SIZE))
    set_slot(stamp, STAMP_ETAG, get_slot(info, ETAG))
    set_slot(stamp, STAMP_MODIFIED, get_slot(info, MODIFIED_MS))
    leave_uncollected(stamp)
    row = empty_value(SegmentRow)
    set_slot(row, PATH, get_slot(objects, MAIN_PATH))
    set_slot(row, STAMP, stamp)
    set_slot(row, METADATA, metadata)
    set_slot(row, HISTORY, None)
    set_slot(row, PROVEN, False)
    leave_uncollected(row)
    return row
