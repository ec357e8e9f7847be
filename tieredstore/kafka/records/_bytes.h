/* Helpers in C for the kernel: big-endian loads, short copies, and Kafka's two checksums.

   CRC-32C (Castagnoli, magic 2) uses the processor's instruction if there is one. It works on three parts of the bytes
   (lanes) at a time, because the instruction takes three cycles, but the next one can start a cycle later. Tables then
   move the checksum of a lane over the bytes of the lanes after it: a CRC register after n zero bytes is a linear
   function of the register before. If the processor can multiply 64 bytes without carries, _fold.h does this twice as
   fast. CRC-32 (IEEE, magic 0 and 1), and CRC-32C on other processors, use tables, with eight bytes in each step. With
   TIEREDSTORE_PLAIN_C all checksums use tables. */

#ifndef TIEREDSTORE_BYTES_H
#define TIEREDSTORE_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(TIEREDSTORE_PLAIN_C)
/* Use only instructions that the compiler chooses by itself. */
#elif defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#if defined(__clang__) || __GNUC__ >= 9
#include "_fold.h"
#define CAN_FOLD
#endif
#define HARDWARE_CRC __attribute__((target("sse4.2")))
#define CRC_STEP_8(crc, word) _mm_crc32_u64((crc), (word))
#define CRC_STEP_1(crc, byte) _mm_crc32_u8((uint32_t)(crc), (byte))
#define HAS_HARDWARE_CRC() __builtin_cpu_supports("sse4.2")
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define HARDWARE_CRC
#define CRC_STEP_8(crc, word) __crc32cd((uint32_t)(crc), (word))
#define CRC_STEP_1(crc, byte) __crc32cb((uint32_t)(crc), (byte))
#define HAS_HARDWARE_CRC() 1
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the kernel is written for little-endian machines, as Arrow's buffers are"
#endif

static inline uint64_t load_64(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

static inline uint32_t load_32(const uint8_t *at) {
    uint32_t word;
    memcpy(&word, at, 4);
    return word;
}

static inline int64_t big_64(const uint8_t *at) { return (int64_t)__builtin_bswap64(load_64(at)); }

static inline int32_t big_32(const uint8_t *at) { return (int32_t)__builtin_bswap32(load_32(at)); }

static inline int16_t big_16(const uint8_t *at) { return (int16_t)(at[0] << 8 | at[1]); }

/* Copy as memcpy does, but faster for sizes that vary and are mostly small. Up to 64 bytes this makes no call: it
   copies by loads that may overlap, but never touches a byte outside of source and target. */
static inline void copy_bytes(uint8_t *to, const uint8_t *from, size_t size) {
    if (size > 64) {
        memcpy(to, from, size);
    } else if (size >= 16) {
        for (size_t at = 0; at + 16 < size; at += 16) memcpy(to + at, from + at, 16);
        memcpy(to + size - 16, from + size - 16, 16);
    } else if (size >= 8) {
        uint64_t head = load_64(from), tail = load_64(from + size - 8);
        memcpy(to, &head, 8);
        memcpy(to + size - 8, &tail, 8);
    } else if (size >= 4) {
        uint32_t head = load_32(from), tail = load_32(from + size - 4);
        memcpy(to, &head, 4);
        memcpy(to + size - 4, &tail, 4);
    } else if (size) {
        uint8_t last = from[size - 1], middle = from[size >> 1];
        to[0] = from[0];
        to[size >> 1] = middle;
        to[size - 1] = last;
    }
}

enum { STRIDE = 64 };

/* Copy 64 bytes at once if `size` is at most that, so that most keys and short values need no branch on the size. At
   least 64 bytes must follow the target's end. If 64 bytes from the source on would cross `limit`, copy exactly `size`
   bytes instead. */
static inline void copy_wide(uint8_t *to, const uint8_t *from, size_t size, const uint8_t *limit) {
    if (size <= STRIDE && limit - from >= STRIDE)
        memcpy(to, from, STRIDE);
    else
        copy_bytes(to, from, size);
}

/* Copy as copy_wide does; faster if most data have at most 16 bytes. */
static inline void copy_key(uint8_t *to, const uint8_t *from, size_t size, const uint8_t *limit) {
    if (size <= 16 && limit - from >= 16)
        memcpy(to, from, 16);
    else
        copy_wide(to, from, size, limit);
}

/* Return 1 if any byte is over 127. */
static inline int has_high_byte(const uint8_t *at, size_t size) {
    uint64_t seen = 0;
    for (; size >= 8; at += 8, size -= 8) seen |= load_64(at);
    for (; size; at++, size--) seen |= *at;
    return (seen & 0x8080808080808080u) != 0;
}

/* --- checksums --- */

#define LONG_LANE 2048
#define SHORT_LANE 256

static uint32_t ieee_tables[8][256], castagnoli_tables[8][256];
static uint32_t long_shift[4][256], short_shift[4][256];

static void build_tables(uint32_t tables[8][256], uint32_t reversed_polynomial) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (reversed_polynomial & (0u - (crc & 1)));
        tables[0][byte] = crc;
    }
    for (int distance = 1; distance < 8; distance++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = tables[distance - 1][byte];
            tables[distance][byte] = before >> 8 ^ tables[0][before & 255];
        }
}

static uint32_t crc_by_tables(uint32_t tables[8][256], uint32_t crc, const uint8_t *at, size_t size) {
    crc = ~crc;
    for (; size >= 8; at += 8, size -= 8) {
        uint64_t word = load_64(at) ^ crc;
        crc = 0;
        for (int byte = 0; byte < 8; byte++) crc ^= tables[7 - byte][word >> 8 * byte & 255];
    }
    for (; size; at++, size--) crc = crc >> 8 ^ tables[0][(crc ^ *at) & 255];
    return ~crc;
}

/* Build the tables that move a CRC register over `distance` zero bytes. Each entry combines the results for the single
   bits of one byte of the register. */
static void build_shift(uint32_t shift[4][256], int distance) {
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = 1u << bit;
        for (int byte = 0; byte < distance; byte++) crc = crc >> 8 ^ castagnoli_tables[0][crc & 255];
        shift[bit / 8][1u << bit % 8] = crc;
    }
    for (int place = 0; place < 4; place++) {
        shift[place][0] = 0;
        for (int byte = 1; byte < 256; byte++)
            if (byte & (byte - 1)) shift[place][byte] = shift[place][byte & (byte - 1)] ^ shift[place][byte & -byte];
    }
}

static void build_checksums(void) {
    build_tables(ieee_tables, 0xEDB88320u);
    build_tables(castagnoli_tables, 0x82F63B78u);
    build_shift(long_shift, LONG_LANE);
    build_shift(short_shift, SHORT_LANE);
#ifdef CAN_FOLD
    build_moves();
#endif
}

static uint32_t crc32_ieee(const uint8_t *at, size_t size) { return crc_by_tables(ieee_tables, 0, at, size); }

static uint32_t crc32c_portable(const uint8_t *at, size_t size) { return crc_by_tables(castagnoli_tables, 0, at, size); }

#ifdef HARDWARE_CRC

static inline uint32_t move_register(uint32_t shift[4][256], uint32_t crc) {
    return shift[0][crc & 255] ^ shift[1][crc >> 8 & 255] ^ shift[2][crc >> 16 & 255] ^ shift[3][crc >> 24];
}

HARDWARE_CRC static inline uint32_t crc_three_lanes(uint32_t shift[4][256], uint32_t crc, const uint8_t *at, int lane) {
    uint64_t first = crc, second = 0, third = 0;
    for (const uint8_t *end = at + lane; at < end; at += 8) {
        first = CRC_STEP_8(first, load_64(at));
        second = CRC_STEP_8(second, load_64(at + lane));
        third = CRC_STEP_8(third, load_64(at + 2 * lane));
    }
    crc = move_register(shift, (uint32_t)first) ^ (uint32_t)second;
    return move_register(shift, crc) ^ (uint32_t)third;
}

HARDWARE_CRC static uint32_t crc32c_hardware(uint32_t crc, const uint8_t *at, size_t size) {
    crc = ~crc;
    for (; size >= 3 * LONG_LANE; at += 3 * LONG_LANE, size -= 3 * LONG_LANE)
        crc = crc_three_lanes(long_shift, crc, at, LONG_LANE);
    for (; size >= 3 * SHORT_LANE; at += 3 * SHORT_LANE, size -= 3 * SHORT_LANE)
        crc = crc_three_lanes(short_shift, crc, at, SHORT_LANE);
    for (; size >= 8; at += 8, size -= 8) crc = (uint32_t)CRC_STEP_8(crc, load_64(at));
    for (; size; at++, size--) crc = CRC_STEP_1(crc, *at);
    return ~crc;
}

/* Return the checksum of all bytes so far. `crc` is the checksum of the bytes before these, 0 if there are none. */
static uint32_t crc32c_continued(uint32_t crc, const uint8_t *at, size_t size) {
#ifdef CAN_FOLD
    if (can_fold && size >= 256) return ~fold_crc(~crc, at, size);
#endif
    return HAS_HARDWARE_CRC() ? crc32c_hardware(crc, at, size) : crc_by_tables(castagnoli_tables, crc, at, size);
}

#else

static uint32_t crc32c_continued(uint32_t crc, const uint8_t *at, size_t size) {
    return crc_by_tables(castagnoli_tables, crc, at, size);
}

#endif

static uint32_t crc32c(const uint8_t *at, size_t size) { return crc32c_continued(0, at, size); }

/* CRC-32C by the processor's instruction if there is one, without folding; otherwise by tables. */
static uint32_t crc32c_by_instruction(const uint8_t *at, size_t size) {
#ifdef HARDWARE_CRC
    if (HAS_HARDWARE_CRC()) return crc32c_hardware(0, at, size);
#endif
    return crc32c_portable(at, size);
}
#endif
