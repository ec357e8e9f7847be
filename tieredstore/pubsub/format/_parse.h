/* One record of MemQ ("LogMessage"), as stored in the expanded body of a Message:

       2  L: bytes of the next five rows, 11 + k + h; 0: they are absent
       8  write timestamp, ms
       1  k: length of the message id, unsigned
       k  message id
       2  h: length of the headers
       h  headers: 2 name length, name in UTF-8, 2 value length, value; one after the other
       4  key length, then the key
       4  value length, then the value

   All numbers are big-endian and signed, except for k. Source: ../../../docs/reference/batch-format.md. */

#ifndef TIEREDSTORE_MEMQ_PARSE_H
#define TIEREDSTORE_MEMQ_PARSE_H

#include <stdint.h>
#include <string.h>

#define FIELDS_WITHOUT_ID_AND_HEADERS 11
#define LEAST_RECORD 10

enum fault {
    NO_FAULT,
    CUT_OFF,          /* a field would end after the body */
    NEGATIVE_LENGTH,  /* a field has a negative length */
    FIELDS_DISAGREE,  /* L is not 11 + k + h */
    HEADERS_DISAGREE, /* the headers do not fill their h bytes */
    TOO_FEW_RECORDS,  /* the body ends before `count` records */
    BYTES_LEFT,       /* bytes follow the last record */
    OUTGROWN          /* the bytes have changed since they were measured */
};

struct span {
    const uint8_t *at;
    int32_t size;
};

struct record {
    int has_fields;
    int64_t timestamp;
    struct span id, headers, key, value;
};

struct totals {
    int64_t rows, key_bytes, key_nulls, value_bytes, id_bytes, id_nulls, timestamp_nulls;
    int64_t headers, headers_nulls, name_bytes, header_value_bytes;
    int names_ascii;
};

static inline uint16_t unsigned_16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }

static inline int32_t signed_16(const uint8_t *at) { return (int16_t)unsigned_16(at); }

static inline int32_t signed_32(const uint8_t *at) {
    return (int32_t)((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]);
}

static inline int64_t signed_64(const uint8_t *at) {
    return (int64_t)((uint64_t)(uint32_t)signed_32(at) << 32 | (uint32_t)signed_32(at + 4));
}

static inline uint8_t *write_16(uint8_t *at, uint32_t number) {
    at[0] = (uint8_t)(number >> 8), at[1] = (uint8_t)number;
    return at + 2;
}

static inline uint8_t *write_32(uint8_t *at, uint32_t number) {
    return write_16(write_16(at, number >> 16), number & 0xFFFF);
}

static inline uint8_t *write_64(uint8_t *at, uint64_t number) {
    return write_32(write_32(at, (uint32_t)(number >> 32)), (uint32_t)number);
}

/* Take a field after its length of four bytes. On a fault, `*at` is at the length. */
static inline enum fault take_long(const uint8_t **at, const uint8_t *end, struct span *field) {
    if (end - *at < 4) return CUT_OFF;
    int32_t size = signed_32(*at);
    if (size < 0) return NEGATIVE_LENGTH;
    if (end - *at - 4 < size) return CUT_OFF;
    field->at = *at + 4, field->size = size;
    *at += 4 + (int64_t)size;
    return NO_FAULT;
}

/* Take the record at `*at`, and move `*at` after it. On a fault, `*at` is at the wrong field. */
static inline enum fault take_record(const uint8_t **at, const uint8_t *end, struct record *record) {
    memset(record, 0, sizeof *record);
    if (end - *at < 2) return CUT_OFF;
    int32_t fields = signed_16(*at);
    if (fields < 0) return NEGATIVE_LENGTH;
    if (fields) {
        const uint8_t *first = *at + 2;
        if (end - first < fields) return CUT_OFF;
        if (fields < FIELDS_WITHOUT_ID_AND_HEADERS) return FIELDS_DISAGREE;
        record->has_fields = 1;
        record->timestamp = signed_64(first);
        record->id.at = first + 9, record->id.size = first[8];
        if (fields < FIELDS_WITHOUT_ID_AND_HEADERS + record->id.size) return FIELDS_DISAGREE;
        record->headers.at = first + 11 + record->id.size;
        record->headers.size = signed_16(record->headers.at - 2);
        if (record->headers.size < 0) return NEGATIVE_LENGTH;
        if (fields != FIELDS_WITHOUT_ID_AND_HEADERS + record->id.size + record->headers.size) return FIELDS_DISAGREE;
    }
    *at += 2 + fields;
    enum fault fault = take_long(at, end, &record->key);
    return fault ? fault : take_long(at, end, &record->value);
}

/* Take a name or a value within the headers. */
static inline enum fault take_short(const uint8_t **at, const uint8_t *end, struct span *field) {
    if (end - *at < 2) return HEADERS_DISAGREE;
    int32_t size = signed_16(*at);
    if (size < 0) return NEGATIVE_LENGTH;
    if (end - *at - 2 < size) return HEADERS_DISAGREE;
    field->at = *at + 2, field->size = size;
    *at += 2 + size;
    return NO_FAULT;
}

static inline int is_ascii(const uint8_t *at, int32_t size) {
    uint8_t seen = 0;
    for (int32_t i = 0; i < size; i++) seen |= at[i];
    return seen < 128;
}

/* Walk over the headers of a record and count them; on a fault, `*place` is the faulty byte. */
static inline enum fault count_headers(const struct span *headers, struct totals *totals, const uint8_t **place) {
    const uint8_t *at = headers->at, *end = at + headers->size;
    struct span name, value;
    while (at < end) {
        *place = at;
        enum fault fault = take_short(&at, end, &name);
        if (!fault) fault = take_short(&at, end, &value);
        if (fault) return fault;
        totals->headers++;
        totals->name_bytes += name.size;
        totals->header_value_bytes += value.size;
        if (!is_ascii(name.at, name.size)) totals->names_ascii = 0;
    }
    return NO_FAULT;
}

/* Check the record at `*at` and add it to the totals. On a fault, `*at` is at the faulty bytes. */
static inline enum fault measure_record(const uint8_t **at, const uint8_t *end, struct totals *totals) {
    struct record record;
    enum fault fault = take_record(at, end, &record);
    if (fault) return fault;
    if (record.headers.size) {
        const uint8_t *place = record.headers.at;
        fault = count_headers(&record.headers, totals, &place);
        if (fault) {
            *at = place;
            return fault;
        }
    } else {
        totals->headers_nulls++;
    }
    totals->rows++;
    totals->key_bytes += record.key.size, totals->key_nulls += !record.key.size;
    totals->value_bytes += record.value.size;
    totals->id_bytes += record.id.size, totals->id_nulls += !record.id.size;
    totals->timestamp_nulls += !record.has_fields;
    return NO_FAULT;
}

/* memcpy for sizes that are mostly short and differ from call to call. */
static inline void copy_span(uint8_t *to, const uint8_t *from, int32_t size) {
    if (size > 64) {
        memcpy(to, from, (size_t)size);
    } else if (size >= 8) {
        for (int32_t at = 0; at + 8 < size; at += 8) memcpy(to + at, from + at, 8);
        memcpy(to + size - 8, from + size - 8, 8);
    } else {
        for (int32_t at = 0; at < size; at++) to[at] = from[at];
    }
}

#endif
