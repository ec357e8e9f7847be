/* CRC-32C by folding, for x86-64 processors with an instruction that multiplies 64 bytes at a time without carries.

   A message is a polynomial over GF(2) whose highest coefficient is the lowest bit of its first byte. Its checksum is
   the remainder modulo the CRC's polynomial of degree 32. So if some bits are n places before other bits, they can be
   multiplied by x^n and added to the other bits: the remainder stays the same. Read 16 bytes as two words, the first 64
   places before the second. To move both by n places, multiply the first word by x^(n+64) and the second by x^n. Both
   powers are reduced modulo the polynomial beforehand, so that the products fit into 16 bytes. The instruction
   multiplies mirrored numbers, and its product is one place too far, so the powers used here are one lower. */

#ifndef TIEREDSTORE_FOLD_H
#define TIEREDSTORE_FOLD_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define FOLD_TARGET __attribute__((target("sse4.2,pclmul,avx512f,avx512vl,avx512dq,vpclmulqdq")))

/* x^n modulo the polynomial, mirrored as the instruction expects it. Each step of the loop multiplies by x. */
static uint64_t mirrored_power(int n) {
    uint32_t power = 1u << 31;
    while (n--) power = power >> 1 ^ (0x82F63B78u & (0u - (power & 1)));
    return (uint64_t)power << 32;
}

/* Constants that move both words by 256, 192, 128, 64, 48, 32 and 16 bytes. */
enum { BY_256, BY_192, BY_128, BY_64, BY_48, BY_32, BY_16, MOVES };
static const int move_bytes[MOVES] = {256, 192, 128, 64, 48, 32, 16};
static uint64_t moves[MOVES][2];

static int can_fold; /* 1 if processor and operating system support all instructions that are used here */

static void build_moves(void) {
    can_fold = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("vpclmulqdq");
    for (int move = 0; move < MOVES; move++) {
        moves[move][0] = mirrored_power(8 * move_bytes[move] + 63);
        moves[move][1] = mirrored_power(8 * move_bytes[move] - 1);
    }
}

FOLD_TARGET static inline __m512i move_512(int move) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)moves[move]));
}

FOLD_TARGET static inline __m512i fold_512(__m512i value, __m512i move, __m512i next) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, move, 0x00),
                                     _mm512_clmulepi64_epi128(value, move, 0x11), next, 0x96);
}

FOLD_TARGET static inline __m128i fold_128(__m128i value, int move, __m128i next) {
    __m128i by = _mm_loadu_si128((const __m128i *)moves[move]);
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(value, by, 0x00), _mm_clmulepi64_si128(value, by, 0x11)), next);
}

/* Fold 256 bytes or more. `crc` and the result are the register in the middle of a checksum, before the final
   inversion. */
FOLD_TARGET static uint32_t fold_crc(uint32_t crc, const uint8_t *at, size_t size) {
    __m512i first = _mm512_xor_si512(_mm512_loadu_si512(at), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i second = _mm512_loadu_si512(at + 64), third = _mm512_loadu_si512(at + 128), fourth = _mm512_loadu_si512(at + 192);
    __m512i move = move_512(BY_256);
    for (at += 256, size -= 256; size >= 256; at += 256, size -= 256) {
        first = fold_512(first, move, _mm512_loadu_si512(at));
        second = fold_512(second, move, _mm512_loadu_si512(at + 64));
        third = fold_512(third, move, _mm512_loadu_si512(at + 128));
        fourth = fold_512(fourth, move, _mm512_loadu_si512(at + 192));
    }
    fourth = fold_512(first, move_512(BY_192), fold_512(second, move_512(BY_128), fold_512(third, move_512(BY_64), fourth)));
    for (move = move_512(BY_64); size >= 64; at += 64, size -= 64) fourth = fold_512(fourth, move, _mm512_loadu_si512(at));
    __m128i rest = _mm512_extracti64x2_epi64(fourth, 3);
    rest = fold_128(_mm512_extracti64x2_epi64(fourth, 0), BY_48,
                    fold_128(_mm512_extracti64x2_epi64(fourth, 1), BY_32,
                             fold_128(_mm512_extracti64x2_epi64(fourth, 2), BY_16, rest)));
    for (; size >= 16; at += 16, size -= 16) rest = fold_128(rest, BY_16, _mm_loadu_si128((const __m128i *)at));
    uint64_t wide = _mm_crc32_u64(_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(rest)), (uint64_t)_mm_extract_epi64(rest, 1));
    for (; size; at++, size--) wide = _mm_crc32_u8((uint32_t)wide, *at);
    return (uint32_t)wide;
}

#endif
