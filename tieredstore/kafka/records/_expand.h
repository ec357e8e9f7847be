/* Decompress batches in LZ4 and snappy, as Kafka clients write them, without the interpreter.

   Unusual streams are left to the codec's library: damaged streams, streams larger than the limit here, and streams
   with features that few clients use (checksums of LZ4's blocks, several frames). So only the library reports errors
   and handles special cases. This code must not accept a stream that the library would refuse, and must return the
   same bytes as the library. */

#ifndef TIEREDSTORE_EXPAND_H
#define TIEREDSTORE_EXPAND_H

#include "_lz4.h"
#include "_pages.h"
#include "_snappy.h"

enum {
    SNAPPY_CODEC = 2,
    LZ4_CODEC = 3,
    XERIAL_MAGIC_SIZE = 8,
    XERIAL_HEADER_SIZE = 16,
    MOST_SNAPPY_BLOCKS = 4096,
    LZ4_HEADER_SIZE = 7,
    LZ4_CONTENT_SIZE = 8,
    LZ4_INDEPENDENT = 32,
    LEAST_EXPANDED = 128 * 1024
};

/* The decompressed bytes of a body: `used` so far, never more than `most`. */
typedef struct {
    uint8_t *data;
    size_t capacity, used, most;
} Expanded;

/* Make room for `more` bytes and SLACK bytes after them. Return 0 if they exceed the limit or memory runs out. */
static int expanded_room(Expanded *expanded, size_t more) {
    size_t needed = expanded->used + more + SLACK, room = 2 * expanded->capacity;
    uint8_t *data;
    if (needed > expanded->most + SLACK) return 0;
    if (needed <= expanded->capacity) return 1;
    if (room < LEAST_EXPANDED) room = LEAST_EXPANDED;
    if (room < needed) room = needed;
    room = (room + LEAST_EXPANDED - 1) / LEAST_EXPANDED * LEAST_EXPANDED;
    if (!(data = (uint8_t *)take_block(room))) return 0;
    if (expanded->used) memcpy(data, expanded->data, expanded->used);
    if (expanded->data) free_block(expanded->data, expanded->capacity);
    expanded->data = data, expanded->capacity = room;
    return 1;
}

static int expand_snappy_block(Expanded *expanded, const uint8_t *at, const uint8_t *end) {
    const uint8_t *start = at;
    int64_t size = snappy_size(&at, end);
    if (size <= 0 || size > SNAPPY_MOST_GROWTH * (end - start) || !expanded_room(expanded, (size_t)size)) return 0;
    if (!expand_snappy_elements(at, end, expanded->data + expanded->used, (size_t)size)) return 0;
    expanded->used += (size_t)size;
    return 1;
}

/* Decompress either one bare block, as most clients write, or snappy-java's stream: a header, and then blocks, each
   after its size. */
static int expand_snappy(Expanded *expanded, const uint8_t *at, const uint8_t *end) {
    if (end - at < XERIAL_HEADER_SIZE || memcmp(at, "\x82SNAPPY", XERIAL_MAGIC_SIZE))
        return expand_snappy_block(expanded, at, end);
    at += XERIAL_HEADER_SIZE;
    for (int block = 0; at < end; block++) {
        int32_t size = end - at < 4 ? 0 : big_32(at);
        if (size <= 0 || size > end - at - 4 || block == MOST_SNAPPY_BLOCKS) return 0;
        at += 4;
        if (!expand_snappy_block(expanded, at, at + size)) return 0;
        at += size;
    }
    return expanded->used > 0;
}

static inline uint32_t turned(uint32_t word, int bits) { return word << bits | word >> (32 - bits); }

/* Return the header checksum of an LZ4 frame: one byte of its XXH32 hash with seed 0. The header has fewer than 16
   bytes. */
static uint8_t lz4_header_check(const uint8_t *at, size_t size) {
    uint32_t sum = 0x165667B1u + (uint32_t)size;
    for (; size >= 4; at += 4, size -= 4) sum = turned(sum + load_32(at) * 0xC2B2AE3Du, 17) * 0x27D4EB2Fu;
    for (; size; at++, size--) sum = turned(sum + *at * 0x165667B1u, 11) * 0x9E3779B1u;
    sum = (sum ^ sum >> 15) * 0x85EBCA77u;
    sum = (sum ^ sum >> 13) * 0xC2B2AE3Du;
    return (uint8_t)((sum ^ sum >> 16) >> 8);
}

/* Expand one block of a frame, at most `most` bytes. The caller has read the block's size, whose top bit tells if it is
   compressed. */
static int expand_lz4_part(Expanded *expanded, const uint8_t *at, uint32_t stored, size_t most, int is_independent) {
    size_t size = stored & 0x7FFFFFFFu, room = size;
    uint8_t *to, *stop;
    if (!size || size > most) return 0;
    if (!(stored >> 31)) room = most < LZ4_MOST_GROWTH * size ? most : LZ4_MOST_GROWTH * size;
    if (room > expanded->most - expanded->used) room = expanded->most - expanded->used;
    if (!expanded_room(expanded, room)) return 0;
    to = expanded->data + expanded->used;
    if (!(stored >> 31)) {
        stop = expand_lz4_block(at, at + size, is_independent ? to : expanded->data, to, to + room);
        if (!stop) return 0;
        expanded->used += (size_t)(stop - to);
        return 1;
    }
    if (size > room) return 0;
    memcpy(to, at, size);
    expanded->used += size;
    return 1;
}

/* Expand a single frame that fills the body. The only checksum that it may have is the one of its header. */
static int expand_lz4(Expanded *expanded, const uint8_t *at, const uint8_t *end) {
    if (end - at < LZ4_HEADER_SIZE + 4 || load_32(at) != 0x184D2204u) return 0;
    uint8_t flags = at[4], blocks = at[5];
    size_t header = 2 + (flags & LZ4_CONTENT_SIZE), most = (size_t)1 << (8 + 2 * (blocks >> 4));
    uint64_t content;
    /* The version must be 1, and all reserved bits 0. */
    if ((flags & ~(LZ4_CONTENT_SIZE | LZ4_INDEPENDENT)) != 64 || blocks & 0x8F || blocks < 0x40) return 0;
    if ((size_t)(end - at) < header + 5 + 4 || lz4_header_check(at + 4, header) != at[4 + header]) return 0;
    content = flags & LZ4_CONTENT_SIZE ? load_64(at + 6) : 0;
    for (at += 4 + header + 1; end - at >= 4;) {
        uint32_t stored = load_32(at);
        at += 4;
        if (!stored) return at == end && (!(flags & LZ4_CONTENT_SIZE) || content == expanded->used);
        if ((int64_t)(stored & 0x7FFFFFFFu) > end - at) return 0;
        if (!expand_lz4_part(expanded, at, stored, most, flags & LZ4_INDEPENDENT)) return 0;
        at += stored & 0x7FFFFFFFu;
    }
    return 0;
}

/* Return 1 if the body could be decompressed here, into at most `most` bytes. */
static int expand_body(Expanded *expanded, int codec, const uint8_t *body, size_t size) {
    expanded->used = 0;
    if (codec == SNAPPY_CODEC) return expand_snappy(expanded, body, body + size);
    return codec == LZ4_CODEC && expand_lz4(expanded, body, body + size);
}

static void free_expanded(Expanded *expanded) {
    if (expanded->data) free_block(expanded->data, expanded->capacity);
    expanded->data = NULL, expanded->capacity = expanded->used = 0;
}

#endif
