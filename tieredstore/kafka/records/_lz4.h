/* Decoder of LZ4 blocks, written from the specification of the format. Literals (new bytes) and matches (repeated
   output) alternate, and literals come last. */

#ifndef TIEREDSTORE_LZ4_H
#define TIEREDSTORE_LZ4_H

#include "_matches.h"

enum {
    LZ4_LEAST_MATCH = 4,
    /* A block ends with at least this many literals, and its last match begins at least this many bytes before its end. */
    LZ4_LAST_LITERALS = 5,
    LZ4_LAST_MATCH = 12,
    /* Each byte of a length adds at most this many bytes of output. */
    LZ4_MOST_GROWTH = 255
};

/* Return a length whose first four bits are in the token; -1 if the block ends inside it. */
static inline int64_t lz4_length(const uint8_t **at, const uint8_t *end, unsigned bits) {
    int64_t length = bits;
    uint8_t byte = 255;
    if (bits < 15) return length;
    while (byte == 255) {
        if (*at == end) return -1;
        byte = *(*at)++;
        length += byte;
    }
    return length;
}

/* Decode a block to `to`, at most up to `limit`, and return the end of the output. SLACK more bytes must follow
   `limit`. Return NULL if the block is malformed, too long, or refers to bytes before `base`. */
static uint8_t *expand_lz4_block(const uint8_t *at, const uint8_t *end, const uint8_t *base, uint8_t *to, const uint8_t *limit) {
    const uint8_t *last_match = NULL;
    while (at < end) {
        unsigned token = *at++;
        int64_t length = lz4_length(&at, end, token >> 4);
        if (length < 0 || length > end - at || length > limit - to) return NULL;
        copy_literals(to, at, (size_t)length, end);
        at += length, to += length;
        if (at == end)
            return !last_match || (length >= LZ4_LAST_LITERALS && to - last_match >= LZ4_LAST_MATCH) ? to : NULL;
        if (end - at < 2) return NULL;
        ptrdiff_t distance = at[0] | at[1] << 8;
        at += 2;
        length = lz4_length(&at, end, token & 15);
        if (length < 0 || !distance || distance > to - base || length + LZ4_LEAST_MATCH > limit - to) return NULL;
        length += LZ4_LEAST_MATCH;
        copy_match(to, (size_t)distance, (size_t)length);
        last_match = to;
        to += length;
    }
    return NULL;
}

#endif
