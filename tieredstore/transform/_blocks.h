/* Frames of Zstandard, and beginnings of them, by the system's libzstd, where there is one.

   A stream that is read to less than its end goes through a window of the library's own, and each byte of it is copied
   out of there. Block by block the bytes come where they belong. The functions are old ones, which the library keeps and
   calls deprecated: without one of them nothing is decompressed here.

   Whole frames are for the system's library as well, since those that Python's packages bring are built from one file of
   C, without the loops that the library has in assembly: they take a tenth longer. */

#ifndef TIEREDSTORE_BLOCKS_H
#define TIEREDSTORE_BLOCKS_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

static struct {
    void *(*create)(void);
    size_t (*release)(void *context);
    size_t (*begin)(void *context);
    size_t (*next)(void *context);
    size_t (*go_on)(void *context, void *to, size_t room, const void *from, size_t size);
    size_t (*decompress)(void *context, void *to, size_t room, const void *from, size_t size);
    unsigned (*is_error)(size_t code);
} blocks;

/* Look for the library, once. */
static void find_blocks(void) {
    unsigned (*version)(void) = NULL;
    void *library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    /* ISO C knows no way from an object's address to a function's; POSIX means this one. */
    *(void **)&version = dlsym(library, "ZSTD_versionNumber");
    *(void **)&blocks.release = dlsym(library, "ZSTD_freeDCtx");
    *(void **)&blocks.begin = dlsym(library, "ZSTD_decompressBegin");
    *(void **)&blocks.next = dlsym(library, "ZSTD_nextSrcSizeToDecompress");
    *(void **)&blocks.go_on = dlsym(library, "ZSTD_decompressContinue");
    *(void **)&blocks.decompress = dlsym(library, "ZSTD_decompressDCtx");
    *(void **)&blocks.is_error = dlsym(library, "ZSTD_isError");
    if (version && blocks.release && blocks.begin && blocks.next && blocks.go_on && blocks.decompress && blocks.is_error &&
        version() >= 10400)
        *(void **)&blocks.create = dlsym(library, "ZSTD_createDCtx");
}

/* NULL without a library, or without memory. */
static void *new_context(void) { return blocks.create ? blocks.create() : NULL; }

static void free_context(void *context) { blocks.release(context); }

/* How many bytes of the frame were written to `to`, `wanted` at least; -1 if it is damaged, ends before that, or takes
   more than `room`. Behind what is told the memory may have been written to, too. */
static int64_t take_beginning(
    void *context, const uint8_t *from, size_t size, uint8_t *to, size_t room, size_t wanted
) {
    size_t read = 0, written = 0;
    if (blocks.is_error(blocks.begin(context))) return -1;
    while (written < wanted) {
        size_t count, next = blocks.next(context);
        /* 0 at the frame's end. */
        if (!next || next > size - read) return -1;
        count = blocks.go_on(context, to + written, room - written, from + read, next);
        if (blocks.is_error(count) || count > room - written) return -1;
        read += next;
        written += count;
    }
    return (int64_t)written;
}

/* The bytes that the frames come to, of which there is nothing else; -1 if one is damaged or they take more than `room`. */
static int64_t take_whole(void *context, const uint8_t *from, size_t size, uint8_t *to, size_t room) {
    size_t count = blocks.decompress(context, to, room, from, size);
    return blocks.is_error(count) ? -1 : (int64_t)count;
}

#endif
