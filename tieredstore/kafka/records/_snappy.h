/* Decoder of snappy blocks, written from the specification of the format. A block has the decompressed size, then
   literals (new bytes) and copies (repeated output). */

#ifndef TIEREDSTORE_SNAPPY_H
#define TIEREDSTORE_SNAPPY_H

#include "_matches.h"

/* Three bytes can encode a copy of 64 bytes, so decompression grows a block by at most this factor. */
enum { SNAPPY_MOST_GROWTH = 22 };

/* Return the decompressed size that the block declares, and move `at` past it; -1 unless it is a varint of the shortest
   form. */
static inline int64_t snappy_size(const uint8_t **at, const uint8_t *end) {
    uint64_t size = 0;
    for (int shift = 0; *at < end && shift <= 28; shift += 7) {
        uint8_t byte = *(*at)++;
        size |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return byte || !shift ? (int64_t)size : -1;
    }
    return -1;
}

/* Return the length of a literal of more than 60 bytes: the next one to four bytes hold the length minus 1. Return 0 if
   they are missing. */
static inline size_t snappy_long_literal(const uint8_t **at, const uint8_t *end, size_t bytes) {
    size_t length = 0;
    if ((size_t)(end - *at) < bytes) return 0;
    for (size_t byte = 0; byte < bytes; byte++) length |= (size_t)(*at)[byte] << 8 * byte;
    *at += bytes;
    return length + 1;
}

/* Return the distance of a copy, and set its length; `tag` is its first byte. Return 0 if the block ends inside the
   copy. */
static inline size_t snappy_copy(const uint8_t **at, const uint8_t *end, unsigned tag, size_t *length) {
    static const uint32_t sizes[4] = {0, 1, 2, 4}, masks[4] = {0, 0xFF, 0xFFFF, 0xFFFFFFFF};
    size_t size = sizes[tag & 3];
    uint32_t near = (tag & 3) == 1, distance = 0;
    /* The same steps handle all kinds of copies: a branch on the kind would often be predicted wrongly. */
    if (end - *at >= 4)
        distance = load_32(*at) & masks[tag & 3];
    else if ((size_t)(end - *at) < size)
        return 0;
    else
        memcpy(&distance, *at, size);
    *length = near ? 4 + (tag >> 2 & 7) : 1 + (tag >> 2);
    *at += size;
    return distance | (near ? tag >> 5 << 8 : 0);
}

/* Decode the elements of a block to `start`; return 1 if they give exactly `size` bytes. SLACK more bytes must follow
   the output. */
static int expand_snappy_elements(const uint8_t *at, const uint8_t *end, uint8_t *start, size_t size) {
    uint8_t *to = start, *limit = start + size;
    while (at < end) {
        unsigned tag = *at++;
        size_t length = (tag >> 2) + 1, distance;
        if (tag & 3) {
            distance = snappy_copy(&at, end, tag, &length);
            if (!distance || distance > (size_t)(to - start) || length > (size_t)(limit - to)) return 0;
            copy_match(to, distance, length);
        } else {
            if (length > 60) length = snappy_long_literal(&at, end, length - 60);
            if (!length || length > (size_t)(end - at) || length > (size_t)(limit - to)) return 0;
            copy_literals(to, at, length, end);
            at += length;
        }
        to += length;
    }
    return to == limit;
}

#endif
