# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The CRC-32 of bytes that lie behind each other, from those of the parts: what has one is not read a second time.

A CRC is a remainder of polynomials over two elements, the bytes being the coefficients. Bytes behind others move these
up: the remainder of the first part times x to the number of bits that follow, plus that of the second part, is that of
both. Numbers have their bits the other way round, as CRC-32 has them: the highest is that of x to the 0.
"""

from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    ONE_BYTE = 0x00800000  # x to the 8

cdef uint32_t POLYNOMIAL = 0xEDB88320
cdef uint32_t ONE = 0x80000000

# Messages of one producer mostly have one size; whoever holds the interpreter's lock reads and changes these.
cdef uint64_t last_size = 0
cdef uint32_t last_shift = ONE


cdef inline uint32_t times(uint32_t left, uint32_t right) noexcept nogil:
    """The remainder of the product."""
    cdef uint32_t product = 0
    while left:
        if left & ONE:
            product ^= right
        left <<= 1
        right = (right >> 1) ^ (POLYNOMIAL if right & 1 else 0)
    return product


cdef uint32_t shift_by(uint64_t size) noexcept:
    """x to the number of bits of so many bytes."""
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
    """The CRC-32 of some bytes with ``second_size`` others behind them, by the CRC-32 of either."""
    return times(shift_by(second_size), first) ^ second
