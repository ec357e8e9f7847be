# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""CRC-32 of concatenated bytes from the CRC-32 of their parts, without reading the bytes again.

A CRC is the remainder of a polynomial over GF(2), whose coefficients are the bits. Appending n bits multiplies the
polynomial by x to the n. The CRC of both parts is therefore the first CRC, times x to the number of following bits,
plus the second CRC. As in CRC-32, bits are reversed: the highest bit is the coefficient of x to the 0.
"""

from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    ONE_BYTE = 0x00800000  # x to the 8

cdef uint32_t POLYNOMIAL = 0xEDB88320
cdef uint32_t ONE = 0x80000000

# The shift of one size is cached, because most Messages of a producer have the same size. The GIL guards the cache.
cdef uint64_t last_size = 0
cdef uint32_t last_shift = ONE


cdef inline uint32_t times(uint32_t left, uint32_t right) noexcept nogil:
    """Return the product of two polynomials modulo CRC-32's polynomial."""
    cdef uint32_t product = 0
    while left:
        if left & ONE:
            product ^= right
        left <<= 1
        right = (right >> 1) ^ (POLYNOMIAL if right & 1 else 0)
    return product


cdef uint32_t shift_by(uint64_t size) noexcept:
    """Return x to the power of (8 times ``size``), modulo CRC-32's polynomial."""
    global last_size, last_shift
    cdef uint32_t shift = ONE, power = ONE_BYTE
    cdef uint64_t left = size
    if size == last_size:
        return last_shift
    while left:
        if left & 1:
            shift = times(shift, power)
        power = times(power, power)
        left >>= 1
    last_size, last_shift = size, shift
    return shift


def joined_crc(uint32_t first, uint32_t second, uint64_t second_size):
    """Return the CRC-32 of two joined parts from their CRC-32; the second part has ``second_size`` bytes."""
    return times(shift_by(second_size), first) ^ second
