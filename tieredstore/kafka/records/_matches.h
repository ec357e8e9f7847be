/* What decoders of LZ4 and snappy have in common: both write literals, and repeat what they have written.

   Copies go by steps of 16 bytes and may write up to SLACK bytes too many: there must be as many behind what a block
   comes to. What is written too much is written over by what follows. */

#ifndef TIEREDSTORE_MATCHES_H
#define TIEREDSTORE_MATCHES_H

#include "_bytes.h"

enum { SLACK = 64 };

/* `length` bytes that do not overlap with the target; `end` is that of the source. Most are few, so that as many are
   copied without asking. */
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

/* `length` bytes, one or more, that begin `distance` bytes before the target, where they reach into what they become. */
static void copy_period(uint8_t *to, size_t distance, size_t length) {
    const uint8_t *from = to - distance;
    if (distance < 8) {
        /* The first bytes one by one. From then on what is some periods back is the same, and is far enough. */
        for (int at = 0; at < 8; at++) to[at] = from[at];
        if (length <= 8) return;
        to += 8, length -= 8;
        from = to - (7 / distance + 1) * distance;
    }
    for (size_t at = 0; at < length; at += 8) memcpy(to + at, from + at, 8);
}

/* The same at any distance. */
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
