/* Small bodies in Zstandard by the system's libzstd, where there is one; its C interface is stable.

   The library that Python has keeps its functions to itself, and is one call of the interpreter for each body. That is
   little beside a large body, but of small ones threads then mostly wait for the interpreter's lock. The two may be of
   different versions, and notice different damage in streams without a checksum: that is for the batch's CRC to notice. */

#ifndef TIEREDSTORE_ZSTD_H
#define TIEREDSTORE_ZSTD_H

#include <dlfcn.h>
#include "_bytes.h"

enum {
    LEAST_ZSTD_HEADER = 6,
    ZSTD_SINGLE_SEGMENT = 32,
    /* Of the first flags: a bit that is reserved, and those that say that there is a dictionary. */
    ZSTD_UNUSUAL = 11,
    ZSTD_MOST_WINDOW = 26
};

static struct {
    unsigned (*version)(void);
    void *(*create)(void);
    size_t (*release)(void *context);
    size_t (*frame_size)(const void *from, size_t size);
    size_t (*decompress)(void *context, void *to, size_t room, const void *from, size_t size);
} zstd;

/* Look for the library, once; without it, or one of its functions, nothing is decompressed here. */
static void find_zstd(void) {
    void *library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    /* ISO C knows no way from an object's address to a function's; POSIX means this one. */
    *(void **)&zstd.version = dlsym(library, "ZSTD_versionNumber");
    *(void **)&zstd.release = dlsym(library, "ZSTD_freeDCtx");
    *(void **)&zstd.frame_size = dlsym(library, "ZSTD_findFrameCompressedSize");
    *(void **)&zstd.decompress = dlsym(library, "ZSTD_decompressDCtx");
    /* 1.4.0 has the last of these among what does not change. */
    if (zstd.version && zstd.release && zstd.frame_size && zstd.decompress && zstd.version() >= 10400)
        *(void **)&zstd.create = dlsym(library, "ZSTD_createDCtx");
}

static int has_zstd(void) { return zstd.create != NULL; }

/* The version of the library, as it counts them; 0 without it. */
static unsigned zstd_version(void) { return has_zstd() ? zstd.version() : 0; }

/* Over how many bytes a frame may reach back, by its header, if it fills the body and has nothing unusual; otherwise 0. */
static size_t zstd_window(const uint8_t *at, size_t size) {
    if (size < LEAST_ZSTD_HEADER || load_32(at) != 0xFD2FB528u || at[4] & ZSTD_UNUSUAL) return 0;
    if (zstd.frame_size(at, size) != size) return 0;
    if (at[4] & ZSTD_SINGLE_SEGMENT) return (size_t)1 << ZSTD_MOST_WINDOW;
    /* The eighths that its last bits add are left out: the bound is only lower for that. */
    return at[5] >> 3 > ZSTD_MOST_WINDOW - 10 ? 0 : (size_t)1 << (10 + (at[5] >> 3));
}

/* The bytes that the frame comes to; -1 if it is damaged, comes to more than `room`, or there is no memory. */
static int64_t expand_zstd_frame(void **context, const uint8_t *at, size_t size, uint8_t *to, size_t room) {
    size_t count;
    if (!*context && !(*context = zstd.create())) return -1;
    count = zstd.decompress(*context, to, room, at, size);
    return count > room ? -1 : (int64_t)count; /* errors are the greatest numbers */
}

#endif
