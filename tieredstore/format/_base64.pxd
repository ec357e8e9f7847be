from libc.stdint cimport uint8_t

cdef extern from "_base64.h" nogil:
    const uint8_t* standard_letters
    const uint8_t* url_safe_letters
    void fill_alphabets()
    size_t unpacked_size(size_t size)
    bint unpack_letters(const uint8_t* letters, const uint8_t* at, size_t size, uint8_t* to)
