# A text that is read step by step, of which each step knows what it may find.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t
from libc.string cimport memchr, memcmp

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


cdef inline Piece letters(Text* text) noexcept nogil:
    """What stands before the next quote, which is stepped over: for who looks at each byte of it anyway."""
    cdef Piece piece
    cdef const char* quote = <const char*>memchr(text.at, b'"', text.end - text.at)
    piece.at, piece.size = text.at, 0
    if quote == NULL:
        text.good = False
    else:
        piece.size = quote - text.at
        text.at = quote + 1
    return piece


cdef inline str string(Piece piece):
    return PyUnicode_DecodeASCII(piece.at, piece.size, NULL)
