/* Base64 into bytes, as strictly as few texts need it: in one of the alphabets, without padding, and without bits in the
   last letter that no byte takes. Whoever reads more leniently, or says what is wrong, does so in Python. */

#ifndef TIEREDSTORE_BASE64_H
#define TIEREDSTORE_BASE64_H

#include <stddef.h>
#include <stdint.h>

/* The six bits that a character stands for; 255 for any other one. */
static uint8_t standard_letters[256], url_safe_letters[256];

static void fill_letters(uint8_t letters[256], char last_but_one, char last) {
    static const char first[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    for (int value = 0; value < 256; value++) letters[value] = 255;
    for (int value = 0; value < 62; value++) letters[(uint8_t)first[value]] = (uint8_t)value;
    letters[(uint8_t)last_but_one] = 62;
    letters[(uint8_t)last] = 63;
}

static void fill_alphabets(void) {
    fill_letters(standard_letters, '+', '/');
    fill_letters(url_safe_letters, '-', '_');
}

/* The bytes that so many letters stand for; never one less than there are whole bytes in them. */
static inline size_t unpacked_size(size_t size) { return size * 3 / 4; }

/* Write the bytes of all letters, as many as unpacked_size tells; 0 unless each is one of the alphabet's and they are
   exactly as an encoder writes them. */
static inline int unpack_letters(const uint8_t letters[256], const uint8_t *at, size_t size, uint8_t *to) {
    uint32_t first, second, third, fourth;
    size_t left = size % 4;
    for (const uint8_t *end = at + (size - left); at < end; at += 4, to += 3) {
        first = letters[at[0]], second = letters[at[1]], third = letters[at[2]], fourth = letters[at[3]];
        if ((first | second | third | fourth) & 0xC0) return 0;
        first = first << 18 | second << 12 | third << 6 | fourth;
        to[0] = (uint8_t)(first >> 16), to[1] = (uint8_t)(first >> 8), to[2] = (uint8_t)first;
    }
    if (left < 2) return left == 0;
    first = letters[at[0]], second = letters[at[1]], third = left == 3 ? letters[at[2]] : 0;
    if ((first | second | third) & 0xC0 || (left == 3 ? third & 3 : second & 15)) return 0;
    to[0] = (uint8_t)(first << 2 | second >> 4);
    if (left == 3) to[1] = (uint8_t)(second << 4 | third >> 2);
    return 1;
}

#endif
