from libc.stdint cimport uint8_t

cdef extern from "_expand.h" nogil:
    ctypedef struct Expanded:
        uint8_t* data
        size_t capacity, used, most
    bint expand_body(Expanded* expanded, int codec, const uint8_t* body, size_t size)
    void free_expanded(Expanded* expanded)
