# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The scanner's C functions, one by one: for tests and measurements."""

from libc.stdint cimport uint8_t

from tieredstore.kafka.records._expand cimport Expanded, expand_body, free_expanded
from tieredstore.kafka.records._parse cimport (
    build_checksums, crc32_ieee, crc32c, crc32c_by_instruction, crc32c_portable,
)

build_checksums()


def checksum(kind, const uint8_t[::1] data):
    """Return the checksum of the data as the scanner computes it: ``ieee`` or ``castagnoli``. On older processors
    the scanner uses ``castagnoli by instruction`` or ``portable castagnoli``.
    """
    cdef const uint8_t* at = &data[0] if data.shape[0] else NULL
    if kind == "ieee":
        return crc32_ieee(at, data.shape[0])
    if kind == "castagnoli by instruction":
        return crc32c_by_instruction(at, data.shape[0])
    return crc32c(at, data.shape[0]) if kind == "castagnoli" else crc32c_portable(at, data.shape[0])


def expand(int codec, const uint8_t[::1] body, size_t most):
    """Decompress the body as the scanner does; return None if the scanner would leave it to the codec's library."""
    cdef Expanded expanded = Expanded(NULL, 0, 0, most)
    try:
        if not body.shape[0] or not expand_body(&expanded, codec, &body[0], body.shape[0]):
            return None
        return (<char*>expanded.data)[: expanded.used]
    finally:
        free_expanded(&expanded)
