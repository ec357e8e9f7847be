/* The least that a decoder of batches can do: each record parsed once, each byte of keys and values copied once, and the
   columns of fixed width written, into allocated memory. It checks nothing, so it is not a full decoder. */

#include <stdint.h>
#include <string.h>

struct columns {
    uint8_t *keys, *values;
    int32_t *key_ends, *value_ends, *header_ends, *types, *epochs;
    int64_t *offsets, *timestamps;
};

static inline int64_t big(const uint8_t *at, int size) {
    uint64_t value = 0;
    for (int place = 0; place < size; place++) value = value << 8 | at[place];
    return (int64_t)value;
}

static inline int64_t varint(const uint8_t **at) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
    }
}

static inline int32_t copy(uint8_t *to, int32_t end, const uint8_t **at) {
    int64_t size = varint(at);
    if (size <= 0) return end;
    memcpy(to + end, *at, (size_t)size);
    *at += size;
    return end + (int32_t)size;
}

/* Return the number of records. */
int64_t plain_decode(const uint8_t *piece, int64_t size, const struct columns *to) {
    int64_t row = 0;
    int32_t key_end = 0, value_end = 0;
    for (const uint8_t *batch = piece; batch < piece + size; batch += 12 + big(batch + 8, 4)) {
        int64_t base_offset = big(batch, 8), base_timestamp = big(batch + 27, 8);
        int32_t epoch = (int32_t)big(batch + 12, 4);
        const uint8_t *at = batch + 61;
        for (int64_t left = big(batch + 57, 4); left; left--, row++) {
            int64_t length = varint(&at);
            const uint8_t *next = at + length;
            at++;
            to->timestamps[row] = base_timestamp + varint(&at);
            to->offsets[row] = base_offset + varint(&at);
            to->key_ends[row] = key_end = copy(to->keys, key_end, &at);
            to->value_ends[row] = value_end = copy(to->values, value_end, &at);
            to->header_ends[row] = 0;
            to->types[row] = 0;
            to->epochs[row] = epoch;
            at = next;
        }
    }
    return row;
}
