/* Copies for the decoders of LZ4 and snappy. Both formats consist of literals (new bytes) and matches, which repeat
   earlier output.

   Copies go in steps of 16 bytes and may write up to SLACK bytes too many, so SLACK bytes must follow the output of a
   block. Later output overwrites the surplus bytes. */

#ifndef TIEREDSTORE_MATCHES_H
#define TIEREDSTORE_MATCHES_H

#include "_bytes.h"

enum { SLACK = 64 };

/* Copy `length` bytes that do not overlap the target; `end` is the end of the source. Most literals are short, so the
   first step copies a fixed number of bytes without a branch. */
static inline void copy_literals(uint8_t *to, const uint8_t *from, size_t length, const uint8_t *end) {
    if (length > 16 || end - from < 16) {
        if (length <= 32 && end - from >= 32)
            memcpy(to, from, 32);
        else
            memcpy(to, from, length);
        return;
    }
    memcpy(to, from, 16);
}

/* Copy `length` bytes, one or more, from `distance` bytes before the target. Source and target may overlap. */
static void copy_period(uint8_t *to, size_t distance, size_t length) {
    const uint8_t *from = to - distance;
    if (distance < 8) {
        /* Copy the first bytes one by one. The output repeats with this distance as its period, so the rest can be
           copied from several periods back, which is far enough away for steps of 8 bytes. */
        for (int at = 0; at < 8; at++) to[at] = from[at];
        if (length <= 8) return;
        to += 8, length -= 8;
        from = to - (7 / distance + 1) * distance;
    }
    for (size_t at = 0; at < length; at += 8) memcpy(to + at, from + at, 8);
}

/* Copy a match of any distance. */
static inline void copy_match(uint8_t *to, size_t distance, size_t length) {
    const uint8_t *from = to - distance;
    if (distance < 16) {
        copy_period(to, distance, length);
        return;
    }
    memcpy(to, from, 16);
    memcpy(to + 16, from + 16, 16);
    if (length <= 32) return;
    for (size_t at = 32; at < length; at += 16) memcpy(to + at, from + at, 16);
}

#endif
