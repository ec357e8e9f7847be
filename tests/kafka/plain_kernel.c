/* Compares the kernel's checksums and copies (also those of LZ4 and snappy) with each other, for compilers and processors without a Python here. Prints two checksums of a fixed text, or the first difference. */

#include <stdio.h>
#include <stdlib.h>
#include "_bytes.h"
#include "_lz4.h"
#include "_snappy.h"
/* 1 if both codecs expand 80 literals and a copy to the same bytes as a copy byte by byte. */
static int repeats(const uint8_t *literals, size_t distance, size_t length) {
    static uint8_t lz4[200], snappy[200], expected[200], to[200 + SLACK];
    memcpy(expected, literals, 80);
    for (size_t at = 0; at < length; at++) expected[80 + at] = expected[80 + at - distance];
    memcpy(expected + 80 + length, literals, 12);
    lz4[0] = 0xF0 | (length < 19 ? length - 4 : 15), lz4[1] = 80 - 15;
    memcpy(lz4 + 2, literals, 80);
    lz4[82] = (uint8_t)distance, lz4[83] = 0;
    size_t at = 84;
    if (length >= 19) lz4[at++] = (uint8_t)(length - 19);
    lz4[at++] = 0xC0;
    memcpy(lz4 + at, literals, 12);
    if (expand_lz4_block(lz4, lz4 + at + 12, to, to, to + 200) != to + 92 + length || memcmp(to, expected, 92 + length)) return 0;
    snappy[0] = 60 << 2, snappy[1] = 79;
    memcpy(snappy + 2, literals, 80);
    snappy[82] = (uint8_t)((length - 1) << 2 | 2), snappy[83] = (uint8_t)distance, snappy[84] = 0;
    snappy[85] = 11 << 2;
    memcpy(snappy + 86, literals, 12);
    return expand_snappy_elements(snappy, snappy + 98, to, 92 + length) && !memcmp(to, expected, 92 + length);
}

int main(void) {
    static uint8_t data[70000], to[1200];
    uint32_t seed = 1; /* for the generator below, which gives the same text on every platform */
    build_checksums();
    for (size_t at = 0; at < sizeof data; at++) data[at] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
    for (size_t size = 0; size < 20000; size += size < 3000 ? 1 : 37) {
        uint32_t expected = crc32c_portable(data + size % 61, size);
        if (crc32c(data + size % 61, size) != expected || crc32c_by_instruction(data + size % 61, size) != expected) return printf("%zu\n", size), 1;
    }
    for (size_t size = 0; size < 700; size++) {
        memset(to, 7, sizeof to);
        copy_bytes(to, data, size);
        if (memcmp(to, data, size) || to[size] != 7) return printf("copy %zu\n", size), 1;
        memset(to, 7, sizeof to);
        copy_wide(to, data + 69000, size, data + 69000 + size + size % 130);
        if (memcmp(to, data + 69000, size) || to[size + STRIDE] != 7) return printf("wide %zu\n", size), 1;
        memset(to, 7, sizeof to);
        copy_key(to, data + 69000, size, data + 69000 + size + size % 130);
        if (memcmp(to, data + 69000, size) || to[size + STRIDE] != 7) return printf("key %zu\n", size), 1;
    }
    for (size_t distance = 1; distance <= 80; distance++)
        for (size_t length = 4; length <= 64; length++)
            if (!repeats(data, distance, length)) return printf("repeat %zu %zu\n", distance, length), 1;
    printf("%08x %08x\n", crc32c(data, sizeof data), crc32_ieee(data, sizeof data));
    return 0;
}
