/* Finds one whole number in a JSON object. Checks the text to its end, as json.loads does.
 *
 * Handles only the common case. In all other cases (damaged text, escaped or repeated names, a number that is not whole
 * or does not fit 63 bits, deep nesting, Infinity, NaN) it fails, and the caller uses json.loads. It may fail for any
 * text, but must never succeed for a text that json.loads rejects. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define JSON_DEEPEST 64

typedef struct {
    const unsigned char *at, *end;
    const char *const *names;  /* path to the number, outermost first */
    const size_t *lengths;
    int depth;                 /* the number of names */
    int found;
    int64_t number;
} json_scan;

static inline void json_space(json_scan *s) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t')) s->at++;
}

/* Returns the number of bytes of a well-formed UTF-8 character beyond ASCII, or 0. */
static inline int json_utf8(const unsigned char *p, const unsigned char *end) {
#define TAIL(n) (p + (n) < end && (p[n] & 0xC0) == 0x80)
    unsigned char c = p[0];
    if (c >= 0xC2 && c <= 0xDF) return TAIL(1) ? 2 : 0;
    if (c == 0xE0) return TAIL(1) && TAIL(2) && p[1] >= 0xA0 ? 3 : 0;
    if (c == 0xED) return TAIL(1) && TAIL(2) && p[1] < 0xA0 ? 3 : 0;
    if (c > 0xE0 && c <= 0xEF) return TAIL(1) && TAIL(2) ? 3 : 0;
    if (c == 0xF0) return TAIL(1) && TAIL(2) && TAIL(3) && p[1] >= 0x90 ? 4 : 0;
    if (c == 0xF4) return TAIL(1) && TAIL(2) && TAIL(3) && p[1] < 0x90 ? 4 : 0;
    if (c > 0xF0 && c < 0xF4) return TAIL(1) && TAIL(2) && TAIL(3) ? 4 : 0;
#undef TAIL
    return 0;
}

static inline int json_hex(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Sets the highest bit of each of 8 bytes that is a quote, backslash, control character or not ASCII. After the first
 * such byte, bits of other bytes may be set too. */
static inline uint64_t json_special(uint64_t w) {
    const uint64_t ones = 0x0101010101010101ULL, high = 0x8080808080808080ULL;
    uint64_t quote = w ^ (ones * '"'), slash = w ^ (ones * '\\');
    return (w | (w - ones * 0x20) | (quote - ones) | (slash - ones)) & high;
}

/* Moves from the first character of a string to after its closing quote, and notes escapes. Returns 0 if invalid. */
static inline int json_string(json_scan *s, int *escapes) {
    const unsigned char *p = s->at, *end = s->end;
    *escapes = 0;
    for (;;) {
        while (end - p >= 8) {
            uint64_t w, special;
            memcpy(&w, p, 8);
            if (!(special = json_special(w))) { p += 8; continue; }
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            p += __builtin_ctzll(special) >> 3;
#endif
            break;
        }
        if (p >= end) return 0;
        if (*p == '"') { s->at = p + 1; return 1; }
        if (*p < 0x20) return 0;
        if (*p == '\\') {
            *escapes = 1;
            if (end - p < 2) return 0;
            if (p[1] == 'u') {
                if (end - p < 6 || !json_hex(p[2]) || !json_hex(p[3]) || !json_hex(p[4]) || !json_hex(p[5])) return 0;
                p += 6;
            } else if (p[1] && strchr("\"\\/bfnrt", p[1])) p += 2;
            else return 0;
        } else if (*p >= 0x80) {
            int bytes = json_utf8(p, end);
            if (!bytes) return 0;
            p += bytes;
        } else p++;
    }
}

static inline int json_digit(json_scan *s) { return s->at < s->end && *s->at >= '0' && *s->at <= '9'; }

/* Reads a number. ``plain`` is set if it is whole, not negative and fits ``number``. Returns 0 if invalid. */
static inline int json_number(json_scan *s, int *plain, int64_t *number) {
    const unsigned char *start;
    int negative = *s->at == '-';
    uint64_t sum = 0;
    if (negative) s->at++;
    if (!json_digit(s)) return 0;
    start = s->at;
    if (*s->at == '0') s->at++;
    else while (json_digit(s)) sum = sum * 10 + (uint64_t)(*s->at++ - '0');
    if (s->at - start > 400) return 0;
    *plain = !negative && s->at - start <= 19 && sum <= INT64_MAX;
    *number = *plain ? (int64_t)sum : 0;
    if (s->at < s->end && *s->at == '.') {
        *plain = 0;
        s->at++;
        if (!json_digit(s)) return 0;
        while (json_digit(s)) s->at++;
    }
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) {
        *plain = 0;
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-')) s->at++;
        if (!json_digit(s)) return 0;
        while (json_digit(s)) s->at++;
    }
    return 1;
}

static inline int json_word(json_scan *s, const char *word, ptrdiff_t length) {
    if (s->end - s->at < length || memcmp(s->at, word, (size_t)length)) return 0;
    s->at += length;
    return 1;
}

static int json_value(json_scan *s, int level, int deep);

/* Reads a JSON object whose opening brace is already read. ``level`` is the object's depth on the searched path; -1 if
   it is not on the path. */
static int json_object(json_scan *s, int level, int deep) {
    int seen = 0;
    json_space(s);
    if (s->at < s->end && *s->at == '}') { s->at++; return 1; }
    for (;;) {
        const unsigned char *name;
        int escapes, within = -1;
        if (s->at >= s->end || *s->at != '"') return 0;
        name = ++s->at;
        if (!json_string(s, &escapes)) return 0;
        if (level >= 0) {
            size_t length = (size_t)(s->at - name) - 1;
            if (escapes) return 0;
            if (length == s->lengths[level] && !memcmp(name, s->names[level], length)) {
                if (seen++) return 0;
                within = level + 1;
            }
        }
        json_space(s);
        if (s->at >= s->end || *s->at++ != ':') return 0;
        json_space(s);
        if (!json_value(s, within, deep)) return 0;
        json_space(s);
        if (s->at >= s->end) return 0;
        if (*s->at == '}') { s->at++; return 1; }
        if (*s->at++ != ',') return 0;
        json_space(s);
    }
}

static int json_array(json_scan *s, int deep) {
    json_space(s);
    if (s->at < s->end && *s->at == ']') { s->at++; return 1; }
    for (;;) {
        if (!json_value(s, -1, deep)) return 0;
        json_space(s);
        if (s->at >= s->end) return 0;
        if (*s->at == ']') { s->at++; return 1; }
        if (*s->at++ != ',') return 0;
        json_space(s);
    }
}

static int json_value(json_scan *s, int level, int deep) {
    int escapes, plain = 0;
    int64_t number;
    if (s->at >= s->end || deep >= JSON_DEEPEST) return 0;
    switch (*s->at) {
    case '"': s->at++; return json_string(s, &escapes);
    case '{': s->at++; return json_object(s, level == s->depth ? -1 : level, deep + 1);
    case '[': s->at++; return json_array(s, deep + 1);
    case 't': return json_word(s, "true", 4);
    case 'f': return json_word(s, "false", 5);
    case 'n': return json_word(s, "null", 4);
    default:
        if (*s->at != '-' && !json_digit(s)) return 0;
        if (!json_number(s, &plain, &number)) return 0;
        if (level == s->depth && plain) { s->found = 1; s->number = number; }
        return 1;
    }
}

/* Returns 1 if the number was found and the text is valid JSON to its end. */
static int json_whole_number(json_scan *s) {
    s->found = 0;
    json_space(s);
    if (s->at >= s->end || *s->at != '{' || !json_value(s, 0, 0)) return 0;
    json_space(s);
    return s->at == s->end && s->found;
}
