# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""CRC-32 of concatenated bytes from the CRC-32 of their parts, without reading them again.

A CRC is a remainder of polynomials over two elements, with the bytes as coefficients. Following bytes shift earlier
ones: the CRC of both parts is that of the first times x to the number of bits that follow, plus that of the second.
Numbers have reversed bits, as in CRC-32: the highest one is that of x to the 0.
"""

from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    ONE_BYTE = 0x00800000  # x to the 8

cdef uint32_t POLYNOMIAL = 0xEDB88320
cdef uint32_t ONE = 0x80000000

# Messages of one producer mostly have one size. Guarded by the interpreter's lock.
cdef uint64_t last_size = 0
cdef uint32_t last_shift = ONE


cdef inline uint32_t times(uint32_t left, uint32_t right) noexcept nogil:
    """Return the remainder of the product."""
    cdef uint32_t product = 0
    while left:
        if left & ONE:
            product ^= right
        left <<= 1
        right = (right >> 1) ^ (POLYNOMIAL if right & 1 else 0)
    return product


cdef uint32_t shift_by(uint64_t size) noexcept:
    """Return x to the number of bits of ``size`` bytes."""
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
    """Return the CRC-32 of bytes followed by ``second_size`` others, from the CRC-32 of both."""
    return times(shift_by(second_size), first) ^ second
