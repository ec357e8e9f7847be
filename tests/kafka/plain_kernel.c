/* The sums and copies of the kernel against each other, for compilers and processors that have no Python here: prints two
   checksums of a fixed text, or what differs. */

#include <stdio.h>
#include <stdlib.h>
#include "_bytes.h"
int main(void) {
    static uint8_t data[70000], to[1200];
    uint32_t seed = 1; /* of a generator of its own: the text is the same everywhere */
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
    printf("%08x %08x\n", crc32c(data, sizeof data), crc32_ieee(data, sizeof data));
    return 0;
}
